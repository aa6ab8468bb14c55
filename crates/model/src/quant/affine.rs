//! The exact affine form of the 32-weight block formats: `weight = scale * q + min`, `q` unsigned.

use super::DataType;
use super::dequantise::{five_bits, half_at};

/// A matrix as unsigned integers with one scale and minimum per group along a row.
///
/// `weight[r, c] = scale[r, c / group] * q[r, c] + min[r, c / group]`. `scale` and `min` are what the file holds, widened from
/// f16, or small integer multiples of it (`-8`, `-16` and `-128` times the scale for the symmetric formats), all exact in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    /// Bits of one `q`: 4, 5 or 8.
    pub bits: u32,
    /// Weights that share a scale: 32.
    pub group: usize,
    /// Rows (outputs).
    pub rows: usize,
    /// Columns (inputs).
    pub cols: usize,
    /// `rows x cols`, row-major, one integer a byte.
    pub q: Vec<u8>,
    /// `rows x cols / group`, row-major.
    pub scale: Vec<f32>,
    /// `rows x cols / group`, row-major.
    pub min: Vec<f32>,
}

impl Affine {
    /// Bits of a `q` in this format, `None` for formats without an affine form here (floats and k-quants).
    pub fn bits_of(format: DataType) -> Option<u32> {
        match format {
            DataType::Q4_0 | DataType::Q4_1 => Some(4),
            DataType::Q5_0 | DataType::Q5_1 => Some(5),
            DataType::Q8_0 => Some(8),
            _ => None,
        }
    }

    pub(crate) fn with_capacity(bits: u32, rows: usize, cols: usize) -> Affine {
        let groups = rows * cols / 32;
        Affine {
            bits,
            group: 32,
            rows,
            cols,
            q: Vec::with_capacity(rows * cols),
            scale: Vec::with_capacity(groups),
            min: Vec::with_capacity(groups),
        }
    }

    /// Appends one row of whole blocks of `format`.
    pub(crate) fn push_row(&mut self, format: DataType, bytes: &[u8]) {
        for block in bytes.chunks_exact(format.block_bytes()) {
            let scale = half_at(block, 0);
            self.scale.push(scale);
            match format {
                DataType::Q4_0 => {
                    self.min.push(-8.0 * scale);
                    self.push_nibbles(&block[2..]);
                }
                DataType::Q4_1 => {
                    self.min.push(half_at(block, 2));
                    self.push_nibbles(&block[4..]);
                }
                DataType::Q5_0 => {
                    self.min.push(-16.0 * scale);
                    self.q.extend((0..32).map(|j| five_bits(&block[2..], j)));
                }
                DataType::Q5_1 => {
                    self.min.push(half_at(block, 2));
                    self.q.extend((0..32).map(|j| five_bits(&block[4..], j)));
                }
                DataType::Q8_0 => {
                    self.min.push(-128.0 * scale);
                    self.q.extend(block[2..].iter().map(|&b| b ^ 0x80));
                }
                _ => unreachable!("callers ask bits_of first"),
            }
        }
    }

    fn push_nibbles(&mut self, body: &[u8]) {
        self.q.extend(body.iter().map(|b| b & 15));
        self.q.extend(body.iter().map(|b| b >> 4));
    }
}
