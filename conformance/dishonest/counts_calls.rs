// {"task": "linear", "why": "counts its calls in a static (A3)", "expect": ["inspection"], "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

static CALLS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        CALLS.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        share(a, thread, threads, |row, n| *out(a).add(row * N + n) = dot(a, row, n));
    }
}
