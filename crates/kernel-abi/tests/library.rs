//! Loading: a kernel from bytes and from a file runs; what is no kernel is refused with its name.

use kernel_abi::{Kernel, KernelAbiError};
use plan::ArgsV1;
use plan::abi::ARGS_V1_SOURCE;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a `no_std` shared object that writes `value` and what it was called with to slot 0.
fn build(dir: &Path, name: &str, function: &str, value: u32) -> PathBuf {
    let source = format!(
        "#![no_std]\n#![crate_type = \"cdylib\"]\n{ARGS_V1_SOURCE}
        #[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! {{ loop {{}} }}
        #[unsafe(no_mangle)]
        pub unsafe extern \"C\" fn {function}(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {{
            unsafe {{
                let out = (*args).tensors[0].data as *mut u32;
                *out = {value}; *out.add(1) = phase; *out.add(2) = thread; *out.add(3) = threads;
                *out.add(4) = (*args).rows; *out.add(5) = (*args).ints[7] as u32;
                *out.add(6) = (*args).shared_bytes as u32;
                *out.add(7) = ((*args).size as usize == core::mem::size_of::<ArgsV1>()) as u32;
            }}
        }}"
    );
    let input = dir.join(format!("{name}.rs"));
    let output = dir.join(format!("{name}.so"));
    std::fs::write(&input, source).expect("writable");
    let status = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "-O", "-C", "panic=abort", "-C", "link-args=-nostartfiles -nostdlib"])
        .args(["-A", "warnings", "-o"])
        .args([&output, &input])
        .status()
        .expect("rustc starts");
    assert!(status.success());
    output
}

fn call(kernel: &Kernel) -> [u32; 8] {
    let mut out = [0u32; 8];
    let mut args = ArgsV1::new(5);
    args.tensors[0].data = out.as_mut_ptr().cast();
    args.tensors[0].bytes = 32;
    args.ints[7] = 77;
    args.shared_bytes = 99;
    // SAFETY: the test's kernel writes eight u32 to slot 0, which has them.
    unsafe { kernel.call(&args, 1, 2, 3) };
    out
}

#[test]
fn from_bytes_and_from_file() -> Result<(), KernelAbiError> {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let (a, b) = (build(dir.path(), "a", "kernel", 11), build(dir.path(), "b", "kernel", 22));
    // SAFETY: built above from source without constructors.
    let from_file = unsafe { Kernel::from_file(&a)? };
    assert_eq!(call(&from_file), [11, 1, 2, 3, 5, 77, 99, 1]);
    let bytes = [&a, &b].map(|p| std::fs::read(p).expect("readable"));
    // Loading, dropping and loading another must not give the first one again (equal descriptor numbers).
    for _ in 0..3 {
        for (object, value) in bytes.iter().zip([11, 22]) {
            // SAFETY: as above.
            let kernel = unsafe { Kernel::from_bytes("k", object)? };
            assert_eq!(call(&kernel)[0], value);
        }
    }
    // SAFETY: as above.
    let both = unsafe { [Kernel::from_bytes("a", &bytes[0])?, Kernel::from_bytes("b", &bytes[1])?] };
    assert_eq!(both.each_ref().map(|k| call(k)[0]), [11, 22]);
    Ok(())
}

#[test]
fn refusals_name_the_kernel() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    // SAFETY: not an object at all, so nothing of it runs.
    let error = unsafe { Kernel::from_bytes("linear-7", b"not an object") }.unwrap_err();
    assert!(matches!(error, KernelAbiError::Load { .. }));
    assert!(error.to_string().contains("linear-7"), "{error}");
    let other = build(dir.path(), "other", "colonel", 1);
    let bytes = std::fs::read(&other).expect("readable");
    // SAFETY: built above; no constructors.
    let error = unsafe { Kernel::from_bytes("linear-8", &bytes) }.unwrap_err();
    assert!(matches!(error, KernelAbiError::Symbol { .. }));
    // SAFETY: a missing file.
    let error = unsafe { Kernel::from_file(&dir.path().join("missing.so")) }.unwrap_err();
    assert!(error.to_string().contains("missing.so"), "{error}");
}
