// Arithmetic of the portable class: a product and a sum, each rounded.

#[inline(always)]
fn fma(a: f32, b: f32, c: f32) -> f32 {
    a * b + c
}
