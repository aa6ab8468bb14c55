//! Packing of weight matrices into the declared layouts of [`plan::layout`], and the proven inverse.
//!
//! Matrices are row-major `[n][k]` (output, input). Large matrices are packed by several threads; the result does
//! not depend on their number.

use crate::error::KernelError;
use crate::parallel::for_each_chunk;
use crate::quantise::quantise_affine;
use half::{bf16, f16};
use plan::{WeightFormat, WeightLayout, Zero};

/// Rows of unsigned quants with a scale and a minimum for each group: `w = scale * q + min`.
#[derive(Clone, Debug, PartialEq)]
pub struct AffineRows {
    /// Bits of a quant, 4 or 8 (each still takes one byte of `q`).
    pub bits: u8,
    /// Values along k that share a scale; divides `k`.
    pub group: usize,
    /// Inputs of a row.
    pub k: usize,
    /// Quants, row-major `[n][k]`, each below `2^bits`.
    pub q: Vec<u8>,
    /// Scales, row-major `[n][k / group]`.
    pub scale: Vec<f32>,
    /// Minima, row-major `[n][k / group]`.
    pub min: Vec<f32>,
}

impl AffineRows {
    /// Number of rows (outputs).
    pub fn n(&self) -> usize {
        self.q.len().checked_div(self.k).unwrap_or(0)
    }

    /// The f32 values, row-major `[n][k]`, each rounded once.
    pub fn dequantise(&self) -> Vec<f32> {
        let mut out = vec![0.0f32; self.q.len()];
        let groups = out.chunks_exact_mut(self.group).zip(self.q.chunks_exact(self.group));
        for ((o, q), (s, m)) in groups.zip(self.scale.iter().zip(&self.min)) {
            for (o, q) in o.iter_mut().zip(q) {
                *o = affine_value(*s, *q, *m);
            }
        }
        out
    }

    /// Why the parts do not fit together, if so.
    fn refuse(&self, n: usize, k: usize) -> Option<String> {
        if self.k != k || self.q.len() != n * k {
            return Some(format!(
                "{} quants with k = {} where [{n}][{k}] was asked for",
                self.q.len(),
                self.k
            ));
        }
        if self.group == 0 || !k.is_multiple_of(self.group) {
            return Some(format!("group {} does not divide k = {k}", self.group));
        }
        let groups = n * (k / self.group);
        if self.scale.len() != groups || self.min.len() != groups {
            return Some(format!(
                "{} scales and {} minima where {groups} are due",
                self.scale.len(),
                self.min.len()
            ));
        }
        let all = self.q.iter().fold(0u8, |a, q| a | q);
        (self.bits < 8 && all >> self.bits != 0).then(|| format!("a quant does not fit {} bits", self.bits))
    }
}

/// A weight as kernels see it: the product of an f16 scale and an 8-bit quant is exact, the sum is rounded once.
pub(crate) fn affine_value(scale: f32, q: u8, min: f32) -> f32 {
    scale * q as f32 + min
}

/// A packed matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    /// `layout.bytes(n, k)` bytes.
    pub bytes: Vec<u8>,
    /// Largest relative error that rounding scales and minima to f16 made; 0 where all of them were f16 values.
    pub scale_error: f64,
}

/// Packs quantised rows. The format of the layout must be `Affine` with the bits and the group of `rows`.
///
/// Errors: shapes that do not fit, a scale or minimum beyond f16, a `Midpoint` layout for rows with other minima.
pub fn pack_affine(
    layout: &WeightLayout,
    n: usize,
    k: usize,
    rows: &AffineRows,
) -> Result<Packed, KernelError> {
    let fail = |what: String| KernelError::Pack { layout: layout.to_string(), what };
    if let Some(what) = layout.refuse(k).or_else(|| rows.refuse(n, k)) {
        return Err(fail(what));
    }
    let WeightFormat::Affine { bits, group, zero } = layout.format else {
        return Err(fail("quantised rows need an affine layout".into()));
    };
    if bits != rows.bits || group as usize != rows.group {
        return Err(fail(format!("rows have {} bits in groups of {}", rows.bits, rows.group)));
    }
    let midpoint = -((1u32 << (bits - 1)) as f32);
    if zero == Zero::Midpoint && rows.scale.iter().zip(&rows.min).any(|(s, m)| *m != midpoint * s) {
        return Err(fail(format!("a minimum is not {midpoint} times its scale")));
    }
    let stored = rows.scale.iter().chain(if zero == Zero::Stored { &rows.min[..] } else { &[] });
    let mut scale_error = 0.0f64;
    for value in stored {
        let half = f16::from_f32(*value);
        if !half.is_finite() {
            return Err(fail(format!("scale or minimum {value} does not fit f16")));
        }
        if half.to_f32() != *value {
            scale_error = scale_error.max((half.to_f64() / *value as f64 - 1.0).abs());
        }
    }
    let mut bytes = vec![0u8; layout.bytes(n, k)];
    for_each_chunk(&mut bytes, layout.block_bytes(k), n * k, |block, out| {
        pack_affine_block(layout, block, rows, out)
    });
    Ok(Packed { bytes, scale_error })
}

fn pack_affine_block(layout: &WeightLayout, block: usize, rows: &AffineRows, out: &mut [u8]) {
    let WeightFormat::Affine { bits, group, zero } = layout.format else { return };
    let (nb, group, k) = (layout.n_block as usize, group as usize, rows.k);
    let groups = k / group;
    for (g, record) in out.chunks_exact_mut(layout.record_bytes()).enumerate() {
        let (scales, rest) = record.split_at_mut(2 * nb);
        let (minima, quants) = rest.split_at_mut(if zero == Zero::Stored { 2 * nb } else { 0 });
        for c in 0..nb.min(rows.n() - block * nb) {
            let n = block * nb + c;
            scales[2 * c..2 * c + 2]
                .copy_from_slice(&f16::from_f32(rows.scale[n * groups + g]).to_le_bytes());
            if zero == Zero::Stored {
                minima[2 * c..2 * c + 2]
                    .copy_from_slice(&f16::from_f32(rows.min[n * groups + g]).to_le_bytes());
            }
            let q = &rows.q[n * k + g * group..][..group];
            if bits == 8 {
                for (step, four) in q.chunks_exact(4).enumerate() {
                    quants[(step * nb + c) * 4..][..4].copy_from_slice(four);
                }
            } else {
                for (pair, eight) in q.chunks_exact(8).enumerate() {
                    let byte = |j: usize| eight[j] | eight[4 + j] << 4;
                    quants[(pair * nb + c) * 4..][..4].copy_from_slice(&[byte(0), byte(1), byte(2), byte(3)]);
                }
            }
        }
    }
}

/// Packs f32 rows `[n][k]`: `F32` as they are, `Bf16` rounded to nearest even, `Affine` through [`quantise_affine`].
///
/// Errors: shapes that do not fit, values that are not finite or do not fit the format.
pub fn pack_f32(layout: &WeightLayout, n: usize, k: usize, rows: &[f32]) -> Result<Packed, KernelError> {
    let fail = |what: String| KernelError::Pack { layout: layout.to_string(), what };
    if let Some(what) = layout.refuse(k) {
        return Err(fail(what));
    }
    if rows.len() != n * k {
        return Err(fail(format!("{} values where [{n}][{k}] was asked for", rows.len())));
    }
    let limit = if layout.format == WeightFormat::Bf16 { bf16::MAX.to_f32() } else { f32::MAX };
    if let Some(at) = rows.iter().position(|v| v.is_nan() || v.abs() > limit) {
        return Err(fail(format!("value {} at row {}, column {} does not fit", rows[at], at / k, at % k)));
    }
    if let WeightFormat::Affine { bits, group, zero } = layout.format {
        return pack_affine(layout, n, k, &quantise_affine(bits, group as usize, zero, k, rows)?);
    }
    let mut bytes = vec![0u8; layout.bytes(n, k)];
    let bf = layout.format == WeightFormat::Bf16;
    for_each_chunk(&mut bytes, layout.block_bytes(k), n * k, |block, out| {
        let nb = layout.n_block as usize;
        for c in 0..nb.min(n - block * nb) {
            let row = &rows[(block * nb + c) * k..][..k];
            if bf {
                for (step, pair) in row.chunks_exact(2).enumerate() {
                    let [a, b] = [pair[0], pair[1]].map(|v| bf16::from_f32(v).to_le_bytes());
                    out[(step * nb + c) * 4..][..4].copy_from_slice(&[a[0], a[1], b[0], b[1]]);
                }
            } else {
                for (i, v) in row.iter().enumerate() {
                    out[(i * nb + c) * 4..][..4].copy_from_slice(&v.to_le_bytes());
                }
            }
        }
    });
    Ok(Packed { bytes, scale_error: 0.0 })
}

/// The quants, scales and minima of a packed affine matrix.
pub fn unpack_affine(
    layout: &WeightLayout,
    n: usize,
    k: usize,
    bytes: &[u8],
) -> Result<AffineRows, KernelError> {
    check_bytes(layout, n, k, bytes)?;
    let WeightFormat::Affine { bits, group, zero } = layout.format else {
        return Err(KernelError::Pack { layout: layout.to_string(), what: "not an affine layout".into() });
    };
    let (nb, group) = (layout.n_block as usize, group as usize);
    let groups = k / group;
    let mut rows = AffineRows {
        bits,
        group,
        k,
        q: vec![0; n * k],
        scale: vec![0.0; n * groups],
        min: vec![0.0; n * groups],
    };
    for row in 0..n {
        let (block, c) = (row / nb, row % nb);
        let block = &bytes[block * layout.block_bytes(k)..][..layout.block_bytes(k)];
        for (g, record) in block.chunks_exact(layout.record_bytes()).enumerate() {
            let half = |at: usize| f16::from_le_bytes([record[at], record[at + 1]]).to_f32();
            let scale = half(2 * c);
            let (min, quants) = match zero {
                Zero::Stored => (half(2 * nb + 2 * c), &record[4 * nb..]),
                Zero::Midpoint => (-((1u32 << (bits - 1)) as f32) * scale, &record[2 * nb..]),
            };
            rows.scale[row * groups + g] = scale;
            rows.min[row * groups + g] = min;
            for (i, q) in rows.q[row * k + g * group..][..group].iter_mut().enumerate() {
                *q = if bits == 8 {
                    quants[(i / 4 * nb + c) * 4 + i % 4]
                } else {
                    let byte = quants[(i / 8 * nb + c) * 4 + i % 4];
                    if i % 8 < 4 { byte & 15 } else { byte >> 4 }
                };
            }
        }
    }
    Ok(rows)
}

/// The weights `[n][k]` as kernels see them (`scale * q + min`, rounded once to f32).
pub fn unpack(layout: &WeightLayout, n: usize, k: usize, bytes: &[u8]) -> Result<Vec<f32>, KernelError> {
    check_bytes(layout, n, k, bytes)?;
    let nb = layout.n_block as usize;
    let mut out = vec![0.0f32; n * k];
    match layout.format {
        WeightFormat::Affine { .. } => return Ok(unpack_affine(layout, n, k, bytes)?.dequantise()),
        WeightFormat::F32 => {
            for (row, out) in out.chunks_exact_mut(k).enumerate() {
                let block = &bytes[row / nb * layout.block_bytes(k)..];
                for (i, v) in out.iter_mut().enumerate() {
                    let at = (i * nb + row % nb) * 4;
                    *v = f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
                }
            }
        }
        WeightFormat::Bf16 => {
            for (row, out) in out.chunks_exact_mut(k).enumerate() {
                let block = &bytes[row / nb * layout.block_bytes(k)..];
                for (i, v) in out.iter_mut().enumerate() {
                    let at = ((i / 2 * nb + row % nb) * 2 + i % 2) * 2;
                    *v = bf16::from_le_bytes([block[at], block[at + 1]]).to_f32();
                }
            }
        }
    }
    Ok(out)
}

fn check_bytes(layout: &WeightLayout, n: usize, k: usize, bytes: &[u8]) -> Result<(), KernelError> {
    let fail = |what: String| Err(KernelError::Pack { layout: layout.to_string(), what });
    if let Some(what) = layout.refuse(k) {
        return fail(what);
    }
    let due = layout.bytes(n, k);
    if bytes.len() != due {
        fail(format!("{} bytes where [{n}][{k}] takes {due}", bytes.len()))
    } else {
        Ok(())
    }
}

/// Rows of several quantised matrices one after another (queries, keys, values).
///
/// Errors: different bits, group or k; no matrix.
pub fn concat_rows(parts: &[&AffineRows]) -> Result<AffineRows, KernelError> {
    let same = |a: &AffineRows, b: &AffineRows| a.bits == b.bits && a.group == b.group && a.k == b.k;
    let Some(first) = parts.first() else {
        return Err(KernelError::Pack { layout: "rows".into(), what: "nothing to concatenate".into() });
    };
    if let Some(other) = parts.iter().find(|p| !same(first, p)) {
        let what = format!(
            "{} bits, group {}, k {} cannot follow {} bits, group {}, k {}",
            other.bits, other.group, other.k, first.bits, first.group, first.k
        );
        return Err(KernelError::Pack { layout: "rows".into(), what });
    }
    Ok(AffineRows {
        bits: first.bits,
        group: first.group,
        k: first.k,
        q: parts.iter().flat_map(|p| p.q.iter().copied()).collect(),
        scale: parts.iter().flat_map(|p| p.scale.iter().copied()).collect(),
        min: parts.iter().flat_map(|p| p.min.iter().copied()).collect(),
    })
}

/// Gate and up rows in alternating blocks of `n_block` (gate block 0, up block 0, gate block 1, ...).
///
/// Errors: different shapes, or a number of rows that `n_block` does not divide.
pub fn interleave_rows(
    gate: &AffineRows,
    up: &AffineRows,
    n_block: usize,
) -> Result<AffineRows, KernelError> {
    let n = check_interleave(gate.n(), up.n(), n_block)?;
    let both = concat_rows(&[gate, up])?;
    let groups = both.k / both.group;
    let order = interleaved_order(n, n_block);
    let pick = |row: usize, width: usize| row * width..(row + 1) * width;
    Ok(AffineRows {
        bits: both.bits,
        group: both.group,
        k: both.k,
        q: order.iter().flat_map(|r| both.q[pick(*r, both.k)].iter().copied()).collect(),
        scale: order.iter().flat_map(|r| both.scale[pick(*r, groups)].iter().copied()).collect(),
        min: order.iter().flat_map(|r| both.min[pick(*r, groups)].iter().copied()).collect(),
    })
}

/// [`interleave_rows`] for f32 rows `[ffn][k]`.
pub fn interleave_rows_f32(
    gate: &[f32],
    up: &[f32],
    k: usize,
    n_block: usize,
) -> Result<Vec<f32>, KernelError> {
    if k == 0 || !gate.len().is_multiple_of(k) {
        return Err(KernelError::Pack {
            layout: "rows".into(),
            what: format!("{} values, k = {k}", gate.len()),
        });
    }
    let n = check_interleave(gate.len() / k, up.len() / k, n_block)?;
    let row = |r: usize| if r < n { &gate[r * k..][..k] } else { &up[(r - n) * k..][..k] };
    Ok(interleaved_order(n, n_block).into_iter().flat_map(|r| row(r).iter().copied()).collect())
}

fn check_interleave(gate: usize, up: usize, n_block: usize) -> Result<usize, KernelError> {
    let fail = |what: String| Err(KernelError::Pack { layout: "rows".into(), what });
    if gate != up {
        return fail(format!("{gate} gate rows and {up} up rows"));
    }
    if n_block == 0 || !gate.is_multiple_of(n_block) {
        return fail(format!("blocks of {n_block} do not divide {gate} gate rows; use a smaller n_block"));
    }
    Ok(gate)
}

/// For each interleaved row its index in gate rows followed by up rows.
fn interleaved_order(n: usize, n_block: usize) -> Vec<usize> {
    let block = |b: usize| (b * n_block..(b + 1) * n_block).chain(n + b * n_block..n + (b + 1) * n_block);
    (0..n / n_block).flat_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn layout(bits: u8, group: u32, zero: Zero, n_block: u32) -> WeightLayout {
        WeightLayout { format: WeightFormat::Affine { bits, group, zero }, n_block }
    }

    fn affine_rows(seed: u64, bits: u8, group: usize, zero: Zero, n: usize, k: usize) -> AffineRows {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let half = |v: f32| f16::from_f32(v).to_f32();
        let scale: Vec<f32> = (0..n * k / group).map(|_| half(rng.random_range(0.001..0.1))).collect();
        let min = match zero {
            Zero::Stored => scale.iter().map(|_| half(rng.random_range(-1.0..1.0))).collect(),
            Zero::Midpoint => scale.iter().map(|s| -((1 << (bits - 1)) as f32) * s).collect(),
        };
        let q = (0..n * k).map(|_| (rng.random::<u8>()) >> (8 - bits)).collect();
        AffineRows { bits, group, k, q, scale, min }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn affine_rows_come_back(
            seed in any::<u64>(), n in 1usize..70, groups in 1usize..4, group in prop::sample::select(vec![16u32, 32, 64]),
            four in any::<bool>(), stored in any::<bool>(), n_block in prop::sample::select(vec![16u32, 32, 48]),
        ) {
            let zero = if stored { Zero::Stored } else { Zero::Midpoint };
            let layout = layout(if four { 4 } else { 8 }, group, zero, n_block);
            let k = groups * group as usize;
            let rows = affine_rows(seed, if four { 4 } else { 8 }, group as usize, zero, n, k);
            let packed = pack_affine(&layout, n, k, &rows).unwrap();
            prop_assert_eq!(packed.scale_error, 0.0);
            prop_assert_eq!(packed.bytes.len(), layout.bytes(n, k));
            prop_assert_eq!(&unpack_affine(&layout, n, k, &packed.bytes).unwrap(), &rows);
            prop_assert_eq!(unpack(&layout, n, k, &packed.bytes).unwrap(), rows.dequantise());
        }

        #[test]
        fn plain_rows_come_back(seed in any::<u64>(), n in 1usize..40, half_k in 1usize..20, bf in any::<bool>()) {
            let k = 2 * half_k;
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let rows: Vec<f32> = (0..n * k).map(|_| rng.random_range(-2.0..2.0)).collect();
            let format = if bf { WeightFormat::Bf16 } else { WeightFormat::F32 };
            let layout = WeightLayout { format, n_block: 16 };
            let packed = pack_f32(&layout, n, k, &rows).unwrap();
            let due: Vec<f32> = rows.iter().map(|v| if bf { bf16::from_f32(*v).to_f32() } else { *v }).collect();
            prop_assert_eq!(unpack(&layout, n, k, &packed.bytes).unwrap(), due);
        }
    }

    /// Bytes at hand-computed places, straight from the layout's words.
    #[test]
    fn bytes_lie_where_the_layout_says() {
        let (n, k) = (20, 64);
        let rows = affine_rows(5, 8, 32, Zero::Stored, n, k);
        let l = layout(8, 32, Zero::Stored, 16);
        let bytes = pack_affine(&l, n, k, &rows).unwrap().bytes;
        let record = 16 * 4 + 16 * 32;
        assert_eq!(l.record_bytes(), record);
        // row 17 is column 1 of block 1; k = 45 is group 1, step 3, j 1
        assert_eq!(bytes[2 * record + record + 64 + 3 * 64 + 4 + 1], rows.q[17 * 64 + 45]);
        let scale = f16::from_f32(rows.scale[17 * 2 + 1]).to_le_bytes();
        assert_eq!(bytes[3 * record + 2..3 * record + 4], scale);
        // columns 4.. of block 1 are padding
        assert!(bytes[3 * record + 8..3 * record + 32].iter().all(|b| *b == 0));

        let rows = affine_rows(6, 4, 32, Zero::Midpoint, n, k);
        let l = layout(4, 32, Zero::Midpoint, 16);
        let bytes = pack_affine(&l, n, k, &rows).unwrap().bytes;
        let record = 16 * 2 + 16 * 16;
        // k = 45 of group 1 is 13 within: pair 1, step 3 = high nibble, j 1
        assert_eq!(bytes[3 * record + 32 + 64 + 4 + 1] >> 4, rows.q[17 * 64 + 45]);
        assert_eq!(bytes[3 * record + 32 + 64 + 4 + 1] & 15, rows.q[17 * 64 + 41]);
    }

    #[test]
    fn what_does_not_fit_is_refused_or_reported() {
        let l = layout(4, 32, Zero::Stored, 16);
        let mut rows = affine_rows(7, 4, 32, Zero::Stored, 16, 32);
        rows.scale[3] = 0.1;
        let error = pack_affine(&l, 16, 32, &rows).unwrap().scale_error;
        assert!(error > 0.0 && error < 5e-4);
        rows.scale[3] = 70000.0;
        assert!(pack_affine(&l, 16, 32, &rows).is_err());
        rows.scale[3] = 0.0;
        rows.q[9] = 16;
        assert!(pack_affine(&l, 16, 32, &rows).is_err());
        let rows = affine_rows(8, 4, 32, Zero::Stored, 16, 32);
        assert!(pack_affine(&layout(4, 32, Zero::Midpoint, 16), 16, 32, &rows).is_err());
        assert!(pack_affine(&l, 16, 64, &rows).is_err());
        assert!(unpack(&l, 16, 32, &[0; 7]).is_err());
        let bf = WeightLayout { format: WeightFormat::Bf16, n_block: 16 };
        assert!(pack_f32(&bf, 1, 2, &[3.4e38, 0.0]).is_err());
        assert!(pack_f32(&bf, 1, 3, &[0.0; 3]).is_err());
    }

    #[test]
    fn merged_rows_keep_their_order() {
        let (a, b) =
            (affine_rows(9, 8, 16, Zero::Stored, 32, 16), affine_rows(10, 8, 16, Zero::Stored, 32, 16));
        let both = interleave_rows(&a, &b, 16).unwrap();
        assert_eq!(both.q[..256], a.q[..256]);
        assert_eq!(both.q[256..512], b.q[..256]);
        assert_eq!(both.q[512..768], a.q[256..]);
        assert_eq!(both.scale[16..32], b.scale[..16]);
        let plain = interleave_rows_f32(&a.dequantise(), &b.dequantise(), 16, 16).unwrap();
        assert_eq!(plain, both.dequantise());
        assert!(interleave_rows(&a, &b, 48).is_err());
        let all = concat_rows(&[&a, &b, &a]).unwrap();
        assert_eq!((all.n(), &all.q[512..1024]), (96, &b.q[..]));
        let other = affine_rows(9, 8, 32, Zero::Stored, 4, 32);
        assert!(concat_rows(&[&a, &other]).is_err());
    }

    /// Packing must not hold up a build: a generous bound that a quadratic slip would break.
    #[test]
    fn packing_is_fast_enough() {
        let (n, k) = (8192, 576);
        let rows = affine_rows(11, 4, 32, Zero::Stored, n, k);
        let began = std::time::Instant::now();
        pack_affine(&layout(4, 32, Zero::Stored, 16), n, k, &rows).unwrap();
        let packing = began.elapsed();
        let values = rows.dequantise();
        let began = std::time::Instant::now();
        quantise_affine(4, 32, Zero::Stored, k, &values).unwrap();
        eprintln!("{} weights: packed in {packing:?}, quantised in {:?}", n * k, began.elapsed());
        assert!(packing.as_secs_f64() < 2.0, "{packing:?}");
    }
}
