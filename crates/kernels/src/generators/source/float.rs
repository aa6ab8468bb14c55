// Functions of the numeric classes on top of `fma`.

/// Correctly rounded square root.
#[inline(always)]
fn sqrt(x: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::*;
        unsafe { _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))) }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let y: f32;
        unsafe { core::arch::asm!("fsqrt {y:s}, {x:s}", x = in(vreg) x, y = out(vreg) y, options(pure, nomem, nostack)) };
        y
    }
}

/// `1.5 * 2^23`: adding it leaves the integer nearest to a small value (ties to even) in the low mantissa bits.
const ROUND: f32 = 12582912.0;

/// Nearest integer of `|x| < 2^22`, ties to even.
#[inline(always)]
fn round_to_int(x: f32) -> i32 {
    (x + ROUND).to_bits() as i32 - ROUND.to_bits() as i32
}

/// `max` that the hardware has: the first operand where the second is not a number.
#[inline(always)]
fn larger(m: f32, v: f32) -> f32 {
    if v > m { v } else { m }
}

#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = if x < -87.3 { -87.3 } else { x };
    let x = if x > 88.37 { 88.37 } else { x };
    let shifted = x * f32::from_bits(0x3fb8_aa3b) + ROUND;
    let n = shifted - ROUND;
    let power = f32::from_bits(((shifted.to_bits() as i32 - ROUND.to_bits() as i32 + 127) as u32) << 23);
    let r = fma(n, -f32::from_bits(0x3f31_7200), x);
    let r = fma(n, -f32::from_bits(0x35bf_be8e), r);
    let mut p = f32::from_bits(0x3ab5_11eb);
    p = fma(p, r, f32::from_bits(0x3c09_1d10));
    p = fma(p, r, f32::from_bits(0x3d2a_ac79));
    p = fma(p, r, f32::from_bits(0x3e2a_aa49));
    p = fma(p, r, f32::from_bits(0x3eff_fffe));
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    p * power
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// Sum of squares in sixteen lanes; `n` is any length.
#[inline(always)]
unsafe fn sum_of_squares(x: *const f32, n: usize) -> f32 {
    let mut lanes = [0.0f32; 16];
    let whole = n / 16 * 16;
    let mut i = 0;
    while i < whole {
        for l in 0..16 {
            let v = *x.add(i + l);
            lanes[l] = fma(v, v, lanes[l]);
        }
        i += 16;
    }
    for l in 0..n - whole {
        let v = *x.add(whole + l);
        lanes[l] = fma(v, v, lanes[l]);
    }
    tree(lanes)
}

#[inline(always)]
fn tree(mut lanes: [f32; 16]) -> f32 {
    for j in 0..8 {
        lanes[j] += lanes[j + 8];
    }
    for j in 0..4 {
        lanes[j] += lanes[j + 4];
    }
    for j in 0..2 {
        lanes[j] += lanes[j + 2];
    }
    lanes[0] + lanes[1]
}

/// `1 / sqrt(mean of squares + eps)`.
#[inline(always)]
unsafe fn rms_inverse(x: *const f32, n: usize, eps: f32) -> f32 {
    1.0 / sqrt(sum_of_squares(x, n) / n as f32 + eps)
}

/// f16 bits to f32, exact.
#[inline(always)]
fn from_f16(h: u16) -> f32 {
    let sign = ((h & 0x8000) as u32) << 16;
    let magnitude = ((h & 0x7fff) as u32) << 13;
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let bits = if magnitude >= 0x0f80_0000 { magnitude | 0x7f80_0000 } else { finite };
    f32::from_bits(sign | bits)
}

/// f32 to f16 bits, nearest even.
#[inline(always)]
fn to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let f = bits & 0x7fff_ffff;
    let normal = f.wrapping_add(0xc800_0fff).wrapping_add((f >> 13) & 1) >> 13;
    let small = (f32::from_bits(f) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let huge = if f > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if f < 0x3880_0000 { small } else { normal };
    let magnitude = if f >= 0x4780_0000 { huge } else { finite };
    (sign | magnitude) as u16
}

#[inline(always)]
fn from_bf16(h: u16) -> f32 {
    f32::from_bits((h as u32) << 16)
}

/// f32 to bf16 bits, nearest even.
#[inline(always)]
fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff).wrapping_add((bits >> 16) & 1) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
}

/// f32 to bf16 bits as an activation: results below the smallest normal number become 0 of the same sign.
#[inline(always)]
fn to_bf16_activation(x: f32) -> u16 {
    let h = to_bf16(x);
    if h & 0x7f80 == 0 { h & 0x8000 } else { h }
}
