//! Tensor element formats: sizes, names, dequantisation to f32, and the exact affine form of the simple block formats.

mod affine;
mod dequantise;
mod k_quants;

pub use affine::Affine;
pub use dequantise::dequantise_into;

/// How a tensor's elements are stored. Block formats follow ggml bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum DataType {
    /// IEEE 754 binary32, little endian.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of binary32.
    BF16,
    /// 32 weights: f16 scale, 4-bit ints minus 8.
    Q4_0,
    /// 32 weights: f16 scale and minimum, 4-bit ints.
    Q4_1,
    /// 32 weights: f16 scale, 5-bit ints minus 16.
    Q5_0,
    /// 32 weights: f16 scale and minimum, 5-bit ints.
    Q5_1,
    /// 32 weights: f16 scale, 8-bit signed ints.
    Q8_0,
    /// 256 weights, 2.625 bits each.
    Q2_K,
    /// 256 weights, 3.4375 bits each.
    Q3_K,
    /// 256 weights, 4.5 bits each.
    Q4_K,
    /// 256 weights, 5.5 bits each.
    Q5_K,
    /// 256 weights, 6.5625 bits each.
    Q6_K,
}

impl DataType {
    /// Every supported format.
    pub const ALL: [DataType; 13] = [
        DataType::F32,
        DataType::F16,
        DataType::BF16,
        DataType::Q4_0,
        DataType::Q4_1,
        DataType::Q5_0,
        DataType::Q5_1,
        DataType::Q8_0,
        DataType::Q2_K,
        DataType::Q3_K,
        DataType::Q4_K,
        DataType::Q5_K,
        DataType::Q6_K,
    ];

    /// Supported formats, for error messages.
    pub const SUPPORTED: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K";

    /// Weights per block; rows are whole blocks.
    pub const fn block_len(self) -> usize {
        match self {
            DataType::F32 | DataType::F16 | DataType::BF16 => 1,
            DataType::Q4_0 | DataType::Q4_1 | DataType::Q5_0 | DataType::Q5_1 | DataType::Q8_0 => 32,
            DataType::Q2_K | DataType::Q3_K | DataType::Q4_K | DataType::Q5_K | DataType::Q6_K => 256,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            DataType::F32 => 4,
            DataType::F16 | DataType::BF16 => 2,
            DataType::Q4_0 => 18,
            DataType::Q4_1 => 20,
            DataType::Q5_0 => 22,
            DataType::Q5_1 => 24,
            DataType::Q8_0 => 34,
            DataType::Q2_K => 84,
            DataType::Q3_K => 110,
            DataType::Q4_K => 144,
            DataType::Q5_K => 176,
            DataType::Q6_K => 210,
        }
    }

    /// Bytes of a row of `cols` weights; `None` if `cols` is not a whole number of blocks or the size overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// ggml's type number in GGUF files.
    pub const fn ggml_id(self) -> u32 {
        match self {
            DataType::F32 => 0,
            DataType::F16 => 1,
            DataType::BF16 => 30,
            DataType::Q4_0 => 2,
            DataType::Q4_1 => 3,
            DataType::Q5_0 => 6,
            DataType::Q5_1 => 7,
            DataType::Q8_0 => 8,
            DataType::Q2_K => 10,
            DataType::Q3_K => 11,
            DataType::Q4_K => 12,
            DataType::Q5_K => 13,
            DataType::Q6_K => 14,
        }
    }

    /// The format with this ggml type number, if supported.
    pub fn from_ggml_id(id: u32) -> Option<DataType> {
        DataType::ALL.into_iter().find(|t| t.ggml_id() == id)
    }

    /// ggml's name: `Q4_1`, `BF16`.
    pub fn name(self) -> &'static str {
        match self {
            DataType::F32 => "F32",
            DataType::F16 => "F16",
            DataType::BF16 => "BF16",
            DataType::Q4_0 => "Q4_0",
            DataType::Q4_1 => "Q4_1",
            DataType::Q5_0 => "Q5_0",
            DataType::Q5_1 => "Q5_1",
            DataType::Q8_0 => "Q8_0",
            DataType::Q2_K => "Q2_K",
            DataType::Q3_K => "Q3_K",
            DataType::Q4_K => "Q4_K",
            DataType::Q5_K => "Q5_K",
            DataType::Q6_K => "Q6_K",
        }
    }
}

impl std::fmt::Display for DataType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of a ggml type that is not supported, for errors.
pub(crate) fn ggml_type_name(id: u32) -> String {
    let name = match id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("ggml type {id}"),
    };
    format!("ggml type {name}")
}
