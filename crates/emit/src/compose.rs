//! Composition of a plan for the decoder families: the steps, buffers and operations that follow from the shape of
//! a model and the choices of a plan. Kernels are filled in by the caller.

use crate::choices::{Fusion, PlanChoices, TensorClass};
use plan::operation::{QkvRope, slot};
use plan::{
    ABI_VERSION, Binding, BucketKernel, Buffer, Epilogue, ModelShape, Operation, PLAN_VERSION, Phase, Plan,
    PlannedOperation, Prologue, RowSet, Source, Step, Target,
};
use std::collections::BTreeMap;

/// Names of operations within a plan.
pub mod name {
    pub const EMBED: &str = "embed";
    pub const NORM: &str = "norm";
    pub const ATTENTION: &str = "attention";
    pub const HEAD: &str = "head";
    /// What stands before the name of an operation that only prompts run.
    pub const PREFILL: &str = "prefill_";
}

/// The operations of a plan, by name. Where prompts have an arithmetic of their own, the operations of prompts stand beside
/// those of generated tokens, with [`name::PREFILL`] before their names.
pub fn operations(shape: &ModelShape, choices: &PlanChoices) -> BTreeMap<String, Operation> {
    let eps_bits = shape.rms_eps.to_bits();
    let norm = match choices.fusion {
        Fusion::Fused => Prologue::RmsNorm { eps_bits },
        Fusion::Separate => Prologue::None,
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
    let none = Prologue::None;
    let (hidden, weight) = (shape.hidden, choices.class(TensorClass::Head).weight);
    let mut all = BTreeMap::from([
        (name::EMBED.to_owned(), Operation::Embed { vocab: shape.vocab, hidden, weight }),
        (
            name::ATTENTION.to_owned(),
            Operation::Attention { heads, kv_heads, head_dim, kv: choices.kv, window: shape.sliding_window },
        ),
    ]);
    for (class, n, k, prologue, epilogue) in [
        (TensorClass::Qkv, qkv_n, hidden, norm, Epilogue::QkvRope(qkv)),
        (TensorClass::Output, hidden, heads * head_dim, none, Epilogue::Add),
        (TensorClass::GateUp, 2 * shape.ffn, hidden, norm, Epilogue::SiluGate),
        (TensorClass::Down, hidden, shape.ffn, none, Epilogue::Add),
        (TensorClass::Head, shape.vocab, hidden, norm, Epilogue::Store),
    ] {
        let choice = choices.class(class);
        for phase in [Phase::Decode, Phase::Prefill] {
            let activation = match phase {
                Phase::Prefill if choices.differs(class) => choice.prefill,
                _ => choice.activation,
            };
            let operation = Operation::Linear { n, k, prologue, epilogue, weight: choice.weight, activation };
            all.insert(linear_name(choices, class, phase), operation);
        }
    }
    if choices.fusion == Fusion::Separate {
        all.insert(name::NORM.to_owned(), Operation::RmsNorm { width: hidden, eps_bits });
    }
    all
}

/// Name of the linear operation of a class in passes of a phase.
fn linear_name(choices: &PlanChoices, class: TensorClass, phase: Phase) -> String {
    match phase {
        Phase::Prefill if choices.differs(class) => format!("{}{}", name::PREFILL, class.name()),
        _ => class.name().to_owned(),
    }
}

/// The phase that alone runs an operation of a plan whose prompts have passes of their own; `None` where both do.
pub fn phase_of(choices: &PlanChoices, operation: &str) -> Option<Phase> {
    if operation.starts_with(name::PREFILL) {
        return Some(Phase::Prefill);
    }
    let differs = |class: &TensorClass| class.name() == operation && choices.differs(*class);
    TensorClass::ALL.iter().any(differs).then_some(Phase::Decode)
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

fn steps(shape: &ModelShape, choices: &PlanChoices, phase: Phase) -> Vec<Step> {
    let linear = |class| linear_name(choices, class, phase);
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
        out.push(run(&linear(TensorClass::Qkv), RowSet::All, qkv));
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
            &linear(TensorClass::Output),
            RowSet::All,
            vec![bind(slot::X, buffer(ATTENDED)), bind(slot::W, named("o")), bind(slot::OUT, buffer(HIDDEN))],
        ));
        let ffn_norm = tensor::layer(l, "ffn_norm");
        let mut gate_up = norm_then(&mut out, RowSet::All, HIDDEN, NORMED, ffn_norm);
        gate_up.extend([bind(slot::W, named("gate_up")), bind(slot::OUT, buffer(FFN))]);
        out.push(run(&linear(TensorClass::GateUp), RowSet::All, gate_up));
        out.push(run(
            &linear(TensorClass::Down),
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
        steps: steps(shape, choices, Phase::Decode),
        prefill_steps: match choices.separates_prefill() {
            true => steps(shape, choices, Phase::Prefill),
            false => Vec::new(),
        },
        logits: LOGITS.to_owned(),
        batching: choices.batching.clone(),
        spin: choices.spin,
    }
}
