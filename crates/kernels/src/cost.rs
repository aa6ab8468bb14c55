//! What a call costs at least: bytes that must move and operations that must be done. Against the measured ceilings of a
//! machine this is the roofline floor: a kernel that claims to be faster is not believed.

use plan::{Activation, Epilogue, KvLayout, Operation, Prologue};

/// Bytes and operations of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Packed weights that are read (for `Embed`: the rows looked up).
    pub weight_bytes: f64,
    /// Activations read and written, side tables included.
    pub activation_bytes: f64,
    /// Keys and values read or written.
    pub kv_bytes: f64,
    /// Multiply-adds of int8 values (two passes for `I16`).
    pub int8_macs: f64,
    /// Multiply-adds of bf16 values.
    pub bf16_macs: f64,
    /// f32 operations; a multiply-add counts two.
    pub f32_flops: f64,
    /// Exponentials.
    pub transcendentals: f64,
}

impl Cost {
    /// All bytes.
    pub fn bytes(&self) -> f64 {
        self.weight_bytes + self.activation_bytes + self.kv_bytes
    }
}

/// Measured ceilings of a machine for a number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Bytes per second that stream in from where weights lie in service (memory, or the cache that holds the working set).
    pub stream_bytes_per_s: f64,
    /// Bytes per second of data that fits the near caches: activations.
    pub near_bytes_per_s: f64,
    pub int8_macs_per_s: f64,
    pub bf16_macs_per_s: f64,
    pub f32_flops_per_s: f64,
}

/// The least time that `cost` can take under `ceilings`, in nanoseconds: its slowest part, all of them overlapped.
/// Ceilings that are not positive say nothing and are left out.
pub fn floor_ns(cost: &Cost, ceilings: &Ceilings) -> f64 {
    let parts = [
        (cost.weight_bytes + cost.kv_bytes, ceilings.stream_bytes_per_s),
        (cost.activation_bytes, ceilings.near_bytes_per_s),
        (cost.int8_macs, ceilings.int8_macs_per_s),
        (cost.bf16_macs, ceilings.bf16_macs_per_s),
        (cost.f32_flops, ceilings.f32_flops_per_s),
    ];
    let seconds = parts.into_iter().filter(|(_, rate)| *rate > 0.0).map(|(work, rate)| work / rate);
    seconds.fold(0.0, f64::max) * 1e9
}

/// Cost of one call. `contexts` holds, for each row, the tokens that it attends to (its position plus one); other
/// operations than attention read only its length, the number of rows.
pub fn cost(operation: &Operation, contexts: &[u32]) -> Cost {
    let rows = contexts.len() as f64;
    let io = 4.0 * rows * (f64::from(operation.in_width()) + f64::from(operation.out_width()));
    match operation {
        Operation::Linear { .. } => linear_cost(operation, rows, io),
        Operation::RopeKv(qkv) => {
            let values = f64::from((qkv.heads + 2 * qkv.kv_heads) * qkv.head_dim);
            Cost {
                activation_bytes: io,
                kv_bytes: rows * stored_bytes(&qkv.kv, qkv.kv_heads, qkv.head_dim),
                f32_flops: rows * rope_flops(values, qkv.qk_norm_eps_bits.is_some()),
                ..Cost::default()
            }
        }
        Operation::Attention { heads, kv_heads, head_dim, kv, window } => {
            let seen = |c: &u32| f64::from(window.map_or(*c, |w| w.min(*c)));
            let tokens: f64 = contexts.iter().map(seen).sum();
            // Rows of one sequence may share what they read; the longest of them is read in any case.
            let longest = contexts.iter().map(seen).fold(0.0, f64::max);
            let (heads, dim) = (f64::from(*heads), f64::from(*head_dim));
            Cost {
                activation_bytes: io,
                kv_bytes: longest * stored_bytes(kv, *kv_heads, *head_dim),
                f32_flops: tokens * heads * (4.0 * dim + 4.0),
                transcendentals: tokens * heads,
                ..Cost::default()
            }
        }
        Operation::Embed { hidden, weight, .. } => {
            let per_row = weight.block_bytes(*hidden as usize) as f64 / f64::from(weight.n_block);
            Cost {
                weight_bytes: rows * per_row,
                activation_bytes: io,
                f32_flops: rows * f64::from(*hidden),
                ..Cost::default()
            }
        }
        Operation::RmsNorm { width, .. } => {
            Cost { activation_bytes: io, f32_flops: rows * 4.0 * f64::from(*width), ..Cost::default() }
        }
        Operation::SiluGate { ffn } => Cost {
            activation_bytes: io,
            f32_flops: rows * 4.0 * f64::from(*ffn),
            transcendentals: rows * f64::from(*ffn),
            ..Cost::default()
        },
    }
}

/// The cost of attention when every row is a sequence of its own (decode): nothing that is read can be shared.
pub fn decode_attention_cost(operation: &Operation, contexts: &[u32]) -> Cost {
    let mut total = cost(operation, contexts);
    total.kv_bytes = contexts.iter().map(|c| cost(operation, &[*c]).kv_bytes).sum();
    total
}

fn linear_cost(operation: &Operation, rows: f64, io: f64) -> Cost {
    let Operation::Linear { n, k, prologue, epilogue, weight, activation } = operation else {
        return Cost::default();
    };
    let (n, k) = (f64::from(*n), f64::from(*k));
    let mut total = Cost {
        weight_bytes: weight.bytes(n as usize, k as usize) as f64,
        activation_bytes: io,
        ..Cost::default()
    };
    let macs = rows * n * k;
    match activation {
        Activation::F32 => total.f32_flops += 2.0 * macs,
        Activation::I8 => total.int8_macs += macs,
        Activation::I16 => total.int8_macs += 2.0 * macs,
        Activation::Row16 => total.int8_macs += 4.0 * macs,
        Activation::Bf16 => total.bf16_macs += macs,
    }
    if matches!(activation, Activation::I8 | Activation::I16) {
        let groups = k / weight.group(k as usize) as f64;
        total.f32_flops += rows * (3.0 * k + 3.0 * n * groups);
    }
    if matches!(prologue, Prologue::RmsNorm { .. }) {
        total.f32_flops += rows * 4.0 * k;
    }
    match epilogue {
        Epilogue::Store => {}
        Epilogue::Add => {
            total.activation_bytes += 4.0 * rows * n;
            total.f32_flops += rows * n;
        }
        Epilogue::SiluGate => {
            total.f32_flops += rows * 2.0 * n;
            total.transcendentals += rows * n / 2.0;
        }
        Epilogue::QkvRope(qkv) => {
            total.kv_bytes = rows * stored_bytes(&qkv.kv, qkv.kv_heads, qkv.head_dim);
            total.f32_flops += rows * rope_flops(n, qkv.qk_norm_eps_bits.is_some());
        }
    }
    total
}

/// Bytes of the key and value of one token in one layer.
fn stored_bytes(kv: &KvLayout, kv_heads: u32, head_dim: u32) -> f64 {
    2.0 * f64::from(kv_heads) * f64::from(head_dim) * kv.dtype.bytes() as f64
}

fn rope_flops(values: f64, norm: bool) -> f64 {
    values * if norm { 7.0 } else { 3.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::{KvDtype, WeightFormat, WeightLayout, Zero};

    fn head() -> Operation {
        let weight = WeightLayout {
            format: WeightFormat::Affine { bits: 8, group: 32, zero: Zero::Midpoint },
            n_block: 16,
        };
        Operation::Linear {
            n: 49152,
            k: 576,
            prologue: Prologue::None,
            epilogue: Epilogue::Store,
            weight,
            activation: Activation::I8,
        }
    }

    #[test]
    fn one_row_is_bound_by_weights_and_many_by_arithmetic() {
        let ceilings = Ceilings {
            stream_bytes_per_s: 20e9,
            near_bytes_per_s: 100e9,
            int8_macs_per_s: 500e9,
            bf16_macs_per_s: 0.0,
            f32_flops_per_s: 100e9,
        };
        let one = cost(&head(), &[1]);
        // 49152 * 576 quants and a scale of two bytes for every 32
        assert_eq!(one.weight_bytes, 49152.0 * 576.0 * (1.0 + 2.0 / 32.0));
        assert_eq!(one.int8_macs, 49152.0 * 576.0);
        assert_eq!(floor_ns(&one, &ceilings), one.weight_bytes / 20.0);
        let many = cost(&head(), &[1; 64]);
        assert_eq!(many.weight_bytes, one.weight_bytes);
        assert_eq!(floor_ns(&many, &ceilings), many.int8_macs / 500.0);
    }

    #[test]
    fn attention_counts_what_rows_see() {
        let kv = KvLayout { dtype: KvDtype::F16, block_tokens: 16 };
        let attention = |window| Operation::Attention { heads: 9, kv_heads: 3, head_dim: 64, kv, window };
        let all = cost(&attention(None), &[100, 200]);
        assert_eq!(all.transcendentals, 300.0 * 9.0);
        assert_eq!(all.kv_bytes, 200.0 * 2.0 * 3.0 * 64.0 * 2.0);
        assert_eq!(decode_attention_cost(&attention(None), &[100, 200]).kv_bytes, 1.5 * all.kv_bytes);
        assert_eq!(cost(&attention(Some(50)), &[100, 200]).transcendentals, 100.0 * 9.0);
    }

    #[test]
    fn sixteen_bit_activations_cost_two_passes() {
        let Operation::Linear { n, k, prologue, epilogue, weight, .. } = head() else { unreachable!() };
        let wide = Operation::Linear { n, k, prologue, epilogue, weight, activation: Activation::I16 };
        assert_eq!(cost(&wide, &[1]).int8_macs, 2.0 * cost(&head(), &[1]).int8_macs);
    }
}
