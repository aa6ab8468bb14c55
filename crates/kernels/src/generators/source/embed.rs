// Embed: gathers rows of a packed matrix. Constants before this text: HIDDEN (k), NB, GROUP, BITS, STORED, RECORD, BLOCK,
// FORMAT. Products of scale and quant are exact, so that every target gives the same bits.

const HEADER: usize = if STORED { NB * 4 } else { NB * 2 };

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    let a = &*args;
    let rows = a.rows as usize;
    let tokens = a.tensors[14].data as *const u32;
    let out = a.tensors[2].data as *mut f32;
    let w = a.tensors[1].data as *const u8;
    // Threads split the row of one token too, so that a single token does not leave them idle.
    let threads = if threads == 0 { 1 } else { threads as usize };
    let mut unit = rows * PARTS * thread as usize / threads;
    let end = rows * PARTS * (thread as usize + 1) / threads;
    while unit < end {
        let (row, part) = (unit / PARTS, unit % PARTS);
        let token = *tokens.add(row) as usize;
        let column = token % NB;
        gather(w.add(token / NB * BLOCK), column, part, out.add(row * HIDDEN));
        unit += 1;
    }
}

/// One part (a group, or everything) of one row.
#[inline(always)]
unsafe fn gather(block: *const u8, column: usize, part: usize, out: *mut f32) {
    match FORMAT {
        0 => {
            let record = block.add(part * RECORD);
            let halves = record as *const u16;
            let scale = from_f16(*halves.add(column));
            let min = if STORED { from_f16(*halves.add(NB + column)) } else { 0.0 };
            let data = record.add(HEADER) as *const u32;
            for step in 0..GROUP / 4 {
                let bytes = if BITS == 8 {
                    *data.add(step * NB + column)
                } else {
                    (*data.add(step / 2 * NB + column) >> (step % 2 * 4)) & 0x0f0f_0f0f
                };
                for j in 0..4 {
                    let q = ((bytes >> (8 * j)) & 0xff) as i32;
                    let y = if STORED { q as f32 * scale + min } else { (q - (1 << (BITS - 1))) as f32 * scale };
                    *out.add(part * GROUP + step * 4 + j) = y;
                }
            }
        }
        1 => {
            for i in 0..HIDDEN {
                *out.add(i) = from_bf16(*(block as *const u16).add((i / 2 * NB + column) * 2 + i % 2));
            }
        }
        _ => {
            for i in 0..HIDDEN {
                *out.add(i) = *(block as *const f32).add(i * NB + column);
            }
        }
    }
}
