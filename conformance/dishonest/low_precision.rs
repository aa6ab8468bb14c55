// {"task": "linear", "why": "rounds inputs to bf16 where the contract says f32 (C3)", "expect": ["wrong"], "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        share(a, thread, threads, |row, n| {
            let mut sum = 0.0f32;
            let mut k = 0;
            while k < K {
                let v = f32::from_bits((*x(a).add(row * K + k)).to_bits() & 0xffff_0000);
                sum += v * weight(a, n, k);
                k += 1;
            }
            *out(a).add(row * N + n) = sum;
        });
    }
}
