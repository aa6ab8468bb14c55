// Sixteen-lane vectors by AVX-512, in the arithmetic of the fused class.

use core::arch::x86_64::*;

type V = __m512;
/// Lanes of a vector.
const W: usize = 16;
/// Vectors that hold 16 lanes.
const PARTS: usize = 1;
/// Accumulators that fit into registers beside operands.
const ACCUMULATORS: usize = 24;

#[inline(always)]
unsafe fn zero() -> V {
    unsafe { _mm512_setzero_ps() }
}

#[inline(always)]
unsafe fn splat(x: f32) -> V {
    unsafe { _mm512_set1_ps(x) }
}

#[inline(always)]
unsafe fn load(from: *const f32) -> V {
    unsafe { _mm512_loadu_ps(from) }
}

#[inline(always)]
unsafe fn store(to: *mut f32, x: V) {
    unsafe { _mm512_storeu_ps(to, x) }
}

/// `a * b + c`, one rounding.
#[inline(always)]
unsafe fn fma(a: V, b: V, c: V) -> V {
    unsafe { _mm512_fmadd_ps(a, b, c) }
}

#[inline(always)]
unsafe fn mul(a: V, b: V) -> V {
    unsafe { _mm512_mul_ps(a, b) }
}

#[inline(always)]
unsafe fn add(a: V, b: V) -> V {
    unsafe { _mm512_add_ps(a, b) }
}

#[inline(always)]
unsafe fn sub(a: V, b: V) -> V {
    unsafe { _mm512_sub_ps(a, b) }
}

#[inline(always)]
unsafe fn div(a: V, b: V) -> V {
    unsafe { _mm512_div_ps(a, b) }
}

#[inline(always)]
unsafe fn max(a: V, b: V) -> V {
    unsafe { _mm512_max_ps(a, b) }
}

/// Changes the sign of every lane.
#[inline(always)]
unsafe fn negate(x: V) -> V {
    unsafe { _mm512_xor_ps(x, _mm512_set1_ps(-0.0)) }
}

#[inline(always)]
unsafe fn load_f16(from: *const u16) -> V {
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
}

#[inline(always)]
unsafe fn load_bf16(from: *const u16) -> V {
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))) }
}

/// Rounds to nearest even.
#[inline(always)]
unsafe fn store_f16(to: *mut u16, x: V) {
    unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<0>(x)) }
}

/// Rounds to nearest even; NaN stays NaN.
#[inline(always)]
unsafe fn store_bf16(to: *mut u16, x: V) {
    unsafe {
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
        let rounded = _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, up, quiet));
        _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(rounded));
    }
}

/// `x` in lanes `low..high`, `other` elsewhere (bounds may lie outside `0..W`).
#[inline(always)]
unsafe fn within(low: isize, high: isize, x: V, other: V) -> V {
    unsafe {
        let low = low.clamp(0, 16) as u32;
        let high = high.clamp(0, 16) as u32;
        let mask = ((1u32 << high) - 1) & !((1u32 << low) - 1);
        _mm512_mask_blend_ps(mask as __mmask16, other, x)
    }
}

/// `p * 2^n`, exact for the results of `exp`; NaN stays NaN. `n` is also in the low bits of `_shifted`.
#[inline(always)]
unsafe fn scale_by_power(p: V, n: V, _shifted: V) -> V {
    unsafe { _mm512_scalef_ps(p, n) }
}

#[inline(always)]
unsafe fn min(a: V, b: V) -> V {
    unsafe { _mm512_min_ps(a, b) }
}

/// The highest lane.
#[inline(always)]
unsafe fn highest(x: V) -> f32 {
    unsafe { _mm512_reduce_max_ps(x) }
}

/// Sixteen lanes added as a tree.
#[inline(always)]
unsafe fn total(x: [V; PARTS]) -> f32 {
    unsafe {
        let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(x[0])));
        tree8(_mm256_add_ps(_mm512_castps512_ps256(x[0]), upper))
    }
}
