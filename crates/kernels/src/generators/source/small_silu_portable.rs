// silu(gate) * up, plain Rust: blocks of 16 columns of all rows, shared evenly over the threads.

#[inline(always)]
unsafe fn gate(x: *const f32, out: *mut f32, columns: usize) {
    for i in 0..columns {
        unsafe {
            let (g, up) = (*x.add(i), *x.add(FFN + i));
            *out.add(i) = (g / (1.0 + exp(-g))) * up;
        }
    }
}

/// # Safety
/// `args` describes a SiluGate call of this width; `OUT` does not overlap `X`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel(args: *const ArgsV1, _phase: u32, thread: u32, threads: u32) {
    unsafe {
        let args = &*args;
        let blocks = FFN.div_ceil(16);
        let (low, high) = share(args.rows as usize * blocks, thread, threads);
        for unit in low..high {
            let (row, at) = (unit / blocks, unit % blocks * 16);
            let x = args.tensors[X].data.cast::<f32>().add(row * 2 * FFN + at);
            let out = args.tensors[OUT].data.cast::<f32>().add(row * FFN + at);
            if at + 16 <= FFN {
                gate(x, out, 16);
            } else {
                gate(x, out, FFN - at);
            }
        }
    }
}
