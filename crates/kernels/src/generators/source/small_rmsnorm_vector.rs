// RMSNorm with vectors. Calls of COLUMN_ROWS rows or fewer are split by columns: each thread sums the whole row, so that
// the result does not depend on the split, and writes its part of it.

unsafe fn normalise(args: &ArgsV1, row: usize, low: usize, high: usize) {
    unsafe {
        let x = args.tensors[X].data.cast::<f32>().add(row * WIDTH);
        let out = args.tensors[OUT].data.cast::<f32>().add(row * WIDTH);
        let weight = args.tensors[NORM].data.cast::<f32>();
        let mut lanes = [zero(); PARTS];
        let mut i = 0;
        while i < WIDTH {
            for part in 0..PARTS {
                let v = load(x.add(i + part * W));
                lanes[part] = fma(v, v, lanes[part]);
            }
            i += 16;
        }
        let inverse = splat(1.0 / sqrt(total(lanes) / WIDTH as f32 + EPS));
        let mut i = low;
        while i < high {
            store(out.add(i), mul(mul(load(x.add(i)), inverse), load(weight.add(i))));
            i += W;
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
            let (low, high) = share(WIDTH / 16, thread, threads);
            for row in 0..rows {
                normalise(args, row, low * 16, high * 16);
            }
        } else {
            let (low, high) = share(rows, thread, threads);
            for row in low..high {
                normalise(args, row, 0, WIDTH);
            }
        }
    }
}
