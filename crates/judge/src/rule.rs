//! The rule: a pure function from evidence to a decision, so that old evidence can be judged again.

use evidence::{
    Candidate, Content, Decision, Effect, Evidence, Id, Outcome, Phase, Samples, Stop, Task, Verdict,
};
use statistics::{ErrorBudget, Pairs, Sequential, SequentialPlan, Status};

/// Name and version, part of every decision.
pub const RULE: &str = "paired-sequential/1";
/// Chance that any promotion of a task is false, however many candidates come.
const ERROR_BUDGET: f64 = 0.05;
/// Confidence of reported intervals.
const CONFIDENCE: f64 = 0.95;

/// A candidate with its evidence, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    pub candidate: Id<Candidate>,
    pub evidence: &'a [Evidence],
}

/// The sequential test for a task's candidate after `tested` others.
pub fn sequential(least_effect_permille: u32, tested: u64) -> SequentialPlan {
    let alpha = ErrorBudget::new(ERROR_BUDGET).grant(tested);
    SequentialPlan::new(alpha, f64::from(least_effect_permille) / 1000.0)
}

/// Decides on a challenger. `tested` candidates of the task were tested before it; see [`ErrorBudget`].
///
/// Only `Confirm` evidence promotes, and only evidence against the standing champion counts. Of several confirmations
/// the first one counts, so that repetition buys no luck.
pub fn rule(task: &Task, champion: Option<Standing<'_>>, challenger: Standing<'_>, tested: u64) -> Decision {
    let against = champion.map(|c| c.candidate);
    let relevant: Vec<&Evidence> = challenger
        .evidence
        .iter()
        .filter(|e| e.candidate == challenger.candidate && e.against == against)
        .collect();
    let rejected = challenger.evidence.iter().find(|e| {
        e.candidate == challenger.candidate && matches!(e.outcome, Outcome::Stopped(Stop::Rejected(_)))
    });
    let verdict = match rejected {
        Some(_) => Verdict::Refuse,
        None => decide(task, &relevant, against.is_some(), tested),
    };
    let read = relevant
        .iter()
        .copied()
        .chain(rejected.filter(|r| !relevant.contains(r)))
        .chain(champion.map_or(&[][..], |c| c.evidence))
        .map(Content::id)
        .collect();
    Decision {
        task: task.id(),
        champion: against,
        challenger: challenger.candidate,
        read,
        verdict,
        rule: RULE.into(),
        lesson: None,
    }
}

fn measured<'a>(evidence: &[&'a Evidence], phase: Phase) -> Option<&'a Samples> {
    evidence.iter().find_map(|e| match &e.outcome {
        Outcome::Measured(m) if e.phase == phase => Some(&m.samples),
        _ => None,
    })
}

fn decide(task: &Task, relevant: &[&Evidence], contested: bool, tested: u64) -> Verdict {
    let confirmed = measured(relevant, Phase::Confirm);
    if !contested {
        return match confirmed {
            Some(_) => Verdict::Promote(None),
            None if measured(relevant, Phase::Screen).is_some() => Verdict::Evaluate(Phase::Confirm),
            None => Verdict::Evaluate(Phase::Screen),
        };
    }
    let plan = sequential(task.metric.least_effect_permille, tested);
    if let Some(samples) = confirmed {
        let Some((pairs, effect)) = effect_of(task, samples) else {
            return Verdict::Evaluate(Phase::Confirm);
        };
        let status = Sequential::replay(plan, &pairs).status();
        let better = status == Status::Better && effect.low > 1.0;
        return if better { Verdict::Promote(Some(effect)) } else { Verdict::Keep(effect) };
    }
    let Some(samples) = measured(relevant, Phase::Screen) else {
        return Verdict::Evaluate(Phase::Screen);
    };
    match effect_of(task, samples) {
        // Worth a confirmation: likely better by half of what counts.
        Some((_, effect)) if effect.ratio >= 1.0 + plan.least_effect / 2.0 => {
            Verdict::Evaluate(Phase::Confirm)
        }
        Some((_, effect)) => Verdict::Keep(effect),
        None => Verdict::Evaluate(Phase::Screen),
    }
}

/// Pairs and effect of paired samples; `None` for others and for damaged ones.
fn effect_of(task: &Task, samples: &Samples) -> Option<(Pairs, Effect)> {
    let Samples::Paired { champion_ns, challenger_ns, .. } = samples else { return None };
    let pairs = Pairs::of_costs(champion_ns, challenger_ns).ok()?;
    // Any fixed seed: the interval must not depend on who computes it.
    let id = task.id().digest();
    let seed = u64::from_le_bytes([id.0[0], id.0[1], id.0[2], id.0[3], id.0[4], id.0[5], id.0[6], id.0[7]]);
    let effect = pairs.effect(CONFIDENCE, seed);
    Some((pairs, effect))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evidence::{
        CheckSummary, Contract, Digest, Direction, Fault, Measured, Metric, Protocol, Reason, Rejection,
        Workloads,
    };

    fn task() -> Task {
        Task {
            contract: Contract::Kernel {
                operation: "o".into(),
                definition: "{}".into(),
                class: "c".into(),
                rows_low: 1,
                rows_high: 1,
            },
            target: "x86_64/t2".into(),
            metric: Metric {
                name: "time".into(),
                unit: "ns".into(),
                direction: Direction::Minimise,
                least_effect_permille: 10,
            },
            screen: Workloads { cases: vec![] },
            confirm: Digest::ZERO,
        }
    }

    fn id(name: &str) -> Id<Candidate> {
        Id::from_digest(Digest::of(name.as_bytes()))
    }

    fn evidence(against: Option<Id<Candidate>>, phase: Phase, outcome: Outcome) -> Evidence {
        let protocol = Protocol {
            version: "v".into(),
            seed: String::new(),
            secret_digest: Digest::ZERO,
            corpus: String::new(),
            layers: vec![],
            toolchain: String::new(),
        };
        Evidence { candidate: id("new"), against, phase, protocol, machine: Digest::ZERO, outcome }
    }

    fn paired(phase: Phase, ratio: f64) -> Evidence {
        let champion_ns: Vec<f64> = (0..40).map(|i| 100.0 + f64::from(i % 4)).collect();
        let challenger_ns = champion_ns.iter().map(|c| c / ratio).collect();
        let samples = Samples::Paired { champion_ns, challenger_ns, calls: 1 };
        let check = CheckSummary {
            cases: 1,
            keys: vec![1],
            worst_ratio: 0.1,
            timed_checked: 1,
            quality: Default::default(),
        };
        evidence(
            Some(id("old")),
            phase,
            Outcome::Measured(Measured { artifact: Digest::ZERO, check, samples }),
        )
    }

    fn verdict(list: &[Evidence]) -> Verdict {
        let champion = Standing { candidate: id("old"), evidence: &[] };
        rule(&task(), Some(champion), Standing { candidate: id("new"), evidence: list }, 5).verdict
    }

    #[test]
    fn only_confirmation_promotes() {
        assert_eq!(verdict(&[]), Verdict::Evaluate(Phase::Screen));
        assert_eq!(verdict(&[paired(Phase::Screen, 1.5)]), Verdict::Evaluate(Phase::Confirm));
        assert!(matches!(verdict(&[paired(Phase::Screen, 0.9)]), Verdict::Keep(_)));
        let both = [paired(Phase::Screen, 1.5), paired(Phase::Confirm, 1.4)];
        assert!(matches!(verdict(&both), Verdict::Promote(Some(e)) if (e.ratio - 1.4).abs() < 1e-9));
        assert!(matches!(
            verdict(&[paired(Phase::Screen, 1.5), paired(Phase::Confirm, 1.0)]),
            Verdict::Keep(_)
        ));
    }

    #[test]
    fn repetition_buys_no_luck_and_faults_say_nothing() {
        let again = [paired(Phase::Confirm, 1.0), paired(Phase::Confirm, 2.0)];
        assert!(matches!(verdict(&again), Verdict::Keep(_)));
        let stop = Stop::Inconclusive { fault: Fault::Disturbed, detail: String::new() };
        let disturbed = evidence(Some(id("old")), Phase::Confirm, Outcome::Stopped(stop));
        let list = [paired(Phase::Screen, 1.5), disturbed];
        assert_eq!(verdict(&list), Verdict::Evaluate(Phase::Confirm));
    }

    #[test]
    fn a_rejection_refuses_whatever_else_was_seen() {
        let stop = Stop::Rejected(Rejection { reason: Reason::Wrong, detail: String::new() });
        let wrong = evidence(None, Phase::Screen, Outcome::Stopped(stop));
        assert_eq!(verdict(&[paired(Phase::Confirm, 2.0), wrong]), Verdict::Refuse);
    }

    #[test]
    fn evidence_against_another_champion_does_not_count() {
        let mut other = paired(Phase::Confirm, 2.0);
        other.against = Some(id("older"));
        assert_eq!(verdict(&[other]), Verdict::Evaluate(Phase::Screen));
    }

    #[test]
    fn replay_gives_the_same_decision() {
        let list = [paired(Phase::Confirm, 1.2)];
        let standing = Standing { candidate: id("new"), evidence: &list };
        let champion = Some(Standing { candidate: id("old"), evidence: &[] });
        assert_eq!(rule(&task(), champion, standing, 2), rule(&task(), champion, standing, 2));
    }
}
