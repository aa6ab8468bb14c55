// What VNNI and AMX kernels share: rows as int8 (two passes for 15 bits) and weights unpacked to bytes.
//
// Constants before this text, beside those of the frame: UNPACKED (whether `open` unpacks a unit to bytes and f32 scales).

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
