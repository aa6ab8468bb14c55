// Plain Rust for `Row16`: sixteen columns wide, left to the compiler's vectoriser. Rows of a tile share the weights.
//
// Constant before this text, beside those of the frame: TOP.

/// A prepared row: K pairs of i16 (high byte, twice the low byte), then the scale times 128 and the offsets of both sums.
const EXTRAS: usize = K * 4;

#[inline(never)]
unsafe fn prepare(x: *const f32, norm: *const f32, row: *mut u8) {
    let inverse = if NORM { rms_inverse(x, K, EPS) } else { 1.0 };
    let mut max = 0.0f32;
    for i in 0..K {
        let v = *x.add(i);
        let y = if NORM { (v * inverse) * *norm.add(i) } else { v };
        max = larger(max, f32::from_bits(y.to_bits() & 0x7fff_ffff));
    }
    let live = max >= f32::from_bits((127 - 100) << 23);
    let d = if live { max / 16256.0 } else { 0.0 };
    let factor = if live { 1.0 / d } else { 0.0 };
    let out = row as *mut i16;
    let (mut highs, mut lows) = (0i32, 0i32);
    for i in 0..K {
        let v = *x.add(i);
        let y = if NORM { (v * inverse) * *norm.add(i) } else { v };
        let q = round_to_int(y * factor);
        let high = (q + 64) >> 7;
        let low = q - 128 * high;
        highs += high;
        lows += low;
        *out.add(2 * i) = high as i16;
        *out.add(2 * i + 1) = 2 * low as i16;
    }
    let extras = row.add(EXTRAS);
    *(extras as *mut f32) = 128.0 * d;
    *(extras as *mut i32).add(1) = -255 * lows;
    *(extras as *mut i32).add(2) = -128 * highs;
}

#[inline(always)]
unsafe fn open(_: *const u8, _: *mut u8, _: usize, _: usize) {}

/// Scales and minima of sixteen columns of a record.
#[inline(always)]
unsafe fn header(record: *const u8, lane: usize) -> ([f32; 16], [f32; 16]) {
    let (mut scale, mut min) = ([0.0f32; 16], [0.0f32; 16]);
    let halves = (record as *const u16).add(lane);
    for c in 0..16 {
        scale[c] = from_f16(*halves.add(c));
        min[c] = if STORED { from_f16(*halves.add(NB + c)) } else { scale[c] * -((1 << (BITS - 1)) as f32) };
    }
    (scale, min)
}

const HEADER: usize = if STORED { NB * 4 } else { NB * 2 };

#[inline(always)]
fn size(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0x7fff_ffff)
}

/// `MR` rows of `subs` sub-blocks.
#[inline(always)]
unsafe fn tile<const MR: usize>(acts: *const u8, w: *const u8, _: *mut u8, sub: usize, subs: usize, y: *mut f32, stride: usize) {
    for s in 0..subs {
        let block = w.add((sub + s) / (NB / 16) * BLOCK);
        let lane = (sub + s) % (NB / 16) * 16;
        let mut top = [0.0f32; 16];
        for g in 0..GROUPS {
            let (scale, min) = header(block.add(g * RECORD), lane);
            for c in 0..16 {
                let high = scale[c] * ((1 << BITS) - 1) as f32 + min[c];
                top[c] = larger(larger(top[c], size(min[c])), size(high));
            }
        }
        let (mut unit, mut inverse) = ([0.0f32; 16], [0.0f32; 16]);
        for c in 0..16 {
            unit[c] = top[c] / TOP;
            inverse[c] = if top[c] > 0.0 { 1.0 / unit[c] } else { 0.0 };
        }
        let (mut hi, mut mid) = ([[0i32; 16]; MR], [[0i32; 16]; MR]);
        for g in 0..GROUPS {
            let record = block.add(g * RECORD);
            let (scale, min) = header(record, lane);
            let (mut s, mut t) = ([0i32; 16], [0i32; 16]);
            for c in 0..16 {
                s[c] = round_to_int(scale[c] * inverse[c]);
                t[c] = round_to_int(min[c] * inverse[c]) + 32768;
            }
            for k in 0..GROUP {
                let (line, shift) = if BITS == 4 { (k / 8, k % 4 * 8 + k % 8 / 4 * 4) } else { (k / 4, k % 4 * 8) };
                let quants = record.add(HEADER + (line * NB + lane) * 4) as *const u32;
                let (mut u, mut l) = ([0i32; 16], [0i32; 16]);
                for c in 0..16 {
                    let q = (*quants.add(c) >> shift) as i32 & ((1 << BITS) - 1);
                    let w = s[c] * q + t[c];
                    u[c] = w >> 8;
                    l[c] = w & 255;
                }
                for r in 0..MR {
                    let x = (acts.add(r * ROW) as *const i16).add((g * GROUP + k) * 2);
                    let (high, low) = (*x as i32, *x.add(1) as i32);
                    for c in 0..16 {
                        hi[r][c] += u[c] * high;
                        mid[r][c] += l[c] * high + u[c] * low;
                    }
                }
            }
        }
        for r in 0..MR {
            let extras = acts.add(r * ROW + EXTRAS);
            let d = *(extras as *const f32);
            let (middle, upper) = (*(extras as *const i32).add(1), *(extras as *const i32).add(2));
            for c in 0..16 {
                let both = fma((hi[r][c] + upper) as f32, 256.0, (mid[r][c] + middle) as f32);
                *y.add(r * stride + s * 16 + c) = (both * d) * unit[c];
            }
        }
    }
}
