// {"task": "rmsnorm", "why": "one row after another, 16 lanes and a tree as the class says", "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

/// Correctly rounded.
fn root(v: f32) -> f32 {
    let mut r = v;
    unsafe { core::arch::asm!("sqrtss {0}, {0}", inout(xmm_reg) r, options(pure, nomem, nostack)) };
    r
}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        let mut row = thread as usize;
        while row < a.rows as usize {
            let from = x(a).add(row * K);
            let mut lanes = [0.0f32; 16];
            let mut i = 0;
            while i < K {
                lanes[i % 16] += *from.add(i) * *from.add(i);
                i += 1;
            }
            let mut half = 8;
            while half > 0 {
                let mut j = 0;
                while j < half {
                    lanes[j % 16] += lanes[(j + half) % 16];
                    j += 1;
                }
                half /= 2;
            }
            let inverse = 1.0 / root(lanes[0] / K as f32 + 1e-5);
            let mut i = 0;
            while i < K {
                *out(a).add(row * K + i) = (*from.add(i) * inverse) * *norm(a).add(i);
                i += 1;
            }
            row += threads as usize;
        }
    }
}
