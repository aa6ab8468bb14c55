//! Packs the weights of a model in the layouts that a plan chose.

use crate::choices::{PlanChoices, TensorClass};
use crate::compose::tensor;
use crate::error::EmitError;
use crate::shape::parts;
use kernels::KernelError;
use kernels::pack::{self, AffineRows};
use kernels::quantise;
use model::{Model, Part, Role};
use plan::{ModelShape, WeightFormat, WeightLayout};

/// One tensor of `weights.bin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedTensor {
    pub name: String,
    /// Layout for people and checks, for example `u4g32mb16 n1728 k576`.
    pub layout: String,
    pub bytes: Vec<u8>,
}

/// Packs all tensors and hands them to `each`, one at a time, in the order in which a pass reads them. At most one
/// packed tensor is in memory.
///
/// # Errors
/// What the model lacks, what a layout refuses, and what `each` returns.
pub fn pack_all(
    model: &Model,
    shape: &ModelShape,
    choices: &PlanChoices,
    mut each: impl FnMut(PackedTensor) -> Result<(), EmitError>,
) -> Result<(), EmitError> {
    each(rope_table(model, shape))?;
    let head = choices.class(TensorClass::Head).weight;
    if !shape.tied_embeddings {
        each(matrix(model, tensor::EMBED, head, &[Role::Embedding])?)?;
    }
    for l in 0..shape.layers {
        let role = |part: Part| Role::Layer(l as usize, part);
        let roles = |class: TensorClass| parts(class).iter().map(|p| role(*p)).collect::<Vec<_>>();
        let named = |what: &str| tensor::layer(l, what);
        each(vector(model, named("attn_norm"), &[role(Part::AttnNorm)])?)?;
        let qkv = choices.class(TensorClass::Qkv).weight;
        each(matrix(model, &named("qkv"), qkv, &roles(TensorClass::Qkv))?)?;
        if shape.qkv_bias {
            let biases = [role(Part::QBias), role(Part::KBias), role(Part::VBias)];
            each(vector(model, named("qkv_bias"), &biases)?)?;
        }
        if shape.qk_norm {
            each(vector(model, named("q_norm"), &[role(Part::QNorm)])?)?;
            each(vector(model, named("k_norm"), &[role(Part::KNorm)])?)?;
        }
        let output = choices.class(TensorClass::Output).weight;
        each(matrix(model, &named("o"), output, &roles(TensorClass::Output))?)?;
        each(vector(model, named("ffn_norm"), &[role(Part::FfnNorm)])?)?;
        let gate_up = choices.class(TensorClass::GateUp).weight;
        each(interleaved(model, &named("gate_up"), gate_up, l as usize)?)?;
        let down = choices.class(TensorClass::Down).weight;
        each(matrix(model, &named("down"), down, &roles(TensorClass::Down))?)?;
    }
    each(vector(model, tensor::FINAL_NORM.to_owned(), &[Role::FinalNorm])?)?;
    each(matrix(model, tensor::HEAD, head, &[Role::Head])?)
}

/// f32 `[context][head_dim]`: cosines, then sines of each position.
fn rope_table(model: &Model, shape: &ModelShape) -> PackedTensor {
    let half = shape.head_dim as usize / 2;
    let (cos, sin) = model.config().rope.table(0, shape.context as usize);
    let mut bytes = Vec::with_capacity(shape.context as usize * half * 8);
    for (c, s) in cos.chunks_exact(half).zip(sin.chunks_exact(half)) {
        bytes.extend(c.iter().chain(s).flat_map(|v| v.to_le_bytes()));
    }
    PackedTensor {
        name: tensor::ROPE.to_owned(),
        layout: format!("f32 {}x{}", shape.context, shape.head_dim),
        bytes,
    }
}

fn vector(model: &Model, name: String, roles: &[Role]) -> Result<PackedTensor, EmitError> {
    let mut bytes = Vec::new();
    for role in roles {
        let values = model.dequantised(*role).map_err(|e| EmitError::Model(e.to_string()))?;
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    }
    let layout = format!("f32 {}", bytes.len() / 4);
    Ok(PackedTensor { name, layout, bytes })
}

/// The rows of a tensor, exact where its format is affine.
enum Rows {
    Affine(AffineRows),
    F32(Vec<f32>),
}

fn rows_of(model: &Model, role: Role) -> Result<(usize, usize, Rows), EmitError> {
    let fail = |e: model::Error| EmitError::Model(e.to_string());
    let [n, k] = role.shape(model.config());
    let rows = match model.affine(role).map_err(fail)? {
        Some(a) => Rows::Affine(AffineRows {
            bits: if a.bits <= 4 { 4 } else { 8 },
            group: a.group,
            k,
            q: a.q,
            scale: a.scale,
            min: a.min,
        }),
        None => Rows::F32(model.dequantised(role).map_err(fail)?),
    };
    Ok((n, k, rows))
}

/// Rows in the format of a layout: affine rows for affine layouts (requantised where the formats differ), f32 else.
fn fit(rows: Rows, k: usize, layout: &WeightLayout) -> Result<Rows, KernelError> {
    let WeightFormat::Affine { bits, group, zero } = layout.format else {
        return Ok(match rows {
            Rows::Affine(a) => Rows::F32(a.dequantise()),
            f32s @ Rows::F32(_) => f32s,
        });
    };
    Ok(Rows::Affine(match rows {
        Rows::Affine(a) => quantise::requantise(&a, bits, group as usize, zero)?,
        Rows::F32(v) => quantise::quantise_affine(bits, group as usize, zero, k, &v)?,
    }))
}

fn matrix(
    model: &Model,
    name: &str,
    layout: WeightLayout,
    roles: &[Role],
) -> Result<PackedTensor, EmitError> {
    let fail = |source| EmitError::Pack { tensor: name.to_owned(), source };
    let mut affine = Vec::new();
    let mut f32s = Vec::new();
    let (mut n, mut k) = (0, 0);
    for role in roles {
        let (rows, width, values) = rows_of(model, *role)?;
        n += rows;
        k = width;
        match fit(values, k, &layout).map_err(fail)? {
            Rows::Affine(a) => affine.push(a),
            Rows::F32(v) => f32s.extend(v),
        }
    }
    let packed = if affine.is_empty() {
        pack::pack_f32(&layout, n, k, &f32s)
    } else {
        let parts: Vec<&AffineRows> = affine.iter().collect();
        pack::concat_rows(&parts).and_then(|all| pack::pack_affine(&layout, n, k, &all))
    };
    let bytes = packed.map_err(fail)?.bytes;
    Ok(PackedTensor { name: name.to_owned(), layout: format!("{layout} n{n} k{k}"), bytes })
}

/// Gate and up in alternating blocks of columns.
fn interleaved(
    model: &Model,
    name: &str,
    layout: WeightLayout,
    layer: usize,
) -> Result<PackedTensor, EmitError> {
    let fail = |source| EmitError::Pack { tensor: name.to_owned(), source };
    let (n, k, gate) = rows_of(model, Role::Layer(layer, Part::Gate))?;
    let (_, _, up) = rows_of(model, Role::Layer(layer, Part::Up))?;
    let gate = fit(gate, k, &layout).map_err(fail)?;
    let up = fit(up, k, &layout).map_err(fail)?;
    let block = layout.n_block as usize;
    let packed = match (gate, up) {
        (Rows::Affine(g), Rows::Affine(u)) => {
            pack::interleave_rows(&g, &u, block).and_then(|both| pack::pack_affine(&layout, 2 * n, k, &both))
        }
        (Rows::F32(g), Rows::F32(u)) => pack::interleave_rows_f32(&g, &u, k, block)
            .and_then(|both| pack::pack_f32(&layout, 2 * n, k, &both)),
        _ => Err(KernelError::Pack {
            layout: layout.to_string(),
            what: "gate and up came out in different formats".to_owned(),
        }),
    };
    let bytes = packed.map_err(fail)?.bytes;
    Ok(PackedTensor { name: name.to_owned(), layout: format!("{layout} n{} k{k}", 2 * n), bytes })
}
