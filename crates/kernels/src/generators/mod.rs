//! Generators of kernel source, by name. A recipe is a generator's name with a point of its space.
//!
//! The sources under `generators/source/` are the kernels themselves, as text: a generator puts the constants of an
//! operation and a point in front of them. They are compiled as separate crates, never as part of this one.

pub mod attention;
pub mod attention_amx;
pub mod attention_vector;
pub mod embed;
mod linear;
pub mod linear_amx;
pub mod linear_amx_bytes;
pub mod linear_avx2;
pub mod linear_avx512;
pub mod linear_portable;
pub mod linear_vnni;
pub mod linear_wide;
pub mod prelude;
pub mod small;
mod small_constants;
pub mod small_vector;

use crate::generator::Generator;

/// Every generator, portable ones first.
pub fn generators() -> &'static [&'static dyn Generator] {
    GENERATORS
}

/// The generator of the given name.
pub fn generator(name: &str) -> Option<&'static dyn Generator> {
    generators().iter().copied().find(|g| g.name() == name)
}

/// One line each; the first that applies to an operation is its baseline. Of those that a search may take, the last one's
/// start point is tried first: on a Xeon with AMX the VNNI kernels' start is ahead up to 16 rows and level beyond
/// (kernels/linear/README.md).
static GENERATORS: &[&dyn Generator] = &[
    &linear_portable::LinearPortable,
    &linear_avx2::LinearAvx2,
    &linear_avx512::LinearAvx512::F32,
    &linear_avx512::LinearAvx512::BF16,
    &linear_amx::LinearAmx::INT8,
    &linear_amx::LinearAmx::BF16,
    &linear_vnni::LinearVnni,
    &linear_amx_bytes::LinearAmxBytes,
    &linear_wide::WidePortable,
    &linear_wide::WideAmx,
    &embed::Embed,
    &attention::AttentionPortable,
    &small::SmallPortable,
    &attention_vector::AttentionVector { isa: small_vector::Isa::Avx512 },
    &attention_vector::AttentionVector { isa: small_vector::Isa::Avx2 },
    &attention_amx::AttentionAmx,
    &small_vector::SmallVector { isa: small_vector::Isa::Avx512 },
    &small_vector::SmallVector { isa: small_vector::Isa::Avx2 },
];
