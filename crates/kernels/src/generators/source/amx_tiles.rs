// AMX tiles by number. The tile state is the kernel's own between `configure` and `release`. No compiler keeps anything in
// tiles, so none is named as an operand; all templates are plain text, since kernels may not build strings.

/// 64 bytes: palette, start row, then bytes of a row (u16) and rows (u8) of each tile.
#[repr(C, align(64))]
struct Shapes([u8; 64]);

#[inline(always)]
unsafe fn configure(shapes: &Shapes) {
    core::arch::asm!("ldtilecfg [{s}]", s = in(reg) shapes.0.as_ptr(), options(nostack));
}

#[inline(always)]
unsafe fn release() {
    core::arch::asm!("tilerelease", options(nostack));
}

#[inline(always)]
unsafe fn zero_tile<const T: u32>() {
    core::arch::asm!("tilezero tmm{t}", t = const T, options(nostack))
}

/// Rows of tile T from `p`, `stride` bytes apart.
#[inline(always)]
unsafe fn load_tile<const T: u32>(p: *const u8, stride: usize) {
    core::arch::asm!("tileloadd tmm{t}, [{p} + {s}*1]", t = const T, p = in(reg) p, s = in(reg) stride, options(nostack))
}

#[inline(always)]
unsafe fn store_tile<const T: u32>(p: *mut u8, stride: usize) {
    core::arch::asm!("tilestored [{p} + {s}*1], tmm{t}", t = const T, p = in(reg) p, s = in(reg) stride, options(nostack))
}

/// Tile C += signed bytes of tile A times unsigned bytes of tile B.
#[inline(always)]
unsafe fn dot_int8<const C: u32, const A: u32, const B: u32>() {
    core::arch::asm!("tdpbsud tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B, options(nostack))
}

/// Tile C += bf16 pairs of tile A times bf16 pairs of tile B.
#[inline(always)]
unsafe fn dot_bf16<const C: u32, const A: u32, const B: u32>() {
    core::arch::asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B, options(nostack))
}
