// AMX int8 on 8-bit weights as they lie in memory: TDPBSUD of signed rows and unsigned quants, without a copy of either. Wide
// groups make the way from int32 sums to f32 short beside the products.
//
// Sixteen rows at a time meet two sub-blocks: for each group the sums of both passes are made in tiles, stored, and scaled
// into f32 results while the next group's products run.
//
// Before this text stand AMX tiles and int8 rows; constants beside: AHEAD, DEPTH (inputs of a tile product, 32 or 64, divides
// GROUP).

/// int32 sums of sixteen rows: two passes of two sub-blocks; twice, for two groups.
const SUMS: usize = 4096;
const RESULTS_AT: usize = 2 * SUMS;

/// Tiles 0 to 3: sums; 4 and 5: rows, low and high pass; 6 and 7: quants.
#[inline(always)]
unsafe fn set_rows(rows: usize) {
    let mut shapes = Shapes([0u8; 64]);
    shapes.0[0] = 1;
    let mut t = 0;
    while t < 8 {
        shapes.0[16 + 2 * t] = if t == 4 || t == 5 { DEPTH as u8 } else { 64 };
        shapes.0[48 + t] = if t >= 6 { (DEPTH / 4) as u8 } else { rows as u8 };
        t += 1;
    }
    configure(&shapes);
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
    set_rows(smaller(count, 16));
    let results = scratch.add(RESULTS_AT) as *mut f32;
    let w = a.tensors[1].data as *const u8;
    while sub < end {
        let subs = smaller(UNIT_SUBS, end - sub);
        let mut r = 0;
        while r < count {
            let rows = smaller(16, count - r);
            let mut s = 0;
            while s < subs {
                let y = results.add(r * UNIT + s * 16);
                let x = acts.add(r * ROW);
                // Tiles of rows take turns in asking for later weights.
                let turn = (r / 16, count.div_ceil(16));
                s += if subs - s >= 2 {
                    columns::<2>(w, x, rows, scratch, sub + s, y, turn)
                } else {
                    columns::<1>(w, x, rows, scratch, sub + s, y, turn)
                };
            }
            r += 16;
        }
        finish(a, first, count, sub, subs, results, UNIT);
        sub += subs;
    }
    release();
}

/// `rows` rows (at most sixteen) of `C` sub-blocks: raw results to `y`. `turn`: which of how many shares of
/// the later weights are asked for.
#[inline(never)]
unsafe fn columns<const C: usize>(w: *const u8, x: *const u8, rows: usize, scratch: *mut u8, sub: usize, y: *mut f32, turn: (usize, usize)) -> usize {
    let mut packed = [w; C];
    let mut lane = [0usize; C];
    for j in 0..C {
        (packed[j], lane[j]) = place(w, sub + j);
    }
    let mut g = 0;
    while g <= GROUPS {
        if g < GROUPS {
            let sums = scratch.add(g % 2 * SUMS);
            zero_tile::<0>();
            zero_tile::<2>();
            if PASSES == 2 {
                zero_tile::<1>();
                zero_tile::<3>();
            }
            let mut quants = [w; C];
            for j in 0..C {
                quants[j] = packed[j].add(g * RECORD + HEADER + lane[j] * 4);
                if turn.0 == 0 && AHEAD > 0 {
                    _mm_prefetch::<_MM_HINT_T0>(packed[j].wrapping_add(g * RECORD + AHEAD + lane[j] * 2) as *const i8);
                }
            }
            let mut i = 0;
            while i < GROUP {
                let row = x.add(g * GROUP + i);
                load_tile::<4>(row.add((PASSES - 1) * K), ROW);
                load_tile::<6>(quants[0].add(i * NB), LINE);
                dot_int8::<0, 4, 6>();
                if PASSES == 2 {
                    load_tile::<5>(row, ROW);
                    dot_int8::<1, 5, 6>();
                }
                if C > 1 {
                    load_tile::<7>(quants[C - 1].add(i * NB), LINE);
                    dot_int8::<2, 4, 7>();
                    if PASSES == 2 {
                        dot_int8::<3, 5, 7>();
                    }
                }
                if AHEAD > 0 {
                    let mut l = turn.0;
                    while l < DEPTH / 4 {
                        for j in 0..C {
                            _mm_prefetch::<_MM_HINT_T0>(quants[j].wrapping_add(i * NB + l * LINE + AHEAD) as *const i8);
                        }
                        l += turn.1;
                    }
                }
                i += DEPTH;
            }
            store_tile::<0>(sums, 64);
            if PASSES == 2 {
                store_tile::<1>(sums.add(1024), 64);
            }
            if C > 1 {
                store_tile::<2>(sums.add(2048), 64);
                if PASSES == 2 {
                    store_tile::<3>(sums.add(3072), 64);
                }
            }
        }
        if g > 0 {
            for j in 0..C {
                scale(packed[j].add((g - 1) * RECORD), lane[j], x, rows, scratch.add((g - 1) % 2 * SUMS + j * 2048), g - 1, y.add(j * 16));
            }
        }
        g += 1;
    }
    C
}

/// Adds the sums of group `g` of one sub-block to the results of all rows.
#[inline(always)]
unsafe fn scale(record: *const u8, lane: usize, x: *const u8, rows: usize, sums: *const u8, g: usize, y: *mut f32) {
    let scale = halves(record.add(lane * 2));
    let min = if STORED { halves(record.add((NB + lane) * 2)) } else { _mm512_setzero_ps() };
    for r in 0..rows {
        let scales = x.add(r * ROW + SCALES + g * 4);
        let mut sum = load(sums.add(r * 64));
        if PASSES == 2 {
            sum = _mm512_add_epi32(sum, _mm512_slli_epi32::<7>(load(sums.add(1024 + r * 64))));
        }
        if !STORED {
            sum = _mm512_add_epi32(sum, _mm512_set1_epi32(*scales.add(GROUPS * 4).cast::<i32>()));
        }
        let to = y.add(r * UNIT);
        let acc = if g == 0 { _mm512_setzero_ps() } else { _mm512_loadu_ps(to) };
        let d = _mm512_set1_ps(*scales.cast::<f32>());
        let mut acc = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), d), scale, acc);
        if STORED {
            acc = _mm512_fmadd_ps(_mm512_set1_ps(*scales.add(GROUPS * 4).cast::<f32>()), min, acc);
        }
        _mm512_storeu_ps(to, acc);
    }
}
