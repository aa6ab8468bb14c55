//! Quantisation of f32 rows to the affine formats, and from one affine format to another.
//!
//! Scales and minima come out as f16 values, and quants are chosen for those rounded values, so packing adds no error.

use crate::error::KernelError;
use crate::pack::AffineRows;
use crate::parallel::for_each_chunk;
use half::f16;
use plan::Zero;

/// Shrink factors of the range tried for 4-bit groups; the one with the least squared error wins.
const SHRINK: [f32; 6] = [1.0, 0.96, 0.92, 0.88, 0.83, 0.78];

/// Quantises rows of `k` values in groups of `group`.
///
/// `Stored`: scale and minimum from the range, refined by least squares over a small search (4 bits).
/// `Midpoint`: symmetric about `2^(bits-1)`.
///
/// Errors: bits other than 4 and 8, a group that does not divide `k` or is no multiple of 8, values that are not
/// finite or need a scale beyond f16.
pub fn quantise_affine(
    bits: u8,
    group: usize,
    zero: Zero,
    k: usize,
    rows: &[f32],
) -> Result<AffineRows, KernelError> {
    let fail = |what: String| KernelError::Pack { layout: format!("u{bits}g{group}"), what };
    if bits != 4 && bits != 8 {
        return Err(fail(format!("{bits} bits are not supported (4 and 8 are)")));
    }
    if group == 0
        || !group.is_multiple_of(8)
        || k == 0
        || !k.is_multiple_of(group)
        || !rows.len().is_multiple_of(k)
    {
        return Err(fail(format!(
            "{} values in rows of {k} do not split into groups of {group}",
            rows.len()
        )));
    }
    if let Some(at) = rows.iter().position(|v| !v.is_finite()) {
        return Err(fail(format!("value {} at row {}, column {}", rows[at], at / k, at % k)));
    }
    let mut groups = vec![Group::default(); rows.len() / group];
    let mut q = vec![0u8; rows.len()];
    let per_chunk = k / group;
    for_each_chunk(&mut groups, per_chunk, 8 * rows.len(), |row, groups| {
        for (g, out) in groups.iter_mut().enumerate() {
            let x = &rows[row * k + g * group..][..group];
            *out = match zero {
                Zero::Stored => stored_group(bits, x),
                Zero::Midpoint => midpoint_group(bits, x),
            };
        }
    });
    if let Some(at) = groups.iter().position(|g| !g.scale.is_finite() || !g.min.is_finite()) {
        return Err(fail(format!(
            "row {}, group {}: values do not fit f16 scales",
            at / per_chunk,
            at % per_chunk
        )));
    }
    for_each_chunk(&mut q, k, rows.len(), |row, q| {
        for (g, q) in q.chunks_exact_mut(group).enumerate() {
            groups[row * per_chunk + g].assign(bits, &rows[row * k + g * group..][..group], q);
        }
    });
    let (scale, min) = groups.iter().map(|g| (g.scale, g.min)).unzip();
    Ok(AffineRows { bits, group, k, q, scale, min })
}

/// Changes bits, group length or kind of zero. Exact where the target holds every source value (more bits or shorter
/// groups with stored minima, and more bits at the same midpoint form); otherwise the values are quantised anew.
///
/// Errors: as [`quantise_affine`].
pub fn requantise(rows: &AffineRows, bits: u8, group: usize, zero: Zero) -> Result<AffineRows, KernelError> {
    if let Some(exact) = requantise_exact(rows, bits, group, zero) {
        return Ok(exact);
    }
    quantise_affine(bits, group, zero, rows.k, &rows.dequantise())
}

/// The exact change of format, where there is one.
fn requantise_exact(rows: &AffineRows, bits: u8, group: usize, zero: Zero) -> Option<AffineRows> {
    if group == 0 || !rows.group.is_multiple_of(group) || bits < rows.bits || !matches!(bits, 4 | 8) {
        return None;
    }
    let shift = match zero {
        Zero::Stored => 0,
        Zero::Midpoint => {
            let midpoint = -((1u32 << (rows.bits - 1)) as f32);
            if rows.scale.iter().zip(&rows.min).any(|(s, m)| *m != midpoint * s) {
                return None;
            }
            (1u8 << (bits - 1)) - (1u8 << (rows.bits - 1))
        }
    };
    let repeat = rows.group / group;
    let spread = |v: &[f32]| v.iter().flat_map(|v| std::iter::repeat_n(*v, repeat)).collect::<Vec<f32>>();
    let scale = spread(&rows.scale);
    let min = match zero {
        Zero::Stored => spread(&rows.min),
        Zero::Midpoint => scale.iter().map(|s| -((1u32 << (bits - 1)) as f32) * s).collect(),
    };
    Some(AffineRows { bits, group, k: rows.k, q: rows.q.iter().map(|q| q + shift).collect(), scale, min })
}

/// Scale and minimum of one group, both f16 values.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    scale: f32,
    min: f32,
}

impl Group {
    fn rounded(scale: f32, min: f32) -> Self {
        Self { scale: f16::from_f32(scale).to_f32(), min: f16::from_f32(min).to_f32() }
    }

    fn symmetric(bits: u8, scale: f32) -> Self {
        let scale = f16::from_f32(scale).to_f32();
        Self { scale, min: -((1u32 << (bits - 1)) as f32) * scale }
    }

    fn inverse(self) -> f32 {
        if self.scale == 0.0 { 0.0 } else { 1.0 / self.scale }
    }

    fn assign(self, bits: u8, x: &[f32], out: &mut [u8]) {
        let (top, inverse) = (top(bits), self.inverse());
        for (o, x) in out.iter_mut().zip(x) {
            *o = nearest(*x, self.min, inverse, top) as u8;
        }
    }

    /// One pass over a group: squared error, and the sums that a least-squares fit needs, with quants less `offset` and
    /// values less `centre`. Eight running sums each, so that the loop vectorises.
    #[inline(always)]
    fn fit(self, bits: u8, x: &[f32], offset: f32, centre: f32) -> Fit {
        const LANES: usize = 8;
        let (top, inverse) = (top(bits), self.inverse());
        let mut sums = [[0.0f32; LANES]; 4];
        for x in x.chunks_exact(LANES) {
            for lane in 0..LANES {
                let q = nearest(x[lane], self.min, inverse, top);
                let e = self.scale * q + self.min - x[lane];
                let r = q - offset;
                sums[0][lane] += e * e;
                sums[1][lane] += r;
                sums[2][lane] += r * r;
                sums[3][lane] += r * (x[lane] - centre);
            }
        }
        let [error, q, qq, qx] = sums.map(|s| s.iter().sum());
        Fit { error, q, qq, qx }
    }
}

/// Sums of [`Group::fit`].
struct Fit {
    error: f32,
    q: f32,
    qq: f32,
    qx: f32,
}

fn top(bits: u8) -> f32 {
    ((1u32 << bits) - 1) as f32
}

/// Nearest quant, ties to even.
#[inline(always)]
fn nearest(x: f32, min: f32, inverse: f32, top: f32) -> f32 {
    /// Adding and subtracting it rounds to a whole number on every target.
    const WHOLE: f32 = 12_582_912.0;
    let t = (x - min) * inverse;
    let t = if t > 0.0 { t } else { 0.0 };
    let t = if t < top { t } else { top };
    (t + WHOLE) - WHOLE
}

fn range(x: &[f32]) -> (f32, f32) {
    let mut low = [f32::INFINITY; 8];
    let mut high = [f32::NEG_INFINITY; 8];
    for x in x.chunks(8) {
        for ((l, h), x) in low.iter_mut().zip(&mut high).zip(x) {
            *l = if *x < *l { *x } else { *l };
            *h = if *x > *h { *x } else { *h };
        }
    }
    (low.iter().fold(f32::INFINITY, |a, b| a.min(*b)), high.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b)))
}

fn stored_group(bits: u8, x: &[f32]) -> Group {
    let (low, high) = range(x);
    let plain = Group::rounded((high / top(bits)) - (low / top(bits)), low);
    let usable = plain.scale.is_finite() && plain.min.is_finite() && plain.scale > 0.0;
    if bits == 8 || !usable {
        return plain;
    }
    let n = x.len() as f32;
    let mean = x.iter().sum::<f32>() / n;
    let (middle, span) = ((low + high) * 0.5, high - low);
    let mut best = (f32::INFINITY, plain);
    for shrink in SHRINK {
        let first = Group::rounded(span * shrink / top(bits), middle - span * 0.5 * shrink);
        if first.scale <= 0.0 {
            continue;
        }
        let fit = first.fit(bits, x, 0.0, mean);
        keep(&mut best, fit.error, first);
        // Scale and minimum that fit the values best for these quants.
        let spread = fit.qq - fit.q * fit.q / n;
        let scale = fit.qx / spread;
        let refined = Group::rounded(scale, mean - scale * fit.q / n);
        if spread > 0.0 && refined.scale > 0.0 && refined.scale.is_finite() && refined.min.is_finite() {
            keep(&mut best, refined.fit(bits, x, 0.0, mean).error, refined);
        }
    }
    best.1
}

fn keep(best: &mut (f32, Group), error: f32, group: Group) {
    if error < best.0 {
        *best = (error, group);
    }
}

fn midpoint_group(bits: u8, x: &[f32]) -> Group {
    let (low, high) = range(x);
    let extreme = if -low > high { low } else { high };
    let half = (1u32 << (bits - 1)) as f32;
    if bits == 8 || extreme == 0.0 {
        return Group::symmetric(bits, extreme.abs() / (half - 1.0));
    }
    // The larger side takes the quant -2^(bits-1), which has no mirror image: the scale may be negative.
    let mut best = (f32::INFINITY, Group::symmetric(bits, -extreme / half));
    for shrink in SHRINK {
        let first = Group::symmetric(bits, -extreme * shrink / half);
        let fit = first.fit(bits, x, half, 0.0);
        keep(&mut best, fit.error, first);
        let refined = Group::symmetric(bits, fit.qx / fit.qq);
        if fit.qq > 0.0 && refined.scale.is_finite() {
            keep(&mut best, refined.fit(bits, x, half, 0.0).error, refined);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn noise(seed: u64, n: usize) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| (0..6).map(|_| rng.random_range(-1.0f32..1.0)).sum::<f32>() * 0.05).collect()
    }

    fn rms_error(a: &[f32], b: &[f32]) -> f64 {
        let sum: f64 = a.iter().zip(b).map(|(a, b)| ((a - b) as f64).powi(2)).sum();
        (sum / a.len() as f64).sqrt()
    }

    #[test]
    fn quants_are_the_nearest_and_scales_are_f16() {
        let x = noise(1, 64 * 96);
        for bits in [4u8, 8] {
            for zero in [Zero::Stored, Zero::Midpoint] {
                let rows = quantise_affine(bits, 32, zero, 96, &x).unwrap();
                let y = rows.dequantise();
                for (i, (x, y)) in x.iter().zip(&y).enumerate() {
                    let (s, m) = (rows.scale[i / 32], rows.min[i / 32]);
                    assert_eq!(f16::from_f32(s).to_f32(), s);
                    let top = ((1u32 << bits) - 1) as f32;
                    let inside = (*x - m) / s >= 0.0 && (*x - m) / s <= top;
                    assert!(
                        !inside || (x - y).abs() <= s.abs() * 0.5001,
                        "{bits} {zero:?}: {x} became {y} with scale {s}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_search_beats_the_plain_range() {
        let x = noise(2, 4096 * 32);
        let searched = quantise_affine(4, 32, Zero::Stored, 32, &x).unwrap();
        let plain: Vec<f32> = x
            .chunks(32)
            .flat_map(|x| {
                let (low, high) = range(x);
                let group = Group::rounded((high - low) / 15.0, low);
                let mut q = [0u8; 32];
                group.assign(4, x, &mut q);
                q.map(|q| group.scale * q as f32 + group.min)
            })
            .collect();
        let (a, b) = (rms_error(&x, &searched.dequantise()), rms_error(&x, &plain));
        assert!(a < 0.95 * b, "searched {a}, plain {b}");
        let symmetric = quantise_affine(4, 32, Zero::Midpoint, 32, &x).unwrap();
        assert!(rms_error(&x, &symmetric.dequantise()) < 1.3 * b);
    }

    #[test]
    fn eight_bits_err_by_less_than_a_step() {
        let x = noise(3, 64 * 64);
        for zero in [Zero::Stored, Zero::Midpoint] {
            let rows = quantise_affine(8, 64, zero, 64, &x).unwrap();
            assert!(rms_error(&x, &rows.dequantise()) < 0.002, "{zero:?}");
        }
    }

    #[test]
    fn odd_groups_are_kept() {
        for value in [0.0f32, 0.75, -0.75, 1e-30, 60000.0] {
            let x = vec![value; 32];
            for bits in [4u8, 8] {
                let y = quantise_affine(bits, 32, Zero::Stored, 32, &x).unwrap().dequantise();
                assert!(
                    y.iter().all(|y| (y - value).abs() <= value.abs() * 5e-4 + 1e-7),
                    "{value}: {}",
                    y[0]
                );
                let y = quantise_affine(bits, 32, Zero::Midpoint, 32, &x).unwrap().dequantise();
                assert!(
                    y.iter().all(|y| (y - value).abs() <= value.abs() * 0.01 + 1e-7),
                    "{value}: {}",
                    y[0]
                );
            }
        }
    }

    #[test]
    fn refused_inputs_say_where() {
        let mut x = vec![0.5f32; 64];
        x[40] = f32::NAN;
        let text = quantise_affine(4, 32, Zero::Stored, 32, &x).unwrap_err().to_string();
        assert!(text.contains("row 1, column 8"), "{text}");
        x[40] = 3e38;
        assert!(quantise_affine(4, 32, Zero::Stored, 32, &x).is_err());
        assert!(quantise_affine(5, 32, Zero::Stored, 32, &[0.0; 32]).is_err());
        assert!(quantise_affine(4, 48, Zero::Stored, 64, &[0.0; 64]).is_err());
    }

    #[test]
    fn requantising_to_a_richer_format_is_exact() {
        let x = noise(4, 8 * 128);
        let four = quantise_affine(4, 64, Zero::Midpoint, 128, &x).unwrap();
        for (bits, group, zero) in
            [(8, 64, Zero::Midpoint), (8, 32, Zero::Stored), (4, 16, Zero::Stored), (4, 32, Zero::Midpoint)]
        {
            let other = requantise(&four, bits, group, zero).unwrap();
            assert_eq!(other.dequantise(), four.dequantise(), "{bits} {group} {zero:?}");
        }
        let coarser = requantise(&four, 4, 128, Zero::Stored).unwrap();
        assert_eq!(coarser.group, 128);
        assert!(rms_error(&four.dequantise(), &coarser.dequantise()) < 0.03);
    }
}
