//! Random packed weights.

use super::Tensor;
use super::pattern::{Draw, Pattern};
use crate::error::KernelError;
use crate::pack::pack_f32;
use half::f16;
use plan::{Epilogue, KvDtype, Operation, WeightFormat, WeightLayout, Zero};
use std::sync::Arc;

/// Packed weights of `operation`; `None` if it has none. Affine weights get every quant equally often, scales of both
/// signs, and minima near minus half the range.
///
/// Errors: a layout that the matrix cannot have.
pub fn weights(operation: &Operation, pattern: Pattern, seed: u64) -> Result<Option<Tensor>, KernelError> {
    let Some((layout, n, k)) = operation.weight() else { return Ok(None) };
    crate::oracle::supported(operation)?;
    let (n, k) = (n as usize, k as usize);
    let mut draw = Draw::new(seed, 1);
    let bytes = match layout.format {
        WeightFormat::Affine { .. } => affine(operation, &layout, (n, k), pattern, &mut draw),
        WeightFormat::F32 | WeightFormat::Bf16 => {
            let size = match pattern {
                Pattern::Huge => largest(operation).min(1e3),
                Pattern::Tiny => 1e-8,
                _ => 0.05,
            };
            let mut rows = draw.normals(n * k, size);
            if pattern == Pattern::ZeroRows {
                rows.chunks_mut(k).step_by(3).for_each(|row| row.fill(0.0));
            }
            pack_f32(&layout, n, k, &rows)?.bytes
        }
    };
    Ok(Some(Tensor::Bytes(Arc::new(bytes))))
}

/// Size of huge weights: what f16 minima hold, less where results go to an f16 cache.
fn largest(operation: &Operation) -> f32 {
    match operation {
        Operation::Linear { epilogue: Epilogue::QkvRope(q), .. } if q.kv.dtype == KvDtype::F16 => 50.0,
        _ => 3e4,
    }
}

fn affine(
    operation: &Operation,
    layout: &WeightLayout,
    (n, k): (usize, usize),
    pattern: Pattern,
    draw: &mut Draw,
) -> Vec<u8> {
    let WeightFormat::Affine { bits, zero, .. } = layout.format else { return vec![] };
    let nb = layout.n_block as usize;
    let mut bytes = vec![0u8; layout.bytes(n, k)];
    draw.bytes(&mut bytes);
    let header = if zero == Zero::Stored { 4 * nb } else { 2 * nb };
    let base = match pattern {
        Pattern::Huge => 2.0 * largest(operation) / (1u32 << bits) as f32,
        Pattern::Tiny => 1e-6,
        _ => 0.8 / (1u32 << bits) as f32,
    };
    // Sums over a long k must still fit an f16 cache, even if all weights pull one way.
    let base = if largest(operation) < 3e4 { base * (1024.0 / k as f32).min(1.0) } else { base };
    let middle = ((1u32 << bits) - 1) as f32 / 2.0;
    let records = k / layout.group(k);
    for (r, record) in bytes.chunks_exact_mut(layout.record_bytes()).enumerate() {
        let used = (n - r / records * nb).min(nb);
        match pattern {
            Pattern::Saturating => record[header..].fill(0xff),
            Pattern::Constant => {
                let byte = record[header];
                record[header..].fill(byte);
            }
            _ => {}
        }
        for c in 0..nb {
            let dead = pattern == Pattern::ZeroRows && (r / records * nb + c).is_multiple_of(3);
            let sign = if draw.below(8) == 0 { -1.0 } else { 1.0 };
            let scale = if c >= used || dead { 0.0 } else { sign * base * draw.uniform(0.5, 1.5) };
            let min = if c >= used || dead { 0.0 } else { -scale * middle * draw.uniform(0.8, 1.2) };
            record[2 * c..2 * c + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            if zero == Zero::Stored {
                record[2 * nb + 2 * c..2 * nb + 2 * c + 2].copy_from_slice(&f16::from_f32(min).to_le_bytes());
            }
            if c >= used {
                record[header..].chunks_exact_mut(4 * nb).for_each(|step| step[4 * c..4 * c + 4].fill(0));
            }
        }
    }
    bytes
}
