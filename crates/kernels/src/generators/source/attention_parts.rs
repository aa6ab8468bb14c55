// How the work of an attention call is parted between threads: contiguous queries of equal total context.
//
// Before this text stand rows, `Scratch`, `attend`, `enter` and `leave`; constants: PIECES, TILE_ROWS, SPLIT.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Where a page of keys, and of values, begins, bytes.
#[inline(always)]
unsafe fn offset(row: &Row, block: usize, kv_head: usize) -> usize {
    unsafe { (*row.table.add(block) as usize * KV_HEADS + kv_head) * (DIM * TOKENS * KV_BYTES) }
}

/// # Safety
/// `args` describes an attention call of these shapes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let args = &*args;
        let s = args.scratch.add(thread as usize * args.scratch_bytes as usize).cast::<Scratch>();
        if PIECES == 0 {
            enter(s);
            part(args, s, thread, threads);
            leave();
            return;
        }
        // Work is dealt out to whoever is free: threads that a neighbour slows down do less, and the others do not wait.
        let counter = &*args.shared.cast::<AtomicU32>();
        if phase == 0 {
            if thread == 0 {
                counter.store(0, Relaxed);
            }
            return;
        }
        let pieces = PIECES * threads;
        enter(s);
        loop {
            let piece = counter.fetch_add(1, Relaxed);
            if piece >= pieces {
                break;
            }
            part(args, s, piece, pieces);
        }
        leave();
    }
}

/// One part of the work.
#[inline(always)]
unsafe fn part(args: &ArgsV1, s: *mut Scratch, thread: u32, threads: u32) {
    unsafe {
        let (low, high) = share(total_cost(args), thread, threads);
        let rows = args.rows as usize;
        let (mut row, mut done) = (0, 0);
        while row < rows && done < high {
            let first = row_at(args, row);
            let (mut end, mut work) = (row + 1, cost(&first));
            while end < rows && end - row < TILE_ROWS {
                let next = row_at(args, end);
                if next.sequence != first.sequence {
                    break;
                }
                work += cost(&next);
                end += 1;
            }
            for kv_head in 0..KV_HEADS {
                let after = done + work * GROUP as u64;
                if after > low && done < high {
                    let (from, to) = owned(args, row, end, done, low, high);
                    if from < to {
                        let after = if kv_head + 1 < KV_HEADS {
                            offset(&first, first.first / TOKENS, kv_head + 1)
                        } else {
                            let next = row_at(args, if end < rows { end } else { row });
                            offset(&next, next.first / TOKENS, 0)
                        };
                        attend(args, s, row, kv_head, from, to, after);
                    }
                }
                done = after;
            }
            row = end;
        }
    }
}

/// The queries of rows `row..end` and one KV head whose work, starting at `done`, belongs to `low..high`.
#[inline(always)]
unsafe fn owned(args: &ArgsV1, row: usize, end: usize, done: u64, low: u64, high: u64) -> (usize, usize) {
    unsafe {
        let (mut from, mut to, mut at) = (usize::MAX, 0, done);
        for r in row..end {
            let work = cost(&row_at(args, r)) * SPLIT as u64;
            let mut head = 0;
            while head < GROUP {
                if owns(low, high, at, work) {
                    from = from.min((r - row) * GROUP + head);
                    to = (r - row) * GROUP + head + SPLIT;
                }
                at += work;
                head += SPLIT;
            }
        }
        (from, to)
    }
}
