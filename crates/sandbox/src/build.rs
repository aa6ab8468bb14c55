//! Compiling candidate source outside the judge: own scratch folder, no environment, no network, no files but the
//! toolchain's, limits on time, memory and output.

use crate::confine::{Layers, Limits, Paths};
use crate::error::SandboxError;
use crate::filter::check_source;
use crate::process::{Ended, Helper, describe, finish, spawn};
use crate::toolchain::Toolchain;
use evidence::{Digest, Reason};
use plan::Target;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

/// A kernel's binary.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// BLAKE3 of `bytes`.
    pub digest: Digest,
    /// The shared object.
    pub bytes: Arc<[u8]>,
    /// Compiler and flags.
    pub toolchain: String,
    /// Sandbox layers that stood while it was compiled; `cached` if it was not compiled now.
    pub layers: Layers,
}

/// Limits of one compilation.
#[derive(Clone, Copy, Debug)]
pub struct BuildLimits {
    pub wall: Duration,
    pub cpu_s: u64,
    pub memory_bytes: u64,
    pub binary_bytes: u64,
    /// Bytes of compiler messages that are kept.
    pub message_bytes: usize,
}

impl Default for BuildLimits {
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(30),
            cpu_s: 30,
            memory_bytes: 4 << 30,
            binary_bytes: 16 << 20,
            message_bytes: 16 << 10,
        }
    }
}

/// Order to the child that becomes the compiler.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct BuildOrder {
    pub program: PathBuf,
    pub args: Vec<String>,
    pub folder: PathBuf,
    pub paths: Paths,
    pub limits: Limits,
    pub parent: i32,
}

/// Exit status of the child if it could not become the compiler: our fault, never the candidate's.
pub(crate) const NOT_STARTED: i32 = 117;

/// Compiles candidates and remembers the results by digest of source, flags and compiler version.
#[derive(Clone, Debug)]
pub struct Builder {
    toolchain: Toolchain,
    helper: Helper,
    cache: PathBuf,
    limits: BuildLimits,
}

impl Builder {
    /// A builder that re-executes `helper` and keeps binaries in `cache` (created if missing).
    ///
    /// # Errors
    /// [`SandboxError::Toolchain`] without rustc; [`SandboxError::Host`] if the folder cannot be made.
    pub fn new(helper: Helper, cache: &Path, limits: BuildLimits) -> Result<Self, SandboxError> {
        std::fs::create_dir_all(cache)
            .map_err(|e| SandboxError::host(format!("create {}", cache.display()), e))?;
        let cache =
            cache.canonicalize().map_err(|e| SandboxError::host(format!("open {}", cache.display()), e))?;
        Ok(Self { toolchain: Toolchain::find()?, helper, cache, limits })
    }

    /// The compiler.
    pub fn toolchain(&self) -> &Toolchain {
        &self.toolchain
    }

    /// Compiles `source` for `target`, or finds the binary of an earlier compilation.
    ///
    /// # Errors
    /// [`Reason::Build`] with the compiler's words if the source is refused; [`Reason::Timeout`] and
    /// [`Reason::Resources`] if a limit was hit; other errors are not the candidate's fault.
    pub fn build(&self, source: &str, target: &Target) -> Result<Artifact, SandboxError> {
        check_source(source)?;
        let toolchain = self.toolchain.describe(target);
        let key = self.key(source, &toolchain);
        let place = self.cache.join(format!("{key}.so"));
        if let Some(bytes) = self.cached(&place)? {
            let digest = Digest::of(&bytes);
            return Ok(Artifact { digest, bytes: bytes.into(), toolchain, layers: vec!["cached".into()] });
        }
        let (bytes, layers) = self.compile(source, target)?;
        self.keep(&place, &bytes)?;
        Ok(Artifact { digest: Digest::of(&bytes), bytes: bytes.into(), toolchain, layers })
    }

    fn key(&self, source: &str, toolchain: &str) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"enginewright kernel binary/1\0");
        hasher.update(toolchain.as_bytes());
        hasher.update(b"\0");
        hasher.update(source.as_bytes());
        Digest(*hasher.finalize().as_bytes())
    }

    /// A cached binary: the file's first line is the digest of the rest, so that damage is seen and rebuilt.
    fn cached(&self, place: &Path) -> Result<Option<Vec<u8>>, SandboxError> {
        let file = match std::fs::read(place) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(SandboxError::host(format!("read {}", place.display()), e)),
        };
        let intact = file.len() > 65
            && file[64] == b'\n'
            && Digest::of(&file[65..]).to_string().as_bytes() == &file[..64];
        Ok(intact.then(|| file[65..].to_vec()))
    }

    fn keep(&self, place: &Path, bytes: &[u8]) -> Result<(), SandboxError> {
        let fail = |e| SandboxError::host(format!("write {}", place.display()), e);
        let mut file = tempfile::NamedTempFile::new_in(&self.cache).map_err(fail)?;
        file.write_all(format!("{}\n", Digest::of(bytes)).as_bytes()).map_err(fail)?;
        file.write_all(bytes).map_err(fail)?;
        file.persist(place).map_err(|e| fail(e.error))?;
        Ok(())
    }

    fn compile(&self, source: &str, target: &Target) -> Result<(Vec<u8>, Layers), SandboxError> {
        let fail = |e| SandboxError::host("make a scratch folder for the compiler", e);
        let scratch = tempfile::Builder::new().prefix("wright-build-").tempdir().map_err(fail)?;
        let folder = scratch.path().canonicalize().map_err(fail)?;
        std::fs::write(folder.join("kernel.rs"), source).map_err(fail)?;
        let mut args = self.toolchain.flags(target);
        args.push(format!("-Clinker={}", self.toolchain.linker.display()));
        args.extend(["-o", "kernel.so", "kernel.rs"].map(str::to_owned));
        let order = BuildOrder {
            program: self.toolchain.rustc.clone(),
            args,
            paths: Paths {
                readable: self.toolchain.readable().into_iter().map(Path::to_owned).collect(),
                writable: vec![folder.clone()],
            },
            folder: folder.clone(),
            limits: Limits {
                cpu_s: self.limits.cpu_s,
                memory_bytes: self.limits.memory_bytes,
                file_bytes: self.limits.binary_bytes.max(source.len() as u64) + (64 << 20),
                processes: 64,
            },
            parent: std::process::id() as i32,
        };
        let order = serde_json::to_string(&order)
            .map_err(|e| SandboxError::Worker(format!("cannot encode the order: {e}")))?;
        let mut command = self.helper.command();
        command.arg("build").arg(order).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = spawn(command, &[])?;
        let finished = match finish(child, self.limits.wall, self.limits.message_bytes)? {
            Ended::Exited(finished) => finished,
            Ended::TimedOut => {
                let what = format!("the compiler needed more than {:?}", self.limits.wall);
                return Err(SandboxError::rejected(Reason::Timeout, what));
            }
        };
        let (layers, messages) = split_layers(&finished.stderr);
        if !finished.status.success() {
            return Err(blame(&finished.status, messages));
        }
        let binary = folder.join("kernel.so");
        let bytes = std::fs::read(&binary)
            .map_err(|e| SandboxError::host(format!("read the compiler's output {}", binary.display()), e))?;
        if bytes.len() as u64 > self.limits.binary_bytes {
            let what = format!("a binary of {} bytes; at most {}", bytes.len(), self.limits.binary_bytes);
            return Err(SandboxError::rejected(Reason::Resources, what));
        }
        Ok((bytes, layers))
    }
}

/// The child's first line names the layers; the compiler's words follow.
fn split_layers(stderr: &str) -> (Layers, &str) {
    let (first, rest) = stderr.split_once('\n').unwrap_or((stderr, ""));
    match first.strip_prefix("layers: ") {
        Some(list) => (list.split_whitespace().map(str::to_owned).collect(), rest),
        None => (Vec::new(), stderr),
    }
}

/// Whose fault a failed compilation is.
fn blame(status: &std::process::ExitStatus, messages: &str) -> SandboxError {
    let host =
        |source: std::io::Error| SandboxError::host(format!("compile a kernel: {}", messages.trim()), source);
    if status.code() == Some(NOT_STARTED) {
        return SandboxError::Worker(format!("the compiler did not start: {}", messages.trim()));
    }
    if messages.contains("No space left on device") || messages.contains("os error 28") {
        return host(std::io::ErrorKind::StorageFull.into());
    }
    match status.signal() {
        Some(libc::SIGXCPU | libc::SIGKILL) => {
            SandboxError::rejected(Reason::Timeout, format!("the compiler: {}", describe(*status)))
        }
        // Our memory limit; the machine's own lack of memory shows as SIGKILL.
        Some(_) => SandboxError::rejected(
            Reason::Resources,
            format!("the compiler: {}: {}", describe(*status), messages.trim()),
        ),
        None if status.code() == Some(1) => SandboxError::rejected(Reason::Build, messages.trim().to_owned()),
        None => SandboxError::rejected(
            Reason::Resources,
            format!("the compiler: {}: {}", describe(*status), messages.trim()),
        ),
    }
}
