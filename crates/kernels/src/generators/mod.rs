//! Generators of kernel source, by name. A recipe is a generator's name with a point of its space.
//!
//! The sources under `generators/source/` are the kernels themselves, as text: a generator puts the constants of an
//! operation and a point in front of them. They are compiled as separate crates, never as part of this one.

pub mod embed;
mod linear;
pub mod linear_portable;
pub mod attention;
pub mod prelude;
pub mod small;
mod small_constants;

use crate::generator::Generator;

/// Every generator, portable ones first.
pub fn generators() -> &'static [&'static dyn Generator] {
    GENERATORS
}

/// The generator of the given name.
pub fn generator(name: &str) -> Option<&'static dyn Generator> {
    generators().iter().copied().find(|g| g.name() == name)
}

/// One line each; the first that applies to an operation is its baseline.
static GENERATORS: &[&dyn Generator] = &[
    &linear_portable::LinearPortable,
    &embed::Embed,
    &attention::AttentionPortable,
    &small::SmallPortable,
];
