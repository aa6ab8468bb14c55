//! What was concluded, and the four entries of the ledger.

use crate::digest::{Content, Digest, Id};
use crate::observation::Evidence;
use crate::task::{Candidate, Task};
use serde::{Deserialize, Serialize};

/// A pure function of evidence. Lists all that it read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    pub task: Id<Task>,
    /// The promotion is void if this is no longer the champion; `None` when the task has none yet.
    pub champion: Option<Id<Candidate>>,
    pub challenger: Id<Candidate>,
    pub read: Vec<Id<Evidence>>,
    pub verdict: Verdict,
    /// Name and version of the rule, so that old evidence can be judged again.
    pub rule: String,
    pub lesson: Option<Lesson>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The challenger is the champion from here on.
    Promote(Option<Effect>),
    /// The champion stays; the challenger was right but not better.
    Keep(Effect),
    /// The challenger is wrong or breaks a rule.
    Refuse,
    /// More evidence is wanted.
    Evaluate(crate::observation::Phase),
    /// The champion was found wrong; `champion` falls back to `challenger`.
    Revoke,
}

/// Relative effect of the challenger on the champion, 1.0 = equal, above 1 = challenger better, with interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
    pub pairs: u32,
}

/// A statement distilled from evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lesson {
    pub statement: String,
    /// Where it holds: operation kind, bucket, target.
    pub scope: String,
    pub effect: Option<Effect>,
    pub support: u32,
}

/// The ledger's entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "entry")]
pub enum Entry {
    Posed(Task),
    Proposed(Candidate),
    Observed(Evidence),
    Decided(Decision),
}

impl Entry {
    /// Digest of the value inside.
    pub fn content(&self) -> Digest {
        match self {
            Entry::Posed(t) => t.id().digest(),
            Entry::Proposed(c) => c.id().digest(),
            Entry::Observed(e) => e.id().digest(),
            Entry::Decided(d) => d.id().digest(),
        }
    }

    /// `posed`, `proposed`, `observed` or `decided`.
    pub fn kind(&self) -> &'static str {
        match self {
            Entry::Posed(_) => "posed",
            Entry::Proposed(_) => "proposed",
            Entry::Observed(_) => "observed",
            Entry::Decided(_) => "decided",
        }
    }
}

impl Content for Decision {
    const KIND: &'static str = "decision/1";
}
impl Content for Entry {
    const KIND: &'static str = "entry/1";
}
