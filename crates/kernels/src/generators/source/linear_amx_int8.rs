// AMX int8: signed activations times unsigned quants, TDPBSUD. One tile product covers up to sixteen rows, sixteen columns and
// DEPTH inputs; the int32 tile of a group goes through memory into the f32 accumulators, which stay in registers.
//
// Before this text stand AMX tiles and int8 rows (UNPACKED); constants beside: AHEAD, DEPTH (inputs of a tile product, 16, 32 or
// 64, divides GROUP).

/// int32 results of two passes, twice: the next group's product may run while this one's is scaled.
const RESULTS: usize = 2 * 2048;
const RESULTS_AT: usize = UNIT_SCRATCH - RESULTS;

/// Tile 0: sums (high pass), tile 1: sums (low or only pass), tile 4: rows, tile 5: quants.
const fn shapes(rows: u8) -> Shapes {
    let mut s = [0u8; 64];
    s[0] = 1;
    let mut t = 0;
    while t < 6 {
        s[16 + 2 * t] = if t == 4 { DEPTH as u8 } else { 64 };
        s[48 + t] = if t == 5 { (DEPTH / 4) as u8 } else { rows };
        t += 1;
    }
    Shapes(s)
}

struct For<const MR: usize>;

impl<const MR: usize> For<MR> {
    const SHAPES: &'static Shapes = &shapes(MR as u8);
}

/// `MR` rows (at most sixteen) of `subs` sub-blocks.
#[inline(always)]
unsafe fn tile<const MR: usize>(acts: *const u8, w: *const u8, scratch: *mut u8, sub: usize, subs: usize, y: *mut f32, stride: usize) {
    configure(For::<MR>::SHAPES);
    let mut s = 0;
    while s < subs {
        columns::<MR>(acts, w, scratch, sub, s, y.add(s * 16), stride);
        s += 1;
    }
    release();
}

#[inline(never)]
unsafe fn columns<const MR: usize>(acts: *const u8, w: *const u8, scratch: *mut u8, sub: usize, s: usize, y: *mut f32, stride: usize) {
    let (mut packed, lane) = place(w, sub + s);
    let mut record = scratch.add(s * GROUPS * OPEN_RECORD);
    let mut acc = [_mm512_setzero_ps(); MR];
    let mut g = 0;
    while g < GROUPS {
        let sums = scratch.add(RESULTS_AT + g % 2 * 2048);
        group_sums(acts.add(g * GROUP), record, sums);
        prefetch(packed, lane);
        let f = record.add(GROUP * 16) as *const f32;
        let scale = _mm512_loadu_ps(f);
        let min = if STORED { _mm512_loadu_ps(f.add(16)) } else { _mm512_setzero_ps() };
        for r in 0..MR {
            let scales = acts.add(r * ROW + SCALES + g * 4);
            let mut sum = load(sums.add(r * 64));
            if PASSES == 2 {
                sum = _mm512_add_epi32(sum, _mm512_slli_epi32::<7>(load(sums.add(1024 + r * 64))));
            }
            if !STORED {
                sum = _mm512_add_epi32(sum, _mm512_set1_epi32(*scales.add(GROUPS * 4).cast::<i32>()));
            }
            let d = _mm512_set1_ps(*scales.cast::<f32>());
            acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), d), scale, acc[r]);
            if STORED {
                acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(*scales.add(GROUPS * 4).cast::<f32>()), min, acc[r]);
            }
        }
        packed = packed.add(RECORD);
        record = record.add(OPEN_RECORD);
        g += 1;
    }
    for r in 0..MR {
        _mm512_storeu_ps(y.add(r * stride), acc[r]);
    }
}

/// The int32 sums of one group: rows of `x` (ROW bytes apart) times the quants at `q` (64 bytes for each four inputs).
#[inline(always)]
unsafe fn group_sums(x: *const u8, q: *const u8, sums: *mut u8) {
    zero_tile::<0>();
    zero_tile::<1>();
    let mut i = 0;
    while i < GROUP {
        load_tile::<5>(q.add(i * 16), 64);
        load_tile::<4>(x.add((PASSES - 1) * K + i), ROW);
        dot_int8::<1, 4, 5>();
        if PASSES == 2 {
            load_tile::<4>(x.add(i), ROW);
            dot_int8::<0, 4, 5>();
        }
        i += DEPTH;
    }
    store_tile::<1>(sums, 64);
    if PASSES == 2 {
        store_tile::<0>(sums.add(1024), 64);
    }
}
