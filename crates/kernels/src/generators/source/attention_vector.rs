// Attention over the paged cache with vectors. Scores: lanes are tokens, the loop runs over dimensions, broadcasting
// queries. Outputs: lanes are dimensions, the loop runs over tokens, broadcasting weights. Queries (rows of one
// sequence times the heads of one KV head) lie one after another in scratch, so that any number of them shares a load.

/// What one thread works in.
#[repr(C)]
struct Scratch {
    queries: [[f32; DIM]; QUERIES],
    outputs: [[f32; DIM]; QUERIES],
    /// Scores, then weights, of the queries of one register tile.
    scores: [[f32; TOKENS]; REGISTER_QUERIES],
    /// The page widened to f32, where that pays (`STAGED`).
    keys: [f32; STAGE],
    values: [f32; STAGE],
    /// Running maximum and sum of each query, the first token that it sees, and one past the last.
    m: [f32; QUERIES],
    l: [f32; QUERIES],
    first: [u32; QUERIES],
    end: [u32; QUERIES],
}

/// One page of one KV head: keys `[DIM][TOKENS]`, values `[TOKENS][DIM]`.
#[derive(Clone, Copy)]
struct Page {
    keys: *const u8,
    values: *const u8,
    /// What is asked for, line by line, while keys and while values are read.
    beside_keys: *const u8,
    beside_values: *const u8,
    /// Position of its first token.
    start: usize,
}

/// Bytes of an element of a page.
const fn element(staged: bool) -> usize {
    if staged { 4 } else { KV_BYTES }
}

/// Vectors beside `n` queries in one register tile: a power of two, at most 8.
const fn vectors(n: usize) -> usize {
    let mut v = 8;
    while v > 1 && v * n > ACCUMULATORS {
        v /= 2;
    }
    v
}

#[inline(always)]
unsafe fn widen<const STAGED: bool>(from: *const u8) -> V {
    unsafe {
        match if STAGED { 0 } else { KV_KIND } {
            0 => load(from.cast()),
            1 => load_f16(from.cast()),
            _ => load_bf16(from.cast()),
        }
    }
}

/// Asks for the lines of `bytes` bytes.
#[inline(always)]
unsafe fn prefetch<const STAGED: bool>(from: *const u8, bytes: usize) {
    unsafe {
        if PREFETCH != 0 && !STAGED {
            let mut at = 0;
            while at < bytes {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast());
                at += 64;
            }
        }
    }
}

/// Scores of `N` queries and `T` vectors of tokens.
#[inline(always)]
unsafe fn score_tile<const N: usize, const T: usize, const STAGED: bool>(
    queries: *const f32,
    keys: *const u8,
    beside: *const u8,
    scores: *mut f32,
) {
    unsafe {
        let mut sums = [[zero(); T]; N];
        let line = TOKENS * element(STAGED);
        for d in 0..DIM {
            let mut k = [zero(); T];
            for t in 0..T {
                k[t] = widen::<STAGED>(keys.add(d * line + t * W * element(STAGED)));
            }
            prefetch::<STAGED>(beside.wrapping_add(d * line), T * W * element(STAGED));
            for n in 0..N {
                let q = splat(*queries.add(n * DIM + d));
                for t in 0..T {
                    sums[n][t] = fma(q, k[t], sums[n][t]);
                }
            }
        }
        for n in 0..N {
            for t in 0..T {
                store(scores.add(n * TOKENS + t * W), mul(sums[n][t], splat(SCALE)));
            }
        }
    }
}

/// Scores of `N` queries and the vectors `low..high` of a page.
#[inline(never)]
unsafe fn scores<const N: usize, const STAGED: bool>(
    queries: *const f32,
    page: &Page,
    to: *mut f32,
    low: usize,
    high: usize,
) {
    unsafe {
        let mut t = low;
        macro_rules! tiles {
            ($width:literal) => {
                if $width <= vectors(N) && $width * W <= TOKENS {
                    while t + $width <= high {
                        let at = t * W * element(STAGED);
                        let (keys, beside) = (page.keys.add(at), page.beside_keys.wrapping_add(at));
                        score_tile::<N, $width, STAGED>(queries, keys, beside, to.add(t * W));
                        t += $width;
                    }
                }
            };
        }
        tiles!(8);
        tiles!(4);
        tiles!(2);
        tiles!(1);
    }
}

/// Adds the weighted values of tokens `low..high` to `D` vectors of the outputs of `N` queries, after scaling by `c`.
#[inline(always)]
unsafe fn value_tile<const N: usize, const D: usize, const STAGED: bool>(
    weights: *const f32,
    values: *const u8,
    beside: *const u8,
    outputs: *mut f32,
    c: *const f32,
    low: usize,
    high: usize,
) {
    unsafe {
        let mut sums = [[zero(); D]; N];
        for n in 0..N {
            let c = splat(*c.add(n));
            for d in 0..D {
                sums[n][d] = mul(load(outputs.add(n * DIM + d * W)), c);
            }
        }
        let line = DIM * element(STAGED);
        for t in low..high {
            let mut v = [zero(); D];
            for d in 0..D {
                v[d] = widen::<STAGED>(values.add(t * line + d * W * element(STAGED)));
            }
            prefetch::<STAGED>(beside.wrapping_add(t * line), D * W * element(STAGED));
            for n in 0..N {
                let p = splat(*weights.add(n * TOKENS + t));
                for d in 0..D {
                    sums[n][d] = fma(p, v[d], sums[n][d]);
                }
            }
        }
        for n in 0..N {
            for d in 0..D {
                store(outputs.add(n * DIM + d * W), sums[n][d]);
            }
        }
    }
}

/// Adds the weighted values of tokens `low..high` to the outputs of `N` queries, after scaling by `c`.
#[inline(never)]
unsafe fn weigh<const N: usize, const STAGED: bool>(
    weights: *const f32,
    page: &Page,
    outputs: *mut f32,
    c: *const f32,
    low: usize,
    high: usize,
) {
    unsafe {
        let mut d = 0;
        macro_rules! tiles {
            ($width:literal) => {
                if $width <= vectors(N) {
                    while d + $width <= DIM / W {
                        let at = d * W * element(STAGED);
                        let (values, beside) = (page.values.add(at), page.beside_values.wrapping_add(at));
                        value_tile::<N, $width, STAGED>(weights, values, beside, outputs.add(d * W), c, low, high);
                        d += $width;
                    }
                }
            };
        }
        tiles!(8);
        tiles!(4);
        tiles!(2);
        tiles!(1);
    }
}

/// Tokens `low..high` of a page that one query sees.
#[derive(Clone, Copy)]
struct Seen {
    low: usize,
    high: usize,
}

/// Vectors of weights that are made side by side: a divisor of those of a page, and a multiple of PARTS.
const SIDE: usize = if (TOKENS / W).is_multiple_of(4) { 4 } else { PARTS };

const ALL_SEEN: Seen = Seen { low: 0, high: TOKENS };

impl Seen {
    /// `x` of the tokens of vector `v` that are seen, `other` elsewhere.
    #[inline(always)]
    unsafe fn only(self, v: usize, x: V, other: V) -> V {
        let from = (v * W) as isize;
        if v * W >= self.low && (v + 1) * W <= self.high {
            return x;
        }
        unsafe { within(self.low as isize - from, self.high as isize - from, x, other) }
    }
}

/// Scores of `count` queries (at most 16) to weights, in place; `c` becomes what earlier outputs are scaled by (1 where
/// nothing of the page is seen). `seen` is read unless the page is seen as a whole.
#[inline(never)]
unsafe fn soften<const WHOLE: bool>(
    count: usize,
    scores: *mut f32,
    seen: *const Seen,
    m: *mut f32,
    l: *mut f32,
    c: *mut f32,
) {
    unsafe {
        let mut tops = [0.0f32; 16];
        let mut moved = [0.0f32; 16];
        let (tops, moved) = (tops.as_mut_ptr(), moved.as_mut_ptr());
        for n in 0..count {
            let at = scores.add(n * TOKENS);
            let seen = if WHOLE { ALL_SEEN } else { *seen.add(n) };
            let mut top = splat(*m.add(n));
            for v in seen.low / W..seen.high.div_ceil(W) {
                let s = load(at.add(v * W));
                let s = if WHOLE { s } else { seen.only(v, s, splat(f32::NEG_INFINITY)) };
                top = max(s, top);
            }
            *tops.add(n) = highest(top);
            *moved.add(n) = *m.add(n) - *tops.add(n);
        }
        for v in 0..16 / W {
            store(c.add(v * W), exp_of_negative(load(moved.add(v * W))));
        }
        for n in 0..count {
            let at = scores.add(n * TOKENS);
            let seen = if WHOLE { ALL_SEEN } else { *seen.add(n) };
            if seen.low >= seen.high {
                *c.add(n) = 1.0;
                continue;
            }
            let top = splat(*tops.add(n));
            let mut lanes = [zero(); PARTS];
            if WHOLE {
                let mut v = 0;
                while v < TOKENS / W {
                    let mut x = [zero(); SIDE];
                    for i in 0..SIDE {
                        x[i] = max(splat(EXP_LOW), sub(load(at.add((v + i) * W)), top));
                    }
                    let p = exp_clamped(x);
                    for i in 0..SIDE {
                        store(at.add((v + i) * W), p[i]);
                        lanes[i % PARTS] = add(lanes[i % PARTS], p[i]);
                    }
                    v += SIDE;
                }
                *l.add(n) = *l.add(n) * *c.add(n) + total(lanes);
                *m.add(n) = *tops.add(n);
                continue;
            }
            for v in seen.low / W..seen.high.div_ceil(W) {
                let p = exp_of_negative(sub(load(at.add(v * W)), top));
                let p = if WHOLE { p } else { seen.only(v, p, zero()) };
                store(at.add(v * W), p);
                lanes[v % PARTS] = add(lanes[v % PARTS], p);
            }
            *l.add(n) = *l.add(n) * *c.add(n) + total(lanes);
            *m.add(n) = *tops.add(n);
        }
    }
}

/// One page for the queries `at..at + N`.
#[inline(never)]
unsafe fn tile<const N: usize, const STAGED: bool>(s: *mut Scratch, page: &Page, at: usize) {
    unsafe {
        let queries = (&raw const (*s).queries).cast::<f32>().add(at * DIM);
        let outputs = (&raw mut (*s).outputs).cast::<f32>().add(at * DIM);
        let weights = (&raw mut (*s).scores).cast::<f32>();
        let (m, l) = ((&raw mut (*s).m).cast::<f32>().add(at), (&raw mut (*s).l).cast::<f32>().add(at));
        let first = (&raw const (*s).first).cast::<u32>().add(at);
        let end = (&raw const (*s).end).cast::<u32>().add(at);
        let mut c = [1.0f32; 16];
        // Positions ascend: if the first query sees the last token and the last one the first, all see all.
        if *end as usize >= page.start + TOKENS && *first.add(N - 1) as usize <= page.start {
            scores::<N, STAGED>(queries, page, weights, 0, TOKENS / W);
            soften::<true>(N, weights, &ALL_SEEN, m, l, c.as_mut_ptr());
            weigh::<N, STAGED>(weights, page, outputs, c.as_ptr(), 0, TOKENS);
            return;
        }
        let mut seen = [ALL_SEEN; N];
        // What any query sees, and what all see.
        let (mut some_low, mut some_high) = (TOKENS, 0);
        let (mut all_low, mut all_high) = (0, TOKENS);
        for n in 0..N {
            let low = (*first.add(n) as usize).max(page.start) - page.start;
            let high = (*end.add(n) as usize).min(page.start + TOKENS).max(page.start) - page.start;
            let (low, high) = if low < high { (low, high) } else { (TOKENS, 0) };
            seen[n] = Seen { low, high };
            some_low = some_low.min(low);
            some_high = some_high.max(high);
            all_low = all_low.max(low);
            all_high = all_high.min(high);
        }
        if some_low >= some_high {
            return;
        }
        scores::<N, STAGED>(queries, page, weights, some_low / W, some_high.div_ceil(W));
        soften::<false>(N, weights, seen.as_ptr(), m, l, c.as_mut_ptr());
        // Each query alone up to where all begin, then all together, then each alone again. The order of tokens stays.
        let together = all_low < all_high;
        for n in 0..N {
            let high = if together { all_low } else { seen[n].high };
            if seen[n].low < high {
                let (weights, outputs) = (weights.add(n * TOKENS), outputs.add(n * DIM));
                weigh::<1, STAGED>(weights, page, outputs, c.as_ptr().add(n), seen[n].low, high);
                c[n] = 1.0;
            }
        }
        if together {
            weigh::<N, STAGED>(weights, page, outputs, c.as_ptr(), all_low, all_high);
            c = [1.0; 16];
            for n in 0..N {
                if all_high < seen[n].high {
                    let (weights, outputs) = (weights.add(n * TOKENS), outputs.add(n * DIM));
                    weigh::<1, STAGED>(weights, page, outputs, c.as_ptr(), all_high, seen[n].high);
                }
            }
        }
    }
}

/// Widens a page into scratch.
#[inline(never)]
unsafe fn stage(s: *mut Scratch, page: &Page) -> Page {
    unsafe {
        let keys = (&raw mut (*s).keys).cast::<f32>();
        let values = (&raw mut (*s).values).cast::<f32>();
        let mut i = 0;
        while i < STAGE {
            store(keys.add(i), widen::<false>(page.keys.add(i * KV_BYTES)));
            store(values.add(i), widen::<false>(page.values.add(i * KV_BYTES)));
            i += W;
        }
        let (keys, values) = (keys.cast_const().cast(), values.cast_const().cast());
        Page { keys, values, beside_keys: keys, beside_values: values, start: page.start }
    }
}

/// Before the first query of a call, and after the last one.
#[inline(always)]
unsafe fn enter(_s: *mut Scratch) {}
#[inline(always)]
unsafe fn leave() {}

/// Queries `from..to` (row times GROUP plus head) of the rows that start at `row`, all of one sequence, and one KV head.
/// `after` is the offset of the page that is likely to be read after these.
unsafe fn attend(
    args: &ArgsV1,
    s: *mut Scratch,
    row: usize,
    kv_head: usize,
    from: usize,
    to: usize,
    after: usize,
) {
    unsafe {
        let count = to - from;
        let x = args.tensors[X].data.cast::<f32>();
        let out = args.tensors[OUT].data.cast::<f32>();
        let place = |query: usize| ((row + query / GROUP) * HEADS + kv_head * GROUP + query % GROUP) * DIM;
        let (queries, outputs) = ((&raw mut (*s).queries).cast::<f32>(), (&raw mut (*s).outputs).cast::<f32>());
        let (m, l) = ((&raw mut (*s).m).cast::<f32>(), (&raw mut (*s).l).cast::<f32>());
        let (first, end) = ((&raw mut (*s).first).cast::<u32>(), (&raw mut (*s).end).cast::<u32>());
        for n in 0..count {
            let seen = row_at(args, row + (from + n) / GROUP);
            *first.add(n) = seen.first as u32;
            *end.add(n) = seen.end as u32;
            *m.add(n) = f32::NEG_INFINITY;
            *l.add(n) = 0.0;
            for d in 0..DIM / W {
                store(queries.add(n * DIM + d * W), load(x.add(place(from + n) + d * W)));
                store(outputs.add(n * DIM + d * W), zero());
            }
        }
        // Positions ascend, and so do the first and last tokens seen.
        let begin = row_at(args, row + from / GROUP);
        let last = row_at(args, row + (to - 1) / GROUP);
        let blocks = last.end.div_ceil(TOKENS);
        let (keys, values) = (args.tensors[K_CACHE].data, args.tensors[V_CACHE].data);
        let mut block = begin.first / TOKENS;
        while block < blocks {
            let at = offset(&begin, block, kv_head);
            let next = if block + 1 < blocks { offset(&begin, block + 1, kv_head) } else { after };
            let page = Page {
                keys: keys.add(at),
                values: values.add(at),
                beside_keys: if PREFETCH == 1 { values.add(at) } else { keys.add(next) },
                beside_values: if PREFETCH == 1 { keys.add(next) } else { values.add(next) },
                start: block * TOKENS,
            };
            if STAGE > 0 && count > REGISTER_QUERIES {
                tiles::<true>(s, &stage(s, &page), count);
            } else {
                tiles::<false>(s, &page, count);
            }
            block += 1;
        }
        for n in 0..count {
            let inverse = splat(1.0 / *l.add(n));
            for d in 0..DIM / W {
                store(out.add(place(from + n) + d * W), mul(load(outputs.add(n * DIM + d * W)), inverse));
            }
        }
    }
}
