/// The part of `0..units` that is `thread`'s.
#[inline(always)]
fn share(units: usize, thread: u32, threads: u32) -> (usize, usize) {
    // Never zero threads; written so that no panic is reachable.
    let (thread, threads) = (thread as usize, threads.max(1) as usize);
    (units * thread / threads, units * (thread + 1) / threads)
}
