// Arithmetic of the portable class: no fused multiply-add. Written so that loops over it vectorise anywhere.

#[inline(always)]
fn exp(x: f32) -> f32 {
    let x = if x < EXP_LOW { EXP_LOW } else { x };
    let x = if x > EXP_HIGH { EXP_HIGH } else { x };
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = n * -LN2_HIGH + x;
    let r = n * -LN2_LOW + r;
    let mut p = EXP_C6;
    p = p * r + EXP_C5;
    p = p * r + EXP_C4;
    p = p * r + EXP_C3;
    p = p * r + EXP_C2;
    p = p * r + EXP_C1;
    p = p * r + EXP_C0;
    // `n` is in the low bits of `shifted`; the product is exact, and NaN stays NaN.
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

/// Sixteen lanes added as a tree.
#[inline(always)]
fn total(lanes: &[f32; 16]) -> f32 {
    let mut a = [0.0f32; 8];
    for j in 0..8 {
        a[j] = lanes[j] + lanes[j + 8];
    }
    for j in 0..4 {
        a[j] += a[j + 4];
    }
    (a[0] + a[2]) + (a[1] + a[3])
}

#[inline(always)]
fn f16_to_f32(h: u16) -> f32 {
    let sign = (h as u32 & 0x8000) << 16;
    let rest = (h as u32 & 0x7fff) << 13;
    // Moves the exponent bias from 15 to 127; exact for subnormals too.
    let scaled = (f32::from_bits(rest) * f32::from_bits((254 - 15) << 23)).to_bits();
    let special = if rest >= 0x7c00 << 13 { 0x7f80_0000 | rest } else { scaled };
    f32::from_bits(sign | special)
}

#[inline(always)]
fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits((h as u32) << 16)
}

/// Rounds to nearest even.
#[inline(always)]
fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let half = if magnitude > 0x7f80_0000 {
        0x7e00 | ((magnitude >> 13) & 0x3ff)
    } else if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude < 0x3880_0000 {
        // Subnormal: the addition aligns the last place at 2^-24 and rounds.
        (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000
    } else {
        // Rounding up at the top may carry into infinity, which is right.
        (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112 << 23)) >> 13
    };
    (sign | half) as u16
}

/// Rounds to nearest even.
#[inline(always)]
fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Correctly rounded square root, in integers.
#[inline(always)]
fn sqrt(x: f32) -> f32 {
    if !(x > 0.0 && x <= f32::MAX) {
        return if x < 0.0 { f32::NAN } else { x };
    }
    // Subnormal numbers are scaled by 2^48 first; the root, a normal number, is scaled back exactly.
    let (x, back) = if x < f32::MIN_POSITIVE { (x * 281_474_976_710_656.0, 24 << 23) } else { (x, 0) };
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let odd = exponent & 1;
    // The significand scaled by 2^24, twice that for odd exponents: the root has 24 bits and one more to round by.
    let value = (((bits & 0x7f_ffff) | 0x80_0000) as u64) << (25 + odd);
    let mut root = 0u64;
    let mut bit = 1u64 << 24;
    while bit != 0 {
        let next = root | bit;
        if next * next <= value {
            root = next;
        }
        bit >>= 1;
    }
    // A root of a 24-bit number is never halfway between two 24-bit numbers.
    let rounded = (root + 1) >> 1;
    f32::from_bits(((((exponent - odd) / 2 + 126) as u32) << 23) + rounded as u32 - back)
}
