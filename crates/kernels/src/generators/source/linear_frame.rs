// The frame of every linear kernel: prologue, chunks of rows, epilogues.
//
// Constants that stand before this text: N, K, NB (columns of a block), GROUP, GROUPS, BITS, STORED, RECORD and
// BLOCK (bytes), FORMAT, ACTIVATION, NORM, EPS, EPILOGUE, the QKV ones, SPLIT, PIECES (of each
// thread, 0 for fixed shares), CHUNK, UNIT, TILE (rows of the largest tile), ROW
// (bytes of a prepared row), TILED (order of prepared rows), UNIT_SCRATCH (bytes).
// Text that stands after it: `prepare` and `chunk` (all columns of a thread); or `linear_walk.rs`, which is a `chunk`, with
// `open` (what is done once for a unit, into UNIT_SCRATCH), `tile` and `unit_rows` (tiles of rows, largest first).

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

const AFFINE: u32 = 0;
const BF16: u32 = 1;
const F32: u32 = 2;

const ACT_F32: u32 = 0;
const ACT_I8: u32 = 1;
const ACT_I16: u32 = 2;
const ACT_BF16: u32 = 3;

const STORE: u32 = 0;
const ADD: u32 = 1;
const SILU_GATE: u32 = 2;
const QKV_ROPE: u32 = 3;

/// Sub-blocks of 16 columns, the unit of all tiles. (Sub-blocks that are padding alone are not computed.)
const SUBS: usize = N.div_ceil(16);
const UNIT_SUBS: usize = UNIT / 16;
/// Prepared rows are the input itself.
const DIRECT: bool = ACTIVATION == ACT_F32 && !NORM;
/// At the start of each thread's scratch: what `open` leaves, then the raw results of one tile of rows and one unit.
const Y_BYTES: usize = TILE * UNIT * 4 + UNIT_SCRATCH;

/// Where prepared rows begin in the shared scratch: after the counter of pieces, if they are dealt out.
const SHARED_ROWS: usize = if PIECES > 0 { 64 } else { 0 };

/// The share of `thread` in `n` things: contiguous, sizes differ by at most one. (A divisor that may be 0 would pull in
/// a panic.)
#[inline(always)]
fn share(n: usize, thread: u32, threads: u32) -> (usize, usize) {
    let (t, p) = (thread as usize, if threads == 0 { 1 } else { threads as usize });
    (n * t / p, n * (t + 1) / p)
}

/// Where prepared row `r` begins. TILED: sixteen rows lie in the place of sixteen rows, 64 bytes of each in turn. (Chunks
/// are whole sixteens.)
#[inline(always)]
unsafe fn place_row(rows: *mut u8, r: usize) -> *mut u8 {
    if TILED { rows.add(r / 16 * 16 * ROW + r % 16 * 64) } else { rows.add(r * ROW) }
}

#[inline(always)]
fn smaller(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    let a = &*args;
    let rows = a.rows as usize;
    let x = a.tensors[0].data as *const f32;
    let norm = a.tensors[3].data as *const f32;
    let scratch = a.scratch.add(thread as usize * a.scratch_bytes as usize);
    let counter = &*(a.shared as *const AtomicU32);
    if SPLIT && phase == 0 {
        if PIECES > 0 && thread == 0 {
            counter.store(0, Relaxed);
        }
        let (mut r, end) = share(rows, thread, threads);
        while r < end {
            prepare(x.add(r * K), norm, place_row(a.shared.add(SHARED_ROWS), r));
            r += 1;
        }
        return;
    }
    if PIECES == 0 {
        columns_of(a, scratch, thread, threads);
        return;
    }
    let pieces = PIECES * threads;
    loop {
        let piece = counter.fetch_add(1, Relaxed);
        if piece >= pieces {
            return;
        }
        columns_of(a, scratch, piece, pieces);
    }
}

/// A share of the columns, for all rows.
#[inline(always)]
unsafe fn columns_of(a: &ArgsV1, scratch: *mut u8, thread: u32, threads: u32) {
    let rows = a.rows as usize;
    let x = a.tensors[0].data as *const f32;
    let norm = a.tensors[3].data as *const f32;
    let mut first = 0;
    while first < rows {
        let count = smaller(CHUNK, rows - first);
        let acts: *const u8 = if SPLIT {
            a.shared.add(SHARED_ROWS + first * ROW)
        } else if DIRECT {
            x.add(first * K) as *const u8
        } else {
            let mut r = 0;
            while r < count {
                prepare(x.add((first + r) * K), norm, place_row(scratch.add(Y_BYTES), r));
                r += 1;
            }
            scratch.add(Y_BYTES)
        };
        chunk(a, first, count, acts, scratch, thread, threads);
        first += count;
    }
}

/// Rows `row..row + count` of one unit whose raw results stand in `y` (`stride` floats from row to row).
#[inline(always)]
unsafe fn finish(a: &ArgsV1, row: usize, count: usize, sub: usize, subs: usize, y: *mut f32, stride: usize) {
    let mut r = 0;
    while r < count {
        let yr = y.add(r * stride);
        match EPILOGUE {
            SILU_GATE => silu_gate(a, row + r, sub, yr),
            QKV_ROPE => qkv_rope(a, row + r, sub, yr),
            _ => store(a, row + r, sub, subs, yr),
        }
        r += 1;
    }
}

#[inline(always)]
unsafe fn store(a: &ArgsV1, row: usize, sub: usize, subs: usize, y: *const f32) {
    let out = (a.tensors[2].data as *mut f32).add(row * N + sub * 16);
    let columns = smaller(subs * 16, N - sub * 16);
    let mut c = 0;
    while c < columns {
        *out.add(c) = if EPILOGUE == ADD { *out.add(c) + *y.add(c) } else { *y.add(c) };
        c += 1;
    }
}

/// A unit is a gate block and its up block.
#[inline(always)]
unsafe fn silu_gate(a: &ArgsV1, row: usize, sub: usize, y: *const f32) {
    let pair = sub / (2 * (NB / 16));
    let out = (a.tensors[2].data as *mut f32).add(row * (N / 2) + pair * NB);
    for c in 0..NB {
        *out.add(c) = silu(*y.add(c)) * *y.add(NB + c);
    }
}

type Head = [f32; HEAD_DIM];

/// A unit is one head.
#[inline(always)]
unsafe fn qkv_rope(a: &ArgsV1, row: usize, sub: usize, y: *mut f32) {
    let head = sub / (HEAD_DIM / 16);
    let y = &mut *(y as *mut Head);
    if BIAS {
        let bias = (a.tensors[4].data as *const f32).add(head * HEAD_DIM);
        for i in 0..HEAD_DIM {
            y[i] += *bias.add(i);
        }
    }
    let is_value = head >= HEADS + KV_HEADS;
    if !is_value {
        if QK_NORM {
            let weight = a.tensors[if head < HEADS { 5 } else { 6 }].data as *const f32;
            let inverse = rms_inverse(y.as_ptr(), HEAD_DIM, QK_EPS);
            for i in 0..HEAD_DIM {
                y[i] = (y[i] * inverse) * *weight.add(i);
            }
        }
        if head < HEADS {
            let out = (a.tensors[2].data as *mut f32).add((row * HEADS + head) * HEAD_DIM);
            rotate(y, rope_table(a, row), &mut *(out as *mut Head));
            return;
        }
    }
    let slot = *(a.tensors[11].data as *const u32).add(row) as usize;
    let (page, token) = (slot / BLOCK_TOKENS, slot % BLOCK_TOKENS);
    if is_value {
        let line = (page * KV_HEADS + head - HEADS - KV_HEADS) * BLOCK_TOKENS + token;
        cache::<1>(a.tensors[9].data, line * HEAD_DIM, y);
    } else {
        let mut rotated = core::mem::MaybeUninit::<Head>::uninit();
        rotate(y, rope_table(a, row), &mut *rotated.as_mut_ptr());
        let plane = (page * KV_HEADS + head - HEADS) * HEAD_DIM;
        cache::<BLOCK_TOKENS>(a.tensors[8].data, plane * BLOCK_TOKENS + token, &*rotated.as_ptr());
    }
}

/// Cosines, then sines, of the row's position.
#[inline(always)]
unsafe fn rope_table(a: &ArgsV1, row: usize) -> &Head {
    let position = *(a.tensors[10].data as *const u32).add(row) as usize;
    &*((a.tensors[7].data as *const f32).add(position * HEAD_DIM) as *const Head)
}

/// Rope. A call of its own with references: nothing overlaps, so that the loop becomes vectors.
#[inline(never)]
fn rotate(y: &Head, table: &Head, out: &mut Head) {
    let half = HEAD_DIM / 2;
    for i in 0..HEAD_DIM / 2 {
        let (p, q) = (y[i], y[i + half]);
        let (c, s) = (table[i], table[i + half]);
        out[i] = fma(p, c, -(q * s));
        out[i + half] = fma(q, c, p * s);
    }
}

/// Stores a head at `first + i * STEP` elements of the cache.
#[inline(never)]
unsafe fn cache<const STEP: usize>(data: *mut u8, first: usize, y: &Head) {
    if KV_DTYPE == 0 {
        for i in 0..HEAD_DIM {
            *(data as *mut f32).add(first + i * STEP) = y[i];
        }
        return;
    }
    let mut i = 0;
    while i < HEAD_DIM {
        let mut halves = [0u16; 16];
        for l in 0..16 {
            halves[l] = if KV_DTYPE == 1 { to_f16(y[i + l]) } else { to_bf16(y[i + l]) };
        }
        for l in 0..16 {
            *(data as *mut u16).add(first + (i + l) * STEP) = halves[l];
        }
        i += 16;
    }
}

/// Sixteen inputs from `i`, normalised if the prologue says so.
#[inline(always)]
unsafe fn inputs(x: *const f32, norm: *const f32, inverse: f32, i: usize) -> [f32; 16] {
    let mut y = [0.0f32; 16];
    for l in 0..16 {
        let v = *x.add(i + l);
        y[l] = if NORM { (v * inverse) * *norm.add(i + l) } else { v };
    }
    y
}

/// Quantises one row in groups: `put(i, xq)` takes sixteen integers, `scale(group, d, t)` closes a group.
#[inline(always)]
unsafe fn quantise(
    x: *const f32,
    norm: *const f32,
    limit: f32,
    mut put: impl FnMut(usize, [i32; 16]),
    mut scale: impl FnMut(usize, f32, i32),
) {
    let inverse = if NORM { rms_inverse(x, K, EPS) } else { 1.0 };
    let mut g = 0;
    while g < GROUPS {
        let mut most = [0.0f32; 16];
        let mut i = 0;
        while i < GROUP {
            let y = inputs(x, norm, inverse, g * GROUP + i);
            for l in 0..16 {
                most[l] = larger(most[l], f32::from_bits(y[l].to_bits() & 0x7fff_ffff));
            }
            i += 16;
        }
        for j in 0..8 {
            most[j] = larger(most[j], most[j + 8]);
        }
        for j in 0..4 {
            most[j] = larger(most[j], most[j + 4]);
        }
        for j in 0..2 {
            most[j] = larger(most[j], most[j + 2]);
        }
        let max = larger(most[0], most[1]);
        let live = max >= f32::from_bits((127 - 100) << 23);
        let d = if live { max / limit } else { 0.0 };
        let factor = if live { 1.0 / d } else { 0.0 };
        let mut total = [0i32; 16];
        let mut i = 0;
        while i < GROUP {
            let y = inputs(x, norm, inverse, g * GROUP + i);
            let mut q = [0i32; 16];
            for l in 0..16 {
                q[l] = round_to_int(y[l] * factor);
                total[l] += q[l];
            }
            put(g * GROUP + i, q);
            i += 16;
        }
        let mut t = 0;
        for l in 0..16 {
            t += total[l];
        }
        scale(g, d, t);
        g += 1;
    }
}
