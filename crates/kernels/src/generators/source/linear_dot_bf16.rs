
#[inline(always)]
unsafe fn dot_pair(acc: __m512, x: __m512i, w: __m512i) -> __m512 {
    _mm512_dpbf16_ps(acc, core::mem::transmute(w), core::mem::transmute(x))
}
