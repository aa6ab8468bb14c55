//! The choices of a plan: what the plan search varies. Data formats, numeric classes, fusion, KV layout, batching.

use crate::error::EmitError;
use evidence::{Point, Space};
use plan::{Activation, Batching, KvDtype, KvLayout, ModelShape, WeightFormat, WeightLayout, Zero};

/// Classes of weight matrices that share a format and an activation arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorClass {
    Qkv,
    Output,
    GateUp,
    Down,
    Head,
}

impl TensorClass {
    pub const ALL: [TensorClass; 5] =
        [TensorClass::Qkv, TensorClass::Output, TensorClass::GateUp, TensorClass::Down, TensorClass::Head];

    /// Name in points and in plans.
    pub fn name(self) -> &'static str {
        match self {
            TensorClass::Qkv => "qkv",
            TensorClass::Output => "o",
            TensorClass::GateUp => "gate_up",
            TensorClass::Down => "down",
            TensorClass::Head => "head",
        }
    }
}

/// Format and arithmetic of one tensor class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassChoice {
    pub weight: WeightLayout,
    pub activation: Activation,
    /// Arithmetic of prompt tokens; the same as `activation`, or prompts get passes of their own. (The head, which only the
    /// last token of a prompt meets, has one arithmetic for both.)
    pub prefill: Activation,
}

/// Whether norms stand as steps of their own or are the prologue of the linear operation that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    Fused,
    Separate,
}

/// A point of the plan space, typed.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanChoices {
    /// In the order of [`TensorClass::ALL`].
    pub classes: [ClassChoice; 5],
    pub kv: KvLayout,
    pub fusion: Fusion,
    pub batching: Batching,
    pub spin: u32,
}

/// The exact format that the file's weights have, for each class: `None` where they are not affine (f32, bf16, K-quants).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceFormat {
    pub bits: u8,
    pub group: u32,
    pub zero: Zero,
}

impl PlanChoices {
    /// The choice of a class.
    pub fn class(&self, class: TensorClass) -> ClassChoice {
        let at = TensorClass::ALL.iter().position(|c| *c == class).unwrap_or(0);
        self.classes[at]
    }

    /// The same with one arithmetic for prompts and generated tokens.
    pub fn together(&self) -> Self {
        let mut all = self.clone();
        all.classes.iter_mut().for_each(|class| class.prefill = class.activation);
        all
    }

    /// Whether the arithmetic of prompts differs anywhere from that of generated tokens.
    pub fn separates_prefill(&self) -> bool {
        TensorClass::ALL.iter().any(|class| self.differs(*class))
    }

    /// Whether a class has an arithmetic of its own for prompts.
    pub fn differs(&self, class: TensorClass) -> bool {
        let choice = self.class(class);
        class != TensorClass::Head && choice.prefill != choice.activation
    }

    /// The knowledge-free start: every class in the file's own format where it is affine, else 8-bit groups of 32;
    /// int8 activations; f16 keys and values; norms fused.
    pub fn start(shape: &ModelShape, sources: &[Option<SourceFormat>; 5]) -> Self {
        let classes = std::array::from_fn(|i| ClassChoice {
            weight: layout_of(sources[i], input_width(shape, TensorClass::ALL[i])),
            activation: Activation::I8,
            prefill: Activation::I8,
        });
        Self {
            classes,
            kv: KvLayout { dtype: KvDtype::F16, block_tokens: 32 },
            fusion: Fusion::Fused,
            batching: Batching {
                max_sequences: 32,
                max_rows: 256,
                prefill_chunk: 128,
                kv_tokens: 32_768.min(shape.context.saturating_mul(8)),
            },
            spin: 20_000,
        }
    }

    /// The plan space around `start`: the file's own format is one of the values of each class.
    pub fn space(shape: &ModelShape, sources: &[Option<SourceFormat>; 5]) -> Space {
        let mut space = Space::default();
        for (i, class) in TensorClass::ALL.into_iter().enumerate() {
            let k = input_width(shape, class);
            let own = layout_of(sources[i], k);
            let mut values = vec![own.to_string()];
            for other in ["u8g32mb16", "u8g64mb16", "u4g32mb16"] {
                let fits = parse_layout(other).is_some_and(|l| l.refuse(k as usize).is_none());
                if fits && !values.iter().any(|v| v == other) {
                    values.push(other.to_owned());
                }
            }
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            space = space
                .choices(&format!("{}.weight", class.name()), &values)
                .choices(&format!("{}.activation", class.name()), &["i8", "i16", "bf16", "r16"])
                .choices(&format!("{}.prefill", class.name()), &["i8", "i16", "bf16", "r16"]);
        }
        space
            .choices("kv", &["f16", "f32", "bf16"])
            .numbers("page", &[16, 32, 64])
            .choices("fusion", &["fused", "separate"])
            .numbers("max_rows", &[128, 256, 512])
            .numbers("prefill_chunk", &[32, 64, 128, 256, 512])
            .numbers("spin", &[2_000, 20_000, 200_000])
    }

    /// This choice as a point of the plan space.
    pub fn point(&self) -> Point {
        let mut p = Point::default();
        for (class, choice) in TensorClass::ALL.iter().zip(&self.classes) {
            p = p
                .with(&format!("{}.weight", class.name()), choice.weight.to_string())
                .with(&format!("{}.activation", class.name()), activation_name(choice.activation))
                .with(&format!("{}.prefill", class.name()), activation_name(choice.prefill));
        }
        let kv = match self.kv.dtype {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
            KvDtype::Bf16 => "bf16",
        };
        let fusion = match self.fusion {
            Fusion::Fused => "fused",
            Fusion::Separate => "separate",
        };
        p.with("kv", kv)
            .with("page", self.kv.block_tokens.to_string())
            .with("fusion", fusion)
            .with("max_rows", self.batching.max_rows.to_string())
            .with("prefill_chunk", self.batching.prefill_chunk.to_string())
            .with("spin", self.spin.to_string())
    }

    /// The choices that `point` names; what it does not name stays as in `self`.
    pub fn at(&self, point: &Point) -> Result<Self, EmitError> {
        let mut next = self.clone();
        let bad =
            |axis: &str, value: &str| EmitError::Choice { axis: axis.to_owned(), value: value.to_owned() };
        for (axis, value) in &point.0 {
            if let Some((class, what)) = axis.split_once('.') {
                let at = TensorClass::ALL
                    .iter()
                    .position(|c| c.name() == class)
                    .ok_or_else(|| bad(axis, value))?;
                match what {
                    "weight" => {
                        next.classes[at].weight = parse_layout(value).ok_or_else(|| bad(axis, value))?;
                    }
                    "activation" => {
                        next.classes[at].activation =
                            parse_activation(value).ok_or_else(|| bad(axis, value))?;
                        // Prompts follow, unless the point says otherwise.
                        if point.get(&format!("{class}.prefill")).is_none() {
                            next.classes[at].prefill = next.classes[at].activation;
                        }
                    }
                    "prefill" => {
                        next.classes[at].prefill = parse_activation(value).ok_or_else(|| bad(axis, value))?;
                    }
                    _ => return Err(bad(axis, value)),
                }
                continue;
            }
            let number = || value.parse::<u32>().map_err(|_| bad(axis, value));
            match axis.as_str() {
                "kv" => {
                    next.kv.dtype = match value.as_str() {
                        "f32" => KvDtype::F32,
                        "f16" => KvDtype::F16,
                        "bf16" => KvDtype::Bf16,
                        _ => return Err(bad(axis, value)),
                    }
                }
                "page" => next.kv.block_tokens = number()?,
                "fusion" => {
                    next.fusion = match value.as_str() {
                        "fused" => Fusion::Fused,
                        "separate" => Fusion::Separate,
                        _ => return Err(bad(axis, value)),
                    }
                }
                "max_rows" => next.batching.max_rows = number()?,
                "prefill_chunk" => next.batching.prefill_chunk = number()?,
                "spin" => next.spin = number()?,
                _ => return Err(bad(axis, value)),
            }
        }
        // A pass holds at least one row of every sequence, and a chunk never exceeds the pass.
        next.batching.prefill_chunk = next.batching.prefill_chunk.min(next.batching.max_rows);
        next.batching.max_sequences = next.batching.max_sequences.min(next.batching.max_rows);
        Ok(next)
    }
}

/// Inputs (k) of a class.
pub fn input_width(shape: &ModelShape, class: TensorClass) -> u32 {
    match class {
        TensorClass::Qkv | TensorClass::GateUp | TensorClass::Head => shape.hidden,
        TensorClass::Output => shape.heads * shape.head_dim,
        TensorClass::Down => shape.ffn,
    }
}

fn layout_of(source: Option<SourceFormat>, k: u32) -> WeightLayout {
    let format = match source {
        Some(s) => WeightFormat::Affine { bits: s.bits, group: s.group, zero: s.zero },
        None if k.is_multiple_of(32) => WeightFormat::Affine { bits: 8, group: 32, zero: Zero::Stored },
        None => WeightFormat::F32,
    };
    WeightLayout { format, n_block: 16 }
}

fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::F32 => "f32",
        Activation::I8 => "i8",
        Activation::I16 => "i16",
        Activation::Bf16 => "bf16",
        Activation::Row16 => "r16",
    }
}

fn parse_activation(text: &str) -> Option<Activation> {
    match text {
        "f32" => Some(Activation::F32),
        "i8" => Some(Activation::I8),
        "i16" => Some(Activation::I16),
        "bf16" => Some(Activation::Bf16),
        "r16" => Some(Activation::Row16),
        _ => None,
    }
}

/// Reads what `WeightLayout`'s `Display` writes, for example `u4g32mb16`.
pub fn parse_layout(text: &str) -> Option<WeightLayout> {
    let (format, block) = text.rsplit_once('b')?;
    // "bf16b16" splits at its last b; "f32b16" too.
    let n_block = block.parse().ok()?;
    let format = match format {
        "f32" => WeightFormat::F32,
        "bf16" => WeightFormat::Bf16,
        affine => {
            let (bits, rest) = affine.strip_prefix('u')?.split_once('g')?;
            let (group, zero) = match rest.strip_suffix('m') {
                Some(g) => (g, Zero::Stored),
                None => (rest.strip_suffix('s')?, Zero::Midpoint),
            };
            WeightFormat::Affine { bits: bits.parse().ok()?, group: group.parse().ok()?, zero }
        }
    };
    Some(WeightLayout { format, n_block })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_read_back_what_display_writes() {
        for text in ["u4g32mb16", "u8g64sb32", "bf16b16", "f32b48"] {
            let layout = parse_layout(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(layout.to_string(), text);
        }
        for text in ["", "u4", "u4g32b16", "x8g32mb16", "u4g32mb"] {
            assert!(parse_layout(text).is_none(), "{text}");
        }
    }
}
