//! Builds generated kernels with `rustc`, loads them and runs them phase by phase. For tests and examples: what the
//! factory builds and runs goes through its sandbox.
#![allow(dead_code)]

use kernels::Generated;
use plan::{ArgsV1, Feature, Target, TensorV1};
use std::collections::BTreeSet;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;

type Entry = unsafe extern "C" fn(*const ArgsV1, u32, u32, u32);

/// A loaded kernel.
pub struct Kernel {
    entry: Entry,
    handle: *mut c_void,
    launch: plan::Launch,
}

// SAFETY: the handle is only closed once, and the code that it stands for has no state.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// The `-C target-feature` value for a set of features.
pub fn target_features(features: &BTreeSet<Feature>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for feature in features {
        names.extend(match feature {
            Feature::Avx2 => ["+avx2", "+fma", "+f16c"].as_slice(),
            Feature::Avx512 => {
                ["+avx2", "+fma", "+f16c", "+avx512f", "+avx512bw", "+avx512vl", "+avx512dq"].as_slice()
            }
            Feature::Avx512Vnni => ["+avx512vnni"].as_slice(),
            Feature::Avx512Bf16 => ["+avx512bf16"].as_slice(),
            Feature::AmxInt8 | Feature::AmxBf16 => [].as_slice(),
        });
    }
    names.sort_unstable();
    names.dedup();
    names.join(",")
}

/// The features of this CPU; tiles only where the system lets this process use them.
pub fn available() -> BTreeSet<Feature> {
    kernel_abi::detect()
}

/// This machine as a target.
pub fn host(threads: u32) -> Target {
    Target { arch: std::env::consts::ARCH.to_owned(), features: available(), threads }
}

/// Whether this CPU can run `generated`; says so loudly where it cannot.
pub fn runs_here(name: &str, generated: &Generated) -> bool {
    let available = available();
    let missing: Vec<_> = generated.features.difference(&available).collect();
    if !missing.is_empty() {
        eprintln!("SKIPPED: {name} needs {missing:?}, which this CPU lacks");
    }
    missing.is_empty()
}

/// What runs of a kernel, and on up to how many threads: itself, and an AMX kernel on emulated tiles too, which run wherever
/// AVX-512 does. Those are static: one thread at a time.
pub fn forms(generated: Generated) -> Vec<(Generated, u32)> {
    let tiles = include_str!("../../src/generators/source/amx_tiles.rs");
    if !generated.source.contains(tiles) {
        return vec![(generated, 3)];
    }
    let mut emulated = generated.clone();
    emulated.source = emulated.source.replace(tiles, include_str!("amx_tiles_emulated.rs"));
    emulated.features.remove(&Feature::AmxInt8);
    emulated.features.remove(&Feature::AmxBf16);
    vec![(emulated, 1), (generated, 3)]
}

/// This machine, with AMX where its kernels can be emulated.
pub fn emulating(threads: u32) -> Target {
    let mut target = host(threads);
    if target.features.contains(&Feature::Avx512) {
        target.features.extend([Feature::AmxInt8, Feature::AmxBf16]);
    }
    target
}

/// Compiles to `dir/name.so`; the source stays beside it.
pub fn compile(generated: &Generated, dir: &Path, name: &str) -> std::path::PathBuf {
    let source = dir.join(format!("{name}.rs"));
    let binary = dir.join(format!("{name}.so"));
    std::fs::write(&source, &generated.source).expect("write the source");
    let mut rustc = Command::new(std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned()));
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "candidate"]);
    rustc.args(["-C", "opt-level=3", "-C", "panic=abort", "-C", "codegen-units=1"]);
    rustc.args(["-C", "link-args=-nostartfiles -nostdlib"]);
    if !generated.features.is_empty() {
        rustc.arg("-C").arg(format!("target-feature={}", target_features(&generated.features)));
    }
    let output = rustc.arg("-o").arg(&binary).arg(&source).output().expect("run rustc");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "rustc {name}: {errors}");
    binary
}

/// Compiles and loads.
pub fn build(generated: &Generated, name: &str) -> Kernel {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let binary = compile(generated, dir.path(), name);
    let path = CString::new(binary.to_str().expect("a printable path")).expect("no NUL in the path");
    // SAFETY: the path is NUL-terminated; the object was built here from a generated source and runs nothing at load.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "dlopen {name}: {}", load_error());
    // SAFETY: the handle is live and the name NUL-terminated.
    let symbol = unsafe { libc::dlsym(handle, c"kernel".as_ptr()) };
    assert!(!symbol.is_null(), "{name} exports no `kernel`");
    // SAFETY: every generated source exports `kernel` with this signature.
    let entry = unsafe { std::mem::transmute::<*mut c_void, Entry>(symbol) };
    Kernel { entry, handle, launch: generated.launch }
}

fn load_error() -> String {
    // SAFETY: dlerror returns null or a NUL-terminated string that lives until the next call on this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            String::new()
        } else {
            std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

impl Kernel {
    /// Runs all phases on `threads` threads, with fresh poisoned scratch that is checked for overruns.
    pub fn run(&self, args: &mut ArgsV1, threads: u32) {
        assert!(args.rows <= self.launch.max_rows && threads <= self.launch.max_threads);
        let per_thread = self.launch.scratch_bytes.next_multiple_of(64) as usize;
        let shared = self.launch.shared_bytes + self.launch.shared_bytes_per_row * args.rows as u64;
        let mut scratch = Buffer::poisoned(per_thread * threads as usize);
        let mut shared = Buffer::poisoned(shared as usize);
        args.scratch = scratch.tensor().data;
        args.scratch_bytes = per_thread as u64;
        args.shared = shared.tensor().data;
        args.shared_bytes = shared.len() as u64;
        self.call(args, threads);
        scratch.check("scratch");
        shared.check("shared scratch");
    }

    /// The launch description that it was generated with.
    pub fn launch(&self) -> plan::Launch {
        self.launch
    }

    /// Runs all phases with the scratch that `args` already has.
    pub fn call(&self, args: &ArgsV1, threads: u32) {
        struct Shared<'a>(&'a ArgsV1);
        // SAFETY: kernels write disjoint parts of the slots, as their contract says; the pointers outlive the scope.
        unsafe impl Sync for Shared<'_> {}
        let (shared, barrier, entry) = (Shared(args), Barrier::new(threads as usize), self.entry);
        let work = |thread: u32| {
            let shared: &Shared = &shared;
            for phase in 0..self.launch.phases {
                // SAFETY: the arguments describe live buffers of the sizes that the operation's contract asks for.
                unsafe { entry(shared.0, phase, thread, threads) };
                barrier.wait();
            }
        };
        std::thread::scope(|scope| {
            for thread in 1..threads {
                let work = &work;
                scope.spawn(move || work(thread));
            }
            work(0);
        });
    }
}

impl Kernel {
    /// One thread's part of one phase, for callers with threads of their own.
    pub fn phase(&self, args: &ArgsV1, phase: u32, thread: u32, threads: u32) {
        // SAFETY: the arguments describe live buffers of the sizes that the operation's contract asks for.
        unsafe { (self.entry)(args, phase, thread, threads) }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: opened once in `build`, closed once here; no call is running, since calls borrow the kernel.
        unsafe { libc::dlclose(self.handle) };
    }
}

const RED: u8 = 0xA5;
const RED_LINES: usize = 4;

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// Memory for one slot: aligned to 64 bytes, between red zones. The tail of the last line is red too.
pub struct Buffer {
    lines: Vec<Line>,
    bytes: usize,
}

impl Buffer {
    /// `bytes` bytes of 0xFF: NaN as f32, f16 and bf16.
    pub fn poisoned(bytes: usize) -> Self {
        let mut buffer = Self { lines: vec![Line([RED; 64]); bytes.div_ceil(64) + 2 * RED_LINES], bytes };
        buffer.bytes_mut().fill(0xFF);
        buffer
    }

    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut buffer = Self::poisoned(bytes.len());
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    pub fn from_f32(values: &[f32]) -> Self {
        Self::from_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn from_u32(values: &[u32]) -> Self {
        Self::from_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    fn all(&self) -> &[u8] {
        // SAFETY: lines are plain bytes, contiguous and initialised.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * 64) }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.all()[RED_LINES * 64..][..self.bytes]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.lines.len() * 64;
        // SAFETY: as in `all`, borrowed mutably.
        let all: &mut [u8] = unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) };
        &mut all[RED_LINES * 64..][..self.bytes]
    }

    pub fn f32(&self) -> Vec<f32> {
        self.bytes().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// The slot for a call.
    pub fn tensor(&mut self) -> TensorV1 {
        let bytes = self.bytes as u64;
        TensorV1 { data: self.bytes_mut().as_mut_ptr(), bytes }
    }

    /// Panics where a red zone was written.
    pub fn check(&self, what: &str) {
        let (head, tail) = (&self.all()[..RED_LINES * 64], &self.all()[RED_LINES * 64 + self.bytes..]);
        assert!(head.iter().chain(tail).all(|b| *b == RED), "{what}: a red zone was written");
    }
}
