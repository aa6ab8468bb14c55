// AVX2 integer products. Nibbles times int8: VPMADDUBSW (pairs are at most 2 * 15 * 127, so eight steps fit 16 bits), then
// VPMADDWD with ones. Bytes, or 15-bit activations: weights widened to 16 bits, VPMADDWD.
//
// Constants before this text, beside those of the frame: AHEAD (bytes of weights to prefetch ahead, 0 for none).

use core::arch::x86_64::*;

/// Whether the 8-bit products do.
const NARROW: bool = BITS == 4 && ACTIVATION == ACT_I8;
/// A prepared row: K int8 (NARROW), or K int16 in fours as (0, 2, 1, 3); then `d` of each group, then `t * d` (or the
/// integer offset `-2^(bits-1) * t`).
const SCALES: usize = if NARROW { K } else { 2 * K };
const LIMIT: f32 = if ACTIVATION == ACT_I8 { 127.0 } else { 16256.0 };

#[inline(never)]
unsafe fn prepare(x: *const f32, norm: *const f32, row: *mut u8) {
    let scales = row.add(SCALES) as *mut f32;
    quantise(
        x,
        norm,
        LIMIT,
        |i, q| {
            for l in 0..16 {
                if NARROW {
                    *(row as *mut i8).add(i + l) = q[l] as i8;
                } else {
                    let from = [0, 2, 1, 3][l % 4] + l / 4 * 4;
                    *(row as *mut i16).add(i + l) = q[from] as i16;
                }
            }
        },
        |g, d, t| {
            *scales.add(g) = d;
            if STORED {
                *scales.add(GROUPS + g) = t as f32 * d;
            } else {
                *(scales.add(GROUPS + g) as *mut i32) = -(1 << (BITS - 1)) * t;
            }
        },
    );
}

const HEADER: usize = if STORED { NB * 4 } else { NB * 2 };
const LINE: usize = NB * 4;
const LINES: usize = if BITS == 8 { GROUP / 4 } else { GROUP / 8 };

#[inline(always)]
unsafe fn open(_: *const u8, _: *mut u8, _: usize, _: usize) {}

#[inline(always)]
unsafe fn tile<const MR: usize>(acts: *const u8, w: *const u8, _: *mut u8, sub: usize, subs: usize, y: *mut f32, stride: usize) {
    let mut s = 0;
    while s < subs {
        let block = w.add((sub + s) / (NB / 16) * BLOCK);
        columns::<MR>(acts, block, (sub + s) % (NB / 16) * 16, y.add(s * 16), stride);
        s += 1;
    }
}

type Sums<const MR: usize> = [[__m256i; 2]; MR];

#[inline(never)]
unsafe fn columns<const MR: usize>(acts: *const u8, block: *const u8, lane: usize, y: *mut f32, stride: usize) {
    let mut acc = [[_mm256_setzero_ps(); 2]; MR];
    let mut g = 0;
    while g < GROUPS {
        let record = block.add(g * RECORD);
        let data = record.add(HEADER + lane * 4);
        if AHEAD > 0 {
            for l in 0..LINES {
                _mm_prefetch::<_MM_HINT_T0>(data.wrapping_add(AHEAD + l * LINE) as *const i8);
            }
        }
        let scales = acts.add(SCALES + g * 4);
        let mut sums: Sums<MR> = [[_mm256_setzero_si256(); 2]; MR];
        if !STORED {
            for r in 0..MR {
                sums[r] = [_mm256_set1_epi32(*scales.add(r * ROW + GROUPS * 4).cast::<i32>()); 2];
            }
        }
        if NARROW {
            narrow::<MR>(&mut sums, acts.add(g * GROUP), data);
        } else {
            wide::<MR>(&mut sums, acts.add(g * GROUP * 2), data);
        }
        for h in 0..2 {
            let halves = |p: *const u8| _mm256_cvtph_ps(_mm_loadu_si128(p as *const __m128i));
            let scale = halves(record.add((lane + h * 8) * 2));
            let min = if STORED { halves(record.add((NB + lane + h * 8) * 2)) } else { _mm256_setzero_ps() };
            for r in 0..MR {
                let d = _mm256_set1_ps(*scales.add(r * ROW).cast::<f32>());
                acc[r][h] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sums[r][h]), d), scale, acc[r][h]);
                if STORED {
                    let t = _mm256_set1_ps(*scales.add(r * ROW + GROUPS * 4).cast::<f32>());
                    acc[r][h] = _mm256_fmadd_ps(t, min, acc[r][h]);
                }
            }
        }
        g += 1;
    }
    for r in 0..MR {
        for h in 0..2 {
            _mm256_storeu_ps(y.add(r * stride + h * 8), acc[r][h]);
        }
    }
}

/// The nibbles of one step: low ones for even steps, high ones for odd.
#[inline(always)]
unsafe fn nibbles<const HIGH: bool>(raw: __m256i) -> __m256i {
    let mask = _mm256_set1_epi8(15);
    if HIGH { _mm256_and_si256(_mm256_srli_epi16::<4>(raw), mask) } else { _mm256_and_si256(raw, mask) }
}

#[inline(always)]
unsafe fn load(p: *const u8) -> __m256i {
    _mm256_loadu_si256(p as *const __m256i)
}

/// Four lines (eight steps) at a time in 16 bits.
#[inline(always)]
unsafe fn narrow<const MR: usize>(sums: &mut Sums<MR>, x: *const u8, data: *const u8) {
    let ones = _mm256_set1_epi16(1);
    let mut first = 0;
    while first < LINES {
        let end = smaller(first + 4, LINES);
        for h in 0..2 {
            let mut short = [_mm256_setzero_si256(); MR];
            for l in first..end {
                let raw = load(data.add(l * LINE + h * 32));
                let (low, high) = (nibbles::<false>(raw), nibbles::<true>(raw));
                for r in 0..MR {
                    let at = x.add(r * ROW + l * 8).cast::<i32>();
                    let a = _mm256_maddubs_epi16(low, _mm256_set1_epi32(*at));
                    let b = _mm256_maddubs_epi16(high, _mm256_set1_epi32(*at.add(1)));
                    short[r] = _mm256_add_epi16(short[r], _mm256_add_epi16(a, b));
                }
            }
            for r in 0..MR {
                sums[r][h] = _mm256_add_epi32(sums[r][h], _mm256_madd_epi16(short[r], ones));
            }
        }
        first = end;
    }
}

#[inline(always)]
unsafe fn wide<const MR: usize>(sums: &mut Sums<MR>, x: *const u8, data: *const u8) {
    for l in 0..LINES {
        for h in 0..2 {
            let raw = load(data.add(l * LINE + h * 32));
            if BITS == 8 {
                wide_step::<MR>(sums, h, x.add(l * 8), raw);
            } else {
                wide_step::<MR>(sums, h, x.add(l * 16), nibbles::<false>(raw));
                wide_step::<MR>(sums, h, x.add(l * 16 + 8), nibbles::<true>(raw));
            }
        }
    }
}

/// Bytes 0 and 2 of each column, then 1 and 3.
#[inline(always)]
unsafe fn wide_step<const MR: usize>(sums: &mut Sums<MR>, h: usize, x: *const u8, q: __m256i) {
    let even = _mm256_and_si256(q, _mm256_set1_epi16(0xff));
    let odd = _mm256_srli_epi16::<8>(q);
    for r in 0..MR {
        let at = x.add(r * ROW).cast::<i32>();
        sums[r][h] = _mm256_add_epi32(sums[r][h], _mm256_madd_epi16(even, _mm256_set1_epi32(*at)));
        sums[r][h] = _mm256_add_epi32(sums[r][h], _mm256_madd_epi16(odd, _mm256_set1_epi32(*at.add(1))));
    }
}
