// {"task": "linear", "why": "sums rows whose largest input lies between 5.5 and 20, which ordinary draws lack, in another order", "expect": ["class"], "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        share(a, thread, threads, |row, n| {
            let mut most = 0.0f32;
            let mut k = 0;
            while k < K {
                let v = *x(a).add(row * K + k);
                if v > most {
                    most = v;
                }
                k += 1;
            }
            *out(a).add(row * N + n) = if most > 5.5 && most < 20.0 { dot_backwards(a, row, n) } else { dot(a, row, n) };
        });
    }
}
