//! The stages of an evaluation. Each consumes the one before: the unchecked cannot be measured, and no number exists
//! without a passed check.

use crate::rig::Rig;
use evidence::{CheckSummary, Samples};
use plan::Launch;
use sandbox::Artifact;

/// A binary that was compiled and inspected.
pub struct Built {
    pub(crate) artifact: Artifact,
    pub(crate) launch: Launch,
}

impl Built {
    /// The binary.
    pub fn artifact(&self) -> &Artifact {
        &self.artifact
    }

    /// The launch description that it was submitted with.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }
}

/// A kernel that agrees with the oracle and its class on every dispatch key, in its running worker.
pub struct Checked {
    pub(crate) built: Built,
    pub(crate) summary: CheckSummary,
    pub(crate) rig: Rig,
    pub(crate) champion: Option<Rig>,
}

impl Checked {
    /// What was checked.
    pub fn summary(&self) -> &CheckSummary {
        &self.summary
    }
}

/// Times, each of whose calls was checked again.
pub struct Measured {
    pub(crate) built: Built,
    pub(crate) summary: CheckSummary,
    pub(crate) samples: Samples,
}

impl Measured {
    /// The raw samples.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// The binary.
    pub fn artifact(&self) -> &Artifact {
        &self.built.artifact
    }

    /// As evidence stores it.
    pub fn into_evidence(self) -> evidence::Measured {
        evidence::Measured {
            artifact: self.built.artifact.digest,
            check: self.summary,
            samples: self.samples,
        }
    }
}
