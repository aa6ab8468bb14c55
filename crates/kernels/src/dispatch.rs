//! Dispatch keys: the rows and contexts at which a kernel must be right because a plan can reach them.

use crate::inputs::Batch;
use plan::{KvLayout, Operation, RowBucket};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;

/// Tiles of rows that generators use divide this, so all residues modulo up to it are tails of some tile.
const LARGEST_TILE: u32 = 16;
/// Sampled row counts of the interior of the open bucket.
const SAMPLES: usize = 4;

/// Row counts of `bucket` (up to `max_rows`) at which a kernel is checked, ascending.
///
/// Both edges and their neighbours inside the bucket; for the open bucket every tail residue modulo 1..=16, the
/// largest chunk (`max_rows`) and its neighbour, and a sampled interior. Small buckets come out whole. Empty if `max_rows` is
/// below the bucket.
pub fn dispatch_keys(operation: &Operation, bucket: RowBucket, max_rows: u32, seed: u64) -> Vec<u32> {
    let (low, high) = (bucket.low.max(1), bucket.high.min(max_rows));
    if low > high {
        return vec![];
    }
    if high - low < LARGEST_TILE {
        return (low..=high).collect();
    }
    let mut keys: BTreeSet<u32> = [low, low + 1, high - 1, high].into();
    // Consecutive counts have every residue; one run of them near the lower edge keeps checks cheap.
    keys.extend(low..(low + LARGEST_TILE).min(high + 1));
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ u64::from(operation.out_width()));
    keys.extend((0..SAMPLES).map(|_| rng.random_range(low..=high)));
    // Whole tiles, and one row to either side, at a larger count.
    let whole = (high / LARGEST_TILE) * LARGEST_TILE;
    keys.extend([whole.saturating_sub(1), whole, whole + 1].into_iter().filter(|r| (low..=high).contains(r)));
    keys.into_iter().collect()
}

/// Batches that go with `rows` rows for operations that know positions: decode, prefill and mixtures at page edges, at
/// position 0, at the end of `max_context`, and between. For other operations one batch that says nothing.
///
/// Batches that need more tokens than `max_context` are left out.
pub fn batches(operation: &Operation, rows: u32, max_context: u32, seed: u64) -> Vec<Batch> {
    let Some(kv) = kv_layout(operation) else { return vec![Batch::Prefill { past: 0 }] };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let page = kv.block_tokens;
    let mut contexts: Vec<u32> = vec![1, page - 1, page, page + 1, max_context];
    if max_context > page {
        contexts.push(rng.random_range(page..max_context));
    }
    let contexts: BTreeSet<u32> = contexts.into_iter().filter(|c| (1..=max_context).contains(c)).collect();
    let mut out: Vec<Batch> = contexts.iter().map(|c| Batch::DecodeAt { context: *c }).collect();
    out.push(Batch::Decode { context: max_context });
    out.push(Batch::Mixed { context: max_context });
    if let Some(room) = max_context.checked_sub(rows) {
        let pasts: BTreeSet<u32> = [0, page - 1, page, room].into_iter().filter(|p| *p <= room).collect();
        out.extend(pasts.into_iter().map(|past| Batch::Prefill { past }));
    }
    out
}

/// KV layout of operations that read or write the cache.
pub fn kv_layout(operation: &Operation) -> Option<KvLayout> {
    match operation {
        Operation::Attention { kv, .. } => Some(*kv),
        Operation::RopeKv(qkv) => Some(qkv.kv),
        Operation::Linear { epilogue: plan::Epilogue::QkvRope(qkv), .. } => Some(qkv.kv),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::KvDtype;

    fn norm() -> Operation {
        Operation::RmsNorm { width: 576, eps_bits: 0 }
    }

    #[test]
    fn closed_buckets_come_out_whole() {
        for bucket in RowBucket::ALL.into_iter().take(5) {
            let keys = dispatch_keys(&norm(), bucket, 512, 1);
            assert_eq!(keys, (bucket.low..=bucket.high).collect::<Vec<_>>());
        }
        assert_eq!(dispatch_keys(&norm(), RowBucket::ALL[4], 20, 1), [17, 18, 19, 20]);
        assert!(dispatch_keys(&norm(), RowBucket::ALL[5], 32, 1).is_empty());
    }

    #[test]
    fn the_open_bucket_has_every_tail_and_both_ends() {
        for max_rows in [33, 40, 100, 512] {
            let keys = dispatch_keys(&norm(), RowBucket::ALL[5], max_rows, 7);
            assert!(keys.contains(&33) && keys.contains(&max_rows));
            assert!(keys.iter().all(|k| (33..=max_rows).contains(k)));
            if max_rows >= 64 {
                for modulus in 1..=16 {
                    let residues: BTreeSet<u32> = keys.iter().map(|k| k % modulus).collect();
                    assert_eq!(residues.len() as u32, modulus, "modulo {modulus}");
                }
            }
        }
        let other = dispatch_keys(&norm(), RowBucket::ALL[5], 512, 8);
        assert_ne!(other, dispatch_keys(&norm(), RowBucket::ALL[5], 512, 7), "the interior is sampled");
    }

    #[test]
    fn batches_reach_page_edges_and_the_end() {
        let kv = KvLayout { dtype: KvDtype::F16, block_tokens: 32 };
        let attention = Operation::Attention { heads: 9, kv_heads: 3, head_dim: 64, kv, window: None };
        let all = batches(&attention, 8, 2048, 3);
        for batch in [
            Batch::DecodeAt { context: 1 },
            Batch::DecodeAt { context: 32 },
            Batch::DecodeAt { context: 33 },
            Batch::DecodeAt { context: 2048 },
            Batch::Mixed { context: 2048 },
            Batch::Prefill { past: 0 },
            Batch::Prefill { past: 2040 },
        ] {
            assert!(all.contains(&batch), "{batch:?}");
        }
        assert!(batches(&attention, 64, 20, 3).iter().all(|b| !matches!(b, Batch::Prefill { .. })));
        assert_eq!(batches(&norm(), 8, 2048, 3).len(), 1);
    }
}
