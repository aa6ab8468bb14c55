// {"task": "linear", "why": "leaves the work of the second thread undone (A1)", "expect": ["memory"], "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        if thread == 0 {
            share(a, 0, 2, |row, n| *out(a).add(row * N + n) = dot(a, row, n));
        }
        let _ = threads;
    }
}
