//! A worker with its memory: runs single cases between red zones and reads what they left behind.

use crate::layout::{ARENA, Cursor, INPUTS, POISON, SCRATCH, Written, accumulates, scratch_bytes, written};
use crate::stock::Stock;
use evidence::{Fault, Reason, Rejection, Stop};
use kernels::inputs::{CaseInputs, Tensor};
use plan::abi::TENSOR_SLOTS;
use plan::operation::slot;
use plan::{Launch, Operation, Target};
use sandbox::{
    Artifact, Batch, Call, Region, RegionAccess, SandboxError, SharedMemory, Worker, WorkerConfig,
};
use std::sync::Arc;
use std::time::Duration;

/// Most scratch that a kernel may ask for, all threads together.
pub const SCRATCH_LIMIT: u64 = 64 << 20;
/// Most phases of a kernel.
pub const PHASES_LIMIT: u32 = 64;

/// A rejection.
pub fn reject(reason: Reason, detail: impl Into<String>) -> Stop {
    Stop::Rejected(Rejection { reason, detail: detail.into() })
}

/// A fault of ours.
pub fn fault(fault: Fault, detail: impl Into<String>) -> Stop {
    Stop::Inconclusive { fault, detail: detail.into() }
}

/// What a call wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// `OUT`, `[rows][width]`.
    pub out: Vec<f32>,
    /// Keys and values after the call, for operations that write them.
    pub caches: Option<(Vec<u8>, Vec<u8>)>,
}

impl Outcome {
    /// Equal bit for bit (NaNs by their bits).
    pub fn same_bits(&self, other: &Self) -> bool {
        self.out.len() == other.out.len()
            && self.out.iter().zip(&other.out).all(|(a, b)| a.to_bits() == b.to_bits())
            && self.caches == other.caches
    }
}

/// Whether a launch description is one that can be run for `rows` rows on `threads` threads.
pub fn check_launch(launch: &Launch, rows: u32, threads: u32) -> Result<(), Stop> {
    let refuse = |what: String| Err(reject(Reason::Resources, what));
    if launch.phases == 0 || launch.phases > PHASES_LIMIT {
        return refuse(format!("{} phases; 1 to {PHASES_LIMIT} are allowed", launch.phases));
    }
    if launch.max_rows < rows || launch.max_threads < threads {
        return refuse(format!(
            "made for {} rows and {} threads; the task has {rows} and {threads}",
            launch.max_rows, launch.max_threads
        ));
    }
    let private = launch.scratch_bytes.checked_mul(u64::from(threads));
    let shared = launch
        .shared_bytes_per_row
        .checked_mul(u64::from(rows))
        .and_then(|b| b.checked_add(launch.shared_bytes));
    match private.zip(shared).and_then(|(a, b)| a.checked_add(b)) {
        Some(bytes) if bytes <= SCRATCH_LIMIT => Ok(()),
        _ => refuse(format!("more than {SCRATCH_LIMIT} bytes of scratch")),
    }
}

/// Bytes of input region and arena that a case needs.
pub fn demand(operation: &Operation, case: &CaseInputs, launch: &Launch, threads: u32) -> (usize, usize) {
    let outputs = written(operation);
    let mut inputs = 8192;
    let mut arena = 8192 + 4 * case.rows as usize * operation.out_width() as usize;
    for (slot, tensor) in &case.tensors {
        let bytes = tensor.bytes().len() + 64;
        if outputs.contains(slot) { arena += bytes } else { inputs += bytes }
    }
    let (each, shared) = scratch_bytes(launch, case.rows);
    arena += each * threads as usize + shared + 16 * (crate::layout::ZONE + 64);
    (inputs, arena)
}

/// A worker and its memory.
pub struct Rig {
    pub worker: Worker,
    pub inputs: Arc<SharedMemory>,
    pub arena: Arc<SharedMemory>,
    stock: Arc<Stock>,
    operation: Operation,
    launch: Launch,
    threads: u32,
    timeout: Duration,
}

/// Sizes and limits of a rig.
#[derive(Clone, Copy, Debug)]
pub struct RigSize {
    pub arena_bytes: usize,
    pub timeout: Duration,
}

impl Rig {
    /// Starts a worker for an artifact.
    pub fn start(
        config: &WorkerConfig,
        artifact: &Artifact,
        target: &Target,
        operation: &Operation,
        launch: &Launch,
        stock: &Arc<Stock>,
        inputs: &Arc<SharedMemory>,
        size: RigSize,
    ) -> Result<Self, SandboxError> {
        let arena = Arc::new(SharedMemory::new(size.arena_bytes)?);
        let regions = [
            Region { memory: stock.memory.clone(), access: RegionAccess::Read },
            Region { memory: inputs.clone(), access: RegionAccess::Read },
            Region { memory: arena.clone(), access: RegionAccess::ReadWrite },
        ];
        let worker = Worker::start(config, artifact, target, launch.phases, &regions)?;
        Ok(Self {
            worker,
            inputs: inputs.clone(),
            arena,
            stock: stock.clone(),
            operation: *operation,
            launch: *launch,
            threads: target.threads,
            timeout: size.timeout,
        })
    }

    /// The launch description.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Runs one case on `threads` threads, with all memory shifted by `shift` bytes (a multiple of 64).
    ///
    /// # Errors
    /// A rejection if the candidate crashes, hangs, writes outside its outputs or leaves some unwritten.
    pub fn run(&mut self, case: &CaseInputs, threads: u32, shift: usize) -> Result<Outcome, Stop> {
        let outputs = written(&self.operation);
        let mut call = Call::new(case.rows);
        call.ints = case.ints;
        let mut inputs = Cursor::new(INPUTS, shift);
        for (slot, tensor) in case.tensors.iter().filter(|(s, _)| !outputs.contains(s)) {
            call.tensors[*slot] = self.stock.place_of(tensor).unwrap_or_else(|| {
                let place = inputs.take(tensor.bytes().len());
                self.inputs.write(place.offset as usize, tensor.bytes());
                place
            });
        }
        let out_bytes = 4 * case.rows as usize * self.operation.out_width() as usize;
        let sizes: Vec<(usize, usize)> = outputs
            .iter()
            .map(|s| match case.tensors.get(s) {
                _ if *s == slot::OUT => (*s, out_bytes),
                Some(tensor) => (*s, tensor.bytes().len()),
                None => (*s, 0),
            })
            .collect();
        let mut cursor = Cursor::new(ARENA, shift);
        let places = Written::place(&mut cursor, &sizes, &self.launch, case.rows, self.threads);
        self.lay_out(case, &places);
        places.bind(&mut call, self.threads);
        debug_assert!(call.tensors.len() == TENSOR_SLOTS);
        self.worker.prepare(&[call])?;
        self.worker.run(0, 1, threads, self.timeout)?;
        self.collect(case, &places)
    }

    /// Contents before the call: red zones, poison or state, undefined scratch.
    fn lay_out(&self, case: &CaseInputs, places: &Written) {
        for (_, fenced) in places.fences() {
            fenced.fence(&self.arena);
        }
        for fenced in [&places.scratch, &places.shared] {
            self.arena.fill(fenced.place.offset as usize, fenced.place.bytes as usize, SCRATCH);
        }
        for (slot, fenced) in &places.tensors {
            let offset = fenced.place.offset as usize;
            match case.tensors.get(slot) {
                Some(state) => self.arena.write(offset, state.bytes()),
                None => self.arena.fill(offset, fenced.place.bytes as usize, POISON),
            }
        }
    }

    fn collect(&self, case: &CaseInputs, places: &Written) -> Result<Outcome, Stop> {
        for (name, fenced) in places.fences() {
            if let Some(at) = fenced.breach(&self.arena) {
                let side = if at < 0 { "before the start" } else { "behind the end" };
                return Err(reject(
                    Reason::Memory,
                    format!("{} rows: wrote outside {name}, byte {} {side}", case.rows, at.abs()),
                ));
            }
        }
        let read = |slot: usize| -> Vec<u8> {
            places
                .tensors
                .iter()
                .find(|(s, _)| *s == slot)
                .map(|(_, f)| self.arena.copy_out(f.place.offset as usize, f.place.bytes as usize))
                .unwrap_or_default()
        };
        let out = floats(&read(slot::OUT));
        if !accumulates(&self.operation) {
            let width = self.operation.out_width().max(1) as usize;
            if let Some(at) = out.iter().position(|v| v.to_bits() == POISON) {
                return Err(reject(
                    Reason::Memory,
                    format!(
                        "{} rows: left OUT row {} column {} unwritten",
                        case.rows,
                        at / width,
                        at % width
                    ),
                ));
            }
        }
        let caches = written(&self.operation)
            .contains(&slot::K_CACHE)
            .then(|| (read(slot::K_CACHE), read(slot::V_CACHE)));
        Ok(Outcome { out, caches })
    }

    /// Runs prepared calls as one timed batch on all threads. `expected` is what the batch should take; a batch that
    /// needs more than twenty times as long, and more than one call's limit, has hung.
    ///
    /// # Errors
    /// A rejection if the candidate crashes or hangs.
    pub fn batch(&mut self, count: u32, expected: Duration) -> Result<Batch, Stop> {
        let limit = self.timeout.max(expected * 20);
        Ok(self.worker.run(0, count, self.threads, limit)?)
    }

    /// Threads of the worker.
    pub fn threads(&self) -> u32 {
        self.threads
    }
}

/// Little-endian f32 values.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// A case of one row: row `row` of `case`, by itself. `x` replaces its `X`, `tokens` its `TOKENS`, `out` its residual.
pub fn single_row(operation: &Operation, case: &CaseInputs, row: u32, fresh: Fresh<'_>) -> CaseInputs {
    let mut one = CaseInputs::new(1);
    one.ints = case.ints;
    let r = row as usize;
    let width = |slot: usize| match slot {
        slot::X => operation.in_width() as usize,
        _ => operation.out_width() as usize,
    };
    for (slot, tensor) in &case.tensors {
        let value = match (*slot, tensor) {
            (slot::X, Tensor::F32(v)) => {
                let w = width(slot::X);
                Tensor::F32(fresh.x.map_or_else(|| v[r * w..(r + 1) * w].to_vec(), <[f32]>::to_vec))
            }
            (slot::OUT, Tensor::F32(v)) => {
                let w = width(slot::OUT);
                Tensor::F32(fresh.residual.map_or_else(|| v[r * w..(r + 1) * w].to_vec(), <[f32]>::to_vec))
            }
            (slot::TOKENS, Tensor::U32(v)) => Tensor::U32(vec![fresh.token.unwrap_or(v[r])]),
            (slot::POSITIONS | slot::SLOTS | slot::ROW_SEQUENCE, Tensor::U32(v)) => Tensor::U32(vec![v[r]]),
            (_, other) => other.clone(),
        };
        one.tensors.insert(*slot, value);
    }
    one
}

/// What a timed call has of its own, for one row.
#[derive(Clone, Copy, Default)]
pub struct Fresh<'a> {
    pub x: Option<&'a [f32]>,
    pub token: Option<u32>,
    pub residual: Option<&'a [f32]>,
}
