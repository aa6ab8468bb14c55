//! Constants that kernel sources begin with, each taken from its one definition: slots, numerics, layouts, shapes.

use crate::error::KernelError;
use crate::generator::Generator;
use crate::numerics as n;
use evidence::Point;
use plan::operation::{QkvRope, int, slot};
use plan::{KvDtype, KvLayout, Operation, RowBucket, Target};
use std::fmt::Write;

/// `const NAME: usize = value;` lines.
pub(super) fn sizes(values: &[(&str, usize)]) -> String {
    let mut text = String::new();
    for (name, value) in values {
        line(&mut text, name, "usize", &value.to_string());
    }
    text
}

/// `const NAME: f32 = f32::from_bits(..);` lines.
pub(super) fn floats(values: &[(&str, f32)]) -> String {
    let mut text = String::new();
    for (name, value) in values {
        line(&mut text, name, "f32", &format!("f32::from_bits({:#010x})", value.to_bits()));
    }
    text
}

/// `const NAME: bool = value;` lines.
pub(super) fn flags(values: &[(&str, bool)]) -> String {
    let mut text = String::new();
    for (name, value) in values {
        line(&mut text, name, "bool", &value.to_string());
    }
    text
}

fn line(text: &mut String, name: &str, kind: &str, value: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "const {name}: {kind} = {value};");
}

/// Slots and integers of the ABI.
pub(super) fn slots() -> String {
    sizes(&[
        ("X", slot::X),
        ("OUT", slot::OUT),
        ("NORM", slot::NORM),
        ("BIAS", slot::BIAS),
        ("Q_NORM", slot::Q_NORM),
        ("K_NORM", slot::K_NORM),
        ("ROPE", slot::ROPE),
        ("K_CACHE", slot::K_CACHE),
        ("V_CACHE", slot::V_CACHE),
        ("POSITIONS", slot::POSITIONS),
        ("SLOTS", slot::SLOTS),
        ("ROW_SEQUENCE", slot::ROW_SEQUENCE),
        ("BLOCK_TABLES", slot::BLOCK_TABLES),
        ("MAX_BLOCKS", int::MAX_BLOCKS),
    ])
}

/// Constants of `exp`.
pub(super) fn exp() -> String {
    floats(&[
        ("EXP_LOW", n::EXP_LOW),
        ("EXP_HIGH", n::EXP_HIGH),
        ("LOG2_E", n::LOG2_E),
        ("LN2_HIGH", n::LN2_HIGH),
        ("LN2_LOW", n::LN2_LOW),
        // Adding it to a number below 2^22 rounds that to an integer, nearest even.
        ("ROUND", 12_582_912.0),
        ("EXP_C0", n::EXP_POLY[0]),
        ("EXP_C1", n::EXP_POLY[1]),
        ("EXP_C2", n::EXP_POLY[2]),
        ("EXP_C3", n::EXP_POLY[3]),
        ("EXP_C4", n::EXP_POLY[4]),
        ("EXP_C5", n::EXP_POLY[5]),
        ("EXP_C6", n::EXP_POLY[6]),
    ])
}

/// Heads and the cache. `KV_KIND` is 0 for f32, 1 for f16, 2 for bf16.
pub(super) fn heads(heads: u32, kv_heads: u32, head_dim: u32, kv: KvLayout) -> String {
    let kind = match kv.dtype {
        KvDtype::F32 => 0,
        KvDtype::F16 => 1,
        KvDtype::Bf16 => 2,
    };
    sizes(&[
        ("HEADS", heads as usize),
        ("KV_HEADS", kv_heads as usize),
        ("GROUP", (heads / kv_heads) as usize),
        ("DIM", head_dim as usize),
        ("TOKENS", kv.block_tokens as usize),
        ("KV_KIND", kind),
        ("KV_BYTES", kv.dtype.bytes()),
    ])
}

/// Constants of RopeKv.
pub(super) fn rope(q: &QkvRope) -> String {
    heads(q.heads, q.kv_heads, q.head_dim, q.kv)
        + &sizes(&[("ALL_HEADS", (q.heads + 2 * q.kv_heads) as usize)])
        + &flags(&[("BIAS_ADDED", q.bias), ("QK_NORM", q.qk_norm_eps_bits.is_some())])
        + &floats(&[("EPS", f32::from_bits(q.qk_norm_eps_bits.unwrap_or(0)))])
}

/// Whether heads and pages are such that any kernel can be made.
pub(super) fn heads_fit(heads: u32, kv_heads: u32, head_dim: u32, kv: KvLayout) -> bool {
    kv_heads > 0
        && heads > 0
        && heads.is_multiple_of(kv_heads)
        && head_dim > 0
        && head_dim.is_multiple_of(2)
        && kv.block_tokens > 0
        && kv.block_tokens.is_multiple_of(16)
}

/// Refuses operations that the generator does not do and points outside its space.
pub(super) fn admit(
    generator: &dyn Generator,
    operation: &Operation,
    rows: RowBucket,
    target: &Target,
    point: &Point,
) -> Result<(), KernelError> {
    let Some(space) = generator.space(operation, rows, target) else {
        return Err(KernelError::Unsupported {
            operation: operation.to_string(),
            what: format!("generator {} does not make it for {target}", generator.name()),
        });
    };
    if space.contains(point) {
        return Ok(());
    }
    Err(KernelError::Point {
        generator: generator.name().to_owned(),
        point: point.to_string(),
        what: "every axis needs one of its values, and nothing else".to_owned(),
    })
}

/// The number of an axis of an admitted point.
pub(super) fn number(generator: &dyn Generator, point: &Point, axis: &str) -> Result<usize, KernelError> {
    point.number(axis).map(|v| v as usize).ok_or_else(|| KernelError::Point {
        generator: generator.name().to_owned(),
        point: point.to_string(),
        what: format!("axis {axis} is no number"),
    })
}
