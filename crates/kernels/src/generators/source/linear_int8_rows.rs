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

/// Vectors of a group.
const PARTS: usize = GROUP / 16;

/// One row: as `quantise` of the frame, with vectors.
#[inline(never)]
unsafe fn prepare(x: *const f32, norm: *const f32, row: *mut u8) {
    let inverse = _mm512_set1_ps(if NORM { rms_inverse(x, K, EPS) } else { 1.0 });
    let mut g = 0;
    while g < GROUPS {
        let mut y = [_mm512_setzero_ps(); PARTS];
        let mut most = _mm512_setzero_ps();
        for p in 0..PARTS {
            let i = g * GROUP + p * 16;
            y[p] = _mm512_loadu_ps(x.add(i));
            if NORM {
                y[p] = _mm512_mul_ps(_mm512_mul_ps(y[p], inverse), _mm512_loadu_ps(norm.add(i)));
            }
            // The second operand where the first is not a number, as `larger`.
            most = _mm512_max_ps(_mm512_abs_ps(y[p]), most);
        }
        let max = _mm512_reduce_max_ps(most);
        let live = max >= f32::from_bits((127 - 100) << 23);
        let d = if live { max / LIMIT } else { 0.0 };
        let factor = _mm512_set1_ps(if live { 1.0 / d } else { 0.0 });
        let mut total = _mm512_setzero_si512();
        for p in 0..PARTS {
            let q = _mm512_cvtps_epi32(_mm512_mul_ps(y[p], factor));
            total = _mm512_add_epi32(total, q);
            let to = row.add(g * GROUP + p * 16);
            if PASSES == 2 {
                let high = _mm512_srai_epi32::<7>(_mm512_add_epi32(q, _mm512_set1_epi32(64)));
                put_bytes(to, high);
                put_bytes(to.add(K), _mm512_sub_epi32(q, _mm512_slli_epi32::<7>(high)));
            } else {
                put_bytes(to, q);
            }
        }
        let t = _mm512_reduce_add_epi32(total);
        *(row.add(SCALES) as *mut f32).add(g) = d;
        if STORED {
            *(row.add(OFFSETS) as *mut f32).add(g) = t as f32 * d;
        } else {
            *(row.add(OFFSETS) as *mut i32).add(g) = -(1 << (BITS - 1)) * t;
        }
        g += 1;
    }
}

/// Sixteen integers as bytes.
#[inline(always)]
unsafe fn put_bytes(to: *mut u8, q: __m512i) {
    _mm_storeu_si128(to as *mut __m128i, _mm512_cvtepi32_epi8(q));
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
