//! Why a swarm stopped without an end of its own.

use thiserror::Error;

/// An evaluator's own failure: neither the candidate's fault nor a passing one of the machine.
pub type EvaluatorError = Box<dyn std::error::Error + Send + Sync>;

/// Errors of the swarm.
#[derive(Debug, Error)]
pub enum SwarmError {
    #[error("the ledger failed")]
    Ledger(#[from] ledger::LedgerError),
    #[error("the evaluator failed on candidate {candidate} of {task}; the same command resumes there")]
    Evaluator {
        task: String,
        candidate: String,
        #[source]
        source: EvaluatorError,
    },
    #[error("the evaluator returned evidence or a decision on another candidate than {candidate}")]
    Confused { candidate: String },
    #[error("task {task}: {what}")]
    Task { task: String, what: String },
}
