//! Interleaved paired timing: the same fresh inputs for both sides, rotating copies of the weights, every timed call
//! checked afterwards.

use crate::check::{columns_per_column, cost_per_output, reference_fault};
use crate::layout::{ARENA, Cursor, INPUTS, POISON, SCRATCH, Written, accumulates, scratch_bytes, written};
use crate::rig::{Fresh, Rig, fault, floats, reject, single_row};
use crate::seed::Seed;
use crate::stock::{Base, Stock};
use crate::task::KernelTask;
use evidence::{Fault, Reason, Stop};
use kernels::inputs::Tensor;
use kernels::oracle;
use plan::operation::slot;
use plan::{Launch, Operation};
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, RngCore, SeedableRng};
use sandbox::{Call, Place, SharedMemory};
use std::sync::Arc;
use std::time::Duration;

/// Most calls of one timed block.
pub const MOST_CALLS: u32 = 2048;
/// Most calls of one block that are checked; which ones is secret, the last is always among them.
const MOST_CHECKED: usize = 96;
/// Most bytes of outputs of one timed block, and of its fresh inputs.
const BLOCK_BYTES: usize = 24 << 20;

/// Fresh and fixed inputs of the timed calls of one row count, laid out for both sides.
pub struct Block<'a> {
    operation: &'a Operation,
    bases: &'a [Base],
    pub rows: u32,
    /// Calls that fit.
    pub capacity: u32,
    /// Places of the small fixed tensors, by base.
    fixed: Vec<Vec<(usize, Place)>>,
    /// Place of each call's own `X` or `TOKENS`.
    fresh: Vec<Place>,
    /// End of the input region that is used.
    pub inputs_end: usize,
    inputs: Arc<SharedMemory>,
}

/// One call's fresh inputs, kept for the check.
pub struct FreshCall {
    base: usize,
    x: Vec<f32>,
    tokens: Vec<u32>,
    residual: Vec<f32>,
}

/// Slot of the inputs that are fresh in every call.
fn fresh_slot(operation: &Operation) -> usize {
    match operation {
        Operation::Embed { .. } => slot::TOKENS,
        _ => slot::X,
    }
}

fn fresh_bytes(operation: &Operation, rows: u32) -> usize {
    4 * rows as usize * operation.in_width().max(1) as usize
}

fn out_bytes(operation: &Operation, rows: u32) -> usize {
    4 * rows as usize * operation.out_width() as usize
}

/// Calls of `rows` rows that fit into a block.
fn capacity(operation: &Operation, rows: u32) -> u32 {
    let each = fresh_bytes(operation, rows).max(out_bytes(operation, rows)) + 4096;
    ((BLOCK_BYTES / each) as u32).clamp(1, MOST_CALLS)
}

/// Bytes of input region and arena that timed calls of these rows need.
pub fn demand(task: &KernelTask, stock: &Stock, launch: &Launch, rows: u32) -> (usize, usize) {
    let operation = &task.operation;
    let calls = capacity(operation, rows) as usize;
    let outputs = written(operation);
    let (mut small, mut state) = (0, 0);
    for base in stock.timed.get(&rows).map_or(&[][..], Vec::as_slice) {
        let placed = |s: &usize| base.copies.first().is_some_and(|c| c.contains_key(s));
        for (slot, tensor) in base.case.tensors.iter().filter(|(s, _)| !placed(s)) {
            let bytes = tensor.bytes().len() + 64;
            if outputs.contains(slot) { state += bytes } else { small += bytes }
        }
    }
    let zones = 4 * (crate::layout::ZONE + 64);
    let inputs = small + calls * (fresh_bytes(operation, rows) + 64) + 8192;
    let (each, shared) = scratch_bytes(launch, rows);
    let arena = calls * (out_bytes(operation, rows) + zones)
        + state
        + each * task.target.threads as usize
        + shared
        + 8 * zones
        + 8192;
    (inputs, arena)
}

impl<'a> Block<'a> {
    /// Writes the fixed inputs at `start` of the input region.
    pub fn new(
        task: &'a KernelTask,
        stock: &'a Stock,
        inputs: &Arc<SharedMemory>,
        rows: u32,
        start: usize,
    ) -> Result<Self, Stop> {
        let Some(bases) = stock.timed.get(&rows).filter(|b| !b.is_empty()) else {
            return Err(fault(Fault::Host, format!("no timed inputs for {rows} rows")));
        };
        let operation = &task.operation;
        let outputs = written(operation);
        let mut cursor = Cursor::new(INPUTS, start);
        let mut fixed = Vec::new();
        for base in bases {
            let mut places = Vec::new();
            let in_stock = |s: &usize| base.copies.first().is_some_and(|c| c.contains_key(s));
            for (slot, tensor) in &base.case.tensors {
                if *slot == fresh_slot(operation) || outputs.contains(slot) || in_stock(slot) {
                    continue;
                }
                let place = cursor.take(tensor.bytes().len());
                inputs.write(place.offset as usize, tensor.bytes());
                places.push((*slot, place));
            }
            fixed.push(places);
        }
        let capacity = capacity(operation, rows);
        let fresh = (0..capacity).map(|_| cursor.take(fresh_bytes(operation, rows))).collect();
        Ok(Self {
            operation,
            bases,
            rows,
            capacity,
            fixed,
            fresh,
            inputs_end: cursor.used(),
            inputs: inputs.clone(),
        })
    }

    /// Draws and writes the fresh inputs of `count` calls.
    pub fn refresh(&self, count: u32, seed: Seed, index: u64) -> Vec<FreshCall> {
        let mut rng = SmallRng::from_seed(seed.bytes("timed inputs", index));
        (0..count as usize)
            .map(|i| {
                let base = rng.random_range(0..self.bases.len());
                let place = self.fresh[i].offset as usize;
                let mut call = FreshCall { base, x: vec![], tokens: vec![], residual: vec![] };
                match self.operation {
                    Operation::Embed { vocab, .. } => {
                        call.tokens = (0..self.rows).map(|_| rng.random_range(0..*vocab)).collect();
                        self.inputs.write(place, Tensor::U32(call.tokens.clone()).bytes());
                    }
                    _ => {
                        let n = self.rows as usize * self.operation.in_width() as usize;
                        call.x = normals(&mut rng, n);
                        self.inputs.write(place, bytes_of(&call.x));
                    }
                }
                if accumulates(self.operation) {
                    let n = self.rows as usize * self.operation.out_width() as usize;
                    call.residual = normals(&mut rng, n);
                }
                call
            })
            .collect()
    }
}

/// About normal numbers, fast.
fn normals(rng: &mut SmallRng, n: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(n + 1);
    while out.len() < n {
        let bits = rng.next_u64();
        for half in [bits as u32, (bits >> 32) as u32] {
            // The sum of four uniform bytes, with mean 0 and standard deviation 1.
            let sum: u32 = half.to_le_bytes().iter().map(|b| u32::from(*b)).sum();
            out.push((sum as f32 - 510.0) / 147.8);
        }
    }
    out.truncate(n);
    out
}

fn bytes_of(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// One side of a comparison: its rig with places for the outputs of a block.
pub struct Side {
    written: Vec<Written>,
    /// Next copy of the large tensors.
    rotation: usize,
    rows: u32,
    /// What the last block says a call takes.
    expected: Duration,
}

impl Side {
    /// Lays out outputs for a block in the arena, and writes the state that calls update (caches).
    pub fn new(rig: &Rig, block: &Block<'_>) -> Self {
        let mut cursor = Cursor::new(ARENA, 0);
        let threads = rig.threads();
        let case = &block.bases[0].case;
        let state: Vec<(usize, usize)> = written(block.operation)
            .iter()
            .filter(|s| **s != slot::OUT)
            .filter_map(|s| case.tensors.get(s).map(|t| (*s, t.bytes().len())))
            .collect();
        // Scratch and state are shared by all calls, as in service; each call has its own output.
        let common = Written::place(&mut cursor, &state, rig.launch(), block.rows, threads);
        for (s, fenced) in &common.tensors {
            fenced.fence(&rig.arena);
            if let Some(tensor) = case.tensors.get(s) {
                rig.arena.write(fenced.place.offset as usize, tensor.bytes());
            }
        }
        let written = (0..block.capacity)
            .map(|_| {
                let out = cursor.fenced(out_bytes(block.operation, block.rows));
                let mut tensors = common.tensors.clone();
                tensors.push((slot::OUT, out));
                Written { tensors, scratch: common.scratch, shared: common.shared }
            })
            .collect();
        Self { written, rotation: 0, rows: block.rows, expected: Duration::ZERO }
    }

    /// Runs one block of the given calls; nanoseconds per call.
    ///
    /// # Errors
    /// What [`Rig::batch`] refuses.
    pub fn block(&mut self, rig: &mut Rig, block: &Block<'_>, fresh: &[FreshCall]) -> Result<f64, Stop> {
        let threads = rig.threads();
        let mut calls = Vec::with_capacity(fresh.len());
        for (i, own) in fresh.iter().enumerate() {
            // State belongs to the first base: calls of operations that update it use that one.
            let base = own.base_for(block);
            let mut call = Call::new(self.rows);
            call.ints = block.bases[base].case.ints;
            for (slot, place) in &block.fixed[base] {
                call.tensors[*slot] = *place;
            }
            let copies = &block.bases[base].copies;
            if let Some(copy) = copies.get(self.rotation % copies.len().max(1)) {
                for (slot, place) in copy {
                    call.tensors[*slot] = *place;
                }
            }
            self.rotation += 1;
            call.tensors[fresh_slot(block.operation)] = block.fresh[i];
            let places = &self.written[i];
            places.bind(&mut call, threads);
            calls.push(call);
            if let Some((_, out)) = places.tensors.iter().find(|(s, _)| *s == slot::OUT) {
                out.fence(&rig.arena);
                let offset = out.place.offset as usize;
                if own.residual.is_empty() {
                    rig.arena.fill(offset, out.place.bytes as usize, POISON);
                } else {
                    rig.arena.write(offset, bytes_of(&own.residual));
                }
            }
        }
        let common = &self.written[0];
        for fenced in [&common.scratch, &common.shared] {
            fenced.fence(&rig.arena);
            // What an earlier block left in scratch is of no use to this one.
            rig.arena.fill(fenced.place.offset as usize, fenced.place.bytes as usize, SCRATCH);
        }
        rig.worker.prepare(&calls)?;
        let batch = rig.batch(fresh.len() as u32, self.expected * fresh.len() as u32)?;
        self.expected = batch.elapsed / fresh.len() as u32;
        Ok(batch.elapsed.as_nanos() as f64 / fresh.len() as f64)
    }

    /// Checks outputs of the block that was just run, each on a secretly drawn row; the last call first, since an
    /// early reply would show there. Returns how many were checked.
    pub fn verify(
        &self,
        rig: &Rig,
        block: &Block<'_>,
        fresh: &[FreshCall],
        rng: &mut SmallRng,
    ) -> Result<u32, Stop> {
        let width = block.operation.out_width() as usize;
        let mut drawn = sample(rng, fresh.len(), MOST_CHECKED.min(fresh.len())).into_vec();
        drawn.push(fresh.len() - 1);
        drawn.sort_unstable();
        drawn.dedup();
        for (i, own) in drawn.iter().rev().map(|i| (*i, &fresh[*i])) {
            let row = rng.random_range(0..self.rows);
            let places = &self.written[i];
            let Some((_, out)) = places.tensors.iter().find(|(s, _)| *s == slot::OUT) else { continue };
            let offset = out.place.offset as usize + 4 * row as usize * width;
            let got = floats(&rig.arena.copy_out(offset, 4 * width));
            if let Some(at) = out.breach(&rig.arena) {
                return Err(reject(Reason::Memory, format!("a timed call wrote outside OUT, byte {at}")));
            }
            verify_row(block, own, row, &got, rng)?;
        }
        // Whole caches take long to read; which blocks are chosen is as secret as the rows.
        let state = written(block.operation).len() > 1 && rng.random_ratio(1, 4);
        if let Some(last) = fresh.last().filter(|_| state) {
            self.verify_state(rig, block, last, rng)?;
        }
        let common = &self.written[0];
        for (name, fenced) in common.fences().filter(|(name, _)| *name != "OUT") {
            if let Some(at) = fenced.breach(&rig.arena) {
                return Err(reject(Reason::Memory, format!("a timed call wrote outside {name}, byte {at}")));
            }
        }
        Ok(drawn.len() as u32)
    }
}

impl Side {
    /// The caches after a block hold what its last call wrote, and nothing else changed.
    fn verify_state(
        &self,
        rig: &Rig,
        block: &Block<'_>,
        last: &FreshCall,
        rng: &mut SmallRng,
    ) -> Result<(), Stop> {
        let Some(places) = self.written.first() else { return Ok(()) };
        let operation = block.operation;
        let mut case = block.bases[last.base_for(block)].case.clone();
        case.tensors.insert(slot::X, Tensor::F32(last.x.clone()));
        let read = |slot: usize| -> Vec<u8> {
            let found = places.tensors.iter().find(|(s, _)| *s == slot);
            found.map_or_else(Vec::new, |(_, f)| {
                rig.arena.copy_out(f.place.offset as usize, f.place.bytes as usize)
            })
        };
        let (keys, values) = (read(slot::K_CACHE), read(slot::V_CACHE));
        let row = rng.random_range(0..self.rows);
        let columns = [rng.random_range(0..operation.out_width())];
        let mut want = oracle::oracle_at(operation, &case, &[row], &columns).map_err(reference_fault)?;
        // Outputs are checked call by call; here only the caches count.
        (want.rows, want.columns, want.out) = (vec![], vec![], vec![]);
        let out = vec![0.0; case.rows as usize * operation.out_width() as usize];
        match oracle::check(operation, &case, &want, &out, Some((&keys, &values))).map_err(reference_fault)? {
            Ok(_) => Ok(()),
            Err(mismatch) => {
                Err(reject(Reason::TimedOutput, format!("a timed call of {} rows: {mismatch}", block.rows)))
            }
        }
    }
}

impl FreshCall {
    /// The base that a call uses.
    fn base_for(&self, block: &Block<'_>) -> usize {
        if written(block.operation).len() > 1 { 0 } else { self.base }
    }
}

/// One row of one timed output against the oracle (some columns) and the projection (all columns).
fn verify_row(
    block: &Block<'_>,
    own: &FreshCall,
    row: u32,
    got: &[f32],
    rng: &mut SmallRng,
) -> Result<(), Stop> {
    let operation = block.operation;
    let base = &block.bases[own.base_for(block)];
    let (r, width) = (row as usize, operation.in_width() as usize);
    let fresh = Fresh {
        x: (!own.x.is_empty()).then(|| &own.x[r * width..(r + 1) * width]),
        token: own.tokens.get(r).copied(),
        residual: (!own.residual.is_empty()).then(|| &own.residual[r * got.len()..(r + 1) * got.len()]),
    };
    let case = single_row(operation, &base.case, row, fresh);
    let wrong = |what: String| {
        Err(reject(Reason::TimedOutput, format!("a timed call of {} rows: row {row}: {what}", block.rows)))
    };
    if let Some(at) = got.iter().position(|v| v.to_bits() == POISON) {
        return wrong(format!("column {at} was left unwritten"));
    }
    let cost = cost_per_output(operation, &case) * columns_per_column(operation);
    let affordable = (40_000 / cost.max(1)).clamp(1, 16) as usize;
    let columns: Vec<u32> = (0..affordable).map(|_| rng.random_range(0..operation.out_width())).collect();
    let want = oracle::oracle_at(operation, &case, &[0], &columns).map_err(reference_fault)?;
    // Caches hold what the block's last calls wrote; outputs say the same.
    if let Err(mismatch) = oracle::check(operation, &case, &want, got, None).map_err(reference_fault)? {
        return wrong(mismatch.to_string());
    }
    if let Some(projection) = &base.projection {
        let rows = projection.check(&case, got, &[0]).map_err(reference_fault)?;
        if let Some(p) = rows.iter().find(|p| !p.passes()) {
            return wrong(format!(
                "departs by {:e} in a random projection; {:e} is allowed",
                p.difference, p.tolerance
            ));
        }
    }
    Ok(())
}
