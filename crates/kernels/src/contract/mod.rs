//! Contracts: what each operation reads and writes, what is right, and which relations between calls must hold.
//!
//! One declaration drives checks, benchmarks, help and docs. The parts live beside it: references in [`crate::oracle`],
//! inputs in [`crate::inputs`], bounds in [`crate::tolerance`], rows and contexts in [`crate::dispatch`], cost in
//! [`crate::cost`], numeric classes in [`crate::numerics`].

mod examples;
mod metamorphic;

pub use examples::examples;
pub use metamorphic::{MetamorphicCase, Outputs, Violation, metamorphic_cases, relation_holds, select_rows};

use crate::inputs::{Pattern, name_of};
use plan::operation::{QkvRope, slot};
use plan::{Activation, Epilogue, Operation, Prologue};
use std::fmt;

/// The declaration of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Contract {
    pub operation: Operation,
    /// As in `kernels/<kind>/`.
    pub kind: &'static str,
    /// One sentence.
    pub description: String,
    pub slots: Vec<SlotSpec>,
    /// How results may differ from the exact ones, in words.
    pub numeric_class: String,
    pub patterns: Vec<Pattern>,
    pub relations: Vec<Relation>,
}

/// One tensor of the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotSpec {
    /// See [`plan::operation::slot`].
    pub slot: usize,
    pub name: &'static str,
    pub role: Role,
    /// Element and shape, for example `f32 [rows][576]`.
    pub shape: String,
}

/// Whether a call reads or writes a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    In,
    Out,
    /// Read and written: the residual, or caches that get new entries.
    InOut,
}

/// What must hold between the outputs of two calls, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Relation {
    /// The same call again, with another number of threads.
    Repeat,
    /// A row alone comes out as it does in the batch.
    RowAlone,
    /// A part of the batch comes out as it does in the whole.
    Split,
    /// Rows in another order (attention: sequences in another order) come out in that order.
    Permutation,
    /// Inputs scaled by a power of two scale the output by it.
    PowerOfTwo,
    /// Pages of the cache elsewhere, tables changed alike: the same output.
    PagesMoved,
    /// Cache slots that no row may see hold something else: the same output.
    UnseenTokens,
}

impl Relation {
    /// A stable name.
    pub fn name(self) -> &'static str {
        match self {
            Relation::Repeat => "repeat",
            Relation::RowAlone => "row-alone",
            Relation::Split => "split",
            Relation::Permutation => "permutation",
            Relation::PowerOfTwo => "power-of-two",
            Relation::PagesMoved => "pages-moved",
            Relation::UnseenTokens => "unseen-tokens",
        }
    }

    /// What it says, for docs.
    pub fn describe(self) -> &'static str {
        match self {
            Relation::Repeat => "the same call again, with any number of threads, gives the same bits",
            Relation::RowAlone => "a row alone gives the bits that it gives in a batch",
            Relation::Split => "part of a batch gives the bits that it gives in the whole",
            Relation::Permutation => "rows in another order give the same bits in that order",
            Relation::PowerOfTwo => "scaling the linear input by a power of two scales the output exactly",
            Relation::PagesMoved => "it does not matter where the pages of a sequence lie",
            Relation::UnseenTokens => "cache slots that a row may not see do not matter",
        }
    }
}

/// The contract of an operation.
pub fn contract(operation: &Operation) -> Contract {
    Contract {
        operation: *operation,
        kind: operation.kind(),
        description: describe(operation),
        slots: slots(operation),
        numeric_class: numeric_class(operation),
        patterns: Pattern::of(operation),
        relations: relations(operation),
    }
}

fn describe(operation: &Operation) -> String {
    match operation {
        Operation::Linear { n, k, prologue, epilogue, .. } => {
            let x = if matches!(prologue, Prologue::None) { "x" } else { "rmsnorm(x)" };
            let tail = match epilogue {
                Epilogue::Store => String::new(),
                Epilogue::Add => ", added to the output".into(),
                Epilogue::SiluGate => ", then silu(gate) * up".into(),
                Epilogue::QkvRope(q) => format!(", then {}", describe_qkv(q)),
            };
            format!("y = {x} W^T with {n} outputs and {k} inputs{tail}")
        }
        Operation::RopeKv(q) => describe_qkv(q),
        Operation::Attention { heads, kv_heads, head_dim, window, .. } => {
            let window = window.map_or(String::new(), |w| format!(" within a window of {w}"));
            format!("causal attention{window}, {heads} query heads on {kv_heads} KV heads of {head_dim}")
        }
        Operation::Embed { vocab, hidden, .. } => format!("rows of a table of {vocab} x {hidden}"),
        Operation::RmsNorm { width, .. } => format!("x / sqrt(mean(x^2) + eps) * weight over {width} values"),
        Operation::SiluGate { ffn } => format!("silu(gate) * up over {ffn} values"),
    }
}

fn describe_qkv(q: &QkvRope) -> String {
    let parts = [(q.bias, "bias, "), (q.qk_norm_eps_bits.is_some(), "norm of query and key heads, ")];
    let first: String = parts.iter().filter(|(on, _)| *on).map(|(_, text)| *text).collect();
    format!("{first}rope of {} query and {} key heads, keys and values into the cache", q.heads, q.kv_heads)
}

fn numeric_class(operation: &Operation) -> String {
    match operation {
        Operation::Linear { activation, weight, .. } => {
            let group = |k: u32| weight.group(k as usize);
            match (activation, operation.weight()) {
                (Activation::I8, Some((_, _, k))) => {
                    format!(
                        "int8 activations in groups of {}, exact sums within a group, f32 across",
                        group(k)
                    )
                }
                (Activation::I16, Some((_, _, k))) => {
                    format!(
                        "15-bit activations in groups of {}, exact sums within a group, f32 across",
                        group(k)
                    )
                }
                (Activation::Row16, _) => {
                    "15-bit activations with one scale for the row, 16-bit weights with one for the column, exact sums".into()
                }
                (Activation::Bf16, _) => "bf16 activations and weights, f32 sums in pairs".into(),
                _ => "f32 sums in order of k".into(),
            }
        }
        Operation::Attention { kv, .. } => {
            format!("online softmax in f32 over pages of {} in order", kv.block_tokens)
        }
        Operation::Embed { .. } => "one rounding to f32".into(),
        _ => "f32; sums of squares in 16 lanes".into(),
    }
}

fn slots(operation: &Operation) -> Vec<SlotSpec> {
    let mut out = Vec::new();
    let mut add = |slot: usize, role: Role, shape: String| {
        out.push(SlotSpec { slot, name: name_of(slot), role, shape });
    };
    if operation.in_width() > 0 {
        add(slot::X, Role::In, format!("f32 [rows][{}]", operation.in_width()));
    }
    if let Some((layout, n, k)) = operation.weight() {
        add(
            slot::W,
            Role::In,
            format!("{layout} [{n}][{k}], {} bytes", layout.bytes(n as usize, k as usize)),
        );
    }
    let adds = matches!(operation, Operation::Linear { epilogue: Epilogue::Add, .. });
    add(
        slot::OUT,
        if adds { Role::InOut } else { Role::Out },
        format!("f32 [rows][{}]", operation.out_width()),
    );
    match operation {
        Operation::Linear { k, prologue, epilogue, .. } => {
            if matches!(prologue, Prologue::RmsNorm { .. }) {
                add(slot::NORM, Role::In, format!("f32 [{k}]"));
            }
            if let Epilogue::QkvRope(q) = epilogue {
                qkv_slots(q, &mut add);
            }
        }
        Operation::RopeKv(q) => qkv_slots(q, &mut add),
        Operation::Attention { kv_heads, head_dim, kv, .. } => {
            let (h, d, t) = (kv_heads, head_dim, kv.block_tokens);
            add(slot::K_CACHE, Role::In, format!("{kv} [pages][{h}][{d}][{t}]"));
            add(slot::V_CACHE, Role::In, format!("{kv} [pages][{h}][{t}][{d}]"));
            add(slot::POSITIONS, Role::In, "u32 [rows]".into());
            add(slot::ROW_SEQUENCE, Role::In, "u32 [rows]".into());
            add(slot::BLOCK_TABLES, Role::In, "u32 [sequences][ints[MAX_BLOCKS]]".into());
        }
        Operation::Embed { vocab, .. } => add(slot::TOKENS, Role::In, format!("u32 [rows], below {vocab}")),
        Operation::RmsNorm { width, .. } => add(slot::NORM, Role::In, format!("f32 [{width}]")),
        Operation::SiluGate { .. } => {}
    }
    out
}

fn qkv_slots(q: &QkvRope, add: &mut impl FnMut(usize, Role, String)) {
    let (h, d, t) = (q.kv_heads, q.head_dim, q.kv.block_tokens);
    if q.bias {
        add(slot::BIAS, Role::In, format!("f32 [{}]", (q.heads + 2 * h) * d));
    }
    if q.qk_norm_eps_bits.is_some() {
        add(slot::Q_NORM, Role::In, format!("f32 [{d}]"));
        add(slot::K_NORM, Role::In, format!("f32 [{d}]"));
    }
    add(slot::ROPE, Role::In, format!("f32 [context][{d}]"));
    add(slot::K_CACHE, Role::InOut, format!("{} [pages][{h}][{d}][{t}]", q.kv));
    add(slot::V_CACHE, Role::InOut, format!("{} [pages][{h}][{t}][{d}]", q.kv));
    add(slot::POSITIONS, Role::In, "u32 [rows]".into());
    add(slot::SLOTS, Role::In, "u32 [rows]".into());
}

fn relations(operation: &Operation) -> Vec<Relation> {
    let mut out = vec![Relation::Repeat, Relation::RowAlone, Relation::Split, Relation::Permutation];
    let scales = match operation {
        Operation::Linear { epilogue, .. } => matches!(epilogue, Epilogue::Store | Epilogue::Add),
        Operation::RmsNorm { .. } | Operation::SiluGate { .. } => true,
        Operation::RopeKv(q) => !q.bias && q.qk_norm_eps_bits.is_none(),
        Operation::Attention { .. } | Operation::Embed { .. } => false,
    };
    if scales {
        out.push(Relation::PowerOfTwo);
    }
    if crate::dispatch::kv_layout(operation).is_some() {
        out.push(Relation::PagesMoved);
    }
    if matches!(operation, Operation::Attention { .. }) {
        out.push(Relation::UnseenTokens);
    }
    out
}

impl fmt::Display for Contract {
    /// The contract as Markdown, for READMEs and `--help`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`: {}.\n", self.operation, self.description)?;
        writeln!(f, "| slot | | contents |\n|---|---|---|")?;
        for slot in &self.slots {
            let role = match slot.role {
                Role::In => "in",
                Role::Out => "out",
                Role::InOut => "in, out",
            };
            writeln!(f, "| `{}` | {role} | {} |", slot.name, slot.shape)?;
        }
        writeln!(f, "\nNumeric class: {}.\n", self.numeric_class)?;
        for relation in &self.relations {
            writeln!(f, "* `{}`: {}.", relation.name(), relation.describe())?;
        }
        let patterns: Vec<&str> = self.patterns.iter().map(|p| p.name()).collect();
        writeln!(f, "\nInputs: {}.", patterns.join(", "))
    }
}
