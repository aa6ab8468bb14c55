// AMX bf16: TDPBF16PS over 32 inputs, sixteen rows and up to four times sixteen columns; sums stay in tiles over all of k.
//
// Constants before this text, beside those of the frame: NR (sub-blocks of a tile: 1, 2 or 4). K is a multiple of 32.

#[inline(never)]
unsafe fn prepare(x: *const f32, norm: *const f32, row: *mut u8) {
    let inverse = if NORM { rms_inverse(x, K, EPS) } else { 1.0 };
    for i in 0..K {
        let v = *x.add(i);
        let y = if NORM { (v * inverse) * *norm.add(i) } else { v };
        *(row as *mut u16).add(i) = to_bf16_activation(y);
    }
}

#[inline(always)]
unsafe fn open(_: *const u8, _: *mut u8, _: usize, _: usize) {}

/// Tiles 0 to 3: sums, tile 4: rows, tile 5: weights.
const fn shapes(rows: u8) -> Shapes {
    let mut s = [0u8; 64];
    s[0] = 1;
    let mut t = 0;
    while t < 6 {
        s[16 + 2 * t] = 64;
        s[48 + t] = if t == 5 { 16 } else { rows };
        t += 1;
    }
    Shapes(s)
}

struct For<const MR: usize>;

impl<const MR: usize> For<MR> {
    const SHAPES: &'static Shapes = &shapes(MR as u8);
}

/// `MR` rows (at most sixteen) of `subs` sub-blocks.
#[inline(always)]
unsafe fn tile<const MR: usize>(acts: *const u8, w: *const u8, _: *mut u8, sub: usize, subs: usize, y: *mut f32, stride: usize) {
    configure(For::<MR>::SHAPES);
    let mut s = 0;
    while subs - s >= NR {
        columns::<NR>(acts, w, sub + s, y.add(s * 16), stride);
        s += NR;
    }
    while s < subs {
        columns::<1>(acts, w, sub + s, y.add(s * 16), stride);
        s += 1;
    }
    release();
}

/// Adds one product to tile C: weights at `p`, the rows in tile 4.
#[inline(always)]
unsafe fn product<const C: u32>(p: *const u8) {
    load_tile::<5>(p, NB * 4);
    dot_bf16::<C>();
}

#[inline(never)]
unsafe fn columns<const W: usize>(acts: *const u8, w: *const u8, sub: usize, y: *mut f32, stride: usize) {
    let mut at = [w; W];
    for j in 0..W {
        at[j] = w.add((sub + j) / (NB / 16) * BLOCK + (sub + j) % (NB / 16) * 64);
    }
    zero::<0>();
    zero::<1>();
    zero::<2>();
    zero::<3>();
    let mut i = 0;
    while i < K {
        load_tile::<4>(acts.add(i * 2), ROW);
        let step = i / 2 * NB * 4;
        product::<0>(at[0].add(step));
        if W > 1 {
            product::<1>(at[1 % W].add(step));
        }
        if W > 2 {
            product::<2>(at[2 % W].add(step));
            product::<3>(at[3 % W].add(step));
        }
        i += 32;
    }
    store_tile::<0>(y as *mut u8, stride * 4);
    if W > 1 {
        store_tile::<1>(y.add(16) as *mut u8, stride * 4);
    }
    if W > 2 {
        store_tile::<2>(y.add(32) as *mut u8, stride * 4);
        store_tile::<3>(y.add(48) as *mut u8, stride * 4);
    }
}
