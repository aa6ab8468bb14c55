//! Whether evidence was gathered with the seeds that its run was bound to.

use anyhow::Result;
use evidence::{Digest, Entry, Evidence, Outcome};
use judge::Secret;
use ledger::{BuildEvent, Ledger};
use serde::Serialize;
use std::collections::BTreeMap;

/// Measured kernels by what is known of their seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Seeds {
    /// The seed follows from the revealed secret of the run, whose digest was posted at its start.
    pub proved: u64,
    /// The run has revealed no secret: it goes on, was killed, failed, or an older version made it.
    pub unrevealed: u64,
    /// Contents of evidence whose seed is another than its run's secret gives.
    pub swapped: Vec<Digest>,
}

/// Compares the seeds of all measured kernels with the secrets of their runs.
pub fn check(ledger: &dyn Ledger) -> Result<Seeds> {
    let mut revealed = BTreeMap::new();
    for event in ledger.builds()?.into_iter().flat_map(|b| b.journal) {
        if let BuildEvent::RunEnded { secret } = event {
            let secret = Secret::new(secret.0);
            revealed.insert(secret.digest(), secret);
        }
    }
    let mut seeds = Seeds::default();
    super::for_each(ledger, |record| {
        if let Entry::Observed(evidence) = &record.entry {
            seeds.add(record.content, evidence, &revealed);
        }
        Ok(())
    })?;
    Ok(seeds)
}

impl Seeds {
    fn add(&mut self, content: Digest, evidence: &Evidence, revealed: &BTreeMap<Digest, Secret>) {
        // Engines are measured with prompts that follow from the build's own seed.
        let Outcome::Measured(measured) = &evidence.outcome else { return };
        if !evidence.protocol.version.starts_with("kernel-judge/") {
            return;
        }
        match revealed.get(&evidence.protocol.secret_digest) {
            None => self.unrevealed += 1,
            Some(secret)
                if secret.seed(&measured.artifact, evidence.phase).hex() == evidence.protocol.seed =>
            {
                self.proved += 1;
            }
            Some(_) => self.swapped.push(content),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evidence::{CheckSummary, Content, Id, Measured, Phase, Protocol, Samples};

    fn evidence(secret: &Secret, seed: String, artifact: Digest) -> Evidence {
        Evidence {
            candidate: Id::from_digest(Digest::of(b"candidate")),
            against: None,
            phase: Phase::Screen,
            protocol: Protocol {
                version: judge::PROTOCOL.to_owned(),
                seed,
                secret_digest: secret.digest(),
                corpus: String::new(),
                layers: Vec::new(),
                toolchain: String::new(),
            },
            machine: Digest::ZERO,
            outcome: Outcome::Measured(Measured {
                artifact,
                check: CheckSummary {
                    cases: 1,
                    keys: Vec::new(),
                    worst_ratio: 0.0,
                    timed_checked: 0,
                    quality: BTreeMap::new(),
                },
                samples: Samples::Series { series: BTreeMap::new(), champion: BTreeMap::new() },
            }),
        }
    }

    #[test]
    fn seeds_must_follow_from_the_secret() {
        let (ours, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let artifact = Digest::of(b"artifact");
        let seed = ours.seed(&artifact, Phase::Screen).hex();
        let revealed: BTreeMap<_, _> = [(ours.digest(), Secret::new(ours.reveal().0))].into();
        let mut seeds = Seeds::default();
        let mut add = |e: Evidence| seeds.add(e.id().digest(), &e, &revealed);
        add(evidence(&ours, seed.clone(), artifact));
        add(evidence(&other, seed.clone(), artifact));
        let swapped = evidence(&ours, seed, Digest::of(b"another artifact"));
        let content = swapped.id().digest();
        add(swapped);
        assert_eq!(seeds, Seeds { proved: 1, unrevealed: 1, swapped: vec![content] });
    }
}
