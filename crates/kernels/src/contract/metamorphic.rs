//! Calls whose outputs must stand in a known relation to those of another call, bit for bit.

use super::{Relation, relations};
use crate::error::KernelError;
use crate::inputs::{CaseInputs, Tensor};
use crate::oracle::{key_index, value_index};
use plan::operation::{QkvRope, int, slot};
use plan::{Epilogue, KvLayout, Operation, Prologue};
use rand::seq::SliceRandom;
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// A changed call with what must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct MetamorphicCase {
    pub relation: Relation,
    pub inputs: CaseInputs,
    /// For each row of the changed call the row of the base call that it must agree with.
    pub rows: Vec<u32>,
    /// Outputs of the changed call are those of the base call times this power of two. Cache entries are compared
    /// where it is 1.
    pub factor: f32,
}

/// What a call left behind.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    /// `[rows][width]`.
    pub out: &'a [f32],
    /// Keys and values after the call, for operations that write them.
    pub caches: Option<(&'a [u8], &'a [u8])>,
}

/// Where a relation is broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub relation: Relation,
    /// Row of the changed call.
    pub row: u32,
    /// Column of `OUT`, or byte of the row's cache entries.
    pub column: usize,
    pub base: f32,
    pub changed: f32,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { relation, row, column, base, changed } = self;
        write!(f, "{} broken: row {row}, column {column}: {changed:e} where {base:e} is due", relation.name())
    }
}

/// Changed calls for a base call, one or more for each relation that holds for the operation.
///
/// The base should be drawn from a pattern of moderate sizes for [`Relation::PowerOfTwo`] (`Normal` or `Outliers`):
/// scaling is exact as long as nothing overflows or underflows.
pub fn metamorphic_cases(
    operation: &Operation,
    base: &CaseInputs,
    seed: u64,
) -> Result<Vec<MetamorphicCase>, KernelError> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let all: Vec<u32> = (0..base.rows).collect();
    let same_rows =
        |relation, inputs, factor| MetamorphicCase { relation, inputs, rows: all.clone(), factor };
    let of_rows = |relation, rows: Vec<u32>| -> Result<MetamorphicCase, KernelError> {
        Ok(MetamorphicCase { relation, inputs: select_rows(operation, base, &rows)?, rows, factor: 1.0 })
    };
    let mut cases = Vec::new();
    for relation in relations(operation) {
        match relation {
            Relation::Repeat => cases.push(same_rows(relation, base.clone(), 1.0)),
            Relation::RowAlone => {
                let drawn = rng.random_range(0..base.rows);
                let rows: BTreeSet<u32> = [0, base.rows - 1, drawn].into();
                for row in rows {
                    cases.push(of_rows(relation, vec![row])?);
                }
            }
            Relation::Split if base.rows > 1 => {
                let cut = rng.random_range(1..base.rows);
                cases.push(of_rows(relation, (0..cut).collect())?);
                cases.push(of_rows(relation, (cut..base.rows).collect())?);
            }
            Relation::Permutation if base.rows > 1 => {
                cases.push(of_rows(relation, permuted(operation, base, &mut rng)?)?);
            }
            Relation::PowerOfTwo => {
                for factor in [4.0, 0.125] {
                    cases.push(same_rows(relation, scaled(operation, base, factor)?, factor));
                }
            }
            Relation::PagesMoved => {
                cases.push(same_rows(relation, pages_moved(operation, base, &mut rng)?, 1.0))
            }
            Relation::UnseenTokens => {
                cases.push(same_rows(relation, unseen_changed(operation, base, &mut rng)?, 1.0))
            }
            Relation::Split | Relation::Permutation => {}
        }
    }
    Ok(cases)
}

/// Whether the outputs of a changed call stand in their relation to those of the base call.
///
/// `Err(KernelError)` for buffers of the wrong size, `Ok(Err(..))` for a broken relation. NaN breaks every relation.
pub fn relation_holds(
    operation: &Operation,
    base: (&CaseInputs, Outputs<'_>),
    case: &MetamorphicCase,
    changed: Outputs<'_>,
) -> Result<Result<(), Violation>, KernelError> {
    let width = operation.out_width() as usize;
    let sized = |o: &Outputs<'_>, rows: u32| o.out.len() == rows as usize * width;
    if !sized(&base.1, base.0.rows) || !sized(&changed, case.inputs.rows) {
        return Err(KernelError::Case {
            slot: "OUT",
            what: "outputs do not have the size of their call".into(),
        });
    }
    for (row, from) in case.rows.iter().enumerate() {
        for column in 0..width {
            let want = base.1.out[*from as usize * width + column] * case.factor;
            let got = changed.out[row * width + column];
            if got.to_bits() != want.to_bits() || got.is_nan() {
                let row = row as u32;
                return Ok(Err(Violation { relation: case.relation, row, column, base: want, changed: got }));
            }
        }
    }
    let (Some(qkv), Some(before), Some(after)) = (written(operation), base.1.caches, changed.caches) else {
        return Ok(Ok(()));
    };
    if case.factor != 1.0 {
        return Ok(Ok(()));
    }
    base.0.caches(&qkv.kv, qkv.kv_heads, qkv.head_dim)?;
    let base_slots = base.0.u32(slot::SLOTS, base.0.rows as usize)?;
    let slots = case.inputs.u32(slot::SLOTS, case.inputs.rows as usize)?;
    for (row, from) in case.rows.iter().enumerate() {
        let want = entry(qkv, before, base_slots[*from as usize]);
        let got = entry(qkv, after, slots[row]);
        if let Some(column) = (0..want.len().max(got.len())).find(|i| want.get(*i) != got.get(*i)) {
            let byte = |bytes: &[u8]| bytes.get(column).map_or(f32::NAN, |b| f32::from(*b));
            let (base, changed) = (byte(&want), byte(&got));
            return Ok(Err(Violation { relation: case.relation, row: row as u32, column, base, changed }));
        }
    }
    Ok(Ok(()))
}

/// The call for some of the rows, in the given order: everything that belongs to a row goes with it.
pub fn select_rows(
    operation: &Operation,
    base: &CaseInputs,
    rows: &[u32],
) -> Result<CaseInputs, KernelError> {
    if rows.is_empty() || rows.iter().any(|r| *r >= base.rows) {
        return Err(KernelError::Case { slot: "X", what: format!("rows {rows:?} of {}", base.rows) });
    }
    let mut out = base.clone();
    out.rows = rows.len() as u32;
    let by_row = [
        (slot::X, operation.in_width() as usize),
        (slot::OUT, operation.out_width() as usize),
        (slot::POSITIONS, 1),
        (slot::SLOTS, 1),
        (slot::ROW_SEQUENCE, 1),
        (slot::TOKENS, 1),
    ];
    for (slot, width) in by_row {
        let picked = match base.tensors.get(&slot) {
            Some(Tensor::F32(v)) => Tensor::F32(pick(v, width, rows)),
            Some(Tensor::U32(v)) => Tensor::U32(pick(v, width, rows)),
            _ => continue,
        };
        out.tensors.insert(slot, picked);
    }
    Ok(out)
}

fn pick<T: Copy>(values: &[T], width: usize, rows: &[u32]) -> Vec<T> {
    rows.iter().flat_map(|r| values[*r as usize * width..][..width].iter().copied()).collect()
}

/// A random order of rows; for attention rows of one sequence stay together in their order.
fn permuted(operation: &Operation, base: &CaseInputs, rng: &mut ChaCha8Rng) -> Result<Vec<u32>, KernelError> {
    let rows: Vec<u32> = (0..base.rows).collect();
    let mut runs: Vec<Vec<u32>> = if matches!(operation, Operation::Attention { .. }) {
        let sequences = base.u32(slot::ROW_SEQUENCE, base.rows as usize)?;
        rows.chunk_by(|a, b| sequences[*a as usize] == sequences[*b as usize]).map(<[u32]>::to_vec).collect()
    } else {
        rows.iter().map(|r| vec![*r]).collect()
    };
    runs.shuffle(rng);
    Ok(runs.concat())
}

/// Scales what the output is linear in.
fn scaled(operation: &Operation, base: &CaseInputs, factor: f32) -> Result<CaseInputs, KernelError> {
    let slots: &[usize] = match operation {
        Operation::Linear { prologue: Prologue::RmsNorm { .. }, .. } => &[slot::NORM, slot::OUT],
        Operation::Linear { .. } => &[slot::X, slot::OUT],
        Operation::RmsNorm { .. } => &[slot::NORM],
        _ => &[slot::X],
    };
    let mut out = base.clone();
    for slot in slots {
        if let Some(Tensor::F32(values)) = out.tensors.get_mut(slot) {
            match operation {
                // Only the second half of a row, the up part, is linear.
                Operation::SiluGate { ffn } => {
                    let ffn = *ffn as usize;
                    values
                        .chunks_mut(2 * ffn)
                        .for_each(|row| row[ffn..].iter_mut().for_each(|v| *v *= factor));
                }
                _ => values.iter_mut().for_each(|v| *v *= factor),
            }
        }
    }
    Ok(out)
}

/// KV layout, heads and head size of operations with a cache.
fn cache_shape(operation: &Operation) -> Option<(KvLayout, u32, u32)> {
    match operation {
        Operation::Attention { kv_heads, head_dim, kv, .. } => Some((*kv, *kv_heads, *head_dim)),
        _ => written(operation).map(|q| (q.kv, q.kv_heads, q.head_dim)),
    }
}

fn written(operation: &Operation) -> Option<&QkvRope> {
    match operation {
        Operation::RopeKv(q) | Operation::Linear { epilogue: Epilogue::QkvRope(q), .. } => Some(q),
        _ => None,
    }
}

fn pages_moved(
    operation: &Operation,
    base: &CaseInputs,
    rng: &mut ChaCha8Rng,
) -> Result<CaseInputs, KernelError> {
    let Some((kv, heads, dim)) = cache_shape(operation) else { return Ok(base.clone()) };
    let (keys, values) = base.caches(&kv, heads, dim)?;
    let mut to: Vec<u32> = (0..base.pages() as u32).collect();
    to.shuffle(rng);
    let page = kv.page_bytes(heads as usize, dim as usize);
    let moved = |cache: &[u8]| {
        let mut out = vec![0u8; cache.len()];
        for (from, to) in to.iter().enumerate() {
            out[*to as usize * page..][..page].copy_from_slice(&cache[from * page..][..page]);
        }
        Tensor::Bytes(Arc::new(out))
    };
    let mut out = base.clone().with(slot::K_CACHE, moved(keys)).with(slot::V_CACHE, moved(values));
    if let Some(Tensor::U32(tables)) = out.tensors.get_mut(&slot::BLOCK_TABLES) {
        tables.iter_mut().for_each(|t| *t = to.get(*t as usize).copied().unwrap_or(*t));
    }
    if let Some(Tensor::U32(slots)) = out.tensors.get_mut(&slot::SLOTS) {
        slots
            .iter_mut()
            .for_each(|s| *s = to[(*s / kv.block_tokens) as usize] * kv.block_tokens + *s % kv.block_tokens);
    }
    Ok(out)
}

/// Other (small, finite) bytes in every cache slot that no row of the call may see.
fn unseen_changed(
    operation: &Operation,
    base: &CaseInputs,
    rng: &mut ChaCha8Rng,
) -> Result<CaseInputs, KernelError> {
    let Operation::Attention { kv_heads, head_dim, kv, window, .. } = operation else {
        return Ok(base.clone());
    };
    let rows = base.rows as usize;
    let (positions, sequences) = (base.u32(slot::POSITIONS, rows)?, base.u32(slot::ROW_SEQUENCE, rows)?);
    let blocks = base.ints[int::MAX_BLOCKS].max(0) as usize;
    let entries = base.tensors.get(&slot::BLOCK_TABLES).map_or(0, |t| t.bytes().len() / 4);
    let tables = base.u32(slot::BLOCK_TABLES, entries)?;
    let mut seen = BTreeSet::new();
    for (position, sequence) in positions.iter().zip(sequences) {
        let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
        for t in first..=*position {
            let page = tables[*sequence as usize * blocks + (t / kv.block_tokens) as usize];
            seen.insert(page * kv.block_tokens + t % kv.block_tokens);
        }
    }
    let (keys, values) = base.caches(kv, *kv_heads, *head_dim)?;
    let (mut keys, mut values) = (keys.to_vec(), values.to_vec());
    let (width, tokens) = (kv.dtype.bytes(), kv.block_tokens as usize);
    let dim = *head_dim as usize;
    let per_page = *kv_heads as usize * dim * tokens;
    for i in 0..keys.len() / width {
        let page = i / per_page * tokens;
        for (cache, token) in [(&mut keys, i % tokens), (&mut values, i / dim % tokens)] {
            if !seen.contains(&((page + token) as u32)) {
                rng.fill_bytes(&mut cache[i * width..][..width]);
                // One exponent bit cleared: neither infinite nor NaN.
                cache[i * width + width - 1] &= 0xbf;
            }
        }
    }
    Ok(base
        .clone()
        .with(slot::K_CACHE, Tensor::Bytes(Arc::new(keys)))
        .with(slot::V_CACHE, Tensor::Bytes(Arc::new(values))))
}

/// The bytes of one token's key and value, all heads. Empty for a slot outside.
fn entry(qkv: &QkvRope, (keys, values): (&[u8], &[u8]), at: u32) -> Vec<u8> {
    let width = qkv.kv.dtype.bytes();
    let mut out = Vec::new();
    for head in 0..qkv.kv_heads {
        for d in 0..qkv.head_dim {
            let key = key_index(qkv, at, head, d) * width;
            let value = value_index(qkv, at, head, d) * width;
            out.extend_from_slice(keys.get(key..key + width).unwrap_or_default());
            out.extend_from_slice(values.get(value..value + width).unwrap_or_default());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulate::{Emulated, emulate};
    use crate::inputs::{Batch, CaseSpec, Pattern, generate};
    use crate::numerics::Arith;
    use crate::oracle::tests::operations;

    fn outputs(e: &Emulated) -> Outputs<'_> {
        Outputs { out: &e.out, caches: e.caches.as_ref().map(|(k, v)| (&k[..], &v[..])) }
    }

    fn base(operation: &Operation, pattern: Pattern) -> CaseInputs {
        let spec = CaseSpec { rows: 7, batch: Batch::Mixed { context: 50 }, pattern, seed: 5 };
        generate(operation, &spec).unwrap()
    }

    #[test]
    fn the_class_keeps_every_relation() {
        for operation in operations() {
            for pattern in [Pattern::Normal, Pattern::Outliers] {
                let inputs = base(&operation, pattern);
                for arith in [Arith::Fused, Arith::Separate] {
                    let first = emulate(&operation, arith, &inputs).unwrap();
                    let cases = metamorphic_cases(&operation, &inputs, 9).unwrap();
                    let kinds: BTreeSet<Relation> = cases.iter().map(|c| c.relation).collect();
                    assert_eq!(kinds.len(), relations(&operation).len(), "{operation}");
                    for case in cases {
                        let changed = emulate(&operation, arith, &case.inputs).unwrap();
                        let verdict =
                            relation_holds(&operation, (&inputs, outputs(&first)), &case, outputs(&changed))
                                .unwrap();
                        assert_eq!(verdict, Ok(()), "{operation} {pattern:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn broken_relations_are_seen() {
        for operation in operations() {
            let inputs = base(&operation, Pattern::Normal);
            let first = emulate(&operation, Arith::Fused, &inputs).unwrap();
            for case in metamorphic_cases(&operation, &inputs, 9).unwrap() {
                let mut changed = emulate(&operation, Arith::Fused, &case.inputs).unwrap();
                let last = changed.out.len() - 1;
                changed.out[last] = f32::from_bits(changed.out[last].to_bits() ^ 1);
                let verdict =
                    relation_holds(&operation, (&inputs, outputs(&first)), &case, outputs(&changed)).unwrap();
                assert!(verdict.is_err(), "{operation} {:?}", case.relation);
                changed.out[last] = f32::NAN;
                let verdict =
                    relation_holds(&operation, (&inputs, outputs(&first)), &case, outputs(&changed)).unwrap();
                assert!(verdict.is_err(), "{operation} {:?}", case.relation);
            }
        }
    }

    #[test]
    fn another_arithmetic_breaks_the_class_across_calls() {
        // A kernel that fuses for one row and not for a batch: what the relations are for.
        let operation = operations().into_iter().find(|o| matches!(o, Operation::Attention { .. })).unwrap();
        let inputs = base(&operation, Pattern::Normal);
        let first = emulate(&operation, Arith::Fused, &inputs).unwrap();
        let broken = metamorphic_cases(&operation, &inputs, 9).unwrap().into_iter().filter(|case| {
            let changed = emulate(&operation, Arith::Separate, &case.inputs).unwrap();
            relation_holds(&operation, (&inputs, outputs(&first)), case, outputs(&changed)).unwrap().is_err()
        });
        assert!(broken.count() > 0);
    }

    #[test]
    fn contracts_name_every_slot_of_their_inputs() {
        for operation in operations() {
            let contract = crate::contract::contract(&operation);
            let inputs = base(&operation, Pattern::Normal);
            let declared: BTreeSet<usize> = contract.slots.iter().map(|s| s.slot).collect();
            let mut given: BTreeSet<usize> = inputs.tensors.keys().copied().collect();
            given.insert(slot::OUT);
            assert_eq!(declared, given, "{operation}");
            assert!(contract.to_string().contains("| `OUT` |"));
        }
    }
}
