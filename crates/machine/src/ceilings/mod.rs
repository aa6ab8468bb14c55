//! The ceilings of a host, measured with kernels of our own through the same ABI, pool and build as every candidate.
//!
//! * `stream_bytes_per_s_t<T>`: reading 128 MiB once, T threads (weights do not fit the last-level cache);
//! * `stream_cached_bytes_per_s_t<T>`: reading 16 MiB again and again;
//! * `int8_macs_per_s_t<T>`: VPDPBUSD (or the best int8 multiply-add that the host has), registers only;
//! * `f32_flops_per_s_t<T>`: fused multiply-adds, registers only, two operations each;
//! * `amx_int8_macs_per_s_t<T>`: TDPBUSD on resident tiles, where there is AMX;
//! * `barrier_ns_t<T>`: one empty phase, all threads meeting.
//!
//! Each is the best of several samples: a ceiling is what the machine can do, and noise only lowers it.

mod source;

pub use source::{Probe, Work, probes};

use kernel_abi::{AlignedBuffer, Kernel, KernelAbiError, Pool, allowed_processors};
use plan::{ArgsV1, Feature, Target};
use sandbox::{Builder, SandboxError};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Why ceilings could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum CeilingError {
    #[error("building the probe {name}: {source}")]
    Build { name: &'static str, source: SandboxError },
    #[error("running the probe {name}: {source}")]
    Run { name: &'static str, source: KernelAbiError },
}

/// Samples of each probe.
const SAMPLES: usize = 15;
/// Shortest timed part of a compute probe, seconds.
const SHORTEST_S: f64 = 0.01;
/// Longest time for all samples of a probe after the third, seconds.
const LONGEST_S: f64 = 0.6;
/// Rounds of a barrier sample.
const BARRIERS: u32 = 2_000;

/// Measures all ceilings with 1 to `threads` threads. Takes about a second and a half.
///
/// # Errors
/// [`CeilingError`] naming the probe.
pub fn measure(
    builder: &Builder,
    features: &BTreeSet<Feature>,
    threads: u32,
) -> Result<BTreeMap<String, f64>, CeilingError> {
    let mut ceilings = BTreeMap::new();
    for probe in probes(features) {
        let run = |source| CeilingError::Run { name: probe.name, source };
        let target =
            Target { arch: std::env::consts::ARCH.to_owned(), features: probe.features.clone(), threads };
        let artifact = builder
            .build(&probe.source, &target)
            .map_err(|source| CeilingError::Build { name: probe.name, source })?;
        // SAFETY: the source is ours (`source.rs`), built a moment ago; it follows the kernel ABI.
        let kernel = unsafe { Kernel::from_bytes(probe.name, &artifact.bytes) }.map_err(run)?;
        let mut alone = 0.0;
        for t in 1..=threads {
            // On a thread of its own: the pool pins its owner, and the caller must stay free.
            let own = std::thread::scope(|scope| scope.spawn(|| sample(&probe, &kernel, t)).join());
            let mut value = match own {
                Ok(value) => value.map_err(run)?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            if let Work::Operations { .. } = probe.work {
                // Registers only: cores do not get in each other's way, and a neighbour's load must not lower a ceiling.
                value = value.max(alone * f64::from(t));
            }
            if t == 1 {
                alone = value;
            }
            ceilings.insert(format!("{}_t{t}", probe.name), value);
        }
    }
    Ok(ceilings)
}

fn sample(probe: &Probe, kernel: &Kernel, threads: u32) -> Result<f64, KernelAbiError> {
    let processors = allowed_processors().unwrap_or_default();
    let mut pool = Pool::new(threads, 100_000, &processors)?;
    let bytes = match probe.work {
        Work::Bytes { bytes } => bytes,
        _ => 4096,
    };
    let mut weights = AlignedBuffer::zeroed(bytes, "ceiling weights")?;
    // Touched pages of distinct contents: zero pages of the kernel would all be the same memory.
    weights.bytes_mut().iter_mut().step_by(64).enumerate().for_each(|(i, b)| *b = i as u8 | 1);
    let out = AlignedBuffer::zeroed(64 * threads as usize, "ceiling output")?;
    let mut args = ArgsV1::new(1);
    args.tensors[1] = plan::TensorV1 { data: weights.pointer(), bytes: bytes as u64 };
    args.tensors[2] = plan::TensorV1 { data: out.pointer(), bytes: 64 * u64::from(threads) };
    args.ints[0] = 1 << 12;
    if let Work::Operations { .. } = probe.work {
        while time(&mut pool, kernel, &args, 1)? < SHORTEST_S && args.ints[0] < 1 << 40 {
            args.ints[0] *= 2;
        }
    }
    let calls = match probe.work {
        Work::Bytes { bytes } => (64usize << 20).div_ceil(bytes) as u32,
        Work::Operations { .. } => 1,
        Work::Empty => BARRIERS,
    };
    let mut best = f64::INFINITY;
    let began = Instant::now();
    for n in 0..SAMPLES {
        // On a busy machine the rest would only show the neighbours.
        if n >= 3 && began.elapsed().as_secs_f64() > LONGEST_S {
            break;
        }
        best = best.min(time(&mut pool, kernel, &args, calls)? / f64::from(calls));
    }
    Ok(match probe.work {
        Work::Bytes { bytes } => bytes as f64 / best,
        Work::Operations { per_iteration } => {
            per_iteration as f64 * args.ints[0] as f64 * f64::from(threads) / best
        }
        Work::Empty => best * 1e9,
    })
}

/// Seconds of `calls` calls, all members meeting after each.
fn time(pool: &mut Pool, kernel: &Kernel, args: &ArgsV1, calls: u32) -> Result<f64, KernelAbiError> {
    /// Shares the arguments with the pool's threads.
    struct Shared<'a>(&'a ArgsV1);
    // SAFETY: probes only read what the pointers refer to, except for one output line of each thread.
    unsafe impl Sync for Shared<'_> {}
    let shared = Shared(args);
    let shared = &shared;
    let start = Instant::now();
    pool.run(&move |member| {
        let Shared(args) = shared;
        for _ in 0..calls {
            // SAFETY: weights and output slots are valid buffers of the stated sizes, 64-aligned, the weights a
            // multiple of 512 bytes; every thread writes its own 64 bytes of output; the host has the features.
            unsafe { kernel.call(args, 0, member.thread, member.threads) };
            member.barrier()?;
        }
        Ok(())
    })?;
    Ok(start.elapsed().as_secs_f64())
}
