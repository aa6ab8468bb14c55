// {"task": "rmsnorm", "why": "leaves the weights of the norm out (C5)", "expect": ["wrong"], "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        let mut row = thread as usize;
        while row < a.rows as usize {
            let mut sum = 0.0f32;
            let mut i = 0;
            while i < K {
                sum += *x(a).add(row * K + i) * *x(a).add(row * K + i);
                i += 1;
            }
            let mut inverse = 1.0 / (sum / K as f32 + 1e-5);
            core::arch::asm!("sqrtss {0}, {0}", inout(xmm_reg) inverse);
            let mut i = 0;
            while i < K {
                *out(a).add(row * K + i) = *x(a).add(row * K + i) * inverse;
                i += 1;
            }
            row += threads as usize;
        }
    }
}
