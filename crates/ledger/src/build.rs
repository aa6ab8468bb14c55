//! Builds and their journals: what makes the same command resume.

use evidence::{Content, Digest};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What identifies a build: the same values resume it, another value starts another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildHeader {
    /// Digest of the model's weights.
    pub model: Digest,
    /// Digest of the goal.
    pub goal: Digest,
    /// Target key.
    pub target: String,
    pub seed: u64,
    /// Absolute path of the bundle.
    pub out: String,
}

impl Content for BuildHeader {
    const KIND: &'static str = "build/1";
}

/// Digest of a [`BuildHeader`], as hex.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BuildId(String);

impl BuildId {
    /// The id of a header.
    pub fn of(header: &BuildHeader) -> Self {
        Self(header.id().to_string())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// First 12 hex digits, for people.
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a search has used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    pub wall_ms: u64,
    pub evaluations: u64,
}

/// One line of a build's journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum BuildEvent {
    /// A process started or resumed the build; the digest of the run's secret is posted before its first evaluation.
    RunStarted { secret_digest: Digest },
    /// A run evaluates no more: its secret, from which the seeds of its evidence follow. Runs that were killed or failed
    /// reveal none.
    RunEnded { secret: Digest },
    /// The search's budget so far, totals over all processes of this build.
    Spent(Spent),
    /// A stage is over (`search`, `plans`, `pack`, `table`, ...), with what the next one needs as JSON text.
    Stage { name: String, detail: String },
    /// The bundle stands.
    Finished { bundle: String },
}

/// A build with its journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Build {
    pub id: BuildId,
    pub header: BuildHeader,
    pub journal: Vec<BuildEvent>,
}

impl Build {
    /// Whether an earlier process worked on it.
    pub fn resumed(&self) -> bool {
        !self.journal.is_empty()
    }

    /// The budget used so far.
    pub fn spent(&self) -> Spent {
        let spent = self.journal.iter().rev().find_map(|e| match e {
            BuildEvent::Spent(s) => Some(*s),
            _ => None,
        });
        spent.unwrap_or_default()
    }

    /// The detail of a stage that is over; the last one counts.
    pub fn stage(&self, wanted: &str) -> Option<&str> {
        self.journal.iter().rev().find_map(|e| match e {
            BuildEvent::Stage { name, detail } if name == wanted => Some(detail.as_str()),
            _ => None,
        })
    }

    /// The bundle, if the build is finished.
    pub fn finished(&self) -> Option<&str> {
        self.journal.iter().rev().find_map(|e| match e {
            BuildEvent::Finished { bundle } => Some(bundle.as_str()),
            _ => None,
        })
    }
}
