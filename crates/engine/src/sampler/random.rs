//! Random numbers without state: a token's number depends on seed, choice and position alone.

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes every bit into every other.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Uniform in [0, 1), 53 bits.
pub fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    // Three rounds, so that neighbours in any argument are unrelated; distinct arguments of one seed never collide
    // before the last 53 bits are taken.
    let h = mix(seed.wrapping_add(GOLDEN));
    let h = mix(h ^ (u64::from(choice) << 32 | u64::from(position)).wrapping_mul(GOLDEN));
    let h = mix(h.wrapping_add(GOLDEN));
    (h >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}
