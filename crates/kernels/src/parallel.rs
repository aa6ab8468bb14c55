//! Deterministic data parallelism over disjoint chunks with scoped threads.

/// Below this much work one thread does it all: starting threads would cost more.
const SERIAL_BELOW: usize = 1 << 18;

/// Calls `run(index, chunk)` for every chunk of `chunk` elements (the last may be shorter), on all cores if there is
/// much `work` (elementary operations in total). The calls are independent, so the result does not depend on the number of threads.
pub(crate) fn for_each_chunk<T: Send>(
    data: &mut [T],
    chunk: usize,
    work: usize,
    run_chunk: impl Fn(usize, &mut [T]) + Sync,
) {
    if data.is_empty() || chunk == 0 {
        return;
    }
    let chunks = data.len().div_ceil(chunk);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = if work < SERIAL_BELOW { 1 } else { cores.min(chunks) };
    let share = chunks.div_ceil(threads);
    let run = |first: usize, part: &mut [T]| {
        for (i, piece) in part.chunks_mut(chunk).enumerate() {
            run_chunk(first + i, piece);
        }
    };
    std::thread::scope(|scope| {
        let mut parts = data.chunks_mut(share * chunk).enumerate();
        let own = parts.next();
        for (i, part) in parts {
            let run = &run;
            scope.spawn(move || run(i * share, part));
        }
        if let Some((_, part)) = own {
            run(0, part);
        }
    });
}
