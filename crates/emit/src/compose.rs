//! Composition of a plan for the decoder families: the steps, buffers and operations that follow from the shape of
//! a model and the choices of a plan. Kernels are filled in by the caller.

use crate::choices::{Fusion, PlanChoices, TensorClass};
use plan::operation::{QkvRope, slot};
use plan::{
    ABI_VERSION, Binding, BucketKernel, Buffer, Epilogue, ModelShape, Operation, PLAN_VERSION, Plan,
    PlannedOperation, Prologue, RowSet, Source, Step, Target,
};
use std::collections::BTreeMap;

/// Names of operations within a plan.
pub mod name {
    pub const EMBED: &str = "embed";
    pub const NORM: &str = "norm";
    pub const QKV: &str = "qkv";
    pub const ATTENTION: &str = "attention";
    pub const OUTPUT: &str = "o";
    pub const GATE_UP: &str = "gate_up";
    pub const DOWN: &str = "down";
    pub const HEAD: &str = "head";
}

/// The operations of a plan, by name.
pub fn operations(shape: &ModelShape, choices: &PlanChoices) -> BTreeMap<String, Operation> {
    let eps_bits = shape.rms_eps.to_bits();
    let norm = match choices.fusion {
        Fusion::Fused => Prologue::RmsNorm { eps_bits },
        Fusion::Separate => Prologue::None,
    };
    let linear = |class: TensorClass, n: u32, k: u32, prologue, epilogue| {
        let choice = choices.class(class);
        Operation::Linear { n, k, prologue, epilogue, weight: choice.weight, activation: choice.activation }
    };
    let (heads, kv_heads, head_dim) = (shape.heads, shape.kv_heads, shape.head_dim);
    let qkv = QkvRope {
        heads,
        kv_heads,
        head_dim,
        bias: shape.qkv_bias,
        qk_norm_eps_bits: shape.qk_norm.then_some(eps_bits),
        kv: choices.kv,
    };
    let qkv_n = (heads + 2 * kv_heads) * head_dim;
    let mut all = BTreeMap::new();
    let mut add = |n: &str, o: Operation| all.insert(n.to_owned(), o);
    add(
        name::EMBED,
        Operation::Embed {
            vocab: shape.vocab,
            hidden: shape.hidden,
            weight: choices.class(TensorClass::Head).weight,
        },
    );
    add(name::QKV, linear(TensorClass::Qkv, qkv_n, shape.hidden, norm, Epilogue::QkvRope(qkv)));
    add(
        name::ATTENTION,
        Operation::Attention { heads, kv_heads, head_dim, kv: choices.kv, window: shape.sliding_window },
    );
    let none = Prologue::None;
    add(name::OUTPUT, linear(TensorClass::Output, shape.hidden, heads * head_dim, none, Epilogue::Add));
    add(name::GATE_UP, linear(TensorClass::GateUp, 2 * shape.ffn, shape.hidden, norm, Epilogue::SiluGate));
    add(name::DOWN, linear(TensorClass::Down, shape.hidden, shape.ffn, none, Epilogue::Add));
    add(name::HEAD, linear(TensorClass::Head, shape.vocab, shape.hidden, norm, Epilogue::Store));
    if choices.fusion == Fusion::Separate {
        add(name::NORM, Operation::RmsNorm { width: shape.hidden, eps_bits });
    }
    all
}

/// Names of packed tensors.
pub mod tensor {
    pub const HEAD: &str = "head";
    pub const EMBED: &str = "embed";
    pub const FINAL_NORM: &str = "final_norm";
    pub const ROPE: &str = "rope";

    /// A tensor of a layer, for example `layer.3.qkv`.
    pub fn layer(layer: u32, what: &str) -> String {
        format!("layer.{layer}.{what}")
    }
}

const HIDDEN: &str = "hidden";
const NORMED: &str = "normed";
const QUERIES: &str = "queries";
const ATTENDED: &str = "attended";
const FFN: &str = "ffn";
const HIDDEN_LOGITS: &str = "hidden_logits";
const NORMED_LOGITS: &str = "normed_logits";
const LOGITS: &str = "logits";

fn bind(slot: usize, source: Source) -> Binding {
    Binding { slot: slot as u32, source }
}

fn buffer(name: &str) -> Source {
    Source::Buffer(name.to_owned())
}

/// A run step; every step reads what all threads of the step before wrote, so each one ends in a barrier.
fn run(operation: &str, rows: RowSet, bindings: Vec<Binding>) -> Step {
    Step::Run { operation: operation.to_owned(), rows, bindings, barrier: true }
}

fn steps(shape: &ModelShape, choices: &PlanChoices) -> Vec<Step> {
    let separate = choices.fusion == Fusion::Separate;
    let weight = |n: String| Source::Weight(n);
    let embed = if shape.tied_embeddings { tensor::HEAD } else { tensor::EMBED };
    let mut out = vec![run(
        name::EMBED,
        RowSet::All,
        vec![
            bind(slot::TOKENS, Source::Tokens),
            bind(slot::W, weight(embed.to_owned())),
            bind(slot::OUT, buffer(HIDDEN)),
        ],
    )];
    // The input of a normed linear: either (hidden, norm weight) or the normed buffer after a norm step.
    let norm_then = |out: &mut Vec<Step>, rows, from: &str, to: &str, norm: String| {
        if separate {
            out.push(run(
                name::NORM,
                rows,
                vec![
                    bind(slot::X, buffer(from)),
                    bind(slot::NORM, weight(norm)),
                    bind(slot::OUT, buffer(to)),
                ],
            ));
            vec![bind(slot::X, buffer(to))]
        } else {
            vec![bind(slot::X, buffer(from)), bind(slot::NORM, weight(norm))]
        }
    };
    for l in 0..shape.layers {
        let named = |what: &str| weight(tensor::layer(l, what));
        let attn_norm = tensor::layer(l, "attn_norm");
        let mut qkv = norm_then(&mut out, RowSet::All, HIDDEN, NORMED, attn_norm);
        qkv.extend([
            bind(slot::W, named("qkv")),
            bind(slot::OUT, buffer(QUERIES)),
            bind(slot::ROPE, weight(tensor::ROPE.to_owned())),
            bind(slot::K_CACHE, Source::KeyCache(l)),
            bind(slot::V_CACHE, Source::ValueCache(l)),
            bind(slot::POSITIONS, Source::Positions),
            bind(slot::SLOTS, Source::Slots),
        ]);
        if shape.qkv_bias {
            qkv.push(bind(slot::BIAS, named("qkv_bias")));
        }
        if shape.qk_norm {
            qkv.push(bind(slot::Q_NORM, named("q_norm")));
            qkv.push(bind(slot::K_NORM, named("k_norm")));
        }
        out.push(run(name::QKV, RowSet::All, qkv));
        out.push(run(
            name::ATTENTION,
            RowSet::All,
            vec![
                bind(slot::X, buffer(QUERIES)),
                bind(slot::OUT, buffer(ATTENDED)),
                bind(slot::K_CACHE, Source::KeyCache(l)),
                bind(slot::V_CACHE, Source::ValueCache(l)),
                bind(slot::POSITIONS, Source::Positions),
                bind(slot::ROW_SEQUENCE, Source::RowSequence),
                bind(slot::BLOCK_TABLES, Source::BlockTables),
            ],
        ));
        out.push(run(
            name::OUTPUT,
            RowSet::All,
            vec![bind(slot::X, buffer(ATTENDED)), bind(slot::W, named("o")), bind(slot::OUT, buffer(HIDDEN))],
        ));
        let ffn_norm = tensor::layer(l, "ffn_norm");
        let mut gate_up = norm_then(&mut out, RowSet::All, HIDDEN, NORMED, ffn_norm);
        gate_up.extend([bind(slot::W, named("gate_up")), bind(slot::OUT, buffer(FFN))]);
        out.push(run(name::GATE_UP, RowSet::All, gate_up));
        out.push(run(
            name::DOWN,
            RowSet::All,
            vec![bind(slot::X, buffer(FFN)), bind(slot::W, named("down")), bind(slot::OUT, buffer(HIDDEN))],
        ));
    }
    out.push(Step::GatherLogitRows { from: HIDDEN.to_owned(), to: HIDDEN_LOGITS.to_owned() });
    let final_norm = tensor::FINAL_NORM.to_owned();
    let mut head = norm_then(&mut out, RowSet::Logits, HIDDEN_LOGITS, NORMED_LOGITS, final_norm);
    head.extend([bind(slot::W, weight(tensor::HEAD.to_owned())), bind(slot::OUT, buffer(LOGITS))]);
    out.push(run(name::HEAD, RowSet::Logits, head));
    out
}

fn buffers(shape: &ModelShape, choices: &PlanChoices) -> Vec<Buffer> {
    let all = |name: &str, width| Buffer { name: name.to_owned(), width, rows: RowSet::All };
    let last = |name: &str, width| Buffer { name: name.to_owned(), width, rows: RowSet::Logits };
    let q = shape.heads * shape.head_dim;
    let mut out = vec![
        all(HIDDEN, shape.hidden),
        all(QUERIES, q),
        all(ATTENDED, q),
        all(FFN, shape.ffn),
        last(HIDDEN_LOGITS, shape.hidden),
        last(LOGITS, shape.vocab),
    ];
    if choices.fusion == Fusion::Separate {
        out.push(all(NORMED, shape.hidden));
        out.push(last(NORMED_LOGITS, shape.hidden));
    }
    out
}

/// A plan with the given kernels for each operation (by operation name, buckets in ascending order).
pub fn compose(
    plan_name: &str,
    shape: &ModelShape,
    choices: &PlanChoices,
    target: Target,
    kernels: &BTreeMap<String, Vec<BucketKernel>>,
) -> Plan {
    let operations = operations(shape, choices)
        .into_iter()
        .map(|(n, operation)| {
            let kernels = kernels.get(&n).cloned().unwrap_or_default();
            (n, PlannedOperation { operation, kernels })
        })
        .collect();
    Plan {
        version: PLAN_VERSION,
        abi: ABI_VERSION,
        name: plan_name.to_owned(),
        model: shape.clone(),
        target,
        kv: choices.kv,
        operations,
        buffers: buffers(shape, choices),
        steps: steps(shape, choices),
        logits: LOGITS.to_owned(),
        batching: choices.batching.clone(),
        spin: choices.spin,
    }
}
