// What all vector forms share: the fused exp, scalar square root, the end of the tree sum.

#[inline(always)]
unsafe fn exp(x: V) -> V {
    unsafe {
        // The variable stands second: `max` and `min` return their second operand where one is NaN.
        let x = min(splat(EXP_HIGH), max(splat(EXP_LOW), x));
        exp_clamped([x])[0]
    }
}

/// `exp` of arguments that are at most 0.
#[inline(always)]
unsafe fn exp_of_negative(x: V) -> V {
    unsafe { exp_clamped([max(splat(EXP_LOW), x)])[0] }
}

/// Several at a time, step by step, so that their chains of operations stand side by side.
#[inline(always)]
unsafe fn exp_clamped<const N: usize>(x: [V; N]) -> [V; N] {
    unsafe {
        let mut shifted = x;
        for i in 0..N {
            shifted[i] = mul(x[i], splat(LOG2_E));
        }
        for i in 0..N {
            shifted[i] = add(shifted[i], splat(ROUND));
        }
        let mut n = x;
        for i in 0..N {
            n[i] = sub(shifted[i], splat(ROUND));
        }
        let mut r = x;
        for i in 0..N {
            r[i] = fma(n[i], splat(-LN2_LOW), fma(n[i], splat(-LN2_HIGH), x[i]));
        }
        let mut p = [splat(EXP_C6); N];
        for c in [EXP_C5, EXP_C4, EXP_C3, EXP_C2, EXP_C1, EXP_C0] {
            for i in 0..N {
                p[i] = fma(p[i], r[i], splat(c));
            }
        }
        for i in 0..N {
            p[i] = scale_by_power(p[i], n[i], shifted[i]);
        }
        p
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
