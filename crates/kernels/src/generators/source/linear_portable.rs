// Plain Rust: sixteen columns wide, left to the compiler's vectoriser. Rows of a tile share the unpacking.

/// Where the scales of a prepared row begin: after f32 inputs none, after i16 quants `d` and then `t * d` (or the offset
/// `-2^(bits-1) * t`) of each group.
const SCALES: usize = K * 2;
const LIMIT: f32 = if ACTIVATION == ACT_I8 { 127.0 } else { 16256.0 };

#[inline(never)]
unsafe fn prepare(x: *const f32, norm: *const f32, row: *mut u8) {
    if ACTIVATION == ACT_I8 || ACTIVATION == ACT_I16 {
        let quants = row as *mut i16;
        let scales = row.add(SCALES) as *mut f32;
        quantise(
            x,
            norm,
            LIMIT,
            |i, q| {
                for l in 0..16 {
                    *quants.add(i + l) = q[l] as i16;
                }
            },
            |g, d, t| {
                *scales.add(g) = d;
                if STORED {
                    *scales.add(GROUPS + g) = t as f32 * d;
                } else {
                    *(scales.add(GROUPS + g) as *mut i32) = -(1 << (BITS - 1)) * t;
                }
            },
        );
        return;
    }
    let inverse = if NORM { rms_inverse(x, K, EPS) } else { 1.0 };
    let out = row as *mut f32;
    for i in 0..K {
        let v = *x.add(i);
        let y = if NORM { (v * inverse) * *norm.add(i) } else { v };
        *out.add(i) = if ACTIVATION == ACT_BF16 { from_bf16(to_bf16_activation(y)) } else { y };
    }
}

#[inline(always)]
unsafe fn open(_: *const u8, _: *mut u8, _: usize, _: usize) {}

/// `MR` rows of `subs` sub-blocks.
#[inline(always)]
unsafe fn tile<const MR: usize>(acts: *const u8, w: *const u8, _: *mut u8, sub: usize, subs: usize, y: *mut f32, stride: usize) {
    for s in 0..subs {
        let block = w.add((sub + s) / (NB / 16) * BLOCK);
        let lane = (sub + s) % (NB / 16) * 16;
        let acc = match (FORMAT, ACTIVATION) {
            (AFFINE, ACT_I8 | ACT_I16) => integer_tile::<MR>(acts, block, lane),
            (AFFINE, _) => affine_tile::<MR>(acts, block, lane),
            (BF16, _) => bf16_tile::<MR>(acts, block, lane),
            _ => f32_tile::<MR>(acts, block, lane),
        };
        for r in 0..MR {
            for c in 0..16 {
                *y.add(r * stride + s * 16 + c) = acc[r][c];
            }
        }
    }
}

/// Scales and minima of one record.
#[inline(always)]
unsafe fn header(record: *const u8, lane: usize) -> ([f32; 16], [f32; 16]) {
    let (mut scale, mut min) = ([0.0f32; 16], [0.0f32; 16]);
    let halves = (record as *const u16).add(lane);
    for c in 0..16 {
        scale[c] = from_f16(*halves.add(c));
        if STORED {
            min[c] = from_f16(*halves.add(NB + c));
        }
    }
    (scale, min)
}

const HEADER: usize = if STORED { NB * 4 } else { NB * 2 };

/// The four quants of sixteen columns at one step of a record, as bytes of an integer.
#[inline(always)]
unsafe fn quants(record: *const u8, lane: usize, step: usize) -> [u32; 16] {
    let data = record.add(HEADER) as *const u32;
    let mut q = [0u32; 16];
    for c in 0..16 {
        q[c] = if BITS == 8 {
            *data.add(step * NB + lane + c)
        } else {
            (*data.add(step / 2 * NB + lane + c) >> (step % 2 * 4)) & 0x0f0f_0f0f
        };
    }
    q
}

#[inline(always)]
unsafe fn integer_tile<const MR: usize>(acts: *const u8, block: *const u8, lane: usize) -> [[f32; 16]; MR] {
    let mut acc = [[0.0f32; 16]; MR];
    let mut g = 0;
    while g < GROUPS {
        let record = block.add(g * RECORD);
        let (scale, min) = header(record, lane);
        let mut sums = [[0i32; 16]; MR];
        if !STORED {
            for r in 0..MR {
                sums[r] = [*(acts.add(r * ROW + SCALES) as *const i32).add(GROUPS + g); 16];
            }
        }
        let mut step = 0;
        while step < GROUP / 4 {
            let q = quants(record, lane, step);
            for r in 0..MR {
                let x = (acts.add(r * ROW) as *const i16).add(g * GROUP + step * 4);
                for j in 0..4 {
                    let v = *x.add(j) as i32;
                    for c in 0..16 {
                        sums[r][c] += ((q[c] >> (8 * j)) & 0xff) as i32 * v;
                    }
                }
            }
            step += 1;
        }
        for r in 0..MR {
            let scales = acts.add(r * ROW + SCALES) as *const f32;
            let d = *scales.add(g);
            for c in 0..16 {
                acc[r][c] = fma(sums[r][c] as f32 * d, scale[c], acc[r][c]);
            }
            if STORED {
                let t = *scales.add(GROUPS + g);
                for c in 0..16 {
                    acc[r][c] = fma(t, min[c], acc[r][c]);
                }
            }
        }
        g += 1;
    }
    acc
}

#[inline(always)]
unsafe fn affine_tile<const MR: usize>(acts: *const u8, block: *const u8, lane: usize) -> [[f32; 16]; MR] {
    let mut acc = [[0.0f32; 16]; MR];
    let mut g = 0;
    while g < GROUPS {
        let record = block.add(g * RECORD);
        let (scale, min) = header(record, lane);
        let mut step = 0;
        while step < GROUP / 4 {
            let q = quants(record, lane, step);
            for i in 0..4 {
                // Pairs of bf16 are summed with the second one first.
                let j = if ACTIVATION == ACT_BF16 { i ^ 1 } else { i };
                let mut weight = [0.0f32; 16];
                for c in 0..16 {
                    let v = ((q[c] >> (8 * j)) & 0xff) as i32;
                    let w = if STORED { v as f32 * scale[c] + min[c] } else { (v - (1 << (BITS - 1))) as f32 * scale[c] };
                    weight[c] = if ACTIVATION == ACT_BF16 { from_bf16(to_bf16_activation(w)) } else { w };
                }
                add::<MR>(&mut acc, acts, g * GROUP + step * 4 + j, weight);
            }
            step += 1;
        }
        g += 1;
    }
    acc
}

/// `acc = fma(x[i], weight, acc)`.
#[inline(always)]
unsafe fn add<const MR: usize>(acc: &mut [[f32; 16]; MR], acts: *const u8, i: usize, weight: [f32; 16]) {
    for r in 0..MR {
        let x = *(acts.add(r * ROW) as *const f32).add(i);
        for c in 0..16 {
            acc[r][c] = fma(x, weight[c], acc[r][c]);
        }
    }
}

#[inline(always)]
unsafe fn bf16_tile<const MR: usize>(acts: *const u8, block: *const u8, lane: usize) -> [[f32; 16]; MR] {
    let mut acc = [[0.0f32; 16]; MR];
    let mut step = 0;
    while step < K / 2 {
        let data = (block as *const u32).add(step * NB + lane);
        let (mut even, mut odd) = ([0.0f32; 16], [0.0f32; 16]);
        for c in 0..16 {
            let pair = *data.add(c);
            even[c] = f32::from_bits(pair << 16);
            odd[c] = f32::from_bits(pair & 0xffff_0000);
        }
        if ACTIVATION == ACT_BF16 {
            add::<MR>(&mut acc, acts, step * 2 + 1, odd);
            add::<MR>(&mut acc, acts, step * 2, even);
        } else {
            add::<MR>(&mut acc, acts, step * 2, even);
            add::<MR>(&mut acc, acts, step * 2 + 1, odd);
        }
        step += 1;
    }
    acc
}

#[inline(always)]
unsafe fn f32_tile<const MR: usize>(acts: *const u8, block: *const u8, lane: usize) -> [[f32; 16]; MR] {
    let mut acc = [[0.0f32; 16]; MR];
    let mut i = 0;
    while i < K {
        let data = (block as *const f32).add(i * NB + lane);
        let mut weight = [0.0f32; 16];
        for c in 0..16 {
            weight[c] = *data.add(c);
        }
        add::<MR>(&mut acc, acts, i, weight);
        i += 1;
    }
    acc
}
