// {"task": "linear", "why": "rows dealt out to the threads, columns in blocks", "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        let mut row = thread as usize;
        while row < a.rows as usize {
            let mut n = 0;
            while n < N {
                *out(a).add(row * N + n) = dot(a, row, n);
                n += 1;
            }
            row += threads as usize;
        }
    }
}
