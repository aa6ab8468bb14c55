//! What a kernel is made for: architecture, instruction sets, threads. Coarse, so that knowledge carries over.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Instruction-set features that kernels may use, as groups that are detected together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ (implies Avx2).
    Avx512,
    Avx512Vnni,
    Avx512Bf16,
    AmxInt8,
    AmxBf16,
}

impl Feature {
    pub const ALL: [Feature; 6] = [
        Feature::Avx2,
        Feature::Avx512,
        Feature::Avx512Vnni,
        Feature::Avx512Bf16,
        Feature::AmxInt8,
        Feature::AmxBf16,
    ];

    /// The name used in plans, on the command line and in `wright doctor`.
    pub fn name(self) -> &'static str {
        match self {
            Feature::Avx2 => "avx2",
            Feature::Avx512 => "avx512",
            Feature::Avx512Vnni => "avx512vnni",
            Feature::Avx512Bf16 => "avx512bf16",
            Feature::AmxInt8 => "amxint8",
            Feature::AmxBf16 => "amxbf16",
        }
    }
}

/// A target of kernels and plans.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    /// `x86_64` or `aarch64`.
    pub arch: String,
    pub features: BTreeSet<Feature>,
    /// Compute threads, at least 1.
    pub threads: u32,
}

impl Target {
    /// No ISA-specific code at all.
    pub fn portable(arch: &str, threads: u32) -> Self {
        Self { arch: arch.to_owned(), features: BTreeSet::new(), threads }
    }

    /// Whether code for `self` runs where `available` features are present.
    pub fn runs_on(&self, arch: &str, available: &BTreeSet<Feature>) -> bool {
        self.arch == arch && self.features.is_subset(available)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.arch)?;
        for feature in &self.features {
            write!(f, "+{}", feature.name())?;
        }
        write!(f, "/t{}", self.threads)
    }
}

/// A text that is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a target such as x86_64+avx2/t2")]
pub struct BadTarget(String);

/// Reads what `Display` writes.
impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let read = || {
            let (isa, threads) = text.split_once("/t")?;
            let mut parts = isa.split('+');
            let arch = parts.next().filter(|a| !a.is_empty())?.to_owned();
            let feature = |name| Feature::ALL.into_iter().find(|f: &Feature| f.name() == name);
            Some(Self {
                arch,
                features: parts.map(feature).collect::<Option<_>>()?,
                threads: threads.parse().ok()?,
            })
        };
        read().ok_or_else(|| BadTarget(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_back() {
        for text in ["x86_64/t1", "x86_64+avx2+avx512+avx512vnni/t2"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["", "x86_64", "x86_64+sse9/t2", "+avx2/t1", "x86_64/tx"] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
