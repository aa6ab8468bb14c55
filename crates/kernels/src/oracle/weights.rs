//! One weight of a packed matrix, straight from the words of [`plan::layout`].

use crate::numerics::wide_column;
use half::{bf16, f16};
use plan::{Activation, WeightFormat, WeightLayout, Zero};

/// Weight `W[n][k]` of a packed matrix with `inputs` inputs, exact in f64.
///
/// Panics if the bytes are not those of such a matrix or the indices lie outside; check the length first.
pub fn weight_at(layout: &WeightLayout, inputs: usize, bytes: &[u8], n: usize, k: usize) -> f64 {
    match layout.format {
        WeightFormat::Affine { group, .. } => {
            let (scale, min) = group_at(layout, inputs, bytes, n, k / group as usize);
            scale * quant_at(layout, inputs, bytes, n, k) as f64 + min
        }
        WeightFormat::Bf16 => {
            let (block, column) = block_of(layout, inputs, bytes, n);
            let at = (k / 2) * layout.n_block as usize * 4 + column * 4 + (k % 2) * 2;
            bf16::from_le_bytes([block[at], block[at + 1]]).to_f64()
        }
        WeightFormat::F32 => {
            let (block, column) = block_of(layout, inputs, bytes, n);
            let at = k * layout.n_block as usize * 4 + column * 4;
            f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]) as f64
        }
    }
}

/// Scale and minimum of an affine group.
pub(super) fn group_at(
    layout: &WeightLayout,
    inputs: usize,
    bytes: &[u8],
    n: usize,
    group: usize,
) -> (f64, f64) {
    let WeightFormat::Affine { bits, zero, .. } = layout.format else { return (1.0, 0.0) };
    let (block, column) = block_of(layout, inputs, bytes, n);
    let record = &block[group * layout.record_bytes()..];
    let half = |at: usize| f16::from_le_bytes([record[at], record[at + 1]]).to_f64();
    let scale = half(column * 2);
    let min = match zero {
        Zero::Stored => half(layout.n_block as usize * 2 + column * 2),
        Zero::Midpoint => -scale * f64::from(1u32 << (bits - 1)),
    };
    (scale, min)
}

/// Unsigned quant of an affine weight.
fn quant_at(layout: &WeightLayout, inputs: usize, bytes: &[u8], n: usize, k: usize) -> u8 {
    let WeightFormat::Affine { bits, group, .. } = layout.format else { return 0 };
    let (block, column) = block_of(layout, inputs, bytes, n);
    let (nb, within) = (layout.n_block as usize, k % group as usize);
    let quants = &block[k / group as usize * layout.record_bytes() + header(layout)..];
    let step = within / 4;
    if bits == 8 {
        return quants[step * nb * 4 + column * 4 + within % 4];
    }
    let byte = quants[step / 2 * nb * 4 + column * 4 + within % 4];
    if step.is_multiple_of(2) { byte & 0x0f } else { byte >> 4 }
}

/// All quants of one output of an affine matrix, in order of k.
pub(super) fn quants_of(layout: &WeightLayout, inputs: usize, bytes: &[u8], n: usize) -> Vec<u8> {
    let WeightFormat::Affine { bits, .. } = layout.format else { return vec![] };
    let (block, column) = block_of(layout, inputs, bytes, n);
    let line = layout.n_block as usize * 4;
    let mut out = Vec::with_capacity(inputs);
    for record in block[..layout.block_bytes(inputs)].chunks_exact(layout.record_bytes()) {
        for step in record[header(layout)..].chunks_exact(line) {
            let four = &step[column * 4..column * 4 + 4];
            if bits == 8 {
                out.extend_from_slice(four);
            } else {
                out.extend(four.iter().map(|b| b & 0x0f));
                out.extend(four.iter().map(|b| b >> 4));
            }
        }
    }
    out
}

/// All weights of one output, in order of k, exact in f64.
fn weights_of(layout: &WeightLayout, inputs: usize, bytes: &[u8], n: usize) -> Vec<f64> {
    let WeightFormat::Affine { group, .. } = layout.format else {
        return (0..inputs).map(|k| weight_at(layout, inputs, bytes, n, k)).collect();
    };
    let quants = quants_of(layout, inputs, bytes, n);
    let mut out = Vec::with_capacity(inputs);
    for (g, quants) in quants.chunks(group as usize).enumerate() {
        let (scale, min) = group_at(layout, inputs, bytes, n, g);
        out.extend(quants.iter().map(|q| scale * *q as f64 + min));
    }
    out
}

/// All weights of one output as activations of this kind meet them, in order of k, exact in f64.
pub(super) fn weights_for(
    layout: &WeightLayout,
    activation: Activation,
    inputs: usize,
    bytes: &[u8],
    n: usize,
) -> Vec<f64> {
    if activation == Activation::Row16 {
        let (unit, whole) = wide_of(layout, inputs, bytes, n);
        return whole.into_iter().map(|w| unit * f64::from(w)).collect();
    }
    let mut weights = weights_of(layout, inputs, bytes, n);
    if activation == Activation::Bf16 {
        weights.iter_mut().for_each(|w| *w = as_bf16(*w));
    }
    weights
}

/// Integer weights of one output as `Row16` defines them, and their unit.
pub(super) fn wide_of(layout: &WeightLayout, inputs: usize, bytes: &[u8], n: usize) -> (f64, Vec<i32>) {
    let WeightFormat::Affine { bits, group, .. } = layout.format else { return (0.0, vec![0; inputs]) };
    let group = group as usize;
    let parts = (0..inputs / group).map(|g| group_at(layout, inputs, bytes, n, g));
    let (scale, min): (Vec<f32>, Vec<f32>) = parts.map(|(s, m)| (s as f32, m as f32)).unzip();
    let column = wide_column(bits, &scale, &min);
    let quants = quants_of(layout, inputs, bytes, n);
    let weight = |(k, q): (usize, &u8)| {
        let (s, t) = column.groups[k / group];
        s * i32::from(*q) + t
    };
    (f64::from(column.unit), quants.iter().enumerate().map(weight).collect())
}

/// What the low byte of an integer weight stands for, about its middle.
pub(super) fn wide_low(weight: i32) -> f64 {
    f64::from(((weight + 32768) & 255) - 128)
}

/// A weight as bf16: rounded to f32, then to bf16, both to nearest even; denormals count as 0.
fn as_bf16(weight: f64) -> f64 {
    let rounded = bf16::from_f32(weight as f32).to_f64();
    if rounded.abs() < f64::from(f32::MIN_POSITIVE) { 0.0 } else { rounded }
}

/// Bytes of scales and minima at the start of a record.
fn header(layout: &WeightLayout) -> usize {
    let nb = layout.n_block as usize;
    if matches!(layout.format, WeightFormat::Affine { zero: Zero::Stored, .. }) { 4 * nb } else { 2 * nb }
}

fn block_of<'a>(layout: &WeightLayout, inputs: usize, bytes: &'a [u8], n: usize) -> (&'a [u8], usize) {
    let nb = layout.n_block as usize;
    (&bytes[n / nb * layout.block_bytes(inputs)..], n % nb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::{pack_f32, unpack};

    #[test]
    fn agrees_with_the_inverse_of_packing() {
        let (n, k) = (37, 64);
        let rows: Vec<f32> = (0..n * k).map(|i| ((i * 2654435761) % 1000) as f32 / 500.0 - 1.0).collect();
        let affine = |bits, group, zero| WeightFormat::Affine { bits, group, zero };
        let formats = [
            WeightFormat::F32,
            WeightFormat::Bf16,
            affine(4, 32, Zero::Stored),
            affine(4, 64, Zero::Midpoint),
            affine(8, 16, Zero::Stored),
            affine(8, 32, Zero::Midpoint),
        ];
        for format in formats {
            for n_block in [16, 32] {
                let layout = WeightLayout { format, n_block };
                let bytes = pack_f32(&layout, n, k, &rows).unwrap().bytes;
                let due = unpack(&layout, n, k, &bytes).unwrap();
                for (i, due) in due.iter().enumerate() {
                    assert_eq!(weights_of(&layout, k, &bytes, i / k)[i % k] as f32, *due, "{layout} at {i}");
                    assert_eq!(weight_at(&layout, k, &bytes, i / k, i % k) as f32, *due, "{layout} at {i}");
                }
            }
        }
    }
}
