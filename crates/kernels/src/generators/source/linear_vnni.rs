// AVX-512 VNNI: unsigned weight quants times int8 activations. One VPDPBUSD takes four inputs of sixteen columns; the four
// activation bytes of a row are broadcast from memory.
//
// Constants before this text, beside those of the frame: NR (sub-blocks of a tile), AHEAD (bytes of weights to prefetch
// ahead, 0 for none), UNPACKED (whether `open` unpacks a unit to bytes and f32 scales first).

use core::arch::x86_64::*;

/// A prepared row: K bytes (I16: the high pass, then K bytes of the low pass), then `d` of each group, then `t * d` of each
/// group (or the integer offset `-2^(bits-1) * t`).
const PASSES: usize = if ACTIVATION == ACT_I16 { 2 } else { 1 };
const SCALES: usize = K * PASSES;
const OFFSETS: usize = SCALES + GROUPS * 4;
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
                if PASSES == 2 {
                    let high = (q[l] + 64) >> 7;
                    *(row as *mut i8).add(i + l) = high as i8;
                    *(row as *mut i8).add(K + i + l) = (q[l] - 128 * high) as i8;
                } else {
                    *(row as *mut i8).add(i + l) = q[l] as i8;
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
/// Bytes of the packed quants of one record from one step (or pair of steps) to the next.
const LINE: usize = NB * 4;
const LINES: usize = if BITS == 8 { GROUP / 4 } else { GROUP / 8 };
/// An unpacked record of one sub-block: GROUP / 4 lines of bytes, then f32 scales and minima.
const OPEN_RECORD: usize = GROUP * 16 + 128;

#[inline(always)]
unsafe fn load(p: *const u8) -> __m512i {
    _mm512_loadu_si512(p as *const __m512i)
}

/// The two steps in a line of nibbles.
#[inline(always)]
unsafe fn nibbles(raw: __m512i) -> (__m512i, __m512i) {
    let mask = _mm512_set1_epi8(15);
    (_mm512_and_si512(raw, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(raw), mask))
}

#[inline(always)]
unsafe fn halves(p: *const u8) -> __m512 {
    _mm512_cvtph_ps(_mm256_loadu_si256(p as *const __m256i))
}

/// First record and lane of a sub-block.
#[inline(always)]
unsafe fn place(w: *const u8, sub: usize) -> (*const u8, usize) {
    (w.add(sub / (NB / 16) * BLOCK), sub % (NB / 16) * 16)
}

/// Unpacks a unit into scratch.
#[inline(always)]
unsafe fn open(w: *const u8, scratch: *mut u8, sub: usize, subs: usize) {
    if !UNPACKED {
        return;
    }
    let mut to = scratch;
    let mut s = 0;
    while s < subs {
        let (block, lane) = place(w, sub + s);
        let mut g = 0;
        while g < GROUPS {
            let record = block.add(g * RECORD);
            let data = record.add(HEADER + lane * 4);
            for l in 0..LINES {
                let line = data.add(l * LINE);
                if BITS == 8 {
                    _mm512_storeu_si512(to.add(l * 64) as *mut __m512i, load(line));
                } else {
                    let (low, high) = nibbles(load(line));
                    _mm512_storeu_si512(to.add(l * 128) as *mut __m512i, low);
                    _mm512_storeu_si512(to.add(l * 128 + 64) as *mut __m512i, high);
                }
            }
            let scales = to.add(GROUP * 16) as *mut f32;
            _mm512_storeu_ps(scales, halves(record.add(lane * 2)));
            if STORED {
                _mm512_storeu_ps(scales.add(16), halves(record.add(NB * 2 + lane * 2)));
            }
            to = to.add(OPEN_RECORD);
            g += 1;
        }
        s += 1;
    }
}

/// `MR` rows of `subs` sub-blocks.
#[inline(always)]
unsafe fn tile<const MR: usize>(acts: *const u8, w: *const u8, scratch: *mut u8, sub: usize, subs: usize, y: *mut f32, stride: usize) {
    let mut s = 0;
    while subs - s >= NR {
        columns::<MR, NR>(acts, w, scratch, sub, s, y.add(s * 16), stride);
        s += NR;
    }
    while s < subs {
        columns::<MR, 1>(acts, w, scratch, sub, s, y.add(s * 16), stride);
        s += 1;
    }
}

/// `MR` rows of `W` sub-blocks: integer sums of a group in registers, then one or two multiply-adds into f32.
#[inline(never)]
unsafe fn columns<const MR: usize, const W: usize>(
    acts: *const u8,
    w: *const u8,
    scratch: *const u8,
    sub: usize,
    s: usize,
    y: *mut f32,
    stride: usize,
) {
    let mut record = [w; W];
    let mut packed = [w; W];
    let mut lane = [0usize; W];
    for j in 0..W {
        (packed[j], lane[j]) = place(w, sub + s + j);
        record[j] = if UNPACKED { scratch.add((s + j) * GROUPS * OPEN_RECORD) } else { packed[j] };
    }
    let mut acc = [[_mm512_setzero_ps(); W]; MR];
    let mut x = acts;
    let mut scales = acts.add(SCALES) as *const f32;
    let mut g = 0;
    while g < GROUPS {
        for j in 0..W {
            prefetch(packed[j], lane[j]);
            packed[j] = packed[j].add(RECORD);
        }
        let mut sums = [[_mm512_setzero_si512(); W]; MR];
        if PASSES == 2 {
            add_steps::<MR, W>(&mut sums, x, &record, &lane);
            for r in 0..MR {
                for j in 0..W {
                    sums[r][j] = _mm512_slli_epi32::<7>(sums[r][j]);
                }
            }
        }
        if !STORED {
            for r in 0..MR {
                let offset = _mm512_set1_epi32(*(scales as *const u8).add(r * ROW + GROUPS * 4).cast::<i32>());
                for j in 0..W {
                    sums[r][j] = if PASSES == 2 { _mm512_add_epi32(sums[r][j], offset) } else { offset };
                }
            }
        }
        add_steps::<MR, W>(&mut sums, x.add((PASSES - 1) * K), &record, &lane);
        let (mut scale, mut min) = ([_mm512_setzero_ps(); W], [_mm512_setzero_ps(); W]);
        for j in 0..W {
            if UNPACKED {
                let f = record[j].add(GROUP * 16) as *const f32;
                scale[j] = _mm512_loadu_ps(f);
                if STORED {
                    min[j] = _mm512_loadu_ps(f.add(16));
                }
            } else {
                scale[j] = halves(record[j].add(lane[j] * 2));
                if STORED {
                    min[j] = halves(record[j].add(NB * 2 + lane[j] * 2));
                }
            }
        }
        for r in 0..MR {
            let d = _mm512_set1_ps(*(scales as *const u8).add(r * ROW).cast::<f32>());
            for j in 0..W {
                acc[r][j] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums[r][j]), d), scale[j], acc[r][j]);
            }
            if STORED {
                let t = _mm512_set1_ps(*(scales as *const u8).add(r * ROW + GROUPS * 4).cast::<f32>());
                for j in 0..W {
                    acc[r][j] = _mm512_fmadd_ps(t, min[j], acc[r][j]);
                }
            }
        }
        for j in 0..W {
            record[j] = record[j].add(if UNPACKED { OPEN_RECORD } else { RECORD });
        }
        x = x.add(GROUP);
        scales = scales.add(1);
        g += 1;
    }
    for r in 0..MR {
        for j in 0..W {
            _mm512_storeu_ps(y.add(r * stride + j * 16), acc[r][j]);
        }
    }
}

/// Asks for the lines of the record that lies AHEAD bytes after one sub-block's part of `record`.
#[inline(always)]
unsafe fn prefetch(record: *const u8, lane: usize) {
    if AHEAD == 0 {
        return;
    }
    let ahead = record.wrapping_add(AHEAD);
    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(lane * 2) as *const i8);
    for l in 0..LINES {
        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(HEADER + lane * 4 + l * LINE) as *const i8);
    }
}

/// Adds the products of one record to the integer sums.
#[inline(always)]
unsafe fn add_steps<const MR: usize, const W: usize>(
    sums: &mut [[__m512i; W]; MR],
    x: *const u8,
    record: &[*const u8; W],
    lane: &[usize; W],
) {
    if UNPACKED {
        for step in 0..GROUP / 4 {
            let mut q = [_mm512_setzero_si512(); W];
            for j in 0..W {
                q[j] = load(record[j].add(step * 64));
            }
            add_step::<MR, W>(sums, x.add(step * 4), &q);
        }
        return;
    }
    for l in 0..LINES {
        let (mut low, mut high) = ([_mm512_setzero_si512(); W], [_mm512_setzero_si512(); W]);
        for j in 0..W {
            low[j] = load(record[j].add(HEADER + lane[j] * 4 + l * LINE));
            if BITS == 4 {
                (low[j], high[j]) = nibbles(low[j]);
            }
        }
        if BITS == 4 {
            add_step::<MR, W>(sums, x.add(l * 8), &low);
            add_step::<MR, W>(sums, x.add(l * 8 + 4), &high);
        } else {
            add_step::<MR, W>(sums, x.add(l * 4), &low);
        }
    }
}

#[inline(always)]
unsafe fn add_step<const MR: usize, const W: usize>(sums: &mut [[__m512i; W]; MR], x: *const u8, q: &[__m512i; W]) {
    for r in 0..MR {
        let four = _mm512_set1_epi32(*x.add(r * ROW).cast::<i32>());
        for j in 0..W {
            sums[r][j] = _mm512_dpbusd_epi32(sums[r][j], q[j], four);
        }
    }
}
