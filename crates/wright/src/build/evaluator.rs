//! The judge as the swarm sees it, with a compile lane that runs ahead and pauses while something is timed.

use super::tasks::PlannedTask;
use crate::assemble;
use anyhow::{Context, Result, anyhow, bail};
use evidence::{Candidate, Change, Content, Evidence, Id, Outcome, Phase, Verdict};
use judge::{Judge, Lane, Opponent, Submission, rule};
use sandbox::Builder;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Sender, channel};

use swarm::{Evaluation, Evaluator, EvaluatorError, Proposal, Standing};

/// Evaluates kernel proposals.
pub struct JudgeEvaluator {
    judge: Judge,
    tasks: BTreeMap<Id<evidence::Task>, PlannedTask>,
    /// Evidence of champions by candidate, for the rule.
    known: BTreeMap<Id<Candidate>, Vec<Evidence>>,
    ahead: Sender<(String, plan::Target)>,
    queued: BTreeSet<String>,
    machine: evidence::Digest,
}

impl JudgeEvaluator {
    /// An evaluator with its compile lane.
    pub fn new(judge: Judge, machine: evidence::Digest) -> Result<Self> {
        let (ahead, sources) = channel::<(String, plan::Target)>();
        let builder: Builder = judge.builder().clone();
        let lane = Lane::of_machine();
        std::thread::Builder::new().name("compile-ahead".into()).spawn(move || {
            for (source, target) in sources {
                // Held while compiling, so that a timed block never shares the cores with the compiler.
                let _held = lane.enter();
                // A refusal is found again, and told, when the candidate's turn comes.
                let _ = builder.build(&source, &target);
            }
        })?;
        Ok(Self {
            judge,
            tasks: BTreeMap::new(),
            known: BTreeMap::new(),
            ahead,
            queued: BTreeSet::new(),
            machine,
        })
    }

    /// Adds tasks (of another plan).
    pub fn extend(&mut self, tasks: BTreeMap<Id<evidence::Task>, PlannedTask>) {
        self.tasks.extend(tasks);
    }

    /// Evidence that the ledger holds already.
    pub fn remember(&mut self, fold: &ledger::Fold) {
        for (candidate, seen) in &fold.evidence {
            self.known.insert(*candidate, seen.iter().map(|s| s.evidence.clone()).collect());
        }
    }

    fn submission(
        &self,
        task: &PlannedTask,
        id: Id<Candidate>,
        change: &Change,
    ) -> Result<(Submission, String)> {
        let t = &task.task;
        match change {
            Change::Recipe { generator, point, max_rows } => {
                let g = assemble::generator(generator)?;
                let made = g.generate(&t.operation, t.rows, &t.target, point, *max_rows)?;
                let submission = Submission { candidate: id, source: made.source, launch: made.launch };
                Ok((submission, g.numeric_class(&t.operation)))
            }
            Change::Source { text, launch } => {
                let launch =
                    serde_json::from_str(launch).context("the launch description is no valid JSON")?;
                Ok((Submission { candidate: id, source: text.clone(), launch }, t.class.clone()))
            }
            Change::Plan { .. } => bail!("a plan is no kernel"),
        }
    }

    fn unmade(
        &mut self,
        planned: &PlannedTask,
        proposal: &Proposal,
        standing: &Standing,
        error: &anyhow::Error,
    ) -> Evaluation {
        let seen = Evidence {
            candidate: proposal.id,
            against: standing.champion.as_ref().map(Content::id),
            phase: Phase::Screen,
            protocol: evidence::Protocol {
                version: judge::PROTOCOL.to_owned(),
                seed: String::new(),
                secret_digest: self.judge.secret_digest(),
                corpus: "none".to_owned(),
                layers: Vec::new(),
                toolchain: self.judge.builder().toolchain().describe(&planned.task.target),
            },
            machine: self.machine,
            outcome: Outcome::Stopped(evidence::Stop::Rejected(evidence::Rejection {
                reason: evidence::Reason::Build,
                detail: format!("{error:#}"),
            })),
        };
        let decision = evidence::Decision {
            task: proposal.task,
            champion: seen.against,
            challenger: proposal.id,
            read: vec![seen.id()],
            verdict: Verdict::Refuse,
            rule: judge::RULE.to_owned(),
            lesson: None,
        };
        Evaluation { evidence: vec![seen], decision }
    }

    fn judge_one(&mut self, proposal: &Proposal, standing: &Standing) -> Result<Evaluation> {
        let planned = self
            .tasks
            .get(&proposal.task)
            .cloned()
            .ok_or_else(|| anyhow!("task {} is not of this build", proposal.task.short()))?;
        let (submission, class) = match self.submission(&planned, proposal.id, &proposal.candidate.change) {
            Ok(made) => made,
            // A recipe that makes no source is the candidate's fault, like source that does not compile.
            Err(error) => return Ok(self.unmade(&planned, proposal, standing, &error)),
        };
        let champion = match &standing.champion {
            Some(c) => Some(self.submission(&planned, c.id(), &c.change)?),
            None => None,
        };
        let opponent =
            champion.as_ref().map(|(champion, class)| Opponent { champion, class, tested: standing.tested });
        // Screening saves time where candidates differ by little. The first of all has nothing to be compared with, and
        // fast code against plain code is worth confirming at once.
        let close = opponent.is_some_and(|o| o.class == class);
        let phases = if close { &[Phase::Screen, Phase::Confirm][..] } else { &[Phase::Confirm] };
        // The baseline is checked against its own class.
        let mut task = planned.task.clone();
        if champion.is_none() {
            task.class = class;
        }
        let posed = planned.task.pose();
        let mut all = self.known.get(&proposal.id).cloned().unwrap_or_default();
        let mut fresh = Vec::new();
        let mut decision = None;
        for phase in phases {
            let seen = self.judge.evaluate(&task, &submission, opponent, *phase);
            let failed = matches!(seen.outcome, Outcome::Stopped(_));
            all.push(seen.clone());
            fresh.push(seen);
            let champion_evidence = champion
                .as_ref()
                .map(|(c, _)| self.known.get(&c.candidate).cloned().unwrap_or_default())
                .unwrap_or_default();
            let stands = champion
                .as_ref()
                .map(|(c, _)| judge::Standing { candidate: c.candidate, evidence: &champion_evidence });
            let mine = judge::Standing { candidate: proposal.id, evidence: &all };
            let decided = rule(&posed, stands, mine, standing.tested);
            let more = matches!(decided.verdict, Verdict::Evaluate(Phase::Confirm));
            decision = Some(decided);
            if failed || !more {
                break;
            }
        }
        self.known.insert(proposal.id, all);
        let decision = decision.ok_or_else(|| anyhow!("no phase was evaluated"))?;
        Ok(Evaluation { evidence: fresh, decision })
    }
}

impl Evaluator for JudgeEvaluator {
    fn prepare(&mut self, upcoming: &[Proposal]) {
        for proposal in upcoming.iter().skip(1) {
            let Some(planned) = self.tasks.get(&proposal.task) else { continue };
            let Ok((submission, _)) = self.submission(planned, proposal.id, &proposal.candidate.change)
            else {
                continue;
            };
            let target = planned.task.target.clone();
            if self.queued.insert(submission.source.clone()) {
                // The lane ends with the process; a failed send only means that nothing is compiled ahead.
                let _ = self.ahead.send((submission.source, target));
            }
        }
    }

    fn evaluate(&mut self, proposal: &Proposal, standing: &Standing) -> Result<Evaluation, EvaluatorError> {
        self.judge_one(proposal, standing).map_err(Into::into)
    }
}
