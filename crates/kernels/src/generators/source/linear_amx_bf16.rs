// AMX bf16: TDPBF16PS over 32 inputs, 32 rows by 32 columns, or sixteen rows by up to 64; sums stay in tiles over all of k.
//
// The tile unit needs neither the vector ports nor much of the front end, so vector work is done beside it, a little after
// each step along k: the weights of the next unit are widened, and the rows before get their epilogue.
//
// A unit is worked off in depths: DEPTH inputs of its weights, widened, stay in L1 while all rows pass; their sums wait in
// memory for the next depth.
//
// Constants before this text, beside those of the frame: NR (sub-blocks of a tile: 1, 2 or 4), DEPTH (a divisor of K, a
// multiple of 32 and of GROUP), AHEAD (bytes of packed weights to prefetch ahead, 0 for none). TILE is 16 or 32. Rows are prepared in places of whole
// sixteens, and tiles are always whole: what lies in the rows beyond is computed and not used.

use core::arch::x86_64::*;

/// Bytes from one tile of rows to the next, for each input, and from one row of a tile to the next. TILED: tile after tile
/// along k, sixteen rows by 32 inputs.
const AT: usize = if TILED { 32 } else { 2 };
const ROWS: usize = if TILED { 64 } else { ROW };

#[inline(never)]
unsafe fn prepare(x: *const f32, norm: *const f32, row: *mut u8) {
    let inverse = if NORM { rms_inverse(x, K, EPS) } else { 1.0 };
    let mut i = 0;
    while i < K {
        let to = row.add(i * AT) as *mut u16;
        for l in 0..32 {
            let v = *x.add(i + l);
            let y = if NORM { (v * inverse) * *norm.add(i + l) } else { v };
            *to.add(l) = to_bf16_activation(y);
        }
        i += 32;
    }
}

/// Affine weights are widened to bf16 once for all rows: a panel of DEPTH / 2 lines for each sub-block, and a line more, so
/// that panels do not fall into the same cache sets.
const PANEL: usize = DEPTH * 32 + 64;
const PANELS: usize = if FORMAT == AFFINE { UNIT_SUBS * PANEL } else { 0 };
/// Groups of a panel.
const PARTS: usize = if FORMAT == AFFINE { DEPTH / GROUP } else { 0 };
/// Raw results of a tile of rows of one unit.
const RESULTS: usize = TILE * UNIT;
const HEADER: usize = if STORED { NB * 4 } else { NB * 2 };
const LINES: usize = if BITS == 8 { GROUP / 4 } else { GROUP / 8 };
/// Bytes from one pair of inputs to the next.
const STRIDE: usize = if FORMAT == AFFINE { 64 } else { NB * 4 };

#[inline(always)]
unsafe fn halves(p: *const u8) -> __m512 {
    _mm512_cvtph_ps(_mm256_loadu_si256(p as *const __m256i))
}

/// Group `g` of sixteen columns as bf16, in pairs of inputs.
#[inline(always)]
unsafe fn widen(w: *const u8, sub: usize, g: usize, mut to: *mut u8) {
    let (record, lane) = (w.add(sub / (NB / 16) * BLOCK + g * RECORD), sub % (NB / 16) * 16);
    let scale = halves(record.add(lane * 2));
    let min = if STORED {
        halves(record.add((NB + lane) * 2))
    } else {
        // Exact, and so is the sum with `scale * q`.
        _mm512_mul_ps(scale, _mm512_set1_ps(-((1 << (BITS - 1)) as f32)))
    };
    if AHEAD > 0 {
        _mm_prefetch::<_MM_HINT_T0>(record.wrapping_add(AHEAD + lane * 2) as *const i8);
    }
    for l in 0..LINES {
        let at = record.add(HEADER + (l * NB + lane) * 4);
        if AHEAD > 0 {
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD) as *const i8);
        }
        let raw = _mm512_loadu_si512(at as *const __m512i);
        pair::<0, 8>(raw, scale, min, to);
        pair::<16, 24>(raw, scale, min, to.add(64));
        to = to.add(128);
        if BITS == 4 {
            pair::<4, 12>(raw, scale, min, to);
            pair::<20, 28>(raw, scale, min, to.add(64));
            to = to.add(128);
        }
    }
}

/// The quants at two bits' places of every lane become one line.
#[inline(always)]
unsafe fn pair<const EVEN: u32, const ODD: u32>(raw: __m512i, scale: __m512, min: __m512, to: *mut u8) {
    let even = _mm512_fmadd_ps(scale, quant::<EVEN>(raw), min);
    let odd = _mm512_fmadd_ps(scale, quant::<ODD>(raw), min);
    // Sixteen even inputs, then sixteen odd ones; then column by column.
    let both: __m512i = core::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
    let order = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0,
    );
    _mm512_storeu_si512(to as *mut __m512i, _mm512_permutexvar_epi16(order, both));
}

/// The quant from bit `FROM` of every lane on. Four bits are looked up, which needs neither mask nor conversion.
#[inline(always)]
unsafe fn quant<const FROM: u32>(raw: __m512i) -> __m512 {
    let low = if FROM == 0 { raw } else { _mm512_srli_epi32::<FROM>(raw) };
    if BITS == 8 {
        return _mm512_cvtepi32_ps(_mm512_and_si512(low, _mm512_set1_epi32(255)));
    }
    let table = _mm512_set_ps(
        15.0, 14.0, 13.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0,
    );
    _mm512_permutexvar_ps(low, table)
}

/// Eight whole tiles: 0 to 3 for sums, 4 and 5 for rows, 6 and 7 for weights.
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

/// What is done beside the products.
struct Beside {
    /// Weights to widen: the first sub-block, the first group, groups of all sub-blocks and how many are done, where to.
    sub: usize,
    part: usize,
    groups: usize,
    widened: usize,
    panels: *mut u8,
    /// Steps along k until they are needed, and what is owed: all groups in that time.
    steps: usize,
    owed_groups: usize,
    /// Rows to finish: the first, their number and how many are done, their unit, their raw results.
    row: usize,
    rows: usize,
    finished: usize,
    of: usize,
    subs: usize,
    results: *mut f32,
    /// Steps of one tile of rows, and what is owed: all rows in that time.
    tile_steps: usize,
    owed_rows: usize,
}

impl Beside {
    /// The share of one step.
    #[inline(always)]
    unsafe fn step(&mut self, a: &ArgsV1) {
        self.owed_groups += self.groups;
        while self.owed_groups >= self.steps {
            self.owed_groups -= self.steps;
            self.widen_next(a);
        }
        self.owed_rows += self.rows;
        while self.owed_rows >= self.tile_steps {
            self.owed_rows -= self.tile_steps;
            self.finish_next(a);
        }
    }

    #[inline(always)]
    unsafe fn widen_next(&mut self, a: &ArgsV1) {
        if self.widened < self.groups {
            let (s, g) = if PARTS == 0 { (0, 0) } else { (self.widened / PARTS, self.widened % PARTS) };
            widen(a.tensors[1].data, self.sub + s, self.part + g, self.panels.add(s * PANEL + g * GROUP * 32));
            self.widened += 1;
        }
    }

    #[inline(always)]
    unsafe fn finish_next(&mut self, a: &ArgsV1) {
        if self.finished < self.rows {
            let y = self.results.add(self.finished * UNIT);
            finish(a, self.row + self.finished, 1, self.of, self.subs, y, UNIT);
            self.finished += 1;
        }
    }

    #[inline(never)]
    unsafe fn widen_rest(&mut self, a: &ArgsV1) {
        while self.widened < self.groups {
            self.widen_next(a);
        }
    }

    #[inline(never)]
    unsafe fn finish_rest(&mut self, a: &ArgsV1) {
        while self.finished < self.rows {
            self.finish_next(a);
        }
    }

    /// The next weights to widen: `subs` sub-blocks from `sub` on, from input `from` on.
    #[inline(always)]
    fn ask(&mut self, sub: usize, subs: usize, from: usize, panels: *mut u8) {
        (self.sub, self.part, self.groups, self.widened) = (sub, from / DEPTH * PARTS, subs * PARTS, 0);
        (self.panels, self.owed_groups) = (panels, 0);
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
    let mut b = Beside {
        sub,
        part: 0,
        groups: 0,
        widened: 0,
        panels: scratch,
        steps: 1,
        owed_groups: 0,
        row: 0,
        rows: 0,
        finished: 0,
        of: 0,
        subs: 0,
        results: scratch as *mut f32,
        tile_steps: 1,
        owed_rows: 0,
    };
    // The first weights, before any product.
    b.ask(sub, smaller(UNIT_SUBS, end - sub), 0, scratch);
    b.widen_rest(a);
    // Results of a tile of rows stay where they are until it is finished: one place more than tiles.
    let tiles = count.div_ceil(TILE);
    let (mut side, mut slot) = (0, 0);
    while sub < end {
        let subs = smaller(UNIT_SUBS, end - sub);
        let mut k = 0;
        while k < K {
            let here = scratch.add(side * PANELS);
            side = 1 - side;
            if k + DEPTH < K {
                b.ask(sub, subs, k + DEPTH, scratch.add(side * PANELS));
            } else {
                b.ask(sub + subs, smaller(UNIT_SUBS, end - sub - subs), 0, scratch.add(side * PANELS));
            }
            let mut place = slot;
            let mut r = 0;
            while r < count {
                let tall = TILE > 16 && count - r > 16;
                let rows = smaller(if tall { 32 } else { 16 }, count - r);
                let blocks = if tall { subs.div_ceil(smaller(NR, 2)) } else { subs.div_ceil(NR) };
                b.tile_steps = blocks * (DEPTH / 32);
                b.steps = b.tile_steps * tiles;
                b.owed_rows = 0;
                let results = (scratch.add(2 * PANELS) as *mut f32).add(place * RESULTS);
                let acts = place_row(acts as *mut u8, r).add(k * AT);
                let mut s = 0;
                while s < subs {
                    let at = Place { sub, s, k, panels: here, to: results.add(s * 16) };
                    s += if tall && NR > 1 && subs - s >= 2 {
                        block::<2, 2>(a, acts, at, &mut b)
                    } else if tall {
                        block::<2, 1>(a, acts, at, &mut b)
                    } else if NR > 2 && subs - s >= 4 {
                        block::<1, 4>(a, acts, at, &mut b)
                    } else if NR > 1 && subs - s >= 2 {
                        block::<1, 2>(a, acts, at, &mut b)
                    } else {
                        block::<1, 1>(a, acts, at, &mut b)
                    };
                }
                b.finish_rest(a);
                if k + DEPTH == K {
                    (b.row, b.rows, b.finished) = (first + r, rows, 0);
                    (b.of, b.subs, b.results) = (sub, subs, results);
                }
                place = if place == tiles { 0 } else { place + 1 };
                r += rows;
            }
            if k + DEPTH == K {
                slot = place;
            }
            b.widen_rest(a);
            k += DEPTH;
        }
        sub += subs;
    }
    b.finish_rest(a);
    release();
}

/// Where a block of columns stands: sub-block `s` of the unit at `sub`, from input `k` on, its widened weights, its results.
struct Place {
    sub: usize,
    s: usize,
    k: usize,
    panels: *mut u8,
    to: *mut f32,
}

impl Place {
    #[inline(always)]
    unsafe fn weights(&self, a: &ArgsV1, j: usize) -> *const u8 {
        let s = self.s + j;
        if FORMAT == AFFINE {
            self.panels.add(s * PANEL)
        } else {
            let sub = self.sub + s;
            (a.tensors[1].data as *const u8).add(sub / (NB / 16) * BLOCK + sub % (NB / 16) * 64 + self.k / 2 * STRIDE)
        }
    }
}

/// `R` times sixteen rows by `C` sub-blocks; returns `C`.
#[inline(never)]
unsafe fn block<const R: usize, const C: usize>(a: &ArgsV1, acts: *const u8, at: Place, b: &mut Beside) -> usize {
    let mut w = [at.weights(a, 0); C];
    for j in 0..C {
        w[j] = at.weights(a, j);
    }
    let next = |j: usize| w[if j < C { j } else { 0 }];
    let (to, line) = (at.to as *mut u8, UNIT * 4);
    if at.k == 0 {
        zero_tile::<0>();
        zero_tile::<1>();
        zero_tile::<2>();
        zero_tile::<3>();
    } else {
        load_tile::<0>(to, line);
        if C > 1 {
            load_tile::<1>(to.add(64), line);
        }
        if R > 1 {
            load_tile::<2>(to.add(16 * line), line);
            if C > 1 {
                load_tile::<3>(to.add(16 * line + 64), line);
            }
        } else if C > 2 {
            load_tile::<2>(to.add(128), line);
            load_tile::<3>(to.add(192), line);
        }
    }
    let mut i = 0;
    while i < DEPTH {
        let step = i / 2 * STRIDE;
        load_tile::<4>(acts.add(i * AT), ROWS);
        load_tile::<6>(next(0).add(step), STRIDE);
        dot_bf16::<0, 4, 6>();
        if C > 1 {
            load_tile::<7>(next(1).add(step), STRIDE);
            dot_bf16::<1, 4, 7>();
        }
        if C > 2 {
            load_tile::<6>(next(2).add(step), STRIDE);
            dot_bf16::<2, 4, 6>();
            load_tile::<7>(next(3).add(step), STRIDE);
            dot_bf16::<3, 4, 7>();
        }
        if R > 1 {
            load_tile::<5>(acts.add(16 * ROW + i * AT), ROWS);
            dot_bf16::<2, 5, 6>();
            if C > 1 {
                dot_bf16::<3, 5, 7>();
            }
        }
        b.step(a);
        i += 32;
    }
    store_tile::<0>(to, line);
    if C > 1 {
        store_tile::<1>(to.add(64), line);
    }
    if R > 1 {
        store_tile::<2>(to.add(16 * line), line);
        if C > 1 {
            store_tile::<3>(to.add(16 * line + 64), line);
        }
    } else if C > 2 {
        store_tile::<2>(to.add(128), line);
        store_tile::<3>(to.add(192), line);
    }
    C
}
