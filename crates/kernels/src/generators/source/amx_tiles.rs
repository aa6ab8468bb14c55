// AMX tiles by number. The tile state is the kernel's own between `configure` and `release`.

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

/// The tiles of every call are constants, so that one arm remains.
macro_rules! of_tile {
    ($tile:expr, $one:ident) => {
        match $tile {
            0 => $one!("tmm0"),
            1 => $one!("tmm1"),
            2 => $one!("tmm2"),
            3 => $one!("tmm3"),
            4 => $one!("tmm4"),
            _ => $one!("tmm5"),
        }
    };
}

/// The same for tiles that hold sums.
macro_rules! of_sums {
    ($tile:expr, $one:ident) => {
        match $tile {
            0 => $one!("tmm0"),
            1 => $one!("tmm1"),
            2 => $one!("tmm2"),
            _ => $one!("tmm3"),
        }
    };
}

#[inline(always)]
unsafe fn zero<const T: u32>() {
    macro_rules! one {
        ($t:tt) => {
            core::arch::asm!(concat!("tilezero ", $t), out($t) _, options(nostack))
        };
    }
    of_tile!(T, one)
}

/// Rows of tile T from `p`, `stride` bytes apart.
#[inline(always)]
unsafe fn load_tile<const T: u32>(p: *const u8, stride: usize) {
    macro_rules! one {
        ($t:tt) => {
            core::arch::asm!(concat!("tileloadd ", $t, ", [{p} + {s}*1]"), p = in(reg) p, s = in(reg) stride, out($t) _, options(nostack))
        };
    }
    of_tile!(T, one)
}

#[inline(always)]
unsafe fn store_tile<const T: u32>(p: *mut u8, stride: usize) {
    macro_rules! one {
        ($t:tt) => {
            core::arch::asm!(concat!("tilestored [{p} + {s}*1], ", $t), p = in(reg) p, s = in(reg) stride, options(nostack))
        };
    }
    of_tile!(T, one)
}

/// Tile C += signed bytes of tile 4 times unsigned bytes of tile 5.
#[inline(always)]
unsafe fn dot_int8<const C: u32>() {
    macro_rules! one {
        ($t:tt) => {
            core::arch::asm!(concat!("tdpbsud ", $t, ", tmm4, tmm5"), out($t) _, options(nostack))
        };
    }
    of_sums!(C, one)
}

/// Tile C += bf16 pairs of tile 4 times bf16 pairs of tile 5.
#[inline(always)]
unsafe fn dot_bf16<const C: u32>() {
    macro_rules! one {
        ($t:tt) => {
            core::arch::asm!(concat!("tdpbf16ps ", $t, ", tmm4, tmm5"), out($t) _, options(nostack))
        };
    }
    of_sums!(C, one)
}
