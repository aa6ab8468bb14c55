// Body of the tiny kernels: plain f32, one column and one row at a time. The constants KIND, N, K, NORMED, HEADS,
// KV_HEADS, HEAD_DIM and BLOCK (tokens of a page) and the view of ArgsV1 are put before it.

unsafe fn f(args: &ArgsV1, slot: usize) -> *mut f32 { args.tensors[slot].data as *mut f32 }
unsafe fn u(args: &ArgsV1, slot: usize) -> *mut u32 { args.tensors[slot].data as *mut u32 }

unsafe fn column(w: *const f32, x: *const f32, column: usize) -> f32 {
    let block = w.add(column / 16 * K * 16 + column % 16);
    let mut sum = 0.0;
    for k in 0..K { sum += *x.add(k) * *block.add(k * 16); }
    sum
}

/// The input row, normalised into this thread's scratch if the operation says so.
unsafe fn input(args: &ArgsV1, row: usize, thread: usize) -> *const f32 {
    let x = f(args, 0).add(row * K);
    if !NORMED { return x; }
    let out = args.scratch.add(thread * args.scratch_bytes as usize) as *mut f32;
    let mut square = 0.0;
    for k in 0..K { square += *x.add(k) * *x.add(k); }
    let scale = 1.0 / (square / K as f32 + 1e-5).sqrt();
    for k in 0..K { *out.add(k) = *x.add(k) * scale * *f(args, 3).add(k); }
    out
}

unsafe fn linear(args: &ArgsV1, thread: usize, threads: usize) {
    let w = f(args, 1);
    for row in 0..args.rows as usize {
        let x = input(args, row, thread);
        let mut block = thread;
        while block < N / 16 {
            for lane in 0..16 {
                let y = column(w, x, block * 16 + lane);
                let out = f(args, 2).add(row * N + block * 16 + lane);
                if KIND == 1 { *out += y } else { *out = y }
            }
            block += threads;
        }
    }
}

unsafe fn gate_up(args: &ArgsV1, thread: usize, threads: usize) {
    for row in 0..args.rows as usize {
        let x = input(args, row, thread);
        let mut pair = thread;
        while pair < N / 32 {
            for lane in 0..16 {
                let gate = column(f(args, 1), x, pair * 32 + lane);
                let up = column(f(args, 1), x, pair * 32 + 16 + lane);
                *f(args, 2).add(row * (N / 2) + pair * 16 + lane) = gate / (1.0 + (-gate).exp()) * up;
            }
            pair += threads;
        }
    }
}

unsafe fn qkv(args: &ArgsV1, thread: usize, threads: usize) {
    let half = HEAD_DIM / 2;
    for row in 0..args.rows as usize {
        let x = input(args, row, thread);
        let rope = f(args, 7).add(*u(args, 10).add(row) as usize * HEAD_DIM);
        let slot = *u(args, 11).add(row) as usize;
        let (page, at) = (slot / BLOCK, slot % BLOCK);
        let mut head = thread;
        while head < HEADS + 2 * KV_HEADS {
            let mut y = [0f32; HEAD_DIM];
            for d in 0..HEAD_DIM { y[d] = column(f(args, 1), x, head * HEAD_DIM + d); }
            if head < HEADS + KV_HEADS {
                for i in 0..half {
                    let (cos, sin) = (*rope.add(i), *rope.add(half + i));
                    let (a, b) = (y[i], y[i + half]);
                    y[i] = a * cos - b * sin;
                    y[i + half] = b * cos + a * sin;
                }
            }
            for d in 0..HEAD_DIM {
                if head < HEADS {
                    *f(args, 2).add((row * HEADS + head) * HEAD_DIM + d) = y[d];
                } else if head < HEADS + KV_HEADS {
                    let h = head - HEADS;
                    *f(args, 8).add(((page * KV_HEADS + h) * HEAD_DIM + d) * BLOCK + at) = y[d];
                } else {
                    let h = head - HEADS - KV_HEADS;
                    *f(args, 9).add(((page * KV_HEADS + h) * BLOCK + at) * HEAD_DIM + d) = y[d];
                }
            }
            head += threads;
        }
    }
}

/// Phase 0 computes into the shared scratch, phase 1 copies to the output with another division of work: wrong
/// without the barrier between phases.
unsafe fn attention(args: &ArgsV1, phase: u32, thread: usize, threads: usize) {
    let rows = args.rows as usize;
    let width = HEADS * HEAD_DIM;
    let shared = args.shared as *mut f32;
    if phase == 1 {
        let mut i = threads - 1 - thread;
        while i < rows * width {
            *f(args, 2).add(i) = *shared.add(i);
            i += threads;
        }
        return;
    }
    let mut item = thread;
    while item < rows * HEADS {
        let (row, head) = (item / HEADS, item % HEADS);
        let h = head / (HEADS / KV_HEADS);
        let q = f(args, 0).add((row * HEADS + head) * HEAD_DIM);
        let table = u(args, 13).add(*u(args, 12).add(row) as usize * args.ints[0] as usize);
        let (mut max, mut total, mut acc) = (f32::NEG_INFINITY, 0f32, [0f32; HEAD_DIM]);
        for t in 0..=*u(args, 10).add(row) as usize {
            let (page, at) = (*table.add(t / BLOCK) as usize, t % BLOCK);
            let mut score = 0.0;
            for d in 0..HEAD_DIM {
                score += *q.add(d) * *f(args, 8).add(((page * KV_HEADS + h) * HEAD_DIM + d) * BLOCK + at);
            }
            score /= (HEAD_DIM as f32).sqrt();
            let new = if score > max { score } else { max };
            let (keep, weight) = ((max - new).exp(), (score - new).exp());
            max = new;
            total = total * keep + weight;
            for d in 0..HEAD_DIM {
                acc[d] = acc[d] * keep + weight * *f(args, 9).add(((page * KV_HEADS + h) * BLOCK + at) * HEAD_DIM + d);
            }
        }
        for d in 0..HEAD_DIM { *shared.add((row * HEADS + head) * HEAD_DIM + d) = acc[d] / total; }
        item += threads;
    }
}

unsafe fn embed(args: &ArgsV1, thread: usize, threads: usize) {
    let mut row = thread;
    while row < args.rows as usize {
        let token = *u(args, 14).add(row) as usize;
        let block = f(args, 1).add(token / 16 * K * 16 + token % 16);
        for k in 0..K { *f(args, 2).add(row * K + k) = *block.add(k * 16); }
        row += threads;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    let (args, thread, threads) = (&*args, thread as usize, threads as usize);
    match KIND {
        0 | 1 => linear(args, thread, threads),
        2 => gate_up(args, thread, threads),
        3 => qkv(args, thread, threads),
        4 => attention(args, phase, thread, threads),
        _ => embed(args, thread, threads),
    }
}
