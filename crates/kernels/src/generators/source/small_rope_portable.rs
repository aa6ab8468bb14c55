// Bias, QK norm, rope and KV store, plain Rust: heads of all rows, shared evenly over the threads.

#[inline(always)]
unsafe fn store(to: *mut u8, i: usize, x: f32) {
    unsafe {
        match KV_KIND {
            0 => *to.cast::<f32>().add(i) = x,
            1 => *to.cast::<u16>().add(i) = f32_to_f16(x),
            _ => *to.cast::<u16>().add(i) = f32_to_bf16(x),
        }
    }
}

#[inline(always)]
unsafe fn norm(x: &mut [f32; DIM], weight: *const f32) {
    let mut lanes = [0.0f32; 16];
    for i in 0..DIM {
        lanes[i % 16] = x[i] * x[i] + lanes[i % 16];
    }
    let inverse = 1.0 / sqrt(total(&lanes) / DIM as f32 + EPS);
    for i in 0..DIM {
        x[i] = (x[i] * inverse) * unsafe { *weight.add(i) };
    }
}

/// `table`: cosines, then sines, of one position.
#[inline(always)]
unsafe fn rotate(x: &mut [f32; DIM], table: *const f32) {
    for i in 0..DIM / 2 {
        let (a, b) = (x[i], x[i + DIM / 2]);
        let (cos, sin) = unsafe { (*table.add(i), *table.add(DIM / 2 + i)) };
        x[i] = a * cos + -(b * sin);
        x[i + DIM / 2] = b * cos + a * sin;
    }
}

/// `head` counts query heads, then key heads, then value heads.
unsafe fn one_head(args: &ArgsV1, row: usize, head: usize) {
    unsafe {
        let from = args.tensors[X].data.cast::<f32>().add((row * ALL_HEADS + head) * DIM);
        let mut x = [0.0f32; DIM];
        for i in 0..DIM {
            x[i] = *from.add(i);
            if BIAS_ADDED {
                x[i] += *args.tensors[BIAS].data.cast::<f32>().add(head * DIM + i);
            }
        }
        let position = *args.tensors[POSITIONS].data.cast::<u32>().add(row) as usize;
        let table = args.tensors[ROPE].data.cast::<f32>().add(position * DIM);
        if head < HEADS {
            if QK_NORM {
                norm(&mut x, args.tensors[Q_NORM].data.cast());
            }
            rotate(&mut x, table);
            let out = args.tensors[OUT].data.cast::<f32>().add((row * HEADS + head) * DIM);
            for i in 0..DIM {
                *out.add(i) = x[i];
            }
            return;
        }
        let slot = *args.tensors[SLOTS].data.cast::<u32>().add(row) as usize;
        let (page, token) = (slot / TOKENS, slot % TOKENS);
        if head < HEADS + KV_HEADS {
            if QK_NORM {
                norm(&mut x, args.tensors[K_NORM].data.cast());
            }
            rotate(&mut x, table);
            let base = (page * KV_HEADS + head - HEADS) * DIM * TOKENS + token;
            for i in 0..DIM {
                store(args.tensors[K_CACHE].data, base + i * TOKENS, x[i]);
            }
        } else {
            let base = ((page * KV_HEADS + head - HEADS - KV_HEADS) * TOKENS + token) * DIM;
            for i in 0..DIM {
                store(args.tensors[V_CACHE].data, base + i, x[i]);
            }
        }
    }
}

/// # Safety
/// `args` describes a RopeKv call of these shapes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel(args: *const ArgsV1, _phase: u32, thread: u32, threads: u32) {
    unsafe {
        let args = &*args;
        let units = args.rows as usize * ALL_HEADS;
        let (low, high) = share(units, thread, threads);
        for unit in low..high {
            one_head(args, unit / ALL_HEADS, unit % ALL_HEADS);
        }
    }
}
