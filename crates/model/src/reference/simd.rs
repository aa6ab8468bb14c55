//! Sixteen f32 lanes on AVX-512, AVX2 or plain Rust; the same lanes and the same order of sums on all three, and the same
//! bits on the first two (the third rounds products, having no fused multiply-add to rely on).

/// Lanes of a vector.
pub(super) const LANES: usize = 16;

/// Sums lanes pairwise, always in this order.
#[inline(always)]
pub(super) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Any machine.
pub(super) mod portable {
    use super::LANES;

    pub(in super::super) type Vector = [f32; LANES];

    #[inline(always)]
    pub(in super::super) fn zero() -> Vector {
        [0.0; LANES]
    }

    #[inline(always)]
    pub(in super::super) fn load(from: &[f32; LANES]) -> Vector {
        *from
    }

    /// `sum + a * b`.
    #[inline(always)]
    pub(in super::super) fn add_product(mut sum: Vector, a: Vector, b: Vector) -> Vector {
        for i in 0..LANES {
            sum[i] += a[i] * b[i];
        }
        sum
    }

    #[inline(always)]
    pub(in super::super) fn to_array(vector: Vector) -> [f32; LANES] {
        vector
    }
}

/// One 512-bit register.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use super::LANES;
    use std::arch::x86_64::{__m512, _mm512_fmadd_ps, _mm512_setzero_ps};

    pub(in super::super) type Vector = __m512;

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in super::super) fn zero() -> Vector {
        _mm512_setzero_ps()
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    #[allow(unsafe_code)]
    pub(in super::super) fn load(from: &[f32; LANES]) -> Vector {
        // SAFETY: both types are 64 bytes for which every bit pattern is valid. (Not the load intrinsic: with debug assertions
        // its checks cost more than the arithmetic.)
        unsafe { std::mem::transmute::<[f32; LANES], __m512>(*from) }
    }

    /// `sum + a * b`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(in super::super) fn add_product(sum: Vector, a: Vector, b: Vector) -> Vector {
        _mm512_fmadd_ps(a, b, sum)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    #[allow(unsafe_code)]
    pub(in super::super) fn to_array(vector: Vector) -> [f32; LANES] {
        // SAFETY: both types are 64 bytes for which every bit pattern is valid.
        unsafe { std::mem::transmute::<__m512, [f32; LANES]>(vector) }
    }
}

/// Two 256-bit registers.
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use super::LANES;
    use std::arch::x86_64::{__m256, _mm256_fmadd_ps, _mm256_setzero_ps};

    pub(in super::super) type Vector = [__m256; 2];

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(in super::super) fn zero() -> Vector {
        [_mm256_setzero_ps(); 2]
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    #[allow(unsafe_code)]
    pub(in super::super) fn load(from: &[f32; LANES]) -> Vector {
        // SAFETY: both types are 64 bytes for which every bit pattern is valid.
        unsafe { std::mem::transmute::<[f32; LANES], [__m256; 2]>(*from) }
    }

    /// `sum + a * b`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(in super::super) fn add_product(sum: Vector, a: Vector, b: Vector) -> Vector {
        [_mm256_fmadd_ps(a[0], b[0], sum[0]), _mm256_fmadd_ps(a[1], b[1], sum[1])]
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    #[allow(unsafe_code)]
    pub(in super::super) fn to_array(vector: Vector) -> [f32; LANES] {
        // SAFETY: both types are 64 bytes for which every bit pattern is valid.
        unsafe { std::mem::transmute::<[__m256; 2], [f32; LANES]>(vector) }
    }
}
