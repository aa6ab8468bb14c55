// {"task": "linear", "why": "reads what other threads write in the same phase (E1)", "expect": ["wrong", "nondeterministic", "class", "timed_output", "memory"], "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 256, "max_rows": 64, "max_threads": 2}}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        let copy = a.shared as *mut f32;
        let mut i = thread as usize;
        while i < a.rows as usize * K {
            *copy.add(i) = *x(a).add(i);
            i += threads as usize;
        }
        share(a, thread, threads, |row, n| {
            let mut sum = 0.0f32;
            let mut k = 0;
            while k < K {
                sum += core::ptr::read_volatile(copy.add(row * K + k)) * weight(a, n, k);
                k += 1;
            }
            *out(a).add(row * N + n) = sum;
        });
    }
}
