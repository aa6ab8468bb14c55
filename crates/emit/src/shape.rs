//! From a loaded model to the shape that plans carry, with clear refusals of what kernels do not do yet.

use crate::choices::{SourceFormat, TensorClass};
use crate::error::EmitError;
use model::{Affine, Model, Part, Role};
use plan::{ModelShape, Zero};

/// The shape of a model; `max_context` bounds the context that the engine offers (its rope table and block tables).
///
/// # Errors
/// Partial rope, an output bias, or a sliding window on some layers only: no kernel does these yet.
pub fn shape_of(model: &Model, max_context: u32) -> Result<ModelShape, EmitError> {
    let c = model.config();
    let refuse = |what: String| Err(EmitError::Model(what));
    if c.rope.dim != c.head_dim {
        return refuse(format!(
            "rope covers {} of {} dimensions of a head; kernels rotate whole heads only",
            c.rope.dim, c.head_dim
        ));
    }
    if c.output_bias {
        return refuse("the attention output has a bias, which no kernel adds yet".to_owned());
    }
    if let Some(window) = c.sliding_window
        && window.first_layer != 0
    {
        return refuse(format!(
            "the sliding window starts at layer {}; plans use one window for all layers",
            window.first_layer
        ));
    }
    if !c.hidden.is_multiple_of(32) || !c.ffn.is_multiple_of(32) || !c.head_dim.is_multiple_of(16) {
        return refuse(format!(
            "hidden size {} and feed-forward size {} must be multiples of 32, head size {} of 16",
            c.hidden, c.ffn, c.head_dim
        ));
    }
    Ok(ModelShape {
        architecture: c.family.name().to_owned(),
        layers: c.layers as u32,
        hidden: c.hidden as u32,
        heads: c.heads as u32,
        kv_heads: c.kv_heads as u32,
        head_dim: c.head_dim as u32,
        ffn: c.ffn as u32,
        vocab: c.vocab as u32,
        context: (c.context as u64).min(u64::from(max_context)) as u32,
        rms_eps: c.rms_eps,
        qkv_bias: c.qkv_bias,
        qk_norm: c.qk_norm,
        tied_embeddings: c.tied,
        sliding_window: c.sliding_window.map(|w| w.tokens as u32),
    })
}

/// The parts whose matrices a class packs together.
pub fn parts(class: TensorClass) -> &'static [Part] {
    match class {
        TensorClass::Qkv => &[Part::Q, Part::K, Part::V],
        TensorClass::Output => &[Part::O],
        TensorClass::GateUp => &[Part::Gate, Part::Up],
        TensorClass::Down => &[Part::Down],
        TensorClass::Head => &[],
    }
}

/// The roles of all tensors of a class.
pub fn roles(model: &Model, class: TensorClass) -> Vec<Role> {
    if class == TensorClass::Head {
        return vec![Role::Head];
    }
    let layers = 0..model.config().layers;
    layers.flat_map(|l| parts(class).iter().map(move |p| Role::Layer(l, *p))).collect()
}

/// The exact affine format of each class in the file, where all its tensors have one: the widest bits, and a
/// stored minimum unless every tensor is symmetric about its midpoint.
pub fn source_formats(model: &Model) -> [Option<SourceFormat>; 5] {
    std::array::from_fn(|i| {
        let mut found: Option<SourceFormat> = None;
        for role in roles(model, TensorClass::ALL[i]) {
            let format = model.tensor(role)?.format();
            let bits = if Affine::bits_of(format)? <= 4 { 4 } else { 8 };
            let midpoint = matches!(format, model::DataType::Q4_0 | model::DataType::Q8_0);
            let zero = if midpoint { Zero::Midpoint } else { Zero::Stored };
            found = Some(match found {
                None => SourceFormat { bits, group: 32, zero },
                Some(f) => SourceFormat {
                    bits: f.bits.max(bits),
                    group: 32,
                    // A midpoint of 4 bits is no midpoint of 8.
                    zero: if f.zero == zero && f.bits == bits { zero } else { Zero::Stored },
                },
            });
        }
        found
    })
}
