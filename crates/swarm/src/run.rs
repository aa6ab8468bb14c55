//! The loop: propose, evaluate, record, learn, until the budget or the tasks end.

use crate::budget::{Clock, Left, Meter};
use crate::error::{EvaluatorError, SwarmError};
use crate::scheduler::{Proposal, Swarm};
use evidence::{Candidate, Decision, Entry, Evidence, Outcome, Stop, Verdict};
use ledger::{BuildEvent, BuildId, Ledger, LedgerError};

/// What stands for a task when a proposal is evaluated.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The champion; `None` while the first one is evaluated.
    pub champion: Option<Candidate>,
    /// Candidates of the task that reached confirmation before: they share one error budget.
    pub tested: u64,
    /// Faults of ours that ended earlier evaluations of this proposal.
    pub faults: u64,
}

/// Everything that one evaluation produced.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// In order: screen, confirmation.
    pub evidence: Vec<Evidence>,
    /// By the rule, over this and earlier evidence.
    pub decision: Decision,
}

/// The judge, as the swarm sees it.
pub trait Evaluator {
    /// Says what is going to be evaluated, first one first, so that builds can run ahead.
    fn prepare(&mut self, upcoming: &[Proposal]) {
        let _ = upcoming;
    }

    /// Builds, checks, measures and decides. Faults of candidates and of the machine are evidence; an error ends the
    /// run.
    fn evaluate(&mut self, proposal: &Proposal, standing: &Standing) -> Result<Evaluation, EvaluatorError>;
}

/// How a run ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Budget,
    /// Every task is at its ceiling or has no point left.
    Complete,
}

/// What happens, for people.
#[derive(Clone, Debug)]
pub enum Progress<'a> {
    Started {
        tasks: usize,
        pending: usize,
    },
    Trying {
        task: &'a str,
        proposal: &'a Proposal,
        left: Left,
    },
    Tried {
        task: &'a str,
        proposal: &'a Proposal,
        decision: &'a Decision,
        /// Why it was refused, or why nothing could be concluded.
        stopped: Option<&'a Stop>,
        /// Speed-up of the task's champion on its first champion.
        speedup: f64,
        /// The same over all tasks, weighed by their time in the workload.
        overall: f64,
        left: Left,
    },
    /// Somebody else moved the champion; the proposal is evaluated again.
    Moved {
        task: &'a str,
        proposal: &'a Proposal,
    },
    /// The task stood still: the next proposals come from far away.
    Redirected {
        task: &'a str,
    },
    Ended {
        how: Ended,
        overall: f64,
    },
}

/// Runs a search. State lies in the ledger alone: killed at any moment, the same call on the same ledger goes on and
/// loses at most the evaluation in flight. `ahead` proposals are handed to [`Evaluator::prepare`]. With a build, the
/// spent budget goes to its journal after each evaluation.
pub fn run(
    swarm: &mut Swarm<'_>,
    evaluator: &mut dyn Evaluator,
    ledger: &mut dyn Ledger,
    meter: &mut Meter,
    clock: Clock<'_>,
    ahead: usize,
    build: Option<&BuildId>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Ended, SwarmError> {
    meter.tick(clock());
    swarm.catch_up(ledger)?;
    progress(Progress::Started { tasks: swarm.tasks().len(), pending: swarm.pending().len() });
    let how = loop {
        meter.tick(clock());
        if !meter.allows_another() {
            break Ended::Budget;
        }
        let upcoming = swarm.top_up(ledger, ahead)?;
        let Some(proposal) = upcoming.first() else { break Ended::Complete };
        evaluator.prepare(&upcoming);
        evaluate(swarm, evaluator, ledger, meter, proposal, progress)?;
        meter.tick(clock());
        if let Some(build) = build {
            ledger.record_build(build, &BuildEvent::Spent(meter.spent()))?;
        }
    };
    progress(Progress::Ended { how, overall: swarm.speedup() });
    Ok(how)
}

fn evaluate(
    swarm: &mut Swarm<'_>,
    evaluator: &mut dyn Evaluator,
    ledger: &mut dyn Ledger,
    meter: &mut Meter,
    proposal: &Proposal,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), SwarmError> {
    let label = swarm.task(proposal.task).map_or_else(String::new, |t| t.label);
    let task = label.as_str();
    progress(Progress::Trying { task, proposal, left: meter.left() });
    let standing = swarm.standing(proposal);
    let failed =
        |source| SwarmError::Evaluator { task: label.clone(), candidate: proposal.id.short(), source };
    let Evaluation { evidence, mut decision } = evaluator.evaluate(proposal, &standing).map_err(failed)?;
    meter.evaluated();
    if decision.challenger != proposal.id || evidence.iter().any(|e| e.candidate != proposal.id) {
        return Err(SwarmError::Confused { candidate: proposal.id.short() });
    }
    for e in &evidence {
        ledger.append(&Entry::Observed(e.clone()))?;
    }
    // The lesson may rest on this evidence.
    swarm.catch_up(ledger)?;
    if decision.lesson.is_none() {
        decision.lesson = swarm.lesson(&decision);
    }
    let redirected = swarm.is_redirected(proposal.task);
    match ledger.append_decision(&decision) {
        Ok(_) => {}
        Err(LedgerError::ChampionMoved { .. }) => {
            swarm.catch_up(ledger)?;
            progress(Progress::Moved { task, proposal });
            return Ok(());
        }
        Err(e) => return Err(e.into()),
    }
    swarm.catch_up(ledger)?;
    let stopped = evidence.iter().find_map(|e| match &e.outcome {
        Outcome::Stopped(stop) if matches!(decision.verdict, Verdict::Refuse | Verdict::Evaluate(_)) => {
            Some(stop)
        }
        _ => None,
    });
    progress(Progress::Tried {
        task,
        proposal,
        decision: &decision,
        stopped,
        speedup: swarm.task(proposal.task).map_or(1.0, |t| t.speedup),
        overall: swarm.speedup(),
        left: meter.left(),
    });
    if !redirected && swarm.is_redirected(proposal.task) {
        progress(Progress::Redirected { task });
    }
    Ok(())
}
