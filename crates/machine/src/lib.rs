//! One host exactly (layer 3): its fingerprint and its measured ceilings.

pub mod ceilings;
pub mod fingerprint;

pub use ceilings::CeilingError;

use evidence::Machine;
use plan::Feature;
use sandbox::Builder;
use std::collections::BTreeSet;

/// Describes this host: facts, usable features, cores, and freshly measured ceilings.
///
/// # Errors
/// [`CeilingError`] if a probe does not build or run.
pub fn describe(builder: &Builder, features: &BTreeSet<Feature>) -> Result<Machine, CeilingError> {
    let cores = fingerprint::cores();
    let mut facts = fingerprint::facts();
    facts.insert("toolchain".to_owned(), builder.toolchain().version().to_owned());
    Ok(Machine {
        facts,
        features: features.iter().map(|f| f.name().to_owned()).collect(),
        cores,
        ceilings: ceilings::measure(builder, features, cores)?,
    })
}
