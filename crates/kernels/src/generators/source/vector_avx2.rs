// Eight-lane vectors by AVX2, FMA and F16C, in the arithmetic of the fused class.

use core::arch::x86_64::*;

type V = __m256;
/// Lanes of a vector.
const W: usize = 8;
/// Vectors that hold 16 lanes.
const PARTS: usize = 2;
/// Accumulators that fit into registers beside operands.
const ACCUMULATORS: usize = 12;

#[inline(always)]
unsafe fn zero() -> V {
    unsafe { _mm256_setzero_ps() }
}

#[inline(always)]
unsafe fn splat(x: f32) -> V {
    unsafe { _mm256_set1_ps(x) }
}

#[inline(always)]
unsafe fn load(from: *const f32) -> V {
    unsafe { _mm256_loadu_ps(from) }
}

#[inline(always)]
unsafe fn store(to: *mut f32, x: V) {
    unsafe { _mm256_storeu_ps(to, x) }
}

/// `a * b + c`, one rounding.
#[inline(always)]
unsafe fn fma(a: V, b: V, c: V) -> V {
    unsafe { _mm256_fmadd_ps(a, b, c) }
}

#[inline(always)]
unsafe fn mul(a: V, b: V) -> V {
    unsafe { _mm256_mul_ps(a, b) }
}

#[inline(always)]
unsafe fn add(a: V, b: V) -> V {
    unsafe { _mm256_add_ps(a, b) }
}

#[inline(always)]
unsafe fn sub(a: V, b: V) -> V {
    unsafe { _mm256_sub_ps(a, b) }
}

#[inline(always)]
unsafe fn div(a: V, b: V) -> V {
    unsafe { _mm256_div_ps(a, b) }
}

#[inline(always)]
unsafe fn max(a: V, b: V) -> V {
    unsafe { _mm256_max_ps(a, b) }
}

#[inline(always)]
unsafe fn min(a: V, b: V) -> V {
    unsafe { _mm256_min_ps(a, b) }
}

/// Changes the sign of every lane.
#[inline(always)]
unsafe fn negate(x: V) -> V {
    unsafe { _mm256_xor_ps(x, _mm256_set1_ps(-0.0)) }
}

#[inline(always)]
unsafe fn load_f16(from: *const u16) -> V {
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
}

#[inline(always)]
unsafe fn load_bf16(from: *const u16) -> V {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())))) }
}

/// Rounds to nearest even.
#[inline(always)]
unsafe fn store_f16(to: *mut u16, x: V) {
    unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<0>(x)) }
}

/// Rounds to nearest even; NaN stays NaN.
#[inline(always)]
unsafe fn store_bf16(to: *mut u16, x: V) {
    unsafe {
        let bits = _mm256_castps_si256(x);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
        let rounded = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(up, quiet, nan));
        // Packing works within halves: bring the two used quarters together.
        let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(rounded, rounded));
        _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
    }
}

/// `x` in lanes `low..high`, `other` elsewhere (bounds may lie outside `0..W`).
#[inline(always)]
unsafe fn within(low: isize, high: isize, x: V, other: V) -> V {
    unsafe {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let low = _mm256_set1_epi32(low.clamp(0, 8) as i32 - 1);
        let high = _mm256_set1_epi32(high.clamp(0, 8) as i32);
        let inside = _mm256_and_si256(_mm256_cmpgt_epi32(lane, low), _mm256_cmpgt_epi32(high, lane));
        _mm256_blendv_ps(other, x, _mm256_castsi256_ps(inside))
    }
}

/// `p * 2^n`, exact for the results of `exp`; NaN stays NaN. `n` is in the low bits of `shifted`.
#[inline(always)]
unsafe fn scale_by_power(p: V, _n: V, shifted: V) -> V {
    unsafe {
        let bits = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
        mul(p, _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(127 << 23))))
    }
}

/// The highest lane.
#[inline(always)]
unsafe fn highest(x: V) -> f32 {
    unsafe {
        let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
    }
}

/// Sixteen lanes added as a tree.
#[inline(always)]
unsafe fn total(x: [V; PARTS]) -> f32 {
    unsafe { tree8(_mm256_add_ps(x[0], x[1])) }
}
