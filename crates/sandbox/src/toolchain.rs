//! The pinned compiler and its flags.

use crate::error::SandboxError;
use plan::{Feature, Target};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Rust toolchain that builds kernels. It is run directly (not through a version manager), so that it needs
/// neither environment nor home folder; its own linker is used, so that it needs no C compiler.
#[derive(Clone, Debug)]
pub struct Toolchain {
    pub(crate) rustc: PathBuf,
    pub(crate) sysroot: PathBuf,
    pub(crate) linker: PathBuf,
    host: String,
    version: String,
}

impl Toolchain {
    /// Finds rustc through `RUSTC`, then `PATH`.
    ///
    /// # Errors
    /// [`SandboxError::Toolchain`] if there is none, or it lacks its linker.
    pub fn find() -> Result<Self, SandboxError> {
        let named = std::env::var_os("RUSTC").filter(|v| !v.is_empty());
        let rustc = named.map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        let ask = |args: &[&str]| -> Result<String, SandboxError> {
            let fail = |e: String| SandboxError::Toolchain(format!("{} {args:?}: {e}", rustc.display()));
            let out = Command::new(&rustc).args(args).output().map_err(|e| fail(e.to_string()))?;
            if !out.status.success() {
                return Err(fail(String::from_utf8_lossy(&out.stderr).into_owned()));
            }
            Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
        };
        let version = ask(&["-vV"])?;
        let host = version
            .lines()
            .find_map(|l| l.strip_prefix("host: "))
            .ok_or_else(|| SandboxError::Toolchain("rustc -vV names no host".into()))?
            .to_owned();
        let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?);
        let binary = sysroot.join("bin/rustc");
        let linker = sysroot.join("lib/rustlib").join(&host).join("bin/rust-lld");
        for (path, what) in [(&binary, "the compiler"), (&linker, "its linker")] {
            if !path.is_file() {
                return Err(SandboxError::Toolchain(format!("{what} {} is missing", path.display())));
            }
        }
        let version = version.lines().next().unwrap_or_default().to_owned();
        Ok(Self { rustc: binary, sysroot, linker, host, version })
    }

    /// First line of `rustc -vV`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Flags for a target, without input and output. Part of an artifact's identity.
    pub fn flags(&self, target: &Target) -> Vec<String> {
        let features = rust_features(target).join(",");
        let mut flags: Vec<String> = [
            "--edition=2024",
            "--crate-type=cdylib",
            "--crate-name=kernel",
            "--cap-lints=allow",
            "-Copt-level=3",
            "-Cpanic=abort",
            "-Ccodegen-units=1",
            "-Cdebuginfo=0",
            "-Cstrip=symbols",
            "-Cembed-bitcode=no",
            "-Coverflow-checks=off",
            "-Cjump-tables=no",
            "-Crelocation-model=pic",
            "-Clinker-flavor=ld.lld",
            // No procedure linkage table (indirect jumps) for the prelude's own functions; no build id.
            "-Clink-args=-nostdlib -Bsymbolic --hash-style=both --build-id=none",
        ]
        .map(str::to_owned)
        .to_vec();
        if !features.is_empty() {
            flags.push(format!("-Ctarget-feature={features}"));
        }
        flags
    }

    /// Version and flags, as evidence records them.
    pub fn describe(&self, target: &Target) -> String {
        format!("{} {}", self.version, self.flags(target).join(" "))
    }

    /// The compiler's host triple.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Folders that compiler and linker must be able to read and execute.
    pub(crate) fn readable(&self) -> Vec<&Path> {
        const SYSTEM: [&str; 5] = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"];
        std::iter::once(self.sysroot.as_path()).chain(SYSTEM.iter().map(Path::new)).collect()
    }
}

/// rustc's names of the target's features. AMX has none on stable: such kernels use `asm!`.
fn rust_features(target: &Target) -> Vec<&'static str> {
    let mut out = Vec::new();
    for feature in &target.features {
        let more: &[&str] = match feature {
            Feature::Avx2 => &["+avx2", "+fma", "+f16c", "+popcnt"],
            Feature::Avx512 => {
                &["+avx2", "+fma", "+f16c", "+popcnt", "+avx512f", "+avx512bw", "+avx512vl", "+avx512dq"]
            }
            Feature::Avx512Vnni => &["+avx512vnni"],
            Feature::Avx512Bf16 => &["+avx512bf16"],
            Feature::AmxInt8 | Feature::AmxBf16 => &[],
        };
        for name in more {
            if !out.contains(name) {
                out.push(name);
            }
        }
    }
    out
}
