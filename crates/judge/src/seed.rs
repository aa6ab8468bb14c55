//! Seeds from the run's secret: unknowable before a candidate exists, replayable afterwards.

use evidence::{Digest, Phase};

/// The secret of a run, drawn at its start. Its digest is posted before the run's first evaluation, itself after the last.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// From 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Draws a secret from the system.
    ///
    /// # Errors
    /// If the system has no random numbers to give.
    pub fn draw() -> std::io::Result<Self> {
        use std::io::Read;
        let mut bytes = [0; 32];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// What is posted in the ledger before the first evaluation.
    pub fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"enginewright run secret\0");
        hasher.update(&self.0);
        Digest(*hasher.finalize().as_bytes())
    }

    /// The secret itself, for the journal once the run evaluates no more; [`Secret::new`] reads it back.
    pub fn reveal(&self) -> Digest {
        Digest(self.0)
    }

    /// The seed of an artifact's evaluation: BLAKE3 keyed by the secret.
    pub fn seed(&self, artifact: &Digest, phase: Phase) -> Seed {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&artifact.0);
        hasher.update(match phase {
            Phase::Screen => b"screen",
            Phase::Confirm => b"confirm",
        });
        Seed(*hasher.finalize().as_bytes())
    }

    /// A seed that belongs to a task and not to a candidate, for what all its evaluations share.
    pub fn shared(&self, purpose: &str) -> Seed {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"shared\0");
        hasher.update(purpose.as_bytes());
        Seed(*hasher.finalize().as_bytes())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({})", self.digest().short())
    }
}

/// A seed from which streams for named purposes are derived.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed([u8; 32]);

impl Seed {
    /// 32 bytes for a purpose.
    pub fn bytes(&self, purpose: &str, index: u64) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(purpose.as_bytes());
        hasher.update(&index.to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    /// 64 bits for a purpose.
    pub fn number(&self, purpose: &str, index: u64) -> u64 {
        let b = self.bytes(purpose, index);
        u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
    }

    /// Hex, as evidence records it.
    pub fn hex(&self) -> String {
        Digest(self.0).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_depend_on_secret_artifact_and_phase() {
        let (a, b) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let artifact = Digest::of(b"x");
        let seed = a.seed(&artifact, Phase::Screen);
        assert!(seed == a.seed(&artifact, Phase::Screen));
        assert!(seed != b.seed(&artifact, Phase::Screen));
        assert!(seed != a.seed(&artifact, Phase::Confirm));
        assert!(seed != a.seed(&Digest::of(b"y"), Phase::Screen));
        assert_ne!(a.digest(), b.digest());
        assert_ne!(seed.number("x", 0), seed.number("x", 1));
    }
}
