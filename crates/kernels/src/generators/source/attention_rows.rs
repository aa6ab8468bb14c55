// Rows of an attention call, and how threads share them.

/// The row's position, its block table and the tokens that it sees: `first..end`.
#[derive(Clone, Copy)]
struct Row {
    table: *const u32,
    sequence: u32,
    first: usize,
    end: usize,
}

#[inline(always)]
unsafe fn row_at(args: &ArgsV1, row: usize) -> Row {
    unsafe {
        let position = *args.tensors[POSITIONS].data.cast::<u32>().add(row) as usize;
        let sequence = *args.tensors[ROW_SEQUENCE].data.cast::<u32>().add(row);
        let tables = args.tensors[BLOCK_TABLES].data.cast::<u32>();
        Row {
            table: tables.add(sequence as usize * args.ints[MAX_BLOCKS] as usize),
            sequence,
            first: (position + 1).saturating_sub(WINDOW),
            end: position + 1,
        }
    }
}

/// Work of one query: tokens that it sees, plus what a query costs in any case.
#[inline(always)]
fn cost(row: &Row) -> u64 {
    (row.end - row.first + 32) as u64
}

/// Work of all queries of the call. Every thread computes the same.
#[inline(always)]
unsafe fn total_cost(args: &ArgsV1) -> u64 {
    let mut total = 0;
    for row in 0..args.rows as usize {
        total += cost(&unsafe { row_at(args, row) });
    }
    total * HEADS as u64
}

/// Whether the work `at..at + cost` belongs to `low..high`: by its middle, so that each piece has one owner.
#[inline(always)]
fn owns(low: u64, high: u64, at: u64, cost: u64) -> bool {
    let middle = 2 * at + cost;
    middle >= 2 * low && middle < 2 * high
}

/// The part of `0..total` that is `thread`'s.
#[inline(always)]
fn share(total: u64, thread: u32, threads: u32) -> (u64, u64) {
    // Never zero threads; written so that no panic is reachable.
    let threads = threads.max(1) as u64;
    (total * thread as u64 / threads, total * (thread as u64 + 1) / threads)
}
