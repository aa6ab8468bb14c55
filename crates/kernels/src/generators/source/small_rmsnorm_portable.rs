// RMSNorm, plain Rust. Calls of COLUMN_ROWS rows or fewer are split by columns: each thread sums the whole row, so that
// the result does not depend on the split, and writes its part of it.

unsafe fn normalise(args: &ArgsV1, row: usize, low: usize, high: usize) {
    unsafe {
        let x = args.tensors[X].data.cast::<f32>().add(row * WIDTH);
        let out = args.tensors[OUT].data.cast::<f32>().add(row * WIDTH);
        let weight = args.tensors[NORM].data.cast::<f32>();
        let mut lanes = [0.0f32; 16];
        for block in 0..WIDTH / 16 {
            for j in 0..16 {
                let v = *x.add(block * 16 + j);
                lanes[j] = v * v + lanes[j];
            }
        }
        for j in 0..WIDTH % 16 {
            let v = *x.add(WIDTH / 16 * 16 + j);
            lanes[j] = v * v + lanes[j];
        }
        let inverse = 1.0 / sqrt(total(&lanes) / WIDTH as f32 + EPS);
        for i in low..high {
            *out.add(i) = (*x.add(i) * inverse) * *weight.add(i);
        }
    }
}

/// # Safety
/// `args` describes an RmsNorm call of this width; `OUT` does not overlap `X`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel(args: *const ArgsV1, _phase: u32, thread: u32, threads: u32) {
    unsafe {
        let args = &*args;
        let rows = args.rows as usize;
        if rows <= COLUMN_ROWS {
            let (low, high) = share(WIDTH.div_ceil(16), thread, threads);
            for row in 0..rows {
                normalise(args, row, low * 16, (high * 16).min(WIDTH));
            }
        } else {
            let (low, high) = share(rows, thread, threads);
            for row in low..high {
                normalise(args, row, 0, WIDTH);
            }
        }
    }
}
