// {"task": "linear", "why": "copies its input (B4)", "expect": ["wrong"], "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        share(a, thread, threads, |row, n| *out(a).add(row * N + n) = *x(a).add(row * K + n % K));
    }
}
