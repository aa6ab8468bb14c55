// Bias, QK norm, rope and KV store with vectors: heads of all rows, shared evenly over the threads.

/// Vectors of half a head.
const HALF: usize = DIM / 2 / W;

type Head = [V; 2 * HALF];

#[inline(always)]
unsafe fn norm(x: &mut Head, weight: *const f32) {
    unsafe {
        let mut lanes = [zero(); PARTS];
        for i in 0..2 * HALF {
            lanes[i % PARTS] = fma(x[i], x[i], lanes[i % PARTS]);
        }
        let inverse = splat(1.0 / sqrt(total(lanes) / DIM as f32 + EPS));
        for i in 0..2 * HALF {
            x[i] = mul(mul(x[i], inverse), load(weight.add(i * W)));
        }
    }
}

/// `table`: cosines, then sines, of one position.
#[inline(always)]
unsafe fn rotate(x: &mut Head, table: *const f32) {
    unsafe {
        for i in 0..HALF {
            let (a, b) = (x[i], x[i + HALF]);
            let (cos, sin) = (load(table.add(i * W)), load(table.add(DIM / 2 + i * W)));
            x[i] = fma(a, cos, negate(mul(b, sin)));
            x[i + HALF] = fma(b, cos, mul(a, sin));
        }
    }
}

/// Stores a head as elements of the cache, one after another.
#[inline(always)]
unsafe fn store_cache(to: *mut u8, x: &Head) {
    unsafe {
        for i in 0..2 * HALF {
            match KV_KIND {
                0 => store(to.cast::<f32>().add(i * W), x[i]),
                1 => store_f16(to.cast::<u16>().add(i * W), x[i]),
                _ => store_bf16(to.cast::<u16>().add(i * W), x[i]),
            }
        }
    }
}

/// `head` counts query heads, then key heads, then value heads.
#[inline(always)]
unsafe fn one_head(args: &ArgsV1, row: usize, head: usize) {
    unsafe {
        let from = args.tensors[X].data.cast::<f32>().add((row * ALL_HEADS + head) * DIM);
        let mut x = [zero(); 2 * HALF];
        for i in 0..2 * HALF {
            x[i] = load(from.add(i * W));
            if BIAS_ADDED {
                x[i] = add(x[i], load(args.tensors[BIAS].data.cast::<f32>().add(head * DIM + i * W)));
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
            for i in 0..2 * HALF {
                store(out.add(i * W), x[i]);
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
            // Keys are dimension-major: rounded as a line first, then scattered.
            let mut line = [0u8; DIM * KV_BYTES];
            store_cache(line.as_mut_ptr(), &x);
            let base = (page * KV_HEADS + head - HEADS) * DIM * TOKENS + token;
            for i in 0..DIM {
                match KV_KIND {
                    0 => *args.tensors[K_CACHE].data.cast::<u32>().add(base + i * TOKENS) =
                        line.as_ptr().cast::<u32>().add(i).read_unaligned(),
                    _ => *args.tensors[K_CACHE].data.cast::<u16>().add(base + i * TOKENS) =
                        line.as_ptr().cast::<u16>().add(i).read_unaligned(),
                }
            }
        } else {
            let base = ((page * KV_HEADS + head - HEADS - KV_HEADS) * TOKENS + token) * DIM;
            store_cache(args.tensors[V_CACHE].data.add(base * KV_BYTES), &x);
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
