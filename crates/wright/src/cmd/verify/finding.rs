//! What a check found.

use serde::Serialize;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Agrees,
    Differs,
    /// Nothing can be said here; the detail says why.
    Unchecked,
}

impl Status {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Status::Agrees => "agrees",
            Status::Differs => "DIFFERS",
            Status::Unchecked => "unchecked",
        }
    }
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// A file, a kernel, or the id of a claim.
    pub subject: String,
    pub status: Status,
    pub detail: String,
    /// A claim that was not checked though it could be: with other arguments, at another time, or of a whole bundle.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// Claims that were measured again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<f64>,
}

impl Finding {
    fn new(subject: &str, status: Status, detail: impl Into<String>) -> Self {
        let (subject, detail) = (subject.to_owned(), detail.into());
        Self { subject, status, detail, open: false, claimed: None, found: None }
    }

    /// A check that passed.
    pub fn agrees(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Status::Agrees, detail)
    }

    /// A check that failed.
    pub fn differs(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Status::Differs, detail)
    }

    /// A check that cannot be made here.
    pub fn unchecked(subject: &str, detail: impl Into<String>) -> Self {
        Self::new(subject, Status::Unchecked, detail)
    }

    /// A claim that was not checked, which must not pass for one that holds.
    pub fn open(claim: &str, detail: impl Into<String>) -> Self {
        Self { open: true, ..Self::unchecked(claim, detail) }
    }

    /// The same with the claim and the new value.
    pub fn with_values(self, claimed: f64, found: f64) -> Self {
        Self { claimed: Some(claimed), found: Some(found), ..self }
    }
}
