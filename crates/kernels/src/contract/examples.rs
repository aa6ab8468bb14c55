//! One operation of every kind, with the shapes of SmolLM2-135M: what docs show and smoke tests run.

use plan::operation::QkvRope;
use plan::{Activation, Epilogue, KvDtype, KvLayout, Operation, Prologue, WeightFormat, WeightLayout, Zero};

/// `1e-5` as bits.
const EPS_BITS: u32 = 0x3727_c5ac;
const HIDDEN: u32 = 576;
const FFN: u32 = 1536;
const VOCAB: u32 = 49152;

/// An example of every kind of operation, in the order of a forward pass.
pub fn examples() -> Vec<Operation> {
    let norm = Prologue::RmsNorm { eps_bits: EPS_BITS };
    let kv = KvLayout { dtype: KvDtype::F16, block_tokens: 32 };
    let qkv = QkvRope { heads: 9, kv_heads: 3, head_dim: 64, bias: false, qk_norm_eps_bits: None, kv };
    let q4 = affine(4, Zero::Stored);
    let q8 = affine(8, Zero::Midpoint);
    let columns = (qkv.heads + 2 * qkv.kv_heads) * qkv.head_dim;
    let linear = |n, k, prologue, epilogue, weight| Operation::Linear {
        n,
        k,
        prologue,
        epilogue,
        weight,
        activation: Activation::I8,
    };
    vec![
        Operation::Embed { vocab: VOCAB, hidden: HIDDEN, weight: q8 },
        Operation::RmsNorm { width: HIDDEN, eps_bits: EPS_BITS },
        linear(columns, HIDDEN, norm, Epilogue::QkvRope(qkv), q4),
        linear(columns, HIDDEN, Prologue::None, Epilogue::QkvRope(qkv), q4),
        Operation::RopeKv(qkv),
        Operation::Attention { heads: 9, kv_heads: 3, head_dim: 64, kv, window: None },
        linear(HIDDEN, HIDDEN, Prologue::None, Epilogue::Add, q4),
        linear(2 * FFN, HIDDEN, norm, Epilogue::SiluGate, q4),
        linear(2 * FFN, HIDDEN, Prologue::None, Epilogue::SiluGate, q4),
        Operation::SiluGate { ffn: FFN },
        linear(HIDDEN, FFN, Prologue::None, Epilogue::Store, q4),
        linear(VOCAB, HIDDEN, norm, Epilogue::Store, q8),
    ]
}

fn affine(bits: u8, zero: Zero) -> WeightLayout {
    WeightLayout { format: WeightFormat::Affine { bits, group: 32, zero }, n_block: 16 }
}
