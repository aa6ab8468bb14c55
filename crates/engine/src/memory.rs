//! The executor's memory: working buffers, caches, input arrays and scratch.

use crate::bundle::Bundle;
use crate::error::EngineError;
use crate::program::{ScratchNeed, whole};
use kernel_abi::AlignedBuffer;
use plan::operation::int;
use plan::{ArgsV1, RowSet, Source, TensorV1};
use std::collections::BTreeMap;

/// All memory that steps read and write, except for the weights.
pub struct Memory {
    buffers: BTreeMap<String, (AlignedBuffer, u64)>,
    keys: Vec<AlignedBuffer>,
    values: Vec<AlignedBuffer>,
    pub tokens: AlignedBuffer,
    pub positions: AlignedBuffer,
    pub slots: AlignedBuffer,
    pub row_sequence: AlignedBuffer,
    pub block_tables: AlignedBuffer,
    pub gather_rows: AlignedBuffer,
    scratch: AlignedBuffer,
    scratch_bytes: usize,
    shared: AlignedBuffer,
}

impl Memory {
    /// Memory for the bundle's plan and sizes, zeroed.
    ///
    /// # Errors
    /// `KernelAbi` (memory) if the system refuses, naming the purpose.
    pub fn new(bundle: &Bundle, need: ScratchNeed) -> Result<Self, EngineError> {
        let (plan, sizes) = (&bundle.plan, &bundle.sizes);
        let mut buffers = BTreeMap::new();
        for buffer in &plan.buffers {
            let rows = match buffer.rows {
                RowSet::All => sizes.max_rows,
                RowSet::Logits => sizes.logit_rows,
            };
            let row_bytes = u64::from(buffer.width) * 4;
            let bytes = product(&[u64::from(rows), row_bytes]);
            let memory = AlignedBuffer::zeroed(bytes, &format!("buffer `{}`", buffer.name))?;
            buffers.insert(buffer.name.clone(), (memory, row_bytes));
        }
        let model = &plan.model;
        let page = plan.kv.page_bytes(model.kv_heads as usize, model.head_dim as usize);
        let cache_bytes = product(&[u64::from(sizes.pages), page as u64]);
        let cache = |what: &str| {
            (0..model.layers)
                .map(|layer| AlignedBuffer::zeroed(cache_bytes, &format!("{what} of layer {layer}")))
                .collect::<Result<Vec<_>, _>>()
        };
        let row_array = |what: &str| AlignedBuffer::zeroed(sizes.max_rows as usize * 4, what);
        let tables = product(&[u64::from(sizes.max_sequences), u64::from(sizes.max_blocks), 4]);
        let scratch = product(&[u64::from(sizes.threads), need.thread as u64]);
        Ok(Self {
            buffers,
            keys: cache("the keys")?,
            values: cache("the values")?,
            tokens: row_array("tokens")?,
            positions: row_array("positions")?,
            slots: row_array("slots")?,
            row_sequence: row_array("sequences of rows")?,
            gather_rows: row_array("logit rows")?,
            block_tables: AlignedBuffer::zeroed(tables, "block tables")?,
            scratch: AlignedBuffer::zeroed(scratch, "scratch of threads")?,
            scratch_bytes: need.thread,
            shared: AlignedBuffer::zeroed(need.shared, "shared scratch")?,
        })
    }

    /// Arguments with scratch and integers, without tensors.
    pub fn base_args(&self, bundle: &Bundle, shared_offset: u64, shared_bytes: u64) -> ArgsV1 {
        let mut args = ArgsV1::new(0);
        args.ints[int::MAX_BLOCKS] = i64::from(bundle.sizes.max_blocks);
        args.ints[int::PAGES] = i64::from(bundle.sizes.pages);
        args.scratch = self.scratch.pointer();
        args.scratch_bytes = self.scratch_bytes as u64;
        // Within the buffer by construction of the need; `wrapping_add` needs no further argument.
        args.shared = self.shared.pointer().wrapping_add(shared_offset as usize);
        args.shared_bytes = shared_bytes;
        args
    }

    /// The memory of a source, with its bytes for each row (0 where rows do not matter).
    pub fn resolve(&self, bundle: &Bundle, source: &Source) -> Option<(TensorV1, u64)> {
        Some(match source {
            Source::Buffer(name) => {
                let (buffer, row_bytes) = self.buffers.get(name)?;
                (whole(buffer), *row_bytes)
            }
            Source::Weight(name) => {
                let bytes = bundle.tensor(name)?;
                // Kernels only read weights (contract of the ABI: writes go to outputs and scratch).
                let data = bytes.as_ptr().cast_mut();
                (TensorV1 { data, bytes: bytes.len() as u64 }, 0)
            }
            Source::KeyCache(layer) => (whole(self.keys.get(*layer as usize)?), 0),
            Source::ValueCache(layer) => (whole(self.values.get(*layer as usize)?), 0),
            Source::Positions => (whole(&self.positions), 4),
            Source::Slots => (whole(&self.slots), 4),
            Source::RowSequence => (whole(&self.row_sequence), 4),
            Source::Tokens => (whole(&self.tokens), 4),
            Source::BlockTables => (whole(&self.block_tables), 0),
        })
    }

    /// A working buffer.
    pub fn buffer(&self, name: &str) -> Option<&AlignedBuffer> {
        self.buffers.get(name).map(|(buffer, _)| buffer)
    }

    /// Bytes in all; the system gives pages when they are first touched.
    pub fn bytes(&self) -> usize {
        let buffers = self.buffers.values().map(|(buffer, _)| buffer);
        let rest = [
            &self.tokens,
            &self.positions,
            &self.slots,
            &self.row_sequence,
            &self.block_tables,
            &self.gather_rows,
            &self.scratch,
            &self.shared,
        ];
        buffers.chain(&self.keys).chain(&self.values).chain(rest).map(AlignedBuffer::len).sum()
    }
}

/// A size that cannot be allocated if it overflows.
fn product(factors: &[u64]) -> usize {
    let product = factors.iter().try_fold(1u64, |p, f| p.checked_mul(*f)).unwrap_or(u64::MAX);
    usize::try_from(product).unwrap_or(usize::MAX)
}
