// AVX-512 with f32 activations (affine, bf16 and f32 weights), and with bf16 activations by VDPBF16PS.
//
// Constants before this text, beside those of the frame: NR (sub-blocks of a tile), AHEAD (bytes of weights to prefetch
// ahead, 0 for none).

use core::arch::x86_64::*;

#[inline(never)]
unsafe fn prepare(x: *const f32, norm: *const f32, row: *mut u8) {
    let inverse = if NORM { rms_inverse(x, K, EPS) } else { 1.0 };
    for i in 0..K {
        let v = *x.add(i);
        let y = if NORM { (v * inverse) * *norm.add(i) } else { v };
        if ACTIVATION == ACT_BF16 {
            *(row as *mut u16).add(i) = to_bf16_activation(y);
        } else {
            *(row as *mut f32).add(i) = y;
        }
    }
}

#[inline(always)]
unsafe fn open(_: *const u8, _: *mut u8, _: usize, _: usize) {}

#[inline(always)]
unsafe fn tile<const MR: usize>(acts: *const u8, w: *const u8, _: *mut u8, sub: usize, subs: usize, y: *mut f32, stride: usize) {
    let mut s = 0;
    while subs - s >= NR {
        columns::<MR, NR>(acts, w, sub + s, y.add(s * 16), stride);
        s += NR;
    }
    while s < subs {
        columns::<MR, 1>(acts, w, sub + s, y.add(s * 16), stride);
        s += 1;
    }
}

type Acc<const MR: usize, const W: usize> = [[__m512; W]; MR];

#[inline(never)]
unsafe fn columns<const MR: usize, const W: usize>(acts: *const u8, w: *const u8, sub: usize, y: *mut f32, stride: usize) {
    let mut at = [w; W];
    let mut lane = [0usize; W];
    for j in 0..W {
        at[j] = w.add((sub + j) / (NB / 16) * BLOCK);
        lane[j] = (sub + j) % (NB / 16) * 16;
    }
    let mut acc: Acc<MR, W> = [[_mm512_setzero_ps(); W]; MR];
    match FORMAT {
        AFFINE => affine::<MR, W>(&mut acc, acts, at, &lane),
        BF16 => pairs::<MR, W>(&mut acc, acts, at, &lane),
        _ => singles::<MR, W>(&mut acc, acts, at, &lane),
    }
    for r in 0..MR {
        for j in 0..W {
            _mm512_storeu_ps(y.add(r * stride + j * 16), acc[r][j]);
        }
    }
}

/// A line of 64 bytes, and the one AHEAD of it asked for.
#[inline(always)]
unsafe fn line(p: *const u8) -> __m512i {
    if AHEAD > 0 {
        _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(AHEAD) as *const i8);
    }
    _mm512_loadu_si512(p as *const __m512i)
}

/// `acc = fma(x, weight, acc)` for one input of every row.
#[inline(always)]
unsafe fn add<const MR: usize, const W: usize>(acc: &mut Acc<MR, W>, x: *const u8, weight: &[__m512; W]) {
    for r in 0..MR {
        let v = _mm512_set1_ps(*x.add(r * ROW).cast::<f32>());
        for j in 0..W {
            acc[r][j] = _mm512_fmadd_ps(v, weight[j], acc[r][j]);
        }
    }
}

#[inline(always)]
unsafe fn singles<const MR: usize, const W: usize>(acc: &mut Acc<MR, W>, acts: *const u8, at: [*const u8; W], lane: &[usize; W]) {
    let mut i = 0;
    while i < K {
        let mut weight = [_mm512_setzero_ps(); W];
        for j in 0..W {
            weight[j] = _mm512_castsi512_ps(line(at[j].add((i * NB + lane[j]) * 4)));
        }
        add::<MR, W>(acc, acts.add(i * 4), &weight);
        i += 1;
    }
}

#[inline(always)]
unsafe fn pairs<const MR: usize, const W: usize>(acc: &mut Acc<MR, W>, acts: *const u8, at: [*const u8; W], lane: &[usize; W]) {
    let mut step = 0;
    while step < K / 2 {
        let (mut even, mut odd) = ([_mm512_setzero_ps(); W], [_mm512_setzero_ps(); W]);
        for j in 0..W {
            let both = line(at[j].add((step * NB + lane[j]) * 4));
            if ACTIVATION == ACT_BF16 {
                even[j] = _mm512_castsi512_ps(both);
            } else {
                even[j] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both));
                odd[j] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000u32 as i32)));
            }
        }
        if ACTIVATION == ACT_BF16 {
            dot::<MR, W>(acc, acts.add(step * 4), &even);
        } else {
            add::<MR, W>(acc, acts.add(step * 8), &even);
            add::<MR, W>(acc, acts.add(step * 8 + 4), &odd);
        }
        step += 1;
    }
}

/// One pair of inputs of every row.
#[inline(always)]
unsafe fn dot<const MR: usize, const W: usize>(acc: &mut Acc<MR, W>, x: *const u8, weight: &[__m512; W]) {
    for r in 0..MR {
        let v = _mm512_set1_epi32(*x.add(r * ROW).cast::<i32>());
        for j in 0..W {
            acc[r][j] = dot_pair(acc[r][j], v, _mm512_castps_si512(weight[j]));
        }
    }
}

const HEADER: usize = if STORED { NB * 4 } else { NB * 2 };
const LINES: usize = if BITS == 8 { GROUP / 4 } else { GROUP / 8 };

#[inline(always)]
unsafe fn halves(p: *const u8) -> __m512 {
    _mm512_cvtph_ps(_mm256_loadu_si256(p as *const __m256i))
}

#[inline(always)]
unsafe fn affine<const MR: usize, const W: usize>(acc: &mut Acc<MR, W>, acts: *const u8, mut at: [*const u8; W], lane: &[usize; W]) {
    let mut x = acts;
    let mut g = 0;
    while g < GROUPS {
        let (mut scale, mut min) = ([_mm512_setzero_ps(); W], [_mm512_setzero_ps(); W]);
        for j in 0..W {
            scale[j] = halves(at[j].add(lane[j] * 2));
            min[j] = if STORED {
                halves(at[j].add((NB + lane[j]) * 2))
            } else {
                // Exact, and so is the sum with `scale * q`.
                _mm512_mul_ps(scale[j], _mm512_set1_ps(-((1 << (BITS - 1)) as f32)))
            };
        }
        let mut l = 0;
        while l < LINES {
            let mut raw = [_mm512_setzero_si512(); W];
            for j in 0..W {
                raw[j] = line(at[j].add(HEADER + (l * NB + lane[j]) * 4));
            }
            if BITS == 8 {
                four::<MR, W, 0, 0xff>(acc, x, &raw, &scale, &min);
                x = x.add(16);
            } else {
                four::<MR, W, 0, 15>(acc, x, &raw, &scale, &min);
                four::<MR, W, 4, 15>(acc, x.add(16), &raw, &scale, &min);
                x = x.add(32);
            }
            l += 1;
        }
        for j in 0..W {
            at[j] = at[j].add(RECORD);
        }
        g += 1;
    }
}

/// The four inputs of one step: their quants are fields of each 32-bit lane from bit FIRST on.
#[inline(always)]
unsafe fn four<const MR: usize, const W: usize, const FIRST: u32, const MASK: i32>(
    acc: &mut Acc<MR, W>,
    x: *const u8,
    raw: &[__m512i; W],
    scale: &[__m512; W],
    min: &[__m512; W],
) {
    for b in 0..4 {
        let mut weight = [_mm512_setzero_ps(); W];
        for j in 0..W {
            let shift = _mm_cvtsi32_si128(FIRST as i32 + 8 * b);
            let q = _mm512_and_si512(_mm512_srl_epi32(raw[j], shift), _mm512_set1_epi32(MASK));
            weight[j] = _mm512_fmadd_ps(scale[j], _mm512_cvtepi32_ps(q), min[j]);
        }
        add::<MR, W>(acc, x.add(b as usize * 4), &weight);
    }
}
