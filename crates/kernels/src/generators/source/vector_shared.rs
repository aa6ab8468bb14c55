// What all vector forms share: the fused exp, scalar square root, the end of the tree sum.

#[inline(always)]
unsafe fn exp(x: V) -> V {
    unsafe {
        // The variable stands second: `max` and `min` return their second operand where one is NaN.
        let x = min(splat(EXP_HIGH), max(splat(EXP_LOW), x));
        exp_clamped(x)
    }
}

/// `exp` of arguments that are at most 0.
#[inline(always)]
unsafe fn exp_of_negative(x: V) -> V {
    unsafe { exp_clamped(max(splat(EXP_LOW), x)) }
}

#[inline(always)]
unsafe fn exp_clamped(x: V) -> V {
    unsafe {
        let shifted = add(mul(x, splat(LOG2_E)), splat(ROUND));
        let n = sub(shifted, splat(ROUND));
        let r = fma(n, splat(-LN2_HIGH), x);
        let r = fma(n, splat(-LN2_LOW), r);
        let mut p = splat(EXP_C6);
        p = fma(p, r, splat(EXP_C5));
        p = fma(p, r, splat(EXP_C4));
        p = fma(p, r, splat(EXP_C3));
        p = fma(p, r, splat(EXP_C2));
        p = fma(p, r, splat(EXP_C1));
        p = fma(p, r, splat(EXP_C0));
        scale_by_power(p, shifted)
    }
}

#[inline(always)]
unsafe fn tree8(x: __m256) -> f32 {
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}

#[inline(always)]
unsafe fn sqrt(x: f32) -> f32 {
    unsafe { _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))) }
}
