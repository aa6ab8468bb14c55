//! What a build says while it runs, on stderr.

use crate::cmd::ledger::verdict;
use evidence::{Stop, Verdict};
use std::io::IsTerminal;
use swarm::Progress;
use swarm::plans::PlanProgress;

/// Prints one line for each thing that happened; a terminal also sees what is being tried.
pub struct Teller {
    live: bool,
    tried: u64,
    promoted: u64,
    refused: u64,
}

impl Teller {
    /// A teller for this process's stderr.
    pub fn new() -> Self {
        Self { live: std::io::stderr().is_terminal(), tried: 0, promoted: 0, refused: 0 }
    }

    /// A step of the kernel search.
    pub fn kernel(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Started { tasks, pending } => {
                eprintln!("search: {tasks} kernel tasks, {pending} proposals left over from before");
            }
            Progress::Trying { task, proposal, .. } => {
                if self.live {
                    eprint!(
                        "\r\x1b[2K  trying {} {}: {}",
                        task,
                        proposal.id.short(),
                        proposal.candidate.hypothesis
                    );
                }
            }
            Progress::Tried { task, proposal, decision, stopped, speedup, overall, left } => {
                self.clear();
                self.tried += 1;
                self.promoted += u64::from(matches!(decision.verdict, Verdict::Promote(_)));
                self.refused += u64::from(matches!(decision.verdict, Verdict::Refuse));
                let words = match (&decision.verdict, stopped) {
                    (Verdict::Evaluate(_), Some(Stop::Inconclusive { detail, .. })) => {
                        format!("again later ({})", short(detail))
                    }
                    (other, Some(Stop::Rejected(r))) => {
                        format!("{} ({:?}: {})", verdict(other), r.reason, short(&r.detail))
                    }
                    (other, _) => verdict(other),
                };
                let budget = left.wall.map_or(String::new(), |w| format!("  {}s left", w.as_secs()));
                eprintln!(
                    "  {task:<22} {:<12} {words}  task x{speedup:.2}, all x{overall:.2}{budget}",
                    proposal.candidate.proposer.name,
                );
            }
            Progress::Moved { task, .. } => eprintln!("  {task}: the champion has moved; trying again"),
            Progress::Redirected { task } => eprintln!("  {task}: stagnates; looking far away"),
            Progress::Ended { how, overall } => {
                self.clear();
                eprintln!(
                    "search ended ({how:?}): {} tried, {} kept, {} refused; kernels x{overall:.2} of the portable baseline",
                    self.tried, self.promoted, self.refused
                );
            }
        }
    }

    /// A step of the plan search.
    pub fn plan(&mut self, progress: PlanProgress<'_>) {
        match progress {
            PlanProgress::Ranked { feasible, best } => {
                let best = best.map_or(String::new(), |b| format!("; cheapest {:.3} ms a token", b.cost));
                eprintln!("plans: {feasible} feasible by summed step costs{best}");
            }
            PlanProgress::Replayed { choices, cost } => match cost {
                Some(cost) => eprintln!("  replayed {cost:.3} ms a token: {choices}"),
                None => eprintln!(
                    "  not replayed (no time left to judge its kernels, or it does not run): {choices}"
                ),
            },
            PlanProgress::Tried { choices, verdict: v } => eprintln!("  plan {}: {choices}", verdict(v)),
        }
    }

    fn clear(&self) {
        if self.live {
            eprint!("\r\x1b[2K");
        }
    }
}

fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or("");
    line.chars().take(100).collect()
}
