//! The numeric classes of all generators, in one place: definitions and their scalar emulation.
//!
//! Kernels of one class agree bit for bit, whatever the instruction set, the tiling, the bucket and the batch.
//! Everything here is IEEE 754 binary32, round to nearest even, without flushing of denormals; `fma` is one rounding.
//! There are two variants ([`Arith`]): `Fused` (targets with FMA) and `Separate` (the portable class: each `fma(a, b, c)`
//! below is `a * b` rounded, then `+ c` rounded). Nothing else differs between the two. Divisions and square roots
//! are correctly rounded (never `rcp`/`rsqrt` estimates).
//!
//! # Sum in 16 lanes ([`Lanes`])
//! Lane `l` takes the elements `i` with `i % 16 == l` in ascending order, starting from 0. The lanes are then added as a
//! tree: `l[j] += l[j + 8]` for `j < 8`, `l[j] += l[j + 4]` for `j < 4`, `l[j] += l[j + 2]` for `j < 2`, `l[0] + l[1]`.
//!
//! # RMSNorm ([`rms_norm`])
//! `sum` = sum in 16 lanes, lane step `lane = fma(x, x, lane)`. `inv = 1 / sqrt(sum / width + eps)`: four rounded
//! operations (divide by `width` as f32, add, square root, divide). `y = (x * inv) * weight`: two rounded products.
//!
//! # exp ([`exp`])
//! `x` is clamped to [`EXP_LOW`]..=[`EXP_HIGH`]. `n = round_ties_even(x * LOG2_E)` (the product rounded to f32 first, never
//! contracted; `(v + 12582912.0) - 12582912.0` is the same rounding), `r = fma(n, -LN2_HIGH, x)`,
//! `r = fma(n, -LN2_LOW, r)`, Horner over [`EXP_POLY`] (`p = c6`, then `p = fma(p, r, c)` for c5 down to c0),
//! result `p * 2^n` by exponent bits (`n` is in -126..=127).
//!
//! # silu ([`silu`]) and gate
//! `x / (1 + exp(-x))`: one rounded addition, one division. SiluGate: `silu(gate) * up`, one rounded product.
//!
//! # Weights
//! Affine: `fma(scale, q, min)` (the product of an f16 scale and a quant of at most 8 bits is exact in f32, so both
//! variants agree); with `Midpoint`, `scale * (q - 2^(bits-1))`, which is exact. Bf16 weights are exact in f32.
//!
//! # Linear, activations of [`plan::Activation`] (`acc` starts at 0, one accumulator for each output)
//! * `F32`: `acc = fma(x[i], w[i], acc)` for `i` ascending.
//! * `I8`, `I16`: quantised groups ([`quantise_group`]). A group whose `max|x|` is below [`ACTIVATION_FLOOR`] is all zero
//!   with `d = 0`. Integer sums are exact in int32. With `Zero::Stored`: `s = sum q * xq`, `t = sum xq`,
//!   `acc = fma(f32(s) * d, scale, acc)`, then `acc = fma(f32(t) * d, min, acc)`.
//!   With `Zero::Midpoint` the offset is taken off in integers: `s = sum (q - 2^(bits-1)) * xq`
//!   (start the int32 accumulator at `-2^(bits-1) * t`), then only `acc = fma(f32(s) * d, scale, acc)`.
//!   Int32 to f32 rounds to nearest even.
//! * `Row16` ([`wide_column`], [`wide_sum`]): `x` is quantised as one group of `I16`, `xq = 128 * high + low`. A column's weights
//!   are integers `W = s * q + t` on a scale of its own, `unit`: with `top` the largest `|min|` or `|fma(scale, 2^bits - 1, min)|`
//!   of its groups, `unit = top / 32512`, `s = round(scale * (1 / unit))`, `t = round(min * (1 / unit))` (nearest even; all 0 where
//!   `top` is 0). With `W + 32768 = 256 * u + l`: `hi = sum (u - 128) * high`, `mid = sum l * high + 2 * (u - 128) * low + low`,
//!   exact in int32. `acc = (fma(f32(hi), 256, f32(mid)) * (128 * d)) * unit`. What is left out, `sum (l - 128) * low`, is some
//!   1e-4 of the result.
//! * `Bf16`: `x` is rounded to bf16 (nearest even); for each pair `(i, i + 1)`: `acc = fma(x[i+1], w[i+1], acc)`, then
//!   `acc = fma(x[i], w[i], acc)` (VDPBF16PS; the products are exact, so both variants agree). Values below 2^-126 count as 0.
//!   Affine weights are rounded to bf16 too (nearest even, from the f32 value above).
//! * `Bf16` on AMX tiles, a class of its own ([`add_tile`]): of 32 inputs at a time the even and the odd ones are summed
//!   apart, ascending, each step one fused multiply-add from 0; `acc = acc + (even + odd)`. Results below 2^-126 become 0.
//!
//! The prologue feeds its f32 results into the activation format. Epilogues: `Add`: `out = out + acc`.
//!
//! # QKV epilogue and RopeKv ([`rope_pair`])
//! Bias: `y = acc + bias`. QK norm: RMSNorm as above over `head_dim` values. Rope with `h = head_dim / 2`:
//! `a' = fma(a, cos, -(b * sin))`, `b' = fma(b, cos, a * sin)` (the inner product rounded). Values are stored without
//! rope. Stores to an f16 or bf16 cache round to nearest even.
//!
//! # Attention ([`attend`])
//! Pages in order of position. Tokens that the row does not see (after its position, or at or before
//! `position - window`) contribute nothing; a page without a visible token is skipped. Start: `m = -inf, l = 0, o = 0`.
//! For each page: `s_t = (fma(q[d], k[d], .) for d ascending from 0) * scale`, with `scale = 1 / sqrt(head_dim)` (both rounded);
//! `m_new = max(m, max s_t)`; `c = exp(m - m_new)` (any finite value for the first page); `p_t = exp(s_t - m_new)`, 0 for unseen tokens;
//! `l = l * c + (sum of p_t in 16 lanes by t % 16)` (the product rounded first in both variants, then the sum added);
//! `o = o * c` (rounded), then `o = fma(p_t, v_t, o)` for visible `t` ascending. At the end `out = o * (1 / l)`.
//! Stored keys and values are widened to f32 exactly. Query head `h` reads KV head `h / (heads / kv_heads)`.
//!
//! # Attention on bf16 tiles ([`attend_tiles`])
//! A class of its own for bf16 caches, whose products are those of bf16 tiles ([`add_tile`], 32 inputs each). As above, but
//! [`CHUNK`] tokens (from position 0 on) take the place of a page, and queries are rounded to bf16 (nearest even; below
//! 2^-126: 0, as are stored values there): `s_t = (sum of tiles of dimensions) * scale`; weights are summed as they are and rounded to bf16 for
//! the values: `o = o * c`, then the tiles of 32 tokens ascending. At the end `out = o * (1 / l) + 0`.

use plan::Zero;

/// Whether `fma(a, b, c)` of the class definitions is one rounding or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arith {
    /// One rounding: targets with fused multiply-add.
    Fused,
    /// Product rounded, then sum rounded: the portable class.
    Separate,
    /// As `Fused`, but bf16 products are summed as AMX tiles do it.
    Tiles,
}

impl Arith {
    /// `a * b + c` in this variant.
    #[inline(always)]
    pub fn fma(self, a: f32, b: f32, c: f32) -> f32 {
        match self {
            Arith::Fused | Arith::Tiles => a.mul_add(b, c),
            Arith::Separate => a * b + c,
        }
    }

    /// The arithmetic of a numeric class, from its name. (Classes of pure data movement are `exact` in any.)
    pub fn of_class(class: &str) -> Option<Self> {
        match class.rsplit_once('/')?.1 {
            "nofma" | "exact" => Some(Arith::Separate),
            "fma" => Some(Arith::Fused),
            "tiles" => Some(Arith::Tiles),
            _ => None,
        }
    }

    /// Name as it appears in numeric-class strings: `fma`, `nofma` or `tiles`.
    pub fn name(self) -> &'static str {
        match self {
            Arith::Fused => "fma",
            Arith::Separate => "nofma",
            Arith::Tiles => "tiles",
        }
    }
}

/// Lowest argument of [`exp`]; `2^-126` is the smallest normal power.
pub const EXP_LOW: f32 = -87.3;
/// Highest argument of [`exp`]: rounds to `n = 127`, so that the exponent bits stay finite.
pub const EXP_HIGH: f32 = 88.37;
/// `1 / ln 2`.
pub const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
/// High part of `ln 2`, 15 significant bits: `n * LN2_HIGH` is exact.
pub const LN2_HIGH: f32 = f32::from_bits(0x3f31_7200);
/// `ln 2 - LN2_HIGH`.
pub const LN2_LOW: f32 = f32::from_bits(0x35bf_be8e);
/// `c0..=c6`: exp on `|r| <= ln 2 / 2`, relative error below 4e-9 (weighted least squares to minimax, `c0 = c1 = 1`).
pub const EXP_POLY: [f32; 7] = [
    1.0,
    1.0,
    f32::from_bits(0x3eff_fffe),
    f32::from_bits(0x3e2a_aa49),
    f32::from_bits(0x3d2a_ac79),
    f32::from_bits(0x3c09_1d10),
    f32::from_bits(0x3ab5_11eb),
];
/// A group of activations with `max|x|` below this is quantised to zeros (`2^-100`): its scale could overflow when inverted.
pub const ACTIVATION_FLOOR: f32 = f32::from_bits((127 - 100) << 23);

/// The exponential function of all classes.
#[inline]
pub fn exp(arith: Arith, x: f32) -> f32 {
    let x = x.clamp(EXP_LOW, EXP_HIGH);
    let n = (x * LOG2_E).round_ties_even();
    let r = arith.fma(n, -LN2_HIGH, x);
    let r = arith.fma(n, -LN2_LOW, r);
    let mut p = EXP_POLY[6];
    for c in EXP_POLY[..6].iter().rev() {
        p = arith.fma(p, r, *c);
    }
    p * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// `x / (1 + exp(-x))`.
#[inline]
pub fn silu(arith: Arith, x: f32) -> f32 {
    x / (1.0 + exp(arith, -x))
}

/// Sixteen running sums, added as a tree at the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lanes(pub [f32; 16]);

impl Lanes {
    /// The tree sum.
    pub fn total(mut self) -> f32 {
        for width in [8, 4, 2, 1] {
            for j in 0..width {
                self.0[j] += self.0[j + width];
            }
        }
        self.0[0]
    }
}

/// Sum of squares in 16 lanes.
pub fn sum_of_squares(arith: Arith, x: &[f32]) -> f32 {
    let mut lanes = Lanes::default();
    for (i, v) in x.iter().enumerate() {
        lanes.0[i % 16] = arith.fma(*v, *v, lanes.0[i % 16]);
    }
    lanes.total()
}

/// `1 / sqrt(mean(x^2) + eps)`.
pub fn rms_inverse(arith: Arith, x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(arith, x) / x.len() as f32 + eps).sqrt()
}

/// RMSNorm of one row (or head) into `out`; all slices have the same length.
pub fn rms_norm(arith: Arith, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let inv = rms_inverse(arith, x, eps);
    for ((o, v), w) in out.iter_mut().zip(x).zip(weight) {
        *o = (v * inv) * w;
    }
}

/// Rotates one pair: `(a cos - b sin, b cos + a sin)`.
#[inline]
pub fn rope_pair(arith: Arith, a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (arith.fma(a, cos, -(b * sin)), arith.fma(b, cos, a * sin))
}

/// Quantises one group of activations to `-limit..=limit` (127 for `I8`, 16256 for `I16`); returns the scale `d`.
pub fn quantise_group(x: &[f32], limit: f32, out: &mut [i32]) -> f32 {
    let max = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    if max < ACTIVATION_FLOOR {
        out.fill(0);
        return 0.0;
    }
    let d = max / limit;
    let inverse = 1.0 / d;
    for (q, v) in out.iter_mut().zip(x) {
        *q = (v * inverse).round_ties_even() as i32;
    }
    d
}

/// The two int8 passes of a 15-bit activation: `xq = 128 * high + low`, `high` in -127..=127, `low` in -64..=63.
#[inline]
pub fn split_i16(xq: i32) -> (i8, i8) {
    let high = (xq + 64) >> 7;
    (high as i8, (xq - 128 * high) as i8)
}

/// Largest integer weight of a column in `Row16`, but for what rounding of scale and minimum adds.
pub const WIDE_TOP: f32 = 32512.0;

/// Integer weights of one output in `Row16`: `W = s * q + t` for the quants `q` of each group, in units of `unit`.
#[derive(Clone, Debug, PartialEq)]
pub struct WideColumn {
    pub unit: f32,
    /// `(s, t)` of each group.
    pub groups: Vec<(i32, i32)>,
}

/// The integer weights of a column from the scales and minima of its groups.
pub fn wide_column(bits: u8, scale: &[f32], min: &[f32]) -> WideColumn {
    let most = ((1u32 << bits) - 1) as f32;
    let mut top = 0.0f32;
    for (scale, min) in scale.iter().zip(min) {
        // The product is exact, so it makes no difference whether it is rounded.
        top = top.max(min.abs()).max((scale * most + min).abs());
    }
    let unit = top / WIDE_TOP;
    let inverse = if top > 0.0 { 1.0 / unit } else { 0.0 };
    let whole = |v: f32| (v * inverse).round_ties_even() as i32;
    WideColumn { unit, groups: scale.iter().zip(min).map(|(s, m)| (whole(*s), whole(*m))).collect() }
}

/// One output of `Row16`: integer weights and activations, their scales.
pub fn wide_sum(arith: Arith, weights: impl Iterator<Item = i32>, xq: &[i32], unit: f32, d: f32) -> f32 {
    let (mut hi, mut mid) = (0i32, 0i32);
    for (w, x) in weights.zip(xq) {
        let (high, low) = split_i16(*x);
        let (high, low, w) = (i32::from(high), i32::from(low), w + 32768);
        let (u, l) = ((w >> 8) - 128, w & 255);
        hi += u * high;
        mid += l * high + 2 * u * low + low;
    }
    (arith.fma(hi as f32, 256.0, mid as f32) * (128.0 * d)) * unit
}

/// Adds one group to an accumulator (`I8`, `I16`): `s = sum q * xq` (unsigned quants), `t = sum xq`.
#[inline]
pub fn add_group(
    arith: Arith,
    acc: f32,
    bits: u8,
    zero: Zero,
    s: i32,
    t: i32,
    d: f32,
    scale: f32,
    min: f32,
) -> f32 {
    match zero {
        Zero::Stored => {
            let acc = arith.fma(s as f32 * d, scale, acc);
            arith.fma(t as f32 * d, min, acc)
        }
        Zero::Midpoint => {
            let centred = s.wrapping_sub((1 << (bits - 1)) * t);
            arith.fma(centred as f32 * d, scale, acc)
        }
    }
}

/// Rounds to bf16 (nearest even); results below the smallest normal number become 0 of the same sign.
#[inline]
pub fn to_bf16(x: f32) -> f32 {
    let y = half::bf16::from_f32(x).to_f32();
    if y.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { y }
}

/// Adds the products of one tile (32 inputs, or what is left of them) to an accumulator.
pub fn add_tile(acc: f32, x: &[f32], w: &[f32]) -> f32 {
    let flush = |v: f32| if v.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(v) } else { v };
    let sum = |from: usize| {
        let pairs = x.iter().zip(w).skip(from).step_by(2);
        pairs.fold(0.0f32, |sum, (x, w)| flush(x.mul_add(*w, sum)))
    };
    flush(acc + flush(sum(0) + sum(1)))
}

/// Tokens that bf16 tiles of attention take between two corrections of the maximum.
pub const CHUNK: usize = 256;

/// Attention of one query head on bf16 tiles, into `out[head_dim]`: `keys` and `values` are `[tokens][head_dim]` from
/// position 0 on, of which `seen` count.
pub fn attend_tiles(q: &[f32], keys: &[f32], values: &[f32], seen: std::ops::Range<usize>, out: &mut [f32]) {
    let dim = q.len();
    let scale = 1.0 / (dim as f32).sqrt();
    let q: Vec<f32> = q.iter().map(|q| to_bf16(*q)).collect();
    let stored = |at: &[f32], t: usize| -> Vec<f32> {
        let token = seen.contains(&t).then(|| &at[t * dim..][..dim]);
        token.map_or(vec![0.0; dim], |token| token.iter().map(|v| to_bf16(*v)).collect())
    };
    let (mut m, mut l) = (f32::NEG_INFINITY, 0.0f32);
    out.fill(0.0);
    for chunk in seen.start / CHUNK..seen.end.div_ceil(CHUNK) {
        let here = seen.start.max(chunk * CHUNK)..seen.end.min((chunk + 1) * CHUNK);
        let score = |t: usize| {
            let key = stored(keys, t);
            q.chunks(32).zip(key.chunks(32)).fold(0.0f32, |acc, (q, k)| add_tile(acc, q, k)) * scale
        };
        let scores: Vec<f32> = here.clone().map(score).collect();
        let highest = scores.iter().fold(m, |m, s| m.max(*s));
        let c = exp(Arith::Tiles, m - highest);
        let (mut lanes, mut p) = (Lanes::default(), vec![0.0f32; CHUNK]);
        for (t, s) in here.clone().zip(&scores) {
            let weight = exp(Arith::Tiles, s - highest);
            lanes.0[t % 16] += weight;
            p[t % CHUNK] = to_bf16(weight);
        }
        l = l * c + lanes.total();
        m = highest;
        out.iter_mut().for_each(|o| *o *= c);
        for block in (here.start / 32 * 32..here.end).step_by(32) {
            let tokens: Vec<Vec<f32>> = (block..block + 32).map(|t| stored(values, t)).collect();
            for (d, o) in out.iter_mut().enumerate() {
                let column: Vec<f32> = tokens.iter().map(|v| v[d]).collect();
                *o = add_tile(*o, &p[block % CHUNK..][..32], &column);
            }
        }
    }
    let inverse = 1.0 / l;
    for o in out {
        *o = *o * inverse + 0.0;
    }
}

/// One page of attention for one query head: keys `[head_dim][tokens]`, values `[tokens][head_dim]` as f32.
pub struct Page<'a> {
    pub keys: &'a [f32],
    pub values: &'a [f32],
    /// Tokens of a page, a multiple of 16.
    pub tokens: usize,
    /// Visible tokens of this page.
    pub visible: std::ops::Range<usize>,
}

/// Attention of one query head over its pages in order, into `out[head_dim]`.
pub fn attend<'a>(arith: Arith, q: &[f32], pages: impl Iterator<Item = Page<'a>>, out: &mut [f32]) {
    let dim = q.len();
    let scale = 1.0 / (dim as f32).sqrt();
    let (mut m, mut l) = (f32::NEG_INFINITY, 0.0f32);
    out.fill(0.0);
    let mut p = Vec::new();
    for page in pages.filter(|p| !p.visible.is_empty()) {
        p.clear();
        p.resize(page.tokens, 0.0f32);
        let mut highest = m;
        for t in page.visible.clone() {
            let mut s = 0.0f32;
            for (d, q) in q.iter().enumerate() {
                s = arith.fma(*q, page.keys[d * page.tokens + t], s);
            }
            p[t] = s * scale;
            highest = highest.max(p[t]);
        }
        let c = exp(arith, m - highest);
        let mut lanes = Lanes::default();
        for t in page.visible.clone() {
            p[t] = exp(arith, p[t] - highest);
            lanes.0[t % 16] += p[t];
        }
        l = l * c + lanes.total();
        m = highest;
        for (d, o) in out.iter_mut().enumerate() {
            *o *= c;
            for t in page.visible.clone() {
                *o = arith.fma(p[t], page.values[t * dim + d], *o);
            }
        }
    }
    let inverse = 1.0 / l;
    for o in out {
        *o *= inverse;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_everywhere_and_exact_at_zero() {
        for arith in [Arith::Fused, Arith::Separate] {
            assert_eq!(exp(arith, 0.0), 1.0);
            assert!(exp(arith, f32::NEG_INFINITY) > 0.0 && exp(arith, 1e30).is_finite());
            let mut worst = 0.0f64;
            for i in 0..400_000 {
                let x = EXP_LOW + (EXP_HIGH - EXP_LOW) * (i as f32 / 400_000.0);
                let relative = exp(arith, x) as f64 / (x as f64).exp() - 1.0;
                worst = worst.max(relative.abs());
            }
            assert!(worst < 2.0 * 2f64.powi(-24), "{arith:?}: {:e} units of 2^-24", worst * 2f64.powi(24));
        }
    }

    #[test]
    fn split_i16_is_exact() {
        for xq in -16256..=16256 {
            let (high, low) = split_i16(xq);
            assert_eq!(128 * high as i32 + low as i32, xq);
            assert!((-64..=63).contains(&low) && high >= -127);
        }
    }

    #[test]
    fn quantised_groups_stay_in_range() {
        for max in [1e-38f32, 7e-31, 1e-30, 0.3, 1.0, 7.77, 3e38] {
            for limit in [127.0f32, 16256.0] {
                let x = [max, -max, max * 0.5, 0.0];
                let mut q = [0i32; 4];
                let d = quantise_group(&x, limit, &mut q);
                assert!(q.iter().all(|v| v.abs() <= limit as i32), "{max} {limit} {q:?}");
                assert!(d.is_finite());
                if max >= ACTIVATION_FLOOR {
                    assert_eq!(q[0], limit as i32);
                }
            }
        }
    }
}
