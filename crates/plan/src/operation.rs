//! Operations: what a kernel computes. The value is the key of a kernel task: shape, numeric class and layout.
//!
//! All activations that cross operations are dense row-major f32 `[rows][width]`.
//! `x_hat = x / sqrt(mean(x^2) + eps) * weight` is RMSNorm; rope is the half-split (Hugging Face) form: with
//! `h = head_dim / 2`, `(a, b) = (x[i], x[i + h])` becomes `(a cos - b sin, b cos + a sin)`.

use crate::layout::{KvLayout, WeightLayout};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Tensor slots of [`crate::ArgsV1::tensors`], by operation.
///
/// * Linear: `X` f32 `[rows][k]`, `W` packed, `OUT` f32 `[rows][n_out]`, `NORM` f32 `[k]` (RmsNorm prologue).
///   `Add` reads and writes `OUT`. `SiluGate`: `n = 2 * ffn`; packed columns alternate blocks of `n_block`:
///   gate block 0, up block 0, gate block 1, ...; `OUT` is `[rows][ffn]`. `QkvRope`: columns are all query heads,
///   then all key heads, then all value heads; `OUT` is the rotated queries `[rows][heads * head_dim]`, keys
///   (rotated) and values go to the cache at `SLOTS`; `BIAS` f32 `[n]`, `Q_NORM`/`K_NORM` f32 `[head_dim]`
///   (RMSNorm of each head before rope).
/// * RopeKv: `X` f32 `[rows][n]` is the unrotated QKV; the rest as QkvRope (bias is added here).
/// * Attention: `X` queries, `OUT` f32 `[rows][heads * head_dim]`, `K_CACHE`, `V_CACHE`, `POSITIONS`,
///   `ROW_SEQUENCE`, `BLOCK_TABLES`. Row r attends to tokens `0..=position[r]` of its sequence (with a window w:
///   `position - w < t`). Rows of one sequence are adjacent and ascending in position.
/// * Embed: `TOKENS`, `W` (packed `[vocab][hidden]`), `OUT` f32 `[rows][hidden]`.
/// * RmsNorm: `X`, `NORM`, `OUT`. SiluGate: `X` f32 `[rows][2 * ffn]` (gate, then up), `OUT` f32 `[rows][ffn]`.
pub mod slot {
    pub const X: usize = 0;
    pub const W: usize = 1;
    pub const OUT: usize = 2;
    pub const NORM: usize = 3;
    pub const BIAS: usize = 4;
    pub const Q_NORM: usize = 5;
    pub const K_NORM: usize = 6;
    /// f32 `[context][head_dim]`: for each position `head_dim / 2` cosines, then as many sines.
    pub const ROPE: usize = 7;
    pub const K_CACHE: usize = 8;
    pub const V_CACHE: usize = 9;
    /// u32 `[rows]`: position of each row in its sequence.
    pub const POSITIONS: usize = 10;
    /// u32 `[rows]`: where each row's key and value are stored, see [`crate::KvLayout`].
    pub const SLOTS: usize = 11;
    /// u32 `[rows]`: row of `BLOCK_TABLES` of each row.
    pub const ROW_SEQUENCE: usize = 12;
    /// u32 `[sequences][ints[MAX_BLOCKS]]`.
    pub const BLOCK_TABLES: usize = 13;
    /// u32 `[rows]`, each below the vocabulary.
    pub const TOKENS: usize = 14;
}

/// Integers of [`crate::ArgsV1::ints`].
pub mod int {
    /// Row length of `BLOCK_TABLES`.
    pub const MAX_BLOCKS: usize = 0;
    /// Pages of the KV cache.
    pub const PAGES: usize = 1;
}

/// What is done to the input of a linear operation first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prologue {
    None,
    /// RMSNorm with weight; `eps` as bits of an f32.
    RmsNorm {
        eps_bits: u32,
    },
}

/// What is done with the result of a linear operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Epilogue {
    Store,
    /// `out += y` (the residual).
    Add,
    /// `out = silu(gate) * up`.
    SiluGate,
    QkvRope(QkvRope),
}

/// Heads, biases and norms of a QKV projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QkvRope {
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub bias: bool,
    /// RMSNorm of each query and key head (Qwen3), `eps` as bits of an f32.
    pub qk_norm_eps_bits: Option<u32>,
    pub kv: KvLayout,
}

/// Arithmetic of the activations of a linear operation, part of its numeric class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// f32 activations, f32 products summed in order of k with one fused multiply-add each
    /// (affine weights are first rounded to f32 as `fma(scale, q, min)`).
    F32,
    /// Symmetric int8 for each group of the weight format: `d = max|x| / 127`, `xq = round_ties_even(x * (1/d))`
    /// (all 0 with `d = 0` if `max|x|` is below `2^-100`). Sums within a group are exact int32 `s = sum q * xq`,
    /// `t = sum xq`; groups are added in order of k: `acc = fma(f32(s) * d, scale, acc)`, then
    /// `acc = fma(f32(t) * d, min, acc)`. With `Midpoint`, `s = sum (q - 2^(bits-1)) * xq` and the second step falls
    /// away. All numeric classes are defined and emulated in the module `numerics` of the crate `kernels`.
    I8,
    /// The same with 15-bit activations in two int8 passes: `d = max|x| / 16256`, `xq = round_ties_even(x * (1/d))`,
    /// `hi = (xq + 64) >> 7` (arithmetic), `lo = xq - 128 * hi` (in -64..=63), `s = 128 * s_hi + s_lo`, exact in int32.
    I16,
    /// bf16 activations and weights (affine ones rounded to bf16), f32 accumulation in pairs, in order of k.
    Bf16,
    /// 15-bit activations with one scale for the row, and affine weights as 16-bit integers with one scale for the
    /// column; sums over the whole of k are exact int32 but for the product of both low bytes, which is left out.
    Row16,
}

/// One operation with its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// `y = prologue(x) W^T`, then the epilogue. `n` counts packed columns (QKV: all heads; SiluGate: 2 * ffn).
    Linear {
        n: u32,
        k: u32,
        prologue: Prologue,
        epilogue: Epilogue,
        weight: WeightLayout,
        activation: Activation,
    },
    /// Bias, QK norm, rope and KV store as a step of its own.
    RopeKv(QkvRope),
    /// Causal attention over the paged cache, scale `1 / sqrt(head_dim)`; numeric class: online softmax over
    /// pages in order, so that the result of a row depends on its position alone.
    Attention {
        heads: u32,
        kv_heads: u32,
        head_dim: u32,
        kv: KvLayout,
        window: Option<u32>,
    },
    Embed {
        vocab: u32,
        hidden: u32,
        weight: WeightLayout,
    },
    RmsNorm {
        width: u32,
        eps_bits: u32,
    },
    SiluGate {
        ffn: u32,
    },
}

/// Rows (tokens) of a call; kernels are chosen by bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RowBucket {
    pub low: u32,
    /// Inclusive; `u32::MAX` for the open bucket.
    pub high: u32,
}

impl RowBucket {
    /// The buckets of DESIGN: 1, 2-4, 5-8, 9-16, 17-32, 33+.
    pub const ALL: [RowBucket; 6] = [
        RowBucket { low: 1, high: 1 },
        RowBucket { low: 2, high: 4 },
        RowBucket { low: 5, high: 8 },
        RowBucket { low: 9, high: 16 },
        RowBucket { low: 17, high: 32 },
        RowBucket { low: 33, high: u32::MAX },
    ];

    /// Whether `rows` falls into this bucket.
    pub fn contains(&self, rows: u32) -> bool {
        (self.low..=self.high).contains(&rows)
    }
}

impl fmt::Display for RowBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            (l, u32::MAX) => write!(f, "{l}+"),
            (l, h) if l == h => write!(f, "{l}"),
            (l, h) => write!(f, "{l}-{h}"),
        }
    }
}

impl Operation {
    /// Short name of the kind, as in `kernels/<name>/` and on the command line.
    pub fn kind(&self) -> &'static str {
        match self {
            Operation::Linear { epilogue, prologue, .. } => match (prologue, epilogue) {
                (Prologue::RmsNorm { .. }, Epilogue::Store) => "norm-linear",
                (Prologue::None, Epilogue::Store) => "linear",
                (_, Epilogue::Add) => "linear-add",
                (Prologue::RmsNorm { .. }, Epilogue::SiluGate) => "norm-gate-up-silu",
                (Prologue::None, Epilogue::SiluGate) => "gate-up-silu",
                (Prologue::RmsNorm { .. }, Epilogue::QkvRope(_)) => "norm-qkv-rope",
                (Prologue::None, Epilogue::QkvRope(_)) => "qkv-rope",
            },
            Operation::RopeKv(_) => "rope-kv",
            Operation::Attention { .. } => "attention",
            Operation::Embed { .. } => "embed",
            Operation::RmsNorm { .. } => "rmsnorm",
            Operation::SiluGate { .. } => "silu-gate",
        }
    }

    /// Width of the `OUT` rows, f32 elements.
    pub fn out_width(&self) -> u32 {
        match self {
            Operation::Linear { n, epilogue, .. } => match epilogue {
                Epilogue::Store | Epilogue::Add => *n,
                Epilogue::SiluGate => n / 2,
                Epilogue::QkvRope(q) => q.heads * q.head_dim,
            },
            Operation::RopeKv(q) => q.heads * q.head_dim,
            Operation::Attention { heads, head_dim, .. } => heads * head_dim,
            Operation::Embed { hidden, .. } => *hidden,
            Operation::RmsNorm { width, .. } => *width,
            Operation::SiluGate { ffn } => *ffn,
        }
    }

    /// Width of the `X` rows, f32 elements (0 for `Embed`).
    pub fn in_width(&self) -> u32 {
        match self {
            Operation::Linear { k, .. } => *k,
            Operation::RopeKv(q) => (q.heads + 2 * q.kv_heads) * q.head_dim,
            Operation::Attention { heads, head_dim, .. } => heads * head_dim,
            Operation::Embed { .. } => 0,
            Operation::RmsNorm { width, .. } => *width,
            Operation::SiluGate { ffn } => 2 * ffn,
        }
    }

    /// The packed weight matrix, as (layout, n, k).
    pub fn weight(&self) -> Option<(WeightLayout, u32, u32)> {
        match self {
            Operation::Linear { n, k, weight, .. } => Some((*weight, *n, *k)),
            Operation::Embed { vocab, hidden, weight } => Some((*weight, *vocab, *hidden)),
            _ => None,
        }
    }
}

impl fmt::Display for Operation {
    /// A stable, readable key, for example `norm-linear/n49152k576/u8g32sb16/i8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind())?;
        let qkv = |q: &QkvRope| {
            format!(
                "h{}kv{}d{}{}{}/{}",
                q.heads,
                q.kv_heads,
                q.head_dim,
                if q.bias { "-bias" } else { "" },
                if q.qk_norm_eps_bits.is_some() { "-qknorm" } else { "" },
                q.kv
            )
        };
        match self {
            Operation::Linear { n, k, weight, activation, epilogue, .. } => {
                let a = match activation {
                    Activation::F32 => "f32",
                    Activation::I8 => "i8",
                    Activation::I16 => "i16",
                    Activation::Bf16 => "bf16",
                    Activation::Row16 => "r16",
                };
                write!(f, "n{n}k{k}/{weight}/{a}")?;
                if let Epilogue::QkvRope(q) = epilogue {
                    write!(f, "/{}", qkv(q))?;
                }
                Ok(())
            }
            Operation::RopeKv(q) => write!(f, "{}", qkv(q)),
            Operation::Attention { heads, kv_heads, head_dim, kv, window } => {
                write!(f, "h{heads}kv{kv_heads}d{head_dim}/{kv}")?;
                if let Some(w) = window {
                    write!(f, "/w{w}")?;
                }
                Ok(())
            }
            Operation::Embed { vocab, hidden, weight } => write!(f, "v{vocab}h{hidden}/{weight}"),
            Operation::RmsNorm { width, .. } => write!(f, "w{width}"),
            Operation::SiluGate { ffn } => write!(f, "f{ffn}"),
        }
    }
}
