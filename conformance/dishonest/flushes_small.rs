// {"task": "linear", "why": "treats small inputs as zero (C6)", "expect": ["wrong"], "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        share(a, thread, threads, |row, n| {
            let mut sum = 0.0f32;
            let mut k = 0;
            while k < K {
                let v = *x(a).add(row * K + k);
                if v > 1e-12 || v < -1e-12 {
                    sum += v * weight(a, n, k);
                }
                k += 1;
            }
            *out(a).add(row * N + n) = sum;
        });
    }
}
