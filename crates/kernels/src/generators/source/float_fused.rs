// Arithmetic of the fused class: one rounding. The intrinsic is one `fma` to the optimiser, which vectorises it.

#[inline(always)]
fn fma(a: f32, b: f32, c: f32) -> f32 {
    use core::arch::x86_64::*;
    unsafe { _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c))) }
}
