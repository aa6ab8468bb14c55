// Attention over the paged cache on AMX bf16 tiles. A tile of sixteen queries (rows of one sequence times the heads of one
// KV head) meets CHUNK tokens at a time: scores by tiles, one softmax step, weighted values by tiles, whose sums stay in
// tiles over the whole chunk.
//
// Pages hold dimensions (keys) and tokens (values) one after another, tiles want them in pairs: both are paired on the way
// into scratch. Values that no query of the call's part sees become zero there, whatever they were.
//
// Before this text stand vectors, rows and AMX tiles; constants: CHUNK, QUERY_TILES, PREFETCH.

/// 32-token blocks of a chunk and of a page.
const BLOCKS: usize = CHUNK / 32;
const PAGE_BLOCKS: usize = TOKENS / 32;
/// Tiles along the dimensions, and sixteen-column blocks of them.
const DEEP: usize = DIM / 32;
const WIDE: usize = DIM / 16;
/// A row of scores; a line more than a chunk, so that rows do not fall into the same cache sets.
const LINE: usize = CHUNK + 16;

type Tile = [u8; 1024];

/// What one thread works in.
#[repr(C, align(64))]
struct Scratch {
    queries: [[Tile; DEEP]; QUERY_TILES],
    outputs: [[f32; DIM]; QUERY_TILES * 16],
    scores: [[f32; LINE]; QUERY_TILES * 16],
    /// Of one tile of queries: sixteen rows of 32 tokens.
    weights: [Tile; BLOCKS],
    /// Of one page: for sixteen tokens each, pairs of dimensions.
    keys: [[Tile; DEEP]; 2 * PAGE_BLOCKS],
    /// Of one chunk: for 32 tokens each and sixteen dimensions each, pairs of tokens.
    values: [[Tile; WIDE]; BLOCKS],
    /// Running maximum and sum of each query, the first token that it sees, and one past the last.
    m: [f32; QUERY_TILES * 16],
    l: [f32; QUERY_TILES * 16],
    first: [u32; QUERY_TILES * 16],
    end: [u32; QUERY_TILES * 16],
    /// Rows of query tiles that the tile unit is set up for.
    height: usize,
}

/// Tiles 0 to 3: sums; 4 and 5: queries or weights; 6 and 7: keys or values.
#[inline(always)]
unsafe fn set_height(s: *mut Scratch, rows: usize) {
    if (*s).height == rows {
        return;
    }
    (*s).height = rows;
    let mut shapes = Shapes([0u8; 64]);
    shapes.0[0] = 1;
    let mut t = 0;
    while t < 8 {
        shapes.0[16 + 2 * t] = 64;
        shapes.0[48 + t] = if t < 6 { rows as u8 } else { 16 };
        t += 1;
    }
    configure(&shapes);
}

/// Before the first query of a call.
#[inline(always)]
unsafe fn enter(s: *mut Scratch) {
    (*s).height = 0;
}

/// After the last one.
#[inline(always)]
unsafe fn leave() {
    release();
}

/// 32 elements of two lines become pairs: the first sixteen, then the others.
#[inline(always)]
unsafe fn pair(a: __m512i, b: __m512i) -> (__m512i, __m512i) {
    let (low, high) = (_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
    let first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
    let second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    (_mm512_permutex2var_epi64(low, first, high), _mm512_permutex2var_epi64(low, second, high))
}

#[inline(always)]
unsafe fn line(from: *const u8) -> __m512i {
    _mm512_loadu_si512(from.cast())
}

#[inline(always)]
unsafe fn put(to: *mut u8, x: __m512i) {
    _mm512_storeu_si512(to.cast(), x)
}

/// The 32-token blocks `low..high` of a page of keys.
#[inline(never)]
unsafe fn stage_keys(s: *mut Scratch, page: *const u8, next: *const u8, low: usize, high: usize) {
    for block in low..high {
        let to = (&raw mut (*s).keys).cast::<u8>().add(2 * block * DEEP * 1024);
        for j in 0..DIM / 2 {
            let place = (2 * j * TOKENS + block * 32) * 2;
            let at = page.add(place);
            if PREFETCH {
                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(place).cast());
                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(place + 2 * TOKENS).cast());
            }
            let (first, second) = pair(line(at), line(at.add(2 * TOKENS)));
            put(to.add(j * 64), first);
            put(to.add(DEEP * 1024 + j * 64), second);
        }
    }
}

/// 32 tokens of values, of which `low..high` are seen, as block `block` of the chunk.
#[inline(never)]
unsafe fn stage_values(s: *mut Scratch, tokens: *const u8, next: *const u8, block: usize, low: usize, high: usize) {
    let to = (&raw mut (*s).values).cast::<u8>().add(block * WIDE * 1024);
    for j in 0..16 {
        let (even, odd) = (2 * j >= low && 2 * j < high, 2 * j + 1 >= low && 2 * j + 1 < high);
        for d in 0..DEEP {
            let place = (2 * j * DIM + d * 32) * 2;
            let at = tokens.add(place);
            if PREFETCH {
                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(place).cast());
                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(place + 2 * DIM).cast());
            }
            let a = if even { line(at) } else { _mm512_setzero_si512() };
            let b = if odd { line(at.add(2 * DIM)) } else { _mm512_setzero_si512() };
            let (first, second) = pair(a, b);
            put(to.add(2 * d * 1024 + j * 64), first);
            put(to.add((2 * d + 1) * 1024 + j * 64), second);
        }
    }
}

/// Raw scores of one tile of queries and 32 tokens.
#[inline(always)]
unsafe fn scores(s: *mut Scratch, tile: usize, block: usize, to: usize) {
    let queries = (&raw const (*s).queries).cast::<u8>().add(tile * DEEP * 1024);
    let keys = (&raw const (*s).keys).cast::<u8>().add(2 * block * DEEP * 1024);
    let out = (&raw mut (*s).scores).cast::<f32>().add(tile * 16 * LINE + to).cast::<u8>();
    zero_tile::<0>();
    zero_tile::<1>();
    for k in 0..DEEP {
        load_tile::<4>(queries.add(k * 1024), 64);
        load_tile::<6>(keys.add(k * 1024), 64);
        dot_bf16::<0, 4, 6>();
        load_tile::<7>(keys.add((DEEP + k) * 1024), 64);
        dot_bf16::<1, 4, 7>();
    }
    store_tile::<0>(out, LINE * 4);
    store_tile::<1>(out.add(64), LINE * 4);
}

/// Tokens that a query sees, counted from the start of a chunk.
#[derive(Clone, Copy)]
struct Seen {
    from: isize,
    to: isize,
}

impl Seen {
    /// Whether all of `N` vectors from vector `v` on are seen.
    #[inline(always)]
    fn all<const N: usize>(self, v: usize) -> bool {
        (v * 16) as isize >= self.from && ((v + N) * 16) as isize <= self.to
    }

    #[inline(always)]
    unsafe fn only(self, v: usize, x: V, other: V) -> V {
        let edge = (v * 16) as isize;
        within(self.from - edge, self.to - edge, x, other)
    }
}

/// Scores of the vectors `v..v + 2 * B` become weights; their sums by lanes.
#[inline(always)]
unsafe fn weights<const B: usize>(scores: *const f32, v: usize, top: V, seen: Seen, to: *mut u8, mut lanes: V) -> V {
    let mut x = [[zero(); 2]; B];
    for b in 0..B {
        for i in 0..2 {
            let score = mul(load(scores.add((v + 2 * b + i) * 16)), splat(SCALE));
            x[b][i] = max(splat(EXP_LOW), sub(score, top));
        }
    }
    let mut p = [[zero(); 2]; B];
    if B == 2 {
        let four = exp_clamped([x[0][0], x[0][1], x[B - 1][0], x[B - 1][1]]);
        p[0] = [four[0], four[1]];
        p[B - 1] = [four[2], four[3]];
    } else {
        p[0] = exp_clamped(x[0]);
    }
    let all = match B {
        1 => seen.all::<2>(v),
        _ => seen.all::<4>(v),
    };
    for b in 0..B {
        for i in 0..2 {
            if !all {
                p[b][i] = seen.only(v + 2 * b + i, p[b][i], zero());
            }
            lanes = add(lanes, p[b][i]);
        }
        put(to.add((v / 2 + b) * 1024), core::mem::transmute(_mm512_cvtne2ps_pbh(p[b][1], p[b][0])));
    }
    lanes
}

/// Scores of the queries `at..at + count` (one tile) and the 32-token blocks `low..high` of the chunk that starts at token
/// `start` become weights; earlier outputs are scaled.
#[inline(never)]
unsafe fn soften(s: *mut Scratch, at: usize, count: usize, start: usize, low: usize, high: usize) {
    for n in 0..count {
        let scores = (&raw const (*s).scores).cast::<f32>().add((at + n) * LINE);
        let to = (&raw mut (*s).weights).cast::<u8>().add(n * 64);
        let m = (&raw mut (*s).m).cast::<f32>().add(at + n);
        let l = (&raw mut (*s).l).cast::<f32>().add(at + n);
        let first = (&raw const (*s).first).cast::<u32>().add(at + n).read() as isize - start as isize;
        let end = (&raw const (*s).end).cast::<u32>().add(at + n).read() as isize - start as isize;
        let seen = Seen { from: first.max((low * 32) as isize), to: end.min((high * 32) as isize) };
        if seen.from >= seen.to {
            for block in low..high {
                put(to.add(block * 1024), _mm512_setzero_si512());
            }
            continue;
        }
        // Vectors with seen tokens, and those of them that are seen as a whole.
        let (some, until) = (seen.from as usize / 16, (seen.to as usize).div_ceil(16));
        let (whole, rest) = ((seen.from as usize).div_ceil(16), seen.to as usize / 16);
        let low_value = splat(f32::NEG_INFINITY);
        let mut tops = [low_value; 4];
        if whole > some {
            tops[0] = seen.only(some, load(scores.add(some * 16)), low_value);
        }
        if until > rest {
            tops[1] = seen.only(rest, load(scores.add(rest * 16)), low_value);
        }
        let mut v = whole;
        while v + 4 <= rest {
            for i in 0..4 {
                tops[i] = max(load(scores.add((v + i) * 16)), tops[i]);
            }
            v += 4;
        }
        while v < rest {
            tops[2] = max(load(scores.add(v * 16)), tops[2]);
            v += 1;
        }
        // The scale is positive, and rounding keeps the order.
        let top = highest(mul(max(max(tops[0], tops[1]), max(tops[2], tops[3])), splat(SCALE)));
        let top = if *m > top { *m } else { top };
        let c = exp_of_negative(splat(*m - top));
        let (mut lanes, mut block) = (zero(), low);
        while block + 2 <= high {
            lanes = weights::<2>(scores, 2 * block, splat(top), seen, to, lanes);
            block += 2;
        }
        if block < high {
            lanes = weights::<1>(scores, 2 * block, splat(top), seen, to, lanes);
        }
        *l = *l * _mm512_cvtss_f32(c) + total([lanes]);
        *m = top;
        let outputs = (&raw mut (*s).outputs).cast::<f32>().add((at + n) * DIM);
        for d in 0..WIDE {
            store(outputs.add(d * 16), mul(load(outputs.add(d * 16)), c));
        }
    }
}

/// Adds the weighted values of the 32-token blocks `low..high` to `N` blocks of dimensions, from `d`, of a tile of queries.
#[inline(always)]
unsafe fn weigh<const N: usize>(s: *mut Scratch, tile: usize, d: usize, low: usize, high: usize) {
    let out = (&raw mut (*s).outputs).cast::<f32>().add(tile * 16 * DIM + d * 16).cast::<u8>();
    load_tile::<0>(out, DIM * 4);
    load_tile::<1>(out.add(64), DIM * 4);
    if N > 2 {
        load_tile::<2>(out.add(128), DIM * 4);
        load_tile::<3>(out.add(192), DIM * 4);
    }
    for block in low..high {
        let values = (&raw const (*s).values).cast::<u8>().add((block * WIDE + d) * 1024);
        load_tile::<4>((&raw const (*s).weights).cast::<u8>().add(block * 1024), 64);
        load_tile::<6>(values, 64);
        dot_bf16::<0, 4, 6>();
        load_tile::<7>(values.add(1024), 64);
        dot_bf16::<1, 4, 7>();
        if N > 2 {
            load_tile::<6>(values.add(2048), 64);
            dot_bf16::<2, 4, 6>();
            load_tile::<7>(values.add(3072), 64);
            dot_bf16::<3, 4, 7>();
        }
    }
    store_tile::<0>(out, DIM * 4);
    store_tile::<1>(out.add(64), DIM * 4);
    if N > 2 {
        store_tile::<2>(out.add(128), DIM * 4);
        store_tile::<3>(out.add(192), DIM * 4);
    }
}

/// Queries `from..to` (row times GROUP plus head) of the rows that start at `row`, all of one sequence, and one KV head.
unsafe fn attend(
    args: &ArgsV1,
    s: *mut Scratch,
    row: usize,
    kv_head: usize,
    from: usize,
    to: usize,
    after: usize,
) {
    let count = to - from;
    let x = args.tensors[X].data.cast::<f32>();
    let out = args.tensors[OUT].data.cast::<f32>();
    let place = |query: usize| ((row + query / GROUP) * HEADS + kv_head * GROUP + query % GROUP) * DIM;
    set_height(s, if count < 16 { count } else { 16 });
    for n in 0..count {
        let seen = row_at(args, row + (from + n) / GROUP);
        (&raw mut (*s).first).cast::<u32>().add(n).write(seen.first as u32);
        (&raw mut (*s).end).cast::<u32>().add(n).write(seen.end as u32);
        (&raw mut (*s).m).cast::<f32>().add(n).write(f32::NEG_INFINITY);
        (&raw mut (*s).l).cast::<f32>().add(n).write(0.0);
        let query = x.add(place(from + n));
        let tile = (&raw mut (*s).queries).cast::<u8>().add(n / 16 * DEEP * 1024 + n % 16 * 64);
        let outputs = (&raw mut (*s).outputs).cast::<f32>().add(n * DIM);
        for k in 0..DEEP {
            let (a, b) = (load(query.add(k * 32)), load(query.add(k * 32 + 16)));
            put(tile.add(k * 1024), core::mem::transmute(_mm512_cvtne2ps_pbh(b, a)));
            store(outputs.add(k * 32), zero());
            store(outputs.add(k * 32 + 16), zero());
        }
    }
    // Positions ascend, and so do the first and last tokens seen.
    let begin = row_at(args, row + from / GROUP);
    let last = row_at(args, row + (to - 1) / GROUP);
    let (keys, values) = (args.tensors[K_CACHE].data, args.tensors[V_CACHE].data);
    let mut start = begin.first / CHUNK * CHUNK;
    while start < last.end {
        // 32-token blocks that any query sees.
        let low = begin.first.max(start) / 32 - start / 32;
        let high = (last.end.min(start + CHUNK) - start).div_ceil(32);
        let mut block = low;
        while block < high {
            let token = start + block * 32;
            let page = offset(&begin, token / TOKENS, kv_head);
            let within = token % TOKENS / 32;
            let until = if block + PAGE_BLOCKS - within < high { PAGE_BLOCKS } else { within + high - block };
            let beyond = token / TOKENS + 1;
            let next = if beyond * TOKENS < last.end { offset(&begin, beyond, kv_head) } else { after };
            stage_keys(s, keys.add(page), keys.wrapping_add(next), within, until);
            for b in within..until {
                let token = start + (block + b - within) * 32;
                let seen_from = begin.first.max(token) - token;
                let seen_to = last.end.min(token + 32) - token;
                let (here, next) = (page + b * 32 * DIM * 2, next + b * 32 * DIM * 2);
                stage_values(s, values.add(here), values.wrapping_add(next), block + b - within, seen_from, seen_to);
                for tile in 0..count.div_ceil(16) {
                    // A tile whose last query is before these tokens needs none of them.
                    if (*s).end.as_ptr().add((tile * 16 + 15).min(count - 1)).read() as usize > token {
                        scores(s, tile, b, (block + b - within) * 32);
                    }
                }
            }
            block += until - within;
        }
        for tile in 0..count.div_ceil(16) {
            let here = (count - tile * 16).min(16);
            let end = (*s).end.as_ptr().add(tile * 16 + here - 1).read() as usize;
            let high = (end.min(start + CHUNK).max(start) - start).div_ceil(32);
            if low >= high {
                continue;
            }
            soften(s, tile * 16, here, start, low, high);
            let mut d = 0;
            while d + 4 <= WIDE {
                weigh::<4>(s, tile, d, low, high);
                d += 4;
            }
            if d < WIDE {
                weigh::<2>(s, tile, d, low, high);
            }
        }
        start += CHUNK;
    }
    for n in 0..count {
        let inverse = splat(1.0 / (&raw const (*s).l).cast::<f32>().add(n).read());
        let outputs = (&raw const (*s).outputs).cast::<f32>().add(n * DIM);
        for d in 0..WIDE {
            // The sum with zero turns -0 into 0: blocks of zero weights, which some tiles add and others do not, do so too.
            store(out.add(place(from + n) + d * 16), add(mul(load(outputs.add(d * 16)), inverse), zero()));
        }
    }
}

