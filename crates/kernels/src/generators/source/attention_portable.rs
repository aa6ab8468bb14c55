// Attention over the paged cache, plain Rust: one row and SHARE query heads of one KV head at a time.

#[inline(always)]
unsafe fn widen(from: *const u8, i: usize) -> f32 {
    unsafe {
        match KV_KIND {
            0 => *from.cast::<f32>().add(i),
            1 => f16_to_f32(*from.cast::<u16>().add(i)),
            _ => bf16_to_f32(*from.cast::<u16>().add(i)),
        }
    }
}

/// What one thread works in: scores, outputs and one widened line of keys or values.
#[repr(C)]
struct Scratch {
    scores: [[f32; TOKENS]; SHARE],
    outputs: [[f32; DIM]; SHARE],
    line: [f32; LINE],
}

/// Turns sums into weights; `m` and `l` are the running maximum and sum. Returns what earlier outputs are scaled by.
#[inline(always)]
fn softmax(scores: &mut [f32; TOKENS], low: usize, high: usize, m: &mut f32, l: &mut f32) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    for v in 0..TOKENS / 16 {
        for j in 0..16 {
            let t = v * 16 + j;
            let scaled = scores[t] * SCALE;
            // The sum of an unseen token may be anything, NaN too.
            let s = if t >= low && t < high { scaled } else { f32::NEG_INFINITY };
            scores[t] = s;
            lanes[j] = if s > lanes[j] { s } else { lanes[j] };
        }
    }
    let mut highest = *m;
    for lane in lanes {
        highest = if lane > highest { lane } else { highest };
    }
    let c = exp(*m - highest);
    let mut lanes = [0.0f32; 16];
    for v in 0..TOKENS / 16 {
        for j in 0..16 {
            let t = v * 16 + j;
            let e = exp(scores[t] - highest);
            let p = if t >= low && t < high { e } else { 0.0 };
            scores[t] = p;
            lanes[j] += p;
        }
    }
    *l = *l * c + total(&lanes);
    *m = highest;
    c
}

#[inline(always)]
unsafe fn page(
    s: &mut Scratch,
    query: *const f32,
    keys: *const u8,
    values: *const u8,
    low: usize,
    high: usize,
    ml: &mut [(f32, f32); SHARE],
) {
    for g in 0..SHARE {
        for t in 0..TOKENS {
            s.scores[g][t] = 0.0;
        }
    }
    for d in 0..DIM {
        for t in 0..TOKENS {
            s.line[t] = unsafe { widen(keys, d * TOKENS + t) };
        }
        for g in 0..SHARE {
            let q = unsafe { *query.add(g * DIM + d) };
            for t in 0..TOKENS {
                s.scores[g][t] = q * s.line[t] + s.scores[g][t];
            }
        }
    }
    for g in 0..SHARE {
        let (m, l) = &mut ml[g];
        let c = softmax(&mut s.scores[g], low, high, m, l);
        for o in &mut s.outputs[g] {
            *o *= c;
        }
    }
    for t in low..high {
        for d in 0..DIM {
            s.line[d] = unsafe { widen(values, t * DIM + d) };
        }
        for g in 0..SHARE {
            // SAFETY: `high` is at most TOKENS.
            let p = unsafe { *s.scores[g].get_unchecked(t) };
            for d in 0..DIM {
                s.outputs[g][d] = p * s.line[d] + s.outputs[g][d];
            }
        }
    }
}

unsafe fn attend(args: &ArgsV1, s: &mut Scratch, row: usize, head: usize) {
    unsafe {
        let at = row_at(args, row);
        let query = args.tensors[X].data.cast::<f32>().add((row * HEADS + head) * DIM);
        let out = args.tensors[OUT].data.cast::<f32>().add((row * HEADS + head) * DIM);
        let kv_head = head / GROUP;
        for g in 0..SHARE {
            for d in 0..DIM {
                s.outputs[g][d] = 0.0;
            }
        }
        let mut ml = [(f32::NEG_INFINITY, 0.0f32); SHARE];
        for block in at.first / TOKENS..at.end.div_ceil(TOKENS) {
            let start = block * TOKENS;
            let offset = (*at.table.add(block) as usize * KV_HEADS + kv_head) * DIM * TOKENS * KV_BYTES;
            let low = at.first.max(start) - start;
            let high = at.end.min(start + TOKENS) - start;
            let keys = args.tensors[K_CACHE].data.add(offset);
            let values = args.tensors[V_CACHE].data.add(offset);
            page(s, query, keys, values, low, high, &mut ml);
        }
        for g in 0..SHARE {
            let inverse = 1.0 / ml[g].1;
            for d in 0..DIM {
                *out.add(g * DIM + d) = s.outputs[g][d] * inverse;
            }
        }
    }
}

/// # Safety
/// `args` describes an attention call of these shapes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel(args: *const ArgsV1, _phase: u32, thread: u32, threads: u32) {
    unsafe {
        let args = &*args;
        let s = &mut *args.scratch.add(thread as usize * args.scratch_bytes as usize).cast::<Scratch>();
        let (low, high) = share(total_cost(args), thread, threads);
        let mut done = 0;
        for row in 0..args.rows as usize {
            let cost = cost(&row_at(args, row)) * SHARE as u64;
            for head in (0..HEADS).step_by(SHARE) {
                if owns(low, high, done, cost) {
                    attend(args, s, row, head);
                }
                done += cost;
            }
        }
    }
}
