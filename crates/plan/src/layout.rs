//! Declared layouts of packed weights and of the KV cache.
//!
//! Packed weights of a matrix `W[n][k]` (output `n`, input `k`), `y[n] = sum_k W[n][k] * x[k]`:
//! `n` is cut into blocks of `n_block` columns (the last one padded: scale 0, quants 0), blocks lie one after
//! another. Within a block:
//!
//! * `Affine { bits, group, zero }`: `k / group` records in order of k (k is a multiple of `group`). A record is
//!   `n_block` scales (f16), then `n_block` minima (f16) if `zero` is `Stored`, then the unsigned quants. Eight
//!   bits: `group / 4` steps of `n_block` x 4 bytes, byte `[step][column][j]` is the quant of
//!   `k = step * 4 + j`. Four bits: `group / 8` pairs of steps, `n_block` x 4 bytes each, the low nibble of byte
//!   `[pair][column][j]` is the quant of `k = (2 * pair) * 4 + j`, the high nibble of `k = (2 * pair + 1) * 4 + j`.
//!   The weight is `scale * q + min`; with `Midpoint`, `min = -(2^(bits-1)) * scale`.
//!   Every record is a multiple of 64 bytes (`n_block` is a multiple of 16).
//! * `Bf16`: `k / 2` steps (k even) of `n_block` x 2 bf16, element `[step][column][j]` is `k = step * 2 + j`.
//! * `F32`: `k` steps of `n_block` f32.
//!
//! One 16-column block of 8-bit quants is the VNNI and AMX order: 64 bytes of one step feed one VPDPBUSD, 16
//! steps are one AMX B tile.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Where the offset of an affine group comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Zero {
    /// A minimum is stored for every group: `w = scale * q + min`.
    Stored,
    /// `min = -(2^(bits-1)) * scale`, nothing stored.
    Midpoint,
}

/// How one weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightFormat {
    F32,
    Bf16,
    /// Unsigned quants of `bits` (4 or 8) with one f16 scale (and minimum) for each `group` values along k.
    Affine {
        bits: u8,
        group: u32,
        zero: Zero,
    },
}

/// Format and order of a packed weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WeightLayout {
    pub format: WeightFormat,
    /// Columns (outputs) of a block, a multiple of 16.
    pub n_block: u32,
}

impl WeightLayout {
    /// Bytes of one block of `n_block` columns and `k` inputs.
    pub fn block_bytes(&self, k: usize) -> usize {
        let nb = self.n_block as usize;
        match self.format {
            WeightFormat::F32 => k * nb * 4,
            WeightFormat::Bf16 => k * nb * 2,
            WeightFormat::Affine { group, .. } => (k / group as usize) * self.record_bytes(),
        }
    }

    /// Bytes of one record (a group of one block); 0 for formats without groups.
    pub fn record_bytes(&self) -> usize {
        let nb = self.n_block as usize;
        match self.format {
            WeightFormat::Affine { bits, group, zero } => {
                let scales = match zero {
                    Zero::Stored => 4,
                    Zero::Midpoint => 2,
                };
                nb * scales + nb * group as usize * bits as usize / 8
            }
            _ => 0,
        }
    }

    /// Blocks of a matrix with `n` outputs.
    pub fn blocks(&self, n: usize) -> usize {
        n.div_ceil(self.n_block as usize)
    }

    /// Bytes of a packed matrix of `n` outputs and `k` inputs.
    pub fn bytes(&self, n: usize, k: usize) -> usize {
        self.blocks(n) * self.block_bytes(k)
    }

    /// Group length along k, or `k` itself for formats without groups.
    pub fn group(&self, k: usize) -> usize {
        match self.format {
            WeightFormat::Affine { group, .. } => group as usize,
            _ => k,
        }
    }

    /// Why a matrix of `n` outputs and `k` inputs cannot have this layout, if so.
    pub fn refuse(&self, k: usize) -> Option<String> {
        if self.n_block == 0 || !self.n_block.is_multiple_of(16) {
            return Some(format!("n_block {} is not a multiple of 16", self.n_block));
        }
        match self.format {
            WeightFormat::Affine { bits, group, .. } => {
                if bits != 4 && bits != 8 {
                    Some(format!("{bits} bits are not supported (4 and 8 are)"))
                } else if group == 0 || group % 16 != 0 || !k.is_multiple_of(group as usize) {
                    Some(format!("group {group} does not divide k = {k} or is not a multiple of 16"))
                } else {
                    None
                }
            }
            WeightFormat::Bf16 if !k.is_multiple_of(2) => Some(format!("bf16 needs an even k, not {k}")),
            _ => None,
        }
    }
}

impl fmt::Display for WeightLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.format {
            WeightFormat::F32 => write!(f, "f32")?,
            WeightFormat::Bf16 => write!(f, "bf16")?,
            WeightFormat::Affine { bits, group, zero } => {
                let z = match zero {
                    Zero::Stored => "m",
                    Zero::Midpoint => "s",
                };
                write!(f, "u{bits}g{group}{z}")?;
            }
        }
        write!(f, "b{}", self.n_block)
    }
}

/// Type of stored keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvDtype {
    F32,
    F16,
    Bf16,
}

impl KvDtype {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            KvDtype::F32 => 4,
            KvDtype::F16 | KvDtype::Bf16 => 2,
        }
    }
}

/// The paged KV cache of one layer.
///
/// Keys: `[pages][kv_heads][head_dim][block_tokens]`; values: `[pages][kv_heads][block_tokens][head_dim]`.
/// Keys are dimension-major, so that the lanes of a vector are tokens. Token `t` of a sequence lies in page
/// `block_table[t / block_tokens]` at `t % block_tokens`; its *slot* is `page * block_tokens + t % block_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KvLayout {
    pub dtype: KvDtype,
    /// Tokens of a page, a multiple of 16.
    pub block_tokens: u32,
}

impl KvLayout {
    /// Bytes of one page of keys (or of values) of one layer.
    pub fn page_bytes(&self, kv_heads: usize, head_dim: usize) -> usize {
        kv_heads * head_dim * self.block_tokens as usize * self.dtype.bytes()
    }
}

impl fmt::Display for KvLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = match self.dtype {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
            KvDtype::Bf16 => "bf16",
        };
        write!(f, "kv-{d}p{}", self.block_tokens)
    }
}
