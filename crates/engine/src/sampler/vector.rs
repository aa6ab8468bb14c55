//! Passes over whole rows of logits, written so that the compiler vectorises them. Sums are taken in a fixed order,
//! so results do not depend on the machine's vector width.

const LANES: usize = 16;
/// Elements summed in f32 before they join an f64 sum.
const BLOCK: usize = 256;

/// The largest element, NaN ignored; minus infinity for none.
pub fn max(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            // A comparison with NaN is false, so the lane stays.
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |m, x| if *x > m { *x } else { m })
}

/// Index of the first largest element, NaN ignored; `None` if all are NaN or minus infinity.
pub fn argmax(row: &[f32]) -> Option<u32> {
    let max = max(row);
    if max == f32::NEG_INFINITY {
        return None;
    }
    let (chunks, tail) = row.as_chunks::<LANES>();
    for (number, chunk) in chunks.iter().enumerate() {
        // Branch once per chunk, compare in vectors.
        if chunk.iter().fold(false, |any, x| any | (*x == max)) {
            let offset = chunk.iter().position(|x| *x == max)?;
            return Some((number * LANES + offset) as u32);
        }
    }
    let offset = tail.iter().position(|x| *x == max)?;
    Some((chunks.len() * LANES + offset) as u32)
}

/// `exp(x)` for `x <= 0` within 2 ulp; 0 below -87 and for NaN. (Cephes `expf`: reduction by ln 2 in two parts,
/// polynomial of degree 5.)
#[inline]
fn exp_nonpositive(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    // NaN fails the comparison.
    let live = x > -87.0;
    let x = if live { x } else { -87.0 };
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5e-1;
    let y = p * r * r + r + 1.0;
    // The integer stands in the low bits of `shifted`; its high bits leave with the shift. (A cast would saturate,
    // which does not vectorise.)
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if live { y * scale } else { 0.0 }
}

/// Calls `visit(index, element)` for elements of at least `floor()`, in order, skipping whole chunks below it. The
/// floor may rise on the way. NaN is never visited.
pub fn visit_from(row: &[f32], mut floor: f32, mut visit: impl FnMut(u32, f32) -> f32) {
    for (number, chunk) in row.chunks(LANES).enumerate() {
        // Branch once per chunk, compare in vectors.
        if chunk.iter().fold(false, |any, x| any | (*x >= floor)) {
            for (offset, x) in chunk.iter().enumerate() {
                if *x >= floor {
                    floor = visit((number * LANES + offset) as u32, *x);
                }
            }
        }
    }
}

/// Writes `exp((logit - max) * scale)` to `weights` (as long as `logits`) and returns their sum. `max` is the finite
/// maximum of the row.
pub fn exp_weights(logits: &[f32], max: f32, scale: f32, weights: &mut [f32]) -> f64 {
    for (weight, logit) in weights.iter_mut().zip(logits) {
        *weight = exp_nonpositive((*logit - max) * scale);
    }
    weights.chunks(BLOCK).map(block_sum).sum()
}

/// Sum of at most [`BLOCK`] elements.
fn block_sum(block: &[f32]) -> f64 {
    let mut lanes = [0f32; LANES];
    let (chunks, tail) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x;
        }
    }
    lanes.iter().chain(tail).map(|x| f64::from(*x)).sum()
}

/// The index at which the running sum of `weights` passes `uniform * total`; `total` is what [`exp_weights`] gave.
/// Elements of weight 0 are never chosen.
pub fn inverse_cumulative(weights: &[f32], total: f64, uniform: f64) -> u32 {
    let target = uniform * total;
    let mut sum = 0.0;
    let mut last = 0;
    for (number, block) in weights.chunks(BLOCK).enumerate() {
        let whole = block_sum(block);
        if sum + whole > target {
            for (offset, weight) in block.iter().enumerate() {
                if *weight > 0.0 {
                    last = number * BLOCK + offset;
                    sum += f64::from(*weight);
                    if sum > target {
                        return last as u32;
                    }
                }
            }
            // Rounding: the block's parts fell short of its sum. Its last element with weight.
            return last as u32;
        }
        sum += whole;
        if let Some(offset) = block.iter().rposition(|w| *w > 0.0) {
            last = number * BLOCK + offset;
        }
    }
    last as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close() {
        let mut worst = 0f64;
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let (got, want) = (f64::from(exp_nonpositive(x)), f64::from(x).exp());
            worst = worst.max((got - want).abs() / want);
        }
        assert!(worst < 2.5e-7, "{worst}");
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(f32::NAN), 0.0);
    }

    #[test]
    fn argmax_takes_the_first_and_skips_nan() {
        for n in [1, 2, 15, 16, 17, 100, 1000] {
            for place in 0..n {
                let mut row: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
                row[place] = 9.0;
                row[n - 1] = 9.0;
                if place > 0 {
                    row[place - 1] = f32::NAN;
                }
                assert_eq!(argmax(&row), Some(place as u32));
            }
        }
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), None);
        assert_eq!(argmax(&[]), None);
        assert_eq!(argmax(&[f32::NAN, f32::INFINITY, f32::INFINITY]), Some(1));
    }

    #[test]
    fn inverse_cumulative_ends() {
        let weights = [0.0, 0.25, 0.0, 0.5, 0.25, 0.0];
        assert_eq!(inverse_cumulative(&weights, 1.0, 0.0), 1);
        assert_eq!(inverse_cumulative(&weights, 1.0, 0.2499), 1);
        assert_eq!(inverse_cumulative(&weights, 1.0, 0.25), 3);
        assert_eq!(inverse_cumulative(&weights, 1.0, 0.75), 4);
        assert_eq!(inverse_cumulative(&weights, 1.0, 1.0), 4);
    }
}
