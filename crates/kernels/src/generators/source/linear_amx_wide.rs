// AMX int8 for `Row16`: TDPBSUD on the bytes of 16-bit weights. A weight tile holds 32 inputs (low and high byte of each) of
// sixteen columns. Two products make a sum: rows as (high, 2 * low) give `mid`, rows as (0, high) give `hi`; both stay in
// tiles over all of k, so that groups cost nothing.
//
// DEPTH inputs of two sub-blocks are widened into L1, then all rows pass.
//
// Constants before this text, beside those of the frame: DEPTH (a divisor of K, whole groups), AHEAD (bytes of packed
// weights to prefetch ahead, 0 for none), TOP. Rows are prepared in places of whole sixteens, and tiles are always whole:
// what lies in the rows beyond is computed and not used.

use core::arch::x86_64::*;

/// Bytes of sixteen prepared rows for 32 inputs: both kinds of rows.
const STEP: usize = 2048;
/// Where scale and offsets of a row stand, from the row's first byte.
const EXTRAS: usize = K / 32 * STEP;

/// Integers `s` and `t` of a group for 32 lanes (each column twice), for each group; then the units of the columns.
const TABLE: usize = GROUPS * 128 + 64;
/// Widened weights of one sub-block, and a line more, so that panels do not fall into the same cache sets.
const PANEL: usize = DEPTH * 32 + 64;
const PANELS_AT: usize = 2 * TABLE;
/// int32 sums of sixteen rows: `mid` and `hi` of two sub-blocks.
const SUMS_AT: usize = PANELS_AT + 2 * PANEL;
const SUMS: usize = 4096;

const HEADER: usize = if STORED { NB * 4 } else { NB * 2 };
const LINES: usize = if BITS == 8 { GROUP / 4 } else { GROUP / 8 };

/// Eight tiles: 0 to 3 for sums, 4 and 5 for rows, 6 and 7 for weights.
const fn shapes() -> Shapes {
    let mut s = [0u8; 64];
    s[0] = 1;
    let mut t = 0;
    while t < 8 {
        s[16 + 2 * t] = 64;
        s[48 + t] = 16;
        t += 1;
    }
    Shapes(s)
}
static WHOLE: Shapes = shapes();

/// The input that stands at each place of a tile's row: a 16-bit lane of packed weights holds inputs that are two apart.
const fn order() -> [u16; 32] {
    let mut order = [0u16; 32];
    let mut p = 0;
    while p < 32 {
        let (line, second) = (p / 2, p % 2);
        let input = if BITS == 4 {
            let shift = line % 4;
            line / 4 * 8 + shift % 2 * 4 + shift / 2 + second * 2
        } else {
            line / 2 * 4 + line % 2 + second * 2
        };
        order[p] = input as u16;
        p += 1;
    }
    order
}
static ORDER: [u16; 32] = order();

/// Sixteen inputs from `i`, normalised if the prologue says so.
#[inline(always)]
unsafe fn values(x: *const f32, norm: *const f32, inverse: __m512, i: usize) -> __m512 {
    let y = _mm512_loadu_ps(x.add(i));
    if NORM { _mm512_mul_ps(_mm512_mul_ps(y, inverse), _mm512_loadu_ps(norm.add(i))) } else { y }
}

#[inline(never)]
unsafe fn prepare(x: *const f32, norm: *const f32, row: *mut u8) {
    let inverse = _mm512_set1_ps(if NORM { rms_inverse(x, K, EPS) } else { 1.0 });
    let mut most = [_mm512_setzero_ps(); 2];
    let mut i = 0;
    while i < K {
        for l in 0..2 {
            // The second operand where the first is not a number, as `larger`.
            most[l] = _mm512_max_ps(_mm512_abs_ps(values(x, norm, inverse, i + l * 16)), most[l]);
        }
        i += 32;
    }
    let max = _mm512_reduce_max_ps(_mm512_max_ps(most[0], most[1]));
    let live = max >= f32::from_bits((127 - 100) << 23);
    let d = if live { max / 16256.0 } else { 0.0 };
    let factor = _mm512_set1_ps(if live { 1.0 / d } else { 0.0 });
    let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
    let byte = _mm512_set1_epi32(255);
    let (mut highs, mut lows) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    let mut i = 0;
    while i < K {
        let mut both = [_mm512_setzero_si512(); 2];
        let mut alone = [_mm512_setzero_si512(); 2];
        for l in 0..2 {
            let q = _mm512_cvtps_epi32(_mm512_mul_ps(values(x, norm, inverse, i + l * 16), factor));
            let high = _mm512_srai_epi32::<7>(_mm512_add_epi32(q, _mm512_set1_epi32(64)));
            let low = _mm512_sub_epi32(q, _mm512_slli_epi32::<7>(high));
            highs = _mm512_add_epi32(highs, high);
            lows = _mm512_add_epi32(lows, low);
            let high = _mm512_and_si512(high, byte);
            both[l] = _mm512_or_si512(high, _mm512_slli_epi32::<9>(low));
            alone[l] = _mm512_slli_epi32::<8>(high);
        }
        let to = row.add(i / 32 * STEP);
        put(to, _mm512_permutexvar_epi16(order, words(both)));
        put(to.add(1024), _mm512_permutexvar_epi16(order, words(alone)));
        i += 32;
    }
    let (high, low) = (_mm512_reduce_add_epi32(highs), _mm512_reduce_add_epi32(lows));
    let extras = row.add(EXTRAS);
    *(extras as *mut f32) = 128.0 * d;
    *(extras as *mut i32).add(1) = -255 * low;
    *(extras as *mut i32).add(2) = -128 * high;
}

/// The low halves of 32 integers.
#[inline(always)]
unsafe fn words(x: [__m512i; 2]) -> __m512i {
    let first = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(x[0]));
    _mm512_inserti64x4::<1>(first, _mm512_cvtepi32_epi16(x[1]))
}

#[inline(always)]
unsafe fn load(p: *const u8) -> __m512i {
    _mm512_loadu_si512(p as *const __m512i)
}

#[inline(always)]
unsafe fn put(p: *mut u8, x: __m512i) {
    _mm512_storeu_si512(p as *mut __m512i, x)
}

/// Scales and minima of sixteen columns of a record.
#[inline(always)]
unsafe fn header(record: *const u8, lane: usize) -> (__m512, __m512) {
    let halves = |p: *const u8| _mm512_cvtph_ps(_mm256_loadu_si256(p as *const __m256i));
    let scale = halves(record.add(lane * 2));
    let min = if STORED {
        halves(record.add((NB + lane) * 2))
    } else {
        _mm512_mul_ps(scale, _mm512_set1_ps(-((1 << (BITS - 1)) as f32)))
    };
    (scale, min)
}

/// First record and lane of a sub-block.
#[inline(always)]
unsafe fn place(w: *const u8, sub: usize) -> (*const u8, usize) {
    (w.add(sub / (NB / 16) * BLOCK), sub % (NB / 16) * 16)
}

/// Scales and minima of a sub-block as integers.
#[inline(never)]
unsafe fn tabulate(w: *const u8, sub: usize, table: *mut u8) {
    let (block, lane) = place(w, sub);
    let mut top = _mm512_setzero_ps();
    for g in 0..GROUPS {
        let (scale, min) = header(block.add(g * RECORD), lane);
        let high = _mm512_fmadd_ps(scale, _mm512_set1_ps(((1 << BITS) - 1) as f32), min);
        top = _mm512_max_ps(top, _mm512_max_ps(_mm512_abs_ps(min), _mm512_abs_ps(high)));
    }
    let unit = _mm512_div_ps(top, _mm512_set1_ps(TOP));
    let some = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(top, _mm512_setzero_ps());
    let inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0), unit);
    for g in 0..GROUPS {
        let (scale, min) = header(block.add(g * RECORD), lane);
        let s = _mm512_cvtps_epi32(_mm512_mul_ps(scale, inverse));
        let t = _mm512_cvtps_epi32(_mm512_mul_ps(min, inverse));
        let t = _mm512_add_epi32(t, _mm512_set1_epi32(32768));
        // Both as 16 bits, one vector: s in the low half of each lane, t in the high one.
        let s = _mm512_and_si512(s, _mm512_set1_epi32(0xffff));
        put(table.add(g * 128), _mm512_or_si512(s, _mm512_slli_epi32::<16>(s)));
        let t = _mm512_and_si512(t, _mm512_set1_epi32(0xffff));
        put(table.add(g * 128 + 64), _mm512_or_si512(t, _mm512_slli_epi32::<16>(t)));
    }
    _mm512_storeu_ps(table.add(GROUPS * 128) as *mut f32, unit);
}

/// Group `g` of a sub-block as 16-bit integers, 32768 too large.
#[inline(always)]
unsafe fn widen(block: *const u8, lane: usize, g: usize, table: *const u8, mut to: *mut u8) {
    let record = block.add(g * RECORD);
    let (s, t) = (load(table.add(g * 128)), load(table.add(g * 128 + 64)));
    let whole = |q: __m512i| _mm512_add_epi16(_mm512_mullo_epi16(q, s), t);
    if AHEAD > 0 {
        _mm_prefetch::<_MM_HINT_T0>(record.wrapping_add(AHEAD + lane * 2) as *const i8);
    }
    for l in 0..LINES {
        let at = record.add(HEADER + (l * NB + lane) * 4);
        if AHEAD > 0 {
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD) as *const i8);
        }
        let raw = load(at);
        if BITS == 4 {
            let mask = _mm512_set1_epi16(15);
            put(to, whole(_mm512_and_si512(raw, mask)));
            put(to.add(64), whole(_mm512_and_si512(_mm512_srli_epi16::<4>(raw), mask)));
            put(to.add(128), whole(_mm512_and_si512(_mm512_srli_epi16::<8>(raw), mask)));
            put(to.add(192), whole(_mm512_srli_epi16::<12>(raw)));
            to = to.add(256);
        } else {
            put(to, whole(_mm512_and_si512(raw, _mm512_set1_epi16(255))));
            put(to.add(64), whole(_mm512_srli_epi16::<8>(raw)));
            to = to.add(128);
        }
    }
}

/// All columns of this thread for `count` rows from `first`.
#[inline(never)]
unsafe fn chunk(a: &ArgsV1, first: usize, count: usize, acts: *const u8, scratch: *mut u8, thread: u32, threads: u32) {
    let whole = if EPILOGUE == STORE || EPILOGUE == ADD { 1 } else { UNIT_SUBS };
    let (from, to) = share(SUBS / whole, thread, threads);
    let (mut sub, end) = (from * whole, to * whole);
    if sub >= end {
        return;
    }
    configure(&WHOLE);
    let tiles = count.div_ceil(16);
    let results = scratch.add(SUMS_AT + tiles * SUMS) as *mut f32;
    while sub < end {
        let subs = smaller(UNIT_SUBS, end - sub);
        let mut s = 0;
        while s < subs {
            let y = results.add(s * 16);
            if subs - s >= 2 {
                columns::<2>(a, acts, count, scratch, sub + s, y);
                s += 2;
            } else {
                columns::<1>(a, acts, count, scratch, sub + s, y);
                s += 1;
            }
        }
        finish(a, first, count, sub, subs, results, UNIT);
        sub += subs;
    }
    release();
}

/// All rows of `C` sub-blocks: raw results to `y`.
#[inline(never)]
unsafe fn columns<const C: usize>(a: &ArgsV1, acts: *const u8, count: usize, scratch: *mut u8, sub: usize, y: *mut f32) {
    let w = a.tensors[1].data as *const u8;
    let tiles = count.div_ceil(16);
    for j in 0..C {
        tabulate(w, sub + j, scratch.add(j * TABLE));
    }
    let panels = scratch.add(PANELS_AT);
    let mut k = 0;
    while k < K {
        for j in 0..C {
            let (block, lane) = place(w, sub + j);
            for g in 0..DEPTH / GROUP {
                widen(block, lane, k / GROUP + g, scratch.add(j * TABLE), panels.add(j * PANEL + g * GROUP * 32));
            }
        }
        for t in 0..tiles {
            let sums = scratch.add(SUMS_AT + t * SUMS);
            // One tile of rows keeps its sums in tiles.
            if k == 0 {
                zero_tile::<0>();
                zero_tile::<1>();
                zero_tile::<2>();
                zero_tile::<3>();
            } else if tiles > 1 {
                load_tile::<0>(sums, 64);
                load_tile::<1>(sums.add(1024), 64);
                if C > 1 {
                    load_tile::<2>(sums.add(2048), 64);
                    load_tile::<3>(sums.add(3072), 64);
                }
            }
            let rows = acts.add(t * 16 * ROW + k / 32 * STEP);
            for i in 0..DEPTH / 32 {
                load_tile::<4>(rows.add(i * STEP), 64);
                load_tile::<6>(panels.add(i * 1024), 64);
                dot_int8::<0, 4, 6>();
                load_tile::<5>(rows.add(i * STEP + 1024), 64);
                dot_int8::<1, 5, 6>();
                if C > 1 {
                    load_tile::<7>(panels.add(PANEL + i * 1024), 64);
                    dot_int8::<2, 4, 7>();
                    dot_int8::<3, 5, 7>();
                }
            }
            if tiles > 1 || k + DEPTH == K {
                store_tile::<0>(sums, 64);
                store_tile::<1>(sums.add(1024), 64);
                if C > 1 {
                    store_tile::<2>(sums.add(2048), 64);
                    store_tile::<3>(sums.add(3072), 64);
                }
            }
        }
        k += DEPTH;
    }
    for j in 0..C {
        let unit = _mm512_loadu_ps(scratch.add(j * TABLE + GROUPS * 128) as *const f32);
        for r in 0..count {
            let sums = scratch.add(SUMS_AT + r / 16 * SUMS + j * 2048 + r % 16 * 64);
            let extras = place_row(acts as *mut u8, r).add(EXTRAS);
            let d = _mm512_set1_ps(*(extras as *const f32));
            let mid = _mm512_add_epi32(load(sums), _mm512_set1_epi32(*(extras as *const i32).add(1)));
            let hi = _mm512_add_epi32(load(sums.add(1024)), _mm512_set1_epi32(*(extras as *const i32).add(2)));
            let both = _mm512_fmadd_ps(_mm512_cvtepi32_ps(hi), _mm512_set1_ps(256.0), _mm512_cvtepi32_ps(mid));
            _mm512_storeu_ps(y.add(r * UNIT + j * 16), _mm512_mul_ps(_mm512_mul_ps(both, d), unit));
        }
    }
}
