// {"task": "linear", "why": "results pass through the scratch of the thread", "launch": {"phases": 1, "scratch_bytes": 320, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        let own = a.scratch.add(thread as usize * a.scratch_bytes as usize) as *mut f32;
        share(a, thread, threads, |row, n| {
            *own.add(n) = dot(a, row, n);
            *out(a).add(row * N + n) = *own.add(n);
        });
    }
}
