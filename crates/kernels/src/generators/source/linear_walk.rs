// The walk of most linear kernels: units of columns, and for each all rows in tiles, each followed by its epilogue.
//
// Stands between the frame and `open`, `tile` and `unit_rows`.

/// Raw results go to `OUT` at once.
const STRAIGHT: bool = EPILOGUE == STORE && N % 16 == 0;

/// All columns of this thread for `count` rows from `first`.
#[inline(always)]
unsafe fn chunk(a: &ArgsV1, first: usize, count: usize, acts: *const u8, scratch: *mut u8, thread: u32, threads: u32) {
    // Whole units where an epilogue needs them; else shares are cut at any sub-block, for balance.
    let whole = if EPILOGUE == STORE || EPILOGUE == ADD { 1 } else { UNIT_SUBS };
    let (from, to) = share(SUBS / whole, thread, threads);
    let (mut sub, end) = (from * whole, to * whole);
    while sub < end {
        let subs = smaller(UNIT_SUBS, end - sub);
        open(a.tensors[1].data, scratch, sub, subs);
        unit_rows(a, first, count, acts, scratch, sub, subs);
        sub += subs;
    }
}

/// One tile of `MR` rows of one unit: raw results, then the epilogue.
#[inline(always)]
unsafe fn rows_tile<const MR: usize>(a: &ArgsV1, row: usize, acts: *const u8, scratch: *mut u8, sub: usize, subs: usize) {
    let w = a.tensors[1].data as *const u8;
    if STRAIGHT {
        let out = (a.tensors[2].data as *mut f32).add(row * N + sub * 16);
        tile::<MR>(acts, w, scratch, sub, subs, out, N);
    } else {
        let y = scratch.add(UNIT_SCRATCH) as *mut f32;
        tile::<MR>(acts, w, scratch, sub, subs, y, UNIT);
        finish(a, row, MR, sub, subs, y, UNIT);
    }
}
