//! The large read-only tensors of a task: weights or KV caches, in as many copies at distinct addresses as it takes to
//! find the caches as in service. Built once for a task, mapped read-only into every worker.

use crate::error::JudgeError;
use crate::layout::{Cursor, STOCK};
use crate::seed::Seed;
use crate::task::KernelTask;
use kernels::inputs::{Batch, CaseInputs, CaseSpec, Pattern, Tensor, generate_with_weights, weights};
use kernels::oracle::Freivalds;
use plan::Operation;
use plan::operation::slot;
use sandbox::{Place, SharedMemory};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Weights above this size are checked with few patterns of their own.
const LARGE_WEIGHTS: usize = 4 << 20;
/// Distinct contents of the timed copies.
const BASES: usize = 2;

/// One content, with the places where it lies.
pub struct Base {
    /// The case without what is fresh in every call.
    pub case: CaseInputs,
    /// Places of the large tensors, by copy.
    pub copies: Vec<BTreeMap<usize, Place>>,
    /// Secret projection of the weights, for linear operations that it can check.
    pub projection: Option<Arc<Freivalds>>,
}

/// Places of a content's copies, and its projection.
type Laid = (Vec<BTreeMap<usize, Place>>, Option<Arc<Freivalds>>);

/// Large tensors of a task.
pub struct Stock {
    pub memory: Arc<SharedMemory>,
    /// Weights by pattern, for checks.
    patterns: Vec<(Pattern, Tensor, Place)>,
    /// Timed contents, by rows of the timed calls.
    pub timed: BTreeMap<u32, Vec<Base>>,
}

/// How position-aware operations see their sequences in timed calls.
fn timed_batch(task: &KernelTask, rows: u32) -> Batch {
    let context = match task.operation {
        Operation::Attention { .. } => task.context.max(1),
        // Only the new entries are written; more pages would only cost memory.
        _ => task.context.clamp(1, 128),
    };
    match rows {
        // A prefill chunk.
        33.. => Batch::Prefill { past: context.saturating_sub(rows) },
        _ => Batch::DecodeAt { context },
    }
}

/// Slots whose tensors are large, read-only and shared.
fn large(operation: &Operation) -> &'static [usize] {
    match operation {
        Operation::Attention { .. } => &[slot::K_CACHE, slot::V_CACHE],
        Operation::Linear { .. } | Operation::Embed { .. } => &[slot::W],
        _ => &[],
    }
}

impl Stock {
    /// Draws and lays out the large tensors. `working_set` bytes are what the timed copies take at least.
    ///
    /// # Errors
    /// An operation that cannot be computed, or no memory.
    pub fn build(
        task: &KernelTask,
        rows: &[u32],
        seed: Seed,
        working_set: usize,
    ) -> Result<Self, JudgeError> {
        let operation = &task.operation;
        let slots = large(operation);
        let mut patterns = Vec::new();
        for pattern in weight_patterns(operation) {
            if let Some(tensor) = weights(operation, pattern, seed.number("weights", pattern as u64))? {
                patterns.push((pattern, tensor));
            }
        }
        let mut sets: Vec<(u32, Vec<CaseInputs>)> = Vec::new();
        for rows in rows {
            let mut cases = Vec::new();
            for base in 0..BASES as u64 {
                let number = seed.number("base", base << 32 | u64::from(*rows));
                let weights = match base {
                    0 => patterns.first().map(|(_, t)| t.clone()),
                    // Large weights have one content.
                    _ if patterns.first().is_some_and(|(_, t)| t.bytes().len() > LARGE_WEIGHTS) => break,
                    _ => weights(operation, Pattern::Normal, seed.number("weights of base", base))?,
                };
                let spec = CaseSpec {
                    rows: *rows,
                    batch: timed_batch(task, *rows),
                    pattern: Pattern::Normal,
                    seed: number,
                };
                cases.push(generate_with_weights(operation, &spec, weights.as_ref())?);
            }
            sets.push((*rows, cases));
        }
        let size = |case: &CaseInputs| -> usize {
            slots.iter().filter_map(|s| case.tensors.get(s)).map(|t| t.bytes().len() + 64).sum()
        };
        let checks: usize = patterns.iter().map(|(_, t)| t.bytes().len() + 64).sum();
        // Weights do not depend on the rows of a call: all sets then share the copies of the first.
        let shared = slots == [slot::W].as_slice();
        let copies_of = |cases: &[CaseInputs]| {
            let each = cases.iter().map(size).max().unwrap_or(0);
            if each == 0 { 1 } else { working_set.div_ceil(each * cases.len()).clamp(1, 4096) }
        };
        let distinct = if shared { 1 } else { sets.len() };
        let laid = sets.iter().take(distinct).map(|(_, c)| copies_of(c) * c.iter().map(size).sum::<usize>());
        let total = checks + 4096 + laid.sum::<usize>();
        let memory = Arc::new(SharedMemory::new(total)?);
        let mut cursor = Cursor::new(STOCK, 0);
        let mut store = |tensor: &Tensor| {
            let place = cursor.take(tensor.bytes().len());
            memory.write(place.offset as usize, tensor.bytes());
            place
        };
        let patterns: Vec<_> = patterns.into_iter().map(|(p, t)| (p, t.clone(), store(&t))).collect();
        let mut lay = |cases: &[CaseInputs]| -> Vec<Laid> {
            let mut places = vec![Vec::new(); cases.len()];
            // Copies of the contents alternate, so that neighbours differ.
            for _ in 0..copies_of(cases) {
                for (case, places) in cases.iter().zip(&mut places) {
                    let large = slots.iter().filter_map(|s| case.tensors.get(s).map(|t| (*s, store(t))));
                    places.push(large.collect());
                }
            }
            let projection = |i: usize| {
                let weights = cases[i].tensors.get(&slot::W)?;
                let drawn = Freivalds::new(operation, weights.bytes(), seed.number("signs", i as u64));
                drawn.ok().map(Arc::new)
            };
            places.into_iter().enumerate().map(|(i, copies)| (copies, projection(i))).collect()
        };
        let mut timed = BTreeMap::new();
        let mut laid = Vec::new();
        for (rows, cases) in sets {
            if laid.is_empty() || !shared {
                laid = lay(&cases);
            }
            let bases = cases.into_iter().zip(&laid);
            let bases = bases.map(|(case, (copies, projection))| Base {
                case,
                copies: copies.clone(),
                projection: projection.clone(),
            });
            timed.insert(rows, bases.collect());
        }
        Ok(Self { memory, patterns, timed })
    }

    /// Weights of a pattern (or of the first one, if it has none of its own).
    pub fn weights(&self, pattern: Pattern) -> Option<&Tensor> {
        let own = self.patterns.iter().find(|(p, ..)| *p == pattern);
        own.or(self.patterns.first()).map(|(_, t, _)| t)
    }

    /// Where a tensor of the check patterns lies.
    pub fn place_of(&self, tensor: &Tensor) -> Option<Place> {
        let Tensor::Bytes(bytes) = tensor else { return None };
        self.patterns.iter().find_map(|(_, t, place)| match t {
            Tensor::Bytes(own) if Arc::ptr_eq(own, bytes) => Some(*place),
            _ => None,
        })
    }

    /// Bytes of shared memory.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

/// Patterns whose weights are drawn for checks: normal ones first.
fn weight_patterns(operation: &Operation) -> Vec<Pattern> {
    let Some((layout, n, k)) = operation.weight() else { return Vec::new() };
    let all = Pattern::of(operation);
    if layout.bytes(n as usize, k as usize) > LARGE_WEIGHTS {
        return all.into_iter().filter(|p| matches!(p, Pattern::Normal | Pattern::Saturating)).collect();
    }
    // The others are about activations.
    let own = |p: &Pattern| {
        matches!(
            p,
            Pattern::Normal
                | Pattern::Constant
                | Pattern::Huge
                | Pattern::Tiny
                | Pattern::ZeroRows
                | Pattern::Saturating
        )
    };
    all.into_iter().filter(own).collect()
}
