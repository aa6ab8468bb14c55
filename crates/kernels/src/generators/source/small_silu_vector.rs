// silu(gate) * up with vectors: blocks of 16 columns of all rows, shared evenly over the threads.

/// # Safety
/// `args` describes a SiluGate call of this width; `OUT` does not overlap `X`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel(args: *const ArgsV1, _phase: u32, thread: u32, threads: u32) {
    unsafe {
        let args = &*args;
        const BLOCKS: usize = FFN / 16;
        let (low, high) = share(args.rows as usize * BLOCKS, thread, threads);
        let mut unit = low;
        while unit < high {
            // The rest of this row, as far as it is ours.
            let (row, block) = (unit / BLOCKS, unit % BLOCKS);
            let end = (block + high - unit).min(BLOCKS);
            let x = args.tensors[X].data.cast::<f32>().add(row * 2 * FFN);
            let out = args.tensors[OUT].data.cast::<f32>().add(row * FFN);
            let mut i = block * 16;
            while i < end * 16 {
                let (gate, up) = (load(x.add(i)), load(x.add(FFN + i)));
                let silu = div(gate, add(splat(1.0), exp(negate(gate))));
                store(out.add(i), mul(silu, up));
                i += W;
            }
            unit += end - block;
        }
    }
}
