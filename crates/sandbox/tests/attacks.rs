//! Attacks on the sandbox, each with what must stop it, and honest code that must pass.

use evidence::{Reason, Stop};
use plan::{Target, abi::ARGS_V1_SOURCE, operation::slot};
use sandbox::{
    Artifact, BuildLimits, Builder, Call, Helper, Place, Region, RegionAccess, SandboxError, SharedMemory,
    Worker, WorkerConfig, inspect,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PRELUDE: &str = r#"#![no_std]
#[panic_handler] fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
"#;

fn source(body: &str, items: &str) -> String {
    format!(
        "{PRELUDE}{ARGS_V1_SOURCE}\n{items}\n#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32) {{\n\
         unsafe {{ let a = &*args; let x = a.tensors[0].data as *const f32; let out = a.tensors[2].data as *mut f32;\n\
         let n = (a.tensors[2].bytes / 4) as usize; let _ = (x, out, n, phase, thread, threads);\n{body}\n}} }}\n"
    )
}

const DOUBLE: &str =
    "let mut i = thread as usize; while i < n { *out.add(i) = *x.add(i) * 2.0; i += threads as usize; }";

struct Bench {
    builder: Builder,
    config: WorkerConfig,
    target: Target,
    _cache: tempfile::TempDir,
}

fn bench() -> Bench {
    let helper = Helper::program(env!("CARGO_BIN_EXE_sandbox-worker"));
    let cache = tempfile::tempdir().unwrap();
    let builder = Builder::new(helper.clone(), cache.path(), BuildLimits::default()).unwrap();
    let mut config = WorkerConfig::new(helper, vec![]);
    config.max_calls = 64;
    Bench { builder, config, target: Target::portable("x86_64", 2), _cache: cache }
}

const N: usize = 1000;

/// Input region (read-only in the worker), then outputs.
fn memory() -> (Vec<Region>, Call) {
    let input = Arc::new(SharedMemory::new(4 * N).unwrap());
    let values: Vec<u8> = (0..N).flat_map(|i| (i as f32).to_le_bytes()).collect();
    input.write(0, &values);
    let output = Arc::new(SharedMemory::new(4 * N + 4096).unwrap());
    let mut call = Call::new(1);
    call.tensors[slot::X] = Place::new(0, 0, 4 * N);
    call.tensors[slot::OUT] = Place::new(1, 0, 4 * N);
    let regions = vec![
        Region { memory: input, access: RegionAccess::Read },
        Region { memory: output, access: RegionAccess::ReadWrite },
    ];
    (regions, call)
}

fn run(bench: &Bench, artifact: &Artifact) -> Result<Vec<f32>, SandboxError> {
    let (regions, call) = memory();
    let mut worker = Worker::start(&bench.config, artifact, &bench.target, 1, &regions)?;
    worker.prepare(&[call])?;
    worker.run(0, 1, 2, Duration::from_millis(400))?;
    let bytes = regions[1].memory.copy_out(0, 4 * N);
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
}

fn reason<T>(result: Result<T, SandboxError>) -> Reason {
    match result.err().expect("a refusal").stop() {
        Stop::Rejected(rejection) => rejection.reason,
        other => panic!("the candidate is to blame, not us: {other:?}"),
    }
}

#[test]
fn honest_code_builds_passes_and_runs() {
    let bench = bench();
    let artifact = bench.builder.build(&source(DOUBLE, ""), &bench.target).unwrap();
    let inspection = inspect(&artifact.bytes, &bench.target).unwrap();
    assert!(inspection.instructions > 5);
    let out = run(&bench, &artifact).unwrap();
    assert!(out.iter().enumerate().all(|(i, v)| *v == 2.0 * i as f32));
    assert!(artifact.layers.iter().any(|l| l == "seccomp"), "{:?}", artifact.layers);
    eprintln!("layers of the build: {:?}", artifact.layers);
    let again = bench.builder.build(&source(DOUBLE, ""), &bench.target).unwrap();
    assert_eq!((again.digest, again.layers.as_slice()), (artifact.digest, &["cached".to_owned()][..]));
}

#[test]
fn a_worker_serves_many_batches_and_reports_its_layers() {
    let bench = bench();
    let artifact = bench.builder.build(&source(DOUBLE, ""), &bench.target).unwrap();
    let (regions, call) = memory();
    let start = Instant::now();
    let mut worker = Worker::start(&bench.config, &artifact, &bench.target, 1, &regions).unwrap();
    eprintln!("start {:?}, layers {:?}", start.elapsed(), worker.layers());
    assert!(worker.layers().iter().any(|l| l == "seccomp"));
    worker.prepare(&[call; 64]).unwrap();
    let mut empty: Vec<_> =
        (0..50).map(|_| worker.run(0, 0, 2, Duration::from_secs(1)).unwrap().elapsed).collect();
    empty.sort();
    eprintln!("empty batch: {:?} best, {:?} median, {:?} worst", empty[0], empty[25], empty[49]);
    for threads in [1, 2] {
        let batch = worker.run(0, 64, threads, Duration::from_secs(5)).unwrap();
        assert!(batch.claimed <= batch.elapsed, "{batch:?}");
    }
}

#[test]
fn damaged_source_is_the_candidates_fault() {
    let bench = bench();
    for text in ["", "fn kernel() {", "#![no_std] fn f( {}", &source("does_not_exist();", "")] {
        assert_eq!(reason(bench.builder.build(text, &bench.target)), Reason::Build, "{text}");
    }
}

#[test]
fn the_compiler_sees_no_host_files() {
    let bench = bench();
    // Past the text filter on purpose: a macro by another path.
    let text = source(DOUBLE, "macro_rules! m { ($i:ident) => { core::$i!(\"/etc/hostname\") } }");
    let text = format!("{text}\nconst X: &[u8] = m!(include_bytes);");
    let Err(SandboxError::Rejected { reason: Reason::Build, detail }) =
        bench.builder.build(&text, &bench.target)
    else {
        panic!("must be refused")
    };
    eprintln!("{detail}");
}

#[test]
fn inspection_refuses() {
    let bench = bench();
    let asm = |text: &str| source(&format!("core::arch::asm!(\"{text}\");{DOUBLE}"), "");
    let table = "static T: [fn(f32) -> f32; 2] = [f, g]; fn f(x: f32) -> f32 { x * 2.0 } fn g(x: f32) -> f32 { x * 3.0 }";
    let cases = [
        ("a system call", asm("syscall")),
        ("an old system call", asm("int 0x80")),
        ("the time", asm("rdtsc")),
        ("the processor", asm("cpuid")),
        ("random numbers", source(&format!("core::arch::asm!(\"rdrand rax\", out(\"rax\") _);{DOUBLE}"), "")),
        (
            "thread-locals",
            source(&format!("core::arch::asm!(\"mov rax, fs:[0]\", out(\"rax\") _);{DOUBLE}"), ""),
        ),
        ("rounding mode", source(&format!("core::arch::asm!(\"ldmxcsr [{{}}]\", in(reg) x);{DOUBLE}"), "")),
        (
            "another target",
            source(&format!("core::arch::asm!(\"vaddps ymm0, ymm0, ymm0\", out(\"ymm0\") _);{DOUBLE}"), ""),
        ),
        (
            "imports",
            source(
                &format!("*out = getpid() as f32; {DOUBLE}"),
                "unsafe extern \"C\" { fn getpid() -> i32; }",
            ),
        ),
        (
            "writable statics",
            source(
                &format!("C.fetch_add(1, core::sync::atomic::Ordering::Relaxed); {DOUBLE}"),
                "static C: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);",
            ),
        ),
        ("calls through pointers", source("*out = (core::hint::black_box(&T)[n & 1])(*x);", table)),
        ("another export", source(DOUBLE, "#[unsafe(no_mangle)] pub extern \"C\" fn other() {}")),
        ("no kernel", format!("{PRELUDE}#[unsafe(no_mangle)] pub extern \"C\" fn memset() {{}}")),
        ("a jump into an instruction", asm("jmp 3f + 1; 3: mov eax, 0x90909090")),
    ];
    for (what, text) in cases {
        let artifact = bench.builder.build(&text, &bench.target).unwrap_or_else(|e| panic!("{what}: {e}"));
        let result = inspect(&artifact.bytes, &bench.target).map(|i| i.instructions);
        let error = result.as_ref().err().map(ToString::to_string);
        eprintln!("{what}: {error:?}");
        assert_eq!(reason(result), Reason::Inspection, "{what}");
    }
}

#[test]
fn constructors_do_not_pass() {
    let bench = bench();
    let text = source(
        DOUBLE,
        "#[unsafe(link_section = \".init_array\")] static F: extern \"C\" fn() = f; extern \"C\" fn f() {}",
    );
    assert_eq!(reason(bench.builder.build(&text, &bench.target)), Reason::Build);
}

/// What inspection would refuse, run all the same: the process is the boundary.
#[test]
fn the_worker_is_the_boundary() {
    let bench = bench();
    let getpid = "core::arch::asm!(\"syscall\", inout(\"rax\") 39 => _, out(\"rcx\") _, out(\"r11\") _);";
    let open = "core::arch::asm!(\"syscall\", inout(\"rax\") 2 => _, in(\"rdi\") b\"/etc/passwd\\0\".as_ptr(), in(\"rsi\") 0, in(\"rdx\") 0, out(\"rcx\") _, out(\"r11\") _);";
    let cases = [
        ("loops for ever", "loop { core::hint::spin_loop() }", Reason::Timeout),
        ("one thread loops", "if thread == 1 { loop { core::hint::spin_loop() } }", Reason::Timeout),
        ("null pointer", "core::ptr::write_volatile(8 as *mut u8, 1);", Reason::Crash),
        ("writes an input", "core::ptr::write_volatile(x as *mut f32, 1.0);", Reason::Crash),
        (
            "runs past the end",
            "let mut i = 0; while i < 1 << 24 { core::ptr::write_volatile(out.add(i), 1.0); i += 1; }",
            Reason::Crash,
        ),
        (
            "overflows the stack",
            "let mut p = &raw const n as *mut u8; loop { core::ptr::write_volatile(p, 1); p = p.sub(4096); }",
            Reason::Crash,
        ),
        ("system call", getpid, Reason::Crash),
        ("opens a file", open, Reason::Crash),
        ("traps", "core::arch::asm!(\"ud2\");", Reason::Crash),
        ("breakpoint", "core::arch::asm!(\"int3\");", Reason::Crash),
        (
            "flushes to zero",
            "let m: u32 = 0x9fc0; core::arch::asm!(\"ldmxcsr [{}]\", in(reg) &m);",
            Reason::Memory,
        ),
        ("executes data", "let f: extern \"C\" fn() = core::mem::transmute(out); f();", Reason::Crash),
    ];
    for (what, body, expected) in cases {
        let text = source(body, "");
        let artifact = bench.builder.build(&text, &bench.target).unwrap_or_else(|e| panic!("{what}: {e}"));
        let start = Instant::now();
        let result = run(&bench, &artifact);
        let error = result.as_ref().err().map(ToString::to_string);
        eprintln!("{what}: {error:?} after {:?}", start.elapsed());
        assert_eq!(reason(result), expected, "{what}");
    }
}

#[test]
fn imports_are_not_loaded() {
    let bench = bench();
    let text =
        source(&format!("*out = getpid() as f32; {DOUBLE}"), "unsafe extern \"C\" { fn getpid() -> i32; }");
    let artifact = bench.builder.build(&text, &bench.target).unwrap();
    assert_eq!(reason(run(&bench, &artifact)), Reason::Inspection);
}

#[test]
fn a_compiler_bomb_hits_the_limit() {
    let mut bench = bench();
    let limits = BuildLimits { wall: Duration::from_millis(1500), ..BuildLimits::default() };
    let cache = tempfile::tempdir().unwrap();
    let helper = Helper::program(env!("CARGO_BIN_EXE_sandbox-worker"));
    bench.builder = Builder::new(helper, cache.path(), limits).unwrap();
    let bomb = "macro_rules! b { ($($t:tt)*) => { b!($($t)* $($t)* x); } } ";
    let text = source(DOUBLE, &format!("#![recursion_limit = \"1000000\"] {bomb} b!(x);"));
    let start = Instant::now();
    let got = reason(bench.builder.build(&text, &bench.target));
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(matches!(got, Reason::Timeout | Reason::Resources | Reason::Build), "{got:?}");
}

#[test]
fn damaged_binaries_are_refused_and_never_panic() {
    let bench = bench();
    let artifact = bench.builder.build(&source(DOUBLE, ""), &bench.target).unwrap();
    let mut seed = 1u32;
    for round in 0..4000 {
        let mut bytes = artifact.bytes.to_vec();
        for _ in 0..1 + round % 4 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = seed as usize % bytes.len().min(1024);
            bytes[at] ^= 1 << (seed >> 29);
        }
        if round % 5 == 0 {
            bytes.truncate(seed as usize % artifact.bytes.len());
        }
        let _ = inspect(&bytes, &bench.target);
    }
}
