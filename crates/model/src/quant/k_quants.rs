//! Super-blocks of 256 weights (k-quants): one f16 scale (and minimum), sub-scales in 4 to 8 bits. Layouts as in ggml-common.h.

use super::dequantise::half_at;

/// `scales[16], qs[64], d, dmin`.
pub(super) fn q2_k(b: &[u8], out: &mut [f32]) {
    let (scales, qs) = (&b[..16], &b[16..80]);
    let (d, dmin) = (half_at(b, 80), half_at(b, 82));
    for (i, weight) in out.iter_mut().enumerate() {
        let (half, in_half) = (i / 128, i % 128);
        let (shift, within) = (2 * (in_half / 32), in_half % 32);
        let scale = scales[i / 16];
        let q = (qs[half * 32 + within] >> shift) & 3;
        *weight = d * f32::from(scale & 15) * f32::from(q) - dmin * f32::from(scale >> 4);
    }
}

/// `hmask[32], qs[64], scales[12], d`.
pub(super) fn q3_k(b: &[u8], out: &mut [f32]) {
    let (hmask, qs, packed) = (&b[..32], &b[32..96], &b[96..108]);
    let d = half_at(b, 108);
    for (i, weight) in out.iter_mut().enumerate() {
        let (half, in_half) = (i / 128, i % 128);
        let (step, within) = (in_half / 32, in_half % 32);
        let low = (qs[half * 32 + within] >> (2 * step)) & 3;
        let high = (hmask[within] >> (half * 4 + step)) & 1;
        let q = i32::from(low) - if high == 0 { 4 } else { 0 };
        *weight = d * (six_bit_scale(packed, i / 16) - 32) as f32 * q as f32;
    }
}

/// Scale `j` of 16 in Q3_K's 12 bytes: low nibbles in the first 8, two high bits in the last 4.
fn six_bit_scale(packed: &[u8], j: usize) -> i32 {
    let low = if j < 8 { packed[j] & 15 } else { packed[j - 8] >> 4 };
    let high = (packed[8 + j % 4] >> (2 * (j / 4))) & 3;
    i32::from(low | (high << 4))
}

/// Scale and minimum `j` of 8 in the 12 bytes of Q4_K and Q5_K.
fn scale_and_min(j: usize, packed: &[u8]) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        ((packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4), (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4))
    };
    (f32::from(scale), f32::from(min))
}

/// `d, dmin, scales[12], qs[128]`.
pub(super) fn q4_k(b: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let (packed, qs) = (&b[4..16], &b[16..144]);
    for (j, group) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(j, packed);
        let (d1, m1) = (d * scale, dmin * min);
        for (l, weight) in group.iter_mut().enumerate() {
            let byte = qs[(j / 2) * 32 + l];
            let q = if j % 2 == 0 { byte & 15 } else { byte >> 4 };
            *weight = d1 * f32::from(q) - m1;
        }
    }
}

/// `d, dmin, scales[12], qh[32], qs[128]`.
pub(super) fn q5_k(b: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let (packed, qh, qs) = (&b[4..16], &b[16..48], &b[48..176]);
    for (j, group) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(j, packed);
        let (d1, m1) = (d * scale, dmin * min);
        for (l, weight) in group.iter_mut().enumerate() {
            let byte = qs[(j / 2) * 32 + l];
            let low = if j % 2 == 0 { byte & 15 } else { byte >> 4 };
            let q = low + (((qh[l] >> j) & 1) << 4);
            *weight = d1 * f32::from(q) - m1;
        }
    }
}

/// `ql[128], qh[64], scales[16] signed, d`.
pub(super) fn q6_k(b: &[u8], out: &mut [f32]) {
    let (ql, qh, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = half_at(b, 208);
    for (i, weight) in out.iter_mut().enumerate() {
        let (half, in_half) = (i / 128, i % 128);
        let (step, l) = (in_half / 32, in_half % 32);
        let byte = ql[half * 64 + (step % 2) * 32 + l];
        let low = if step < 2 { byte & 15 } else { byte >> 4 };
        let high = (qh[half * 32 + l] >> (2 * step)) & 3;
        let q = i32::from(low | (high << 4)) - 32;
        *weight = d * f32::from(scales[i / 16] as i8) * q as f32;
    }
}
