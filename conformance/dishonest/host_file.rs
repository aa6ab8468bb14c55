// {"task": "linear", "why": "pulls a host file into the source (D6)", "expect": ["build"], "launch": {"phases": 1, "scratch_bytes": 0, "shared_bytes": 0, "shared_bytes_per_row": 0, "max_rows": 64, "max_threads": 2}}

const SECRET: &[u8] = include_bytes!("/etc/hostname");

#[unsafe(no_mangle)]
unsafe extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {
    unsafe {
        let a = &*args;
        let _ = SECRET;
        share(a, thread, threads, |row, n| *out(a).add(row * N + n) = dot(a, row, n));
    }
}
