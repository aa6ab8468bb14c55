//! Tensors by their canonical role.

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::mapped::Mapped;
use crate::quant::{Affine, DataType, dequantise_into};
use std::ops::Range;

/// What a tensor is for, whatever its name in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Token embedding, `[vocab, hidden]`.
    Embedding,
    /// Weight of the last RMSNorm, `hidden`.
    FinalNorm,
    /// Output projection, `[vocab, hidden]`; the embedding where they are tied.
    Head,
    /// A part of one decoder layer.
    Layer(usize, Part),
}

/// A part of a decoder layer. Matrices are `[outputs, inputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// RMSNorm before attention, `hidden`.
    AttnNorm,
    /// Query projection, `[heads * head_dim, hidden]`.
    Q,
    /// Key projection, `[kv_heads * head_dim, hidden]`.
    K,
    /// Value projection, `[kv_heads * head_dim, hidden]`.
    V,
    /// Output projection of attention, `[hidden, heads * head_dim]`.
    O,
    /// Bias of Q.
    QBias,
    /// Bias of K.
    KBias,
    /// Bias of V.
    VBias,
    /// Bias of O.
    OBias,
    /// RMSNorm of each query head, `head_dim`.
    QNorm,
    /// RMSNorm of each key head, `head_dim`.
    KNorm,
    /// RMSNorm before the feed-forward layer, `hidden`.
    FfnNorm,
    /// Gate projection, `[ffn, hidden]`.
    Gate,
    /// Up projection, `[ffn, hidden]`.
    Up,
    /// Down projection, `[hidden, ffn]`.
    Down,
}

impl Role {
    /// `[rows, columns]` of this tensor under `config`; vectors are `[n, 1]`.
    pub fn shape(self, config: &ModelConfig) -> [usize; 2] {
        let (hidden, q, kv, ffn) = (config.hidden, config.q_dim(), config.kv_dim(), config.ffn);
        match self {
            Role::Embedding | Role::Head => [config.vocab, hidden],
            Role::FinalNorm => [hidden, 1],
            Role::Layer(_, part) => match part {
                Part::AttnNorm | Part::FfnNorm | Part::OBias => [hidden, 1],
                Part::Q => [q, hidden],
                Part::K | Part::V => [kv, hidden],
                Part::O => [hidden, q],
                Part::QBias => [q, 1],
                Part::KBias | Part::VBias => [kv, 1],
                Part::QNorm | Part::KNorm => [config.head_dim, 1],
                Part::Gate | Part::Up => [ffn, hidden],
                Part::Down => [hidden, ffn],
            },
        }
    }

    /// All roles that a model of this configuration has, in order of use.
    pub fn all(config: &ModelConfig) -> Vec<Role> {
        let mut roles = vec![Role::Embedding];
        for layer in 0..config.layers {
            roles.extend(Part::of_layer(config).into_iter().map(|part| Role::Layer(layer, part)));
        }
        roles.push(Role::FinalNorm);
        if !config.tied {
            roles.push(Role::Head);
        }
        roles
    }
}

impl Part {
    /// The parts that a layer of this configuration has, in order of use.
    pub fn of_layer(config: &ModelConfig) -> Vec<Part> {
        let mut parts = vec![Part::AttnNorm, Part::Q, Part::K, Part::V];
        if config.qkv_bias {
            parts.extend([Part::QBias, Part::KBias, Part::VBias]);
        }
        if config.qk_norm {
            parts.extend([Part::QNorm, Part::KNorm]);
        }
        parts.push(Part::O);
        if config.output_bias {
            parts.push(Part::OBias);
        }
        parts.extend([Part::FfnNorm, Part::Gate, Part::Up, Part::Down]);
        parts
    }
}

/// How rows lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As they are meant.
    Canonical,
    /// llama.cpp's converter interleaved the halves of each head (for its pairwise rope): row `2 j + h` of a head in the file
    /// is row `h * head_dim / 2 + j` in the half-split convention.
    InterleavedHeads {
        /// Rows of a head.
        head_dim: usize,
    },
}

/// One tensor of a model: a view into a mapped file. Rows are given in the canonical order (half-split rope).
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) name: String,
    pub(crate) file: Mapped,
    pub(crate) range: Range<usize>,
    pub(crate) format: DataType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) order: RowOrder,
}

impl Tensor {
    /// Its name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `[rows, columns]`; vectors are `[n, 1]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// Element format in the file.
    pub fn format(&self) -> DataType {
        self.format
    }

    /// Bytes in the file.
    pub fn byte_len(&self) -> usize {
        self.range.len()
    }

    /// The raw bytes of `row` (whole blocks), in the canonical order of rows.
    ///
    /// # Panics
    /// If `row` is not below the number of rows.
    pub fn row_bytes(&self, row: usize) -> &[u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let len = self.range.len() / self.rows;
        let start = self.range.start + self.row_in_file(row) * len;
        &self.file[start..start + len]
    }

    fn row_in_file(&self, row: usize) -> usize {
        match self.order {
            RowOrder::Canonical => row,
            RowOrder::InterleavedHeads { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                let (half, j) = (within / (head_dim / 2), within % (head_dim / 2));
                head * head_dim + 2 * j + half
            }
        }
    }

    /// One row as f32.
    ///
    /// # Panics
    /// If `row` is not below the number of rows, or `out` is not one row long.
    pub fn dequantise_row(&self, row: usize, out: &mut [f32]) {
        dequantise_into(self.format, self.row_bytes(row), out);
    }

    /// All weights as f32, row-major `[rows, columns]`.
    pub fn dequantised(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        match self.order {
            RowOrder::Canonical => dequantise_into(self.format, &self.file[self.range.clone()], &mut out),
            RowOrder::InterleavedHeads { .. } => {
                out.chunks_exact_mut(self.cols)
                    .enumerate()
                    .for_each(|(row, out)| self.dequantise_row(row, out));
            }
        }
        out
    }

    /// The exact affine form, for Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.
    pub fn affine(&self) -> Option<Affine> {
        let bits = Affine::bits_of(self.format)?;
        let mut affine = Affine::with_capacity(bits, self.rows, self.cols);
        (0..self.rows).for_each(|row| affine.push_row(self.format, self.row_bytes(row)));
        Some(affine)
    }

    /// Checks the shape against what the configuration needs.
    pub(crate) fn check(&self, expected: [usize; 2]) -> Result<()> {
        if self.shape() != expected {
            return Err(Error::Shape {
                path: self.file.path().to_owned(),
                tensor: self.name.clone(),
                found: self.shape(),
                expected,
            });
        }
        if self.format.row_bytes(self.cols).and_then(|row| row.checked_mul(self.rows))
            != Some(self.range.len())
        {
            let place = format!("tensor {}", self.name);
            let found = format!("a vector in format {}", self.format);
            return Err(Error::unsupported(self.file.path(), place, found, "vectors in F32, F16, BF16"));
        }
        Ok(())
    }
}

impl Role {
    /// Whether a model of this configuration has this role.
    pub(crate) fn exists_in(self, config: &ModelConfig) -> bool {
        match self {
            Role::Embedding | Role::FinalNorm => true,
            Role::Head => !config.tied,
            Role::Layer(layer, part) => layer < config.layers && Part::of_layer(config).contains(&part),
        }
    }
}
