//! Times recipes of linear kernels against each other on the shapes of a 135M model, interleaved, over the distinct
//! weights of many layers (so that weights come from memory as in service). A tool for tuning, not evidence.
//!
//! ```text
//! cargo run --release -p kernels --example bench_linear -- OPERATION ROWS THREADS ROUNDS GENERATOR[:axis=value,...] ...
//! cargo run --release -p kernels --example bench_linear -- gate-up 64 1 20 linear-avx512vnni:tile=6 linear-avx512vnni:tile=7
//! ```
//! Operations: `qkv`, `o`, `gate-up`, `down` (u4, group 32), `head` (u8), and `o-f32`, `o-bf16`, `o-q4f32`, `o-i16`;
//! `qkv-bf16`, `o-q4bf16`, `gate-up-bf16`, `down-bf16`, `head-bf16` with bf16 activations; the same with `-r16`, and with `-w8` (u8, group 192, 15-bit rows); `gate-up-w16`,
//! `down-w16` with bf16 weights too.
//! `read` as a generator measures a plain read of the same weights. Times are the best of all rounds; with one thread
//! they are processor time, so that busy neighbours disturb less.

#[path = "../tests/harness/mod.rs"]
mod harness;

use evidence::Point;
use harness::{Buffer, Kernel, build, host};
use plan::operation::{QkvRope, slot};
use plan::{
    Activation, ArgsV1, Epilogue, KvDtype, KvLayout, Operation, Prologue, RowBucket, WeightFormat,
    WeightLayout, Zero,
};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

const NORM: Prologue = Prologue::RmsNorm { eps_bits: 0x3727_c5ac };

fn operation(name: &str) -> Option<Operation> {
    let weight = |format| WeightLayout { format, n_block: 16 };
    let q4 = weight(WeightFormat::Affine { bits: 4, group: 32, zero: Zero::Stored });
    let q8 = weight(WeightFormat::Affine { bits: 8, group: 32, zero: Zero::Midpoint });
    let linear = |n, k, prologue, epilogue, weight, activation| Operation::Linear {
        n,
        k,
        prologue,
        epilogue,
        weight,
        activation,
    };
    let q8wide = weight(WeightFormat::Affine { bits: 8, group: 192, zero: Zero::Midpoint });
    let kv = KvLayout { dtype: KvDtype::F16, block_tokens: 16 };
    let heads = QkvRope { heads: 9, kv_heads: 3, head_dim: 64, bias: false, qk_norm_eps_bits: None, kv };
    let none = Prologue::None;
    Some(match name {
        "qkv" => linear(960, 576, NORM, Epilogue::QkvRope(heads), q4, Activation::I8),
        "o" => linear(576, 576, none, Epilogue::Add, q4, Activation::I8),
        "gate-up" => linear(3072, 576, NORM, Epilogue::SiluGate, q4, Activation::I8),
        "down" => linear(576, 1536, none, Epilogue::Add, q4, Activation::I8),
        "head" => linear(49152, 576, NORM, Epilogue::Store, q8, Activation::I8),
        "qkv-bf16" => linear(960, 576, NORM, Epilogue::QkvRope(heads), q4, Activation::Bf16),
        "o-q4bf16" => linear(576, 576, none, Epilogue::Add, q4, Activation::Bf16),
        "gate-up-bf16" => linear(3072, 576, NORM, Epilogue::SiluGate, q4, Activation::Bf16),
        "gate-up-w16" => {
            linear(3072, 576, NORM, Epilogue::SiluGate, weight(WeightFormat::Bf16), Activation::Bf16)
        }
        "down-w16" => linear(576, 1536, none, Epilogue::Add, weight(WeightFormat::Bf16), Activation::Bf16),
        "down-bf16" => linear(576, 1536, none, Epilogue::Add, q4, Activation::Bf16),
        "head-bf16" => linear(49152, 576, NORM, Epilogue::Store, q8, Activation::Bf16),
        "qkv-r16" => linear(960, 576, NORM, Epilogue::QkvRope(heads), q4, Activation::Row16),
        "o-r16" => linear(576, 576, none, Epilogue::Add, q4, Activation::Row16),
        "gate-up-r16" => linear(3072, 576, NORM, Epilogue::SiluGate, q4, Activation::Row16),
        "down-r16" => linear(576, 1536, none, Epilogue::Add, q4, Activation::Row16),
        "head-r16" => linear(49152, 576, NORM, Epilogue::Store, q8, Activation::Row16),
        "qkv-w8" => linear(960, 576, NORM, Epilogue::QkvRope(heads), q8wide, Activation::I16),
        "o-w8" => linear(576, 576, none, Epilogue::Add, q8wide, Activation::I16),
        "gate-up-w8" => linear(3072, 576, NORM, Epilogue::SiluGate, q8wide, Activation::I16),
        "down-w8" => linear(576, 1536, none, Epilogue::Add, q8wide, Activation::I16),
        "head-w8" => linear(49152, 576, NORM, Epilogue::Store, q8wide, Activation::I16),
        "o-i16" => linear(576, 576, none, Epilogue::Add, q4, Activation::I16),
        "o-q4f32" => linear(576, 576, none, Epilogue::Add, q4, Activation::F32),
        "o-f32" => linear(576, 576, none, Epilogue::Add, weight(WeightFormat::F32), Activation::F32),
        "o-bf16f32" => linear(576, 576, none, Epilogue::Add, weight(WeightFormat::Bf16), Activation::F32),
        "o-bf16" => linear(576, 576, none, Epilogue::Add, weight(WeightFormat::Bf16), Activation::Bf16),
        _ => return None,
    })
}

enum Contender {
    Kernel { name: String, kernel: Kernel, launch: plan::Launch },
    Read,
}

fn contender(text: &str, operation: &Operation, rows: u32, threads: u32) -> Contender {
    if text == "read" {
        return Contender::Read;
    }
    let (name, axes) = text.split_once(':').unwrap_or((text, ""));
    let generator = kernels::generator(name).unwrap_or_else(|| panic!("no generator '{name}'"));
    let target = host(threads);
    let bucket = RowBucket::ALL.into_iter().find(|b| b.contains(rows)).expect("rows fall into a bucket");
    let start =
        generator.start(operation, bucket, &target).unwrap_or_else(|| panic!("{name} does not apply"));
    let point: Point = axes.split(',').filter(|a| !a.is_empty()).fold(start, |p, axis| {
        let (axis, value) = axis.split_once('=').expect("axis=value");
        p.with(axis, value)
    });
    let generated =
        generator.generate(operation, bucket, &target, &point, rows).unwrap_or_else(|e| panic!("{e}"));
    Contender::Kernel {
        name: format!("{name} {point}"),
        kernel: build(&generated, name),
        launch: generated.launch,
    }
}

/// Seconds of the calling thread's processor time, or of the wall.
fn seconds(clock: libc::clockid_t) -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a live timespec.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

struct Layers {
    args: Vec<ArgsV1>,
    weights: Vec<Buffer>,
    _buffers: Vec<Buffer>,
}

// SAFETY: kernels write disjoint parts of the buffers that the arguments point to; the buffers live in the same value.
unsafe impl Sync for Layers {}

impl Layers {
    /// `layers` copies of the operation's inputs; weights are pseudo-random bytes with small scales.
    fn new(operation: &Operation, rows: u32, threads: u32, layers: usize, scratch: u64, shared: u64) -> Self {
        let (layout, n, k) = operation.weight().expect("a linear operation");
        let bytes = layout.bytes(n as usize, k as usize);
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let mut floats =
            |len: u32| -> Vec<f32> { (0..len).map(|_| next() as f32 / 2f32.powi(30) - 1.0).collect() };
        let mut buffers = vec![
            Buffer::from_f32(&floats(rows * operation.in_width())),
            Buffer::from_f32(&floats(rows * operation.out_width())),
            Buffer::from_f32(&floats(k)),
            Buffer::from_f32(&floats(2048 * 128)),
            Buffer::from_u32(&(0..rows).collect::<Vec<_>>()),
            Buffer::poisoned(rows.next_multiple_of(16) as usize * 8 * 128 * 4),
            Buffer::poisoned(rows.next_multiple_of(16) as usize * 8 * 128 * 4),
            Buffer::poisoned((scratch * u64::from(threads)) as usize),
            Buffer::poisoned((shared * u64::from(rows + 16) + 64) as usize),
        ];
        let mut weights: Vec<Buffer> = (0..layers).map(|_| Buffer::poisoned(bytes)).collect();
        for w in &mut weights {
            // 0x21 in every byte: small positive f16, bf16 and f32 values, so that no special case of the hardware slows.
            w.bytes_mut().fill(0x21);
        }
        let mut args = ArgsV1::new(rows);
        for (i, at) in
            [slot::X, slot::OUT, slot::NORM, slot::ROPE, slot::POSITIONS, slot::K_CACHE, slot::V_CACHE]
                .iter()
                .enumerate()
        {
            args.tensors[*at] = buffers[i].tensor();
        }
        args.tensors[slot::SLOTS] = buffers[4].tensor();
        args.scratch = buffers[7].tensor().data;
        args.scratch_bytes = scratch;
        args.shared = buffers[8].tensor().data;
        args.shared_bytes = shared * u64::from(rows + 16) + 64;
        let args = weights
            .iter_mut()
            .map(|w| {
                let mut args = args;
                args.tensors[slot::W] = w.tensor();
                args
            })
            .collect();
        Self { args, weights, _buffers: buffers }
    }
}

/// A barrier that spins.
struct Spin(AtomicU64);

impl Spin {
    fn wait(&self, threads: u32) {
        let threads = u64::from(threads);
        let ticket = self.0.fetch_add(1, Ordering::AcqRel) / threads;
        while self.0.load(Ordering::Acquire) / threads == ticket {
            std::hint::spin_loop();
        }
    }
}

/// One pass of one contender over all layers, run by one thread of `threads`; seconds.
fn pass(contender: &Contender, layers: &Layers, spin: &Spin, thread: u32, threads: u32) -> f64 {
    let clock = if threads == 1 { libc::CLOCK_THREAD_CPUTIME_ID } else { libc::CLOCK_MONOTONIC };
    spin.wait(threads);
    let start = seconds(clock);
    for (args, weight) in layers.args.iter().zip(&layers.weights) {
        match contender {
            Contender::Kernel { kernel, launch, .. } => {
                for phase in 0..launch.phases {
                    kernel.phase(args, phase, thread, threads);
                    spin.wait(threads);
                }
            }
            Contender::Read => {
                let share = weight.len() / threads as usize / 512 * 512;
                std::hint::black_box(sum(&weight.bytes()[thread as usize * share..][..share]));
                spin.wait(threads);
            }
        }
    }
    seconds(clock) - start
}

/// Sums many independent streams of words.
fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; 64];
    for chunk in bytes.chunks_exact(512) {
        for (l, word) in lanes.iter_mut().zip(chunk.chunks_exact(8)) {
            *l = l.wrapping_add(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
    }
    lanes.iter().fold(0, |a, b| a.wrapping_add(*b))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, rows, threads, rounds, recipes @ ..] = arguments.as_slice() else {
        eprintln!("usage: bench_linear OPERATION ROWS THREADS ROUNDS GENERATOR[:axis=value,...] ...");
        std::process::exit(2);
    };
    let operation = operation(name).unwrap_or_else(|| panic!("no operation '{name}'"));
    let number = |text: &str| text.parse::<u32>().unwrap_or_else(|e| panic!("'{text}': {e}"));
    let (rows, threads, rounds) = (number(rows), number(threads), number(rounds));
    let contenders: Vec<Contender> =
        recipes.iter().map(|r| contender(r, &operation, rows, threads)).collect();
    let most = |of: fn(&plan::Launch) -> u64| {
        let kernels = contenders
            .iter()
            .filter_map(|c| if let Contender::Kernel { launch, .. } = c { Some(of(launch)) } else { None });
        kernels.max().unwrap_or(0)
    };
    let (scratch, shared) =
        (most(|l| l.scratch_bytes).next_multiple_of(64), most(|l| l.shared_bytes_per_row));
    let count = if name.starts_with("head") { 4 } else { 30 };
    let layers = Layers::new(&operation, rows, threads, count, scratch, shared);
    let (spin, start) = (Spin(AtomicU64::new(0)), Barrier::new(threads as usize));
    let mut best = vec![f64::INFINITY; contenders.len()];
    let rest = |thread: u32| {
        start.wait();
        for _ in 0..rounds {
            for c in &contenders {
                pass(c, &layers, &spin, thread, threads);
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let rest = &rest;
            scope.spawn(move || rest(thread));
        }
        start.wait();
        for _ in 0..rounds {
            for (c, best) in contenders.iter().zip(&mut best) {
                *best = best.min(pass(c, &layers, &spin, 0, threads));
            }
        }
    });
    let (layout, n, k) = operation.weight().expect("a linear operation");
    let (bytes, macs) = (layout.bytes(n as usize, k as usize) as f64, n as f64 * k as f64 * rows as f64);
    for (c, best) in contenders.iter().zip(best) {
        let each = best / count as f64;
        let label = match c {
            Contender::Kernel { name, .. } => name,
            Contender::Read => "read",
        };
        println!(
            "{:9.2} us {:7.2} GB/s {:8.1} GMAC/s  {label}",
            each * 1e6,
            bytes / each * 1e-9,
            macs / each * 1e-9
        );
    }
}
