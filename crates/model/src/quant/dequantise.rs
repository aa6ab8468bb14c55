//! Dequantisation to f32, the same operations in the same order as ggml, so that results are equal bit for bit.

use super::{DataType, k_quants};
use half::{bf16, f16};

/// Dequantises whole blocks: `bytes` holds `out.len() / block_len` blocks of `format`.
///
/// # Panics
/// If the lengths do not fit together; loaders check them first.
pub fn dequantise_into(format: DataType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(format.row_bytes(out.len()), Some(bytes.len()), "{format}: bytes and weights do not match");
    let blocks = bytes.chunks_exact(format.block_bytes()).zip(out.chunks_exact_mut(format.block_len()));
    match format {
        DataType::F32 => blocks.for_each(|(b, o)| o[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        DataType::F16 => blocks.for_each(|(b, o)| o[0] = half_at(b, 0)),
        DataType::BF16 => blocks.for_each(|(b, o)| o[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        DataType::Q4_0 => blocks.for_each(|(b, o)| {
            let d = half_at(b, 0);
            for j in 0..16 {
                o[j] = (i32::from(b[2 + j] & 15) - 8) as f32 * d;
                o[j + 16] = (i32::from(b[2 + j] >> 4) - 8) as f32 * d;
            }
        }),
        DataType::Q4_1 => blocks.for_each(|(b, o)| {
            let (d, m) = (half_at(b, 0), half_at(b, 2));
            for j in 0..16 {
                o[j] = f32::from(b[4 + j] & 15) * d + m;
                o[j + 16] = f32::from(b[4 + j] >> 4) * d + m;
            }
        }),
        DataType::Q5_0 => blocks.for_each(|(b, o)| {
            let d = half_at(b, 0);
            for (j, weight) in o.iter_mut().enumerate() {
                *weight = (i32::from(five_bits(&b[2..22], j)) - 16) as f32 * d;
            }
        }),
        DataType::Q5_1 => blocks.for_each(|(b, o)| {
            let (d, m) = (half_at(b, 0), half_at(b, 2));
            for (j, weight) in o.iter_mut().enumerate() {
                *weight = f32::from(five_bits(&b[4..24], j)) * d + m;
            }
        }),
        DataType::Q8_0 => blocks.for_each(|(b, o)| {
            let d = half_at(b, 0);
            for j in 0..32 {
                o[j] = f32::from(b[2 + j] as i8) * d;
            }
        }),
        DataType::Q2_K => blocks.for_each(|(b, o)| k_quants::q2_k(b, o)),
        DataType::Q3_K => blocks.for_each(|(b, o)| k_quants::q3_k(b, o)),
        DataType::Q4_K => blocks.for_each(|(b, o)| k_quants::q4_k(b, o)),
        DataType::Q5_K => blocks.for_each(|(b, o)| k_quants::q5_k(b, o)),
        DataType::Q6_K => blocks.for_each(|(b, o)| k_quants::q6_k(b, o)),
    }
}

/// The f16 at byte `at`, widened.
pub(super) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Weight `j` of a Q5 block body: 4 bytes of high bits, then 16 bytes of nibbles (low half first, then high half).
pub(super) fn five_bits(body: &[u8], j: usize) -> u8 {
    let high = u32::from_le_bytes([body[0], body[1], body[2], body[3]]);
    let nibble = if j < 16 { body[4 + j] & 15 } else { body[4 + j - 16] >> 4 };
    nibble | (((high >> j) & 1) as u8) << 4
}
