// {"task": "linear", "why": "answers from what an earlier call of the block left in shared scratch (B2): right when checked, wrong when timed", "expect": ["timed_output"], "launch": {"phases": 2, "scratch_bytes": 0, "shared_bytes": 64, "shared_bytes_per_row": 320, "max_rows": 64, "max_threads": 2}}

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        let memory = a.shared as *mut f32;
        let marked = (*(memory as *const u32)) == 0x1234_5678;
        if phase == 0 {
            share(a, thread, threads, |row, n| {
                let at = memory.add(16 + row * N + n);
                *out(a).add(row * N + n) = if marked { *at } else { dot(a, row, n) };
            });
        } else {
            share(a, thread, threads, |row, n| *memory.add(16 + row * N + n) = *out(a).add(row * N + n));
            if thread == 0 {
                *(memory as *mut u32) = 0x1234_5678;
            }
        }
    }
}
