//! The end of a build: bundle, final table, claims, summary.

use super::engines::{Bench, Chosen};
use super::plan_stage::Found;
use super::plan_trials::{PROTOCOL, Provenance, last_ns};
use super::{Site, table};
use crate::cmd::ledger::verdict;
use crate::cmd::serve::manifest;
use crate::goal::Workload;
use crate::portable::Loaded;
use crate::summary::{self, Summary};
use crate::trial::quality::{Quality, Scales};
use crate::workshop;
use anyhow::{Context, Result, bail};
use emit::{About, PlanChoices};
use evidence::{
    Candidate, Change, Content, Contract, Digest, Direction, Entry, Evidence, Id, Measured, Metric, Outcome,
    Phase, Samples, Task, Verdict, Workloads,
};
use ledger::{BuildEvent, BuildId, Fold, Ledger, Position, Seen, Spent};
use load::PromptSpec;
use model::{ControlTokens, EncodeOptions};
use plan::{Claim, RequestLengths};
use std::collections::BTreeMap;
use std::path::Path;

/// Version of the final table's protocol: engines over HTTP, one after the other.
const TABLE: &str = "engine-table/1";

/// The engine task of a build.
pub fn engine_task(site: &Site, loaded: &Loaded, build: &BuildId) -> Task {
    let w = &site.goal.workload;
    let cases: Vec<String> =
        w.concurrency.iter().map(|c| format!("{c}/{}/{}", w.prompt_tokens, w.output_tokens)).collect();
    let bounds = &site.goal.constraints;
    Task {
        contract: Contract::Engine {
            model: loaded.model.digest().to_owned(),
            goal: build.to_string(),
            quality: BTreeMap::from([
                ("max_kl".to_owned(), bounds.max_kl.to_string()),
                ("min_top1".to_owned(), bounds.min_top1.to_string()),
            ]),
        },
        target: site.target.to_string(),
        metric: Metric {
            name: "output tokens per second, geometric mean over concurrencies".to_owned(),
            unit: "tokens/s".to_owned(),
            direction: Direction::Maximise,
            least_effect_permille: 10,
        },
        screen: Workloads { cases },
        confirm: crate::text::HeldOut::Confirm.digest(),
    }
}

/// Distinct prompts of the workload's length.
pub fn prompts(loaded: &Loaded, workload: &Workload, count: usize, seed: u64) -> Result<Vec<Vec<u32>>> {
    let tokenizer = loaded.model.tokenizer();
    let spec = PromptSpec { count, tokens: workload.prompt_tokens as usize, seed };
    let made = load::prompts(
        spec,
        |text| tokenizer.encode(text, EncodeOptions::default()).map_err(|e| e.to_string()),
        |ids| Ok(tokenizer.decode(ids, ControlTokens::Show)),
    )?;
    Ok(made.into_iter().map(|p| p.ids).collect())
}

/// What the end of a build works on.
pub struct Work<'a> {
    pub site: &'a Site,
    pub loaded: &'a Loaded,
    pub out: &'a Path,
    pub spent: Spent,
    /// The ledger's last position before the build.
    pub since: Position,
    pub provenance: &'a Provenance,
    pub scales: &'a mut Scales,
}

impl Work<'_> {
    /// Writes the bundle, measures the table on it, and puts the claims in.
    pub fn finish(
        &mut self,
        bench: &mut Bench<'_>,
        ledger: &mut dyn Ledger,
        build: &BuildId,
        found: Found,
    ) -> Result<()> {
        let Found { candidate, choices, chosen, audit, .. } = found;
        let about = About {
            model_name: self.loaded.name.clone(),
            created_s: workshop::now_s(),
            machine: self.site.machine.facts.clone(),
            toolchain: self.site.builder.toolchain().version().to_owned(),
            ..About::default()
        };
        eprintln!("writing the bundle to {}", self.out.display());
        bench.emit(self.out, &choices, &chosen, &about)?;
        let screened = self.scales.screen.measure(self.out, "champion");
        let quality = screened
            .and_then(|s| self.scales.confirm(&s, self.out, "champion"))
            .context("measuring the bundle's quality")?;
        let workload = &self.site.goal.workload;
        eprintln!("final table: reference, portable and champion over HTTP");
        let prompt = prompts(self.loaded, workload, 1, self.site.seed ^ 0xf1)?.remove(0);
        let few = prompt[..prompt.len().min(32)].to_vec();
        let tokenizer = self.loaded.model.tokenizer();
        let mut rows = vec![table::reference(&self.loaded.model, &few)?];
        rows.extend(table::engines(self.out, workload, tokenizer, self.site.seed)?);
        let evidence = self.table_evidence(candidate, &rows, &audit, &quality)?;
        let id = evidence.id().to_string();
        ledger.append(&Entry::Observed(evidence))?;
        rows.iter_mut().for_each(|r| r.evidence = vec![id.clone()]);
        let fold = Fold::read(ledger)?;
        let mut summary = self.summary(&fold, &choices, &chosen, rows, build);
        summary.audit = audit.into_iter().map(|a| summary::Audit { evidence: id.clone(), ..a }).collect();
        summary.quality = Some(summary::Quality {
            kl: quality.kl,
            top1: quality.top1,
            perplexity: quality.perplexity,
            reference_perplexity: quality.reference_perplexity,
            tokens: quality.tokens as u64,
            bound_kl: Some(self.site.goal.constraints.max_kl),
            evidence: id.clone(),
        });
        // A picture for the report: the bundle is whole without it.
        match table::profile(self.out, workload, &choices.batching) {
            Ok(steps) => summary.profile = steps,
            Err(e) => eprintln!("no profile of the passes: {e:#}"),
        }
        let claims = self.claims(&fold, &quality, (candidate, &id));
        self.seal(ledger, claims, &summary)?;
        let bundle = self.out.to_string_lossy().into_owned();
        ledger.record_build(build, &BuildEvent::Finished { bundle })?;
        Ok(())
    }

    fn summary(
        &self,
        fold: &Fold,
        choices: &PlanChoices,
        chosen: &Chosen,
        table: Vec<summary::Row>,
        build: &BuildId,
    ) -> Summary {
        let site = self.site;
        let planned = super::tasks::tasks(&self.loaded.shape, choices, &site.target, &site.goal.workload);
        let mut operations = Vec::new();
        let mut counts = BTreeMap::new();
        for p in planned.unwrap_or_default() {
            let id = judge::task_id(&p.task);
            self.count(fold, id, &mut counts);
            let Some(recipe) = chosen.get(&(p.name.clone(), p.task.rows.low)) else { continue };
            let candidate = recipe.candidate.clone().unwrap_or_default();
            let ns = candidate.parse().ok().and_then(|d| last_ns(fold, evidence::Id::from_digest(d)));
            let first = fold.champions.history(id).first().map(|r| r.champion);
            let floor =
                site.ceilings.floor_ns(&p.task.operation, p.task.high(), p.task.context, site.target.threads);
            operations.push(summary::Operation {
                name: p.name,
                rows: p.task.rows.to_string(),
                kernel: recipe.generator.clone(),
                point: recipe.point.to_string(),
                ns: ns.unwrap_or(f64::NAN),
                floor_ns: (floor > 0.0).then_some(floor),
                baseline_ns: first.and_then(|c| last_ns(fold, c)).unwrap_or(f64::NAN),
                calls_per_pass: p.per_pass,
                candidate: Some(candidate),
                decision: recipe.decision.clone(),
            });
        }
        let task = evidence::Content::id(&engine_task(site, self.loaded, build));
        let trials = fold.proposed.get(&task).into_iter().flatten().filter_map(|id| {
            let Change::Plan { choices, .. } = &fold.candidates.get(id)?.change else { return None };
            let decided = fold.last_decision(*id).map_or("undecided".to_owned(), |d| verdict(&d.verdict));
            let evidence =
                fold.evidence_of(*id).iter().rev().find(|s| s.evidence.protocol.version == PROTOCOL);
            Some(summary::PlanTrial {
                choices: choices.to_string(),
                verdict: decided,
                evidence: evidence.map_or(String::new(), |s| s.id.to_string()),
            })
        });
        Summary {
            model: self.loaded.name.clone(),
            machine: site.machine.facts.clone(),
            ceilings: site.machine.ceilings.clone(),
            target: site.target.to_string(),
            seed: site.seed,
            search_s: self.spent.wall_ms as f64 / 1e3,
            evaluations: counts.get("evaluated").copied().unwrap_or(0),
            counts,
            table,
            quality: None,
            operations,
            profile: Vec::new(),
            audit: Vec::new(),
            plan: choices.point().0,
            plan_trials: trials.collect(),
        }
    }

    /// What became of a task's candidates in this build, and how many evaluations others had made before.
    fn count(&self, fold: &Fold, task: Id<Task>, counts: &mut BTreeMap<String, u64>) {
        let mut add = |name: &str, n: usize| *counts.entry(name.to_owned()).or_insert(0) += n as u64;
        for id in fold.proposed.get(&task).into_iter().flatten() {
            let (ours, before): (Vec<&Seen>, Vec<&Seen>) =
                fold.evidence_of(*id).iter().partition(|s| s.position > self.since);
            add("evaluated", ours.len());
            add("known before", before.len());
            let vague = |s: &&&Seen| {
                matches!(s.evidence.outcome, Outcome::Stopped(evidence::Stop::Inconclusive { .. }))
            };
            add("inconclusive", ours.iter().filter(vague).count());
            for (_, d) in fold.decisions.get(id).into_iter().flatten().filter(|(at, _)| *at > self.since) {
                match d.verdict {
                    Verdict::Promote(_) => add("kept", 1),
                    Verdict::Keep(_) => add("not better", 1),
                    Verdict::Refuse => add("refused", 1),
                    _ => {}
                }
            }
        }
    }

    /// The final table, the audit and the quality of the emitted bundle, as evidence on the champion engine.
    fn table_evidence(
        &self,
        candidate: Id<Candidate>,
        rows: &[summary::Row],
        audit: &[summary::Audit],
        quality: &Quality,
    ) -> Result<Evidence> {
        let mut series = BTreeMap::new();
        for row in rows {
            let mut put = |what: &str, values: Vec<f64>| {
                series.insert(format!("{}.{what}.c{}", row.engine, row.concurrency), values);
            };
            put("tokens_per_s", vec![row.tokens_per_s]);
            put("ttft_ms", row.ttft_ms.clone());
            put("itl_ms", row.itl_ms.clone());
            put("memory_bytes", vec![row.memory_bytes as f64]);
            put("vs_portable", row.vs_portable.into_iter().collect());
        }
        for line in audit {
            series.insert(format!("audit.{}", line.part), line.ratio.into_iter().collect());
        }
        series.retain(|_, values| !values.is_empty());
        let plan = std::fs::read(self.out.join("plan.json")).context("reading the plan of the bundle")?;
        Ok(Evidence {
            candidate,
            against: None,
            phase: Phase::Confirm,
            protocol: self.provenance.protocol(TABLE, Vec::new()),
            machine: self.provenance.machine,
            outcome: Outcome::Measured(Measured {
                artifact: Digest::of(&plan),
                check: quality.summary(self.site.goal.constraints.max_kl),
                samples: Samples::Series { series, champion: BTreeMap::new() },
            }),
        })
    }

    /// Claims: quality by the final measurement (`table`), speed by the trial that the engine was judged in.
    fn claims(&self, fold: &Fold, q: &Quality, (candidate, table): (Id<Candidate>, &str)) -> Vec<Claim> {
        let judged = |s: &&Seen| {
            s.evidence.protocol.version == PROTOCOL && matches!(s.evidence.outcome, Outcome::Measured(_))
        };
        let seen = fold.evidence_of(candidate).iter().rev().find(judged);
        let claim = |id: String, what: String, value: f64, unit: &str| Claim {
            id,
            what,
            value,
            unit: unit.to_owned(),
            interval: None,
            evidence: vec![table.to_owned()],
            workload: None,
        };
        let mut claims = vec![
            claim(
                "quality.kl".into(),
                "KL divergence to the f32 reference, held-out text".into(),
                q.kl,
                "nats/token",
            ),
            claim("quality.top1".into(), "top-1 agreement with the f32 reference".into(), q.top1, "share"),
            claim("quality.perplexity".into(), "perplexity on the held-out text".into(), q.perplexity, ""),
        ];
        let measured = seen.map(|s| (&s.id, &s.evidence.outcome));
        if let Some((id, Outcome::Measured(m))) = measured
            && let evidence::Samples::Series { series, .. } = &m.samples
        {
            claims.extend(speed_claims(series, &self.site.goal.workload, &id.to_string()));
        }
        claims
    }

    /// Writes claims, evidence and summary into the bundle.
    fn seal(&self, ledger: &dyn Ledger, claims: Vec<Claim>, summary: &Summary) -> Result<()> {
        let mut manifest = manifest(self.out)?;
        let head = ledger.head()?;
        manifest.ledger_head = Some((head.position.0, head.chain.to_string()));
        manifest.claims = claims;
        let mut exported = Vec::new();
        ledger::export(ledger, Position::START, &mut exported)?;
        let summary = serde_json::to_vec_pretty(summary)?;
        emit::bundle::set_claims(self.out, manifest, &String::from_utf8_lossy(&exported), &summary)?;
        Ok(())
    }
}

/// A claim for each concurrency that a trial measured.
fn speed_claims(series: &BTreeMap<String, Vec<f64>>, workload: &Workload, evidence: &str) -> Vec<Claim> {
    let claim = |c: &u32| {
        let values = series.get(&format!("tokens_per_s_c{c}"))?;
        let sample = statistics::Sample::new(values).ok()?;
        Some(Claim {
            id: format!("speed.c{c}"),
            what: format!("output tokens/s at concurrency {c}, in process"),
            value: sample.median(),
            unit: "tokens/s".into(),
            // Fewer runs show no spread.
            interval: (values.len() > 2).then(|| (sample.min(), sample.max())),
            evidence: vec![evidence.to_owned()],
            workload: Some(RequestLengths {
                prompt_tokens: workload.prompt_tokens,
                output_tokens: workload.output_tokens,
            }),
        })
    };
    workload.concurrency.iter().filter_map(claim).collect()
}

/// Prints what a finished build gained.
pub fn show(out: &Path, json: bool) -> Result<()> {
    let Some(summary) = Summary::read(out)? else { bail!("{} has no build.json", out.display()) };
    if json {
        println!("{}", serde_json::to_string(&summary)?);
        return Ok(());
    }
    println!("{}", table::print(&summary));
    if let Some(q) = &summary.quality {
        println!(
            "quality on {} held-out tokens: KL {:.5}{}, top-1 {:.4}, perplexity {:.3} (f32 reference {:.3})",
            q.tokens,
            q.kl,
            q.bound_kl.map_or(String::new(), |b| format!(" (bound {b})")),
            q.top1,
            q.perplexity,
            q.reference_perplexity
        );
    }
    let counts: Vec<String> = summary.counts.iter().map(|(k, v)| format!("{v} {k}")).collect();
    println!("kernel evaluations for this engine's tasks: {}", counts.join(", "));
    println!("search: {:.0} s; plan: {}", summary.search_s, evidence::Point(summary.plan.clone()));
    println!("bundle: {}\nnext:   wright serve {}", out.display(), out.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_claims_name_the_lengths_of_the_goal() {
        let series = BTreeMap::from([("tokens_per_s_c4".to_owned(), vec![10.0, 12.0, 11.0])]);
        let workload = Workload { prompt_tokens: 512, output_tokens: 32, concurrency: vec![1, 4] };
        let [claim] = &speed_claims(&series, &workload, "e")[..] else { panic!("one was measured") };
        assert_eq!((claim.id.as_str(), claim.value, claim.interval), ("speed.c4", 11.0, Some((10.0, 12.0))));
        assert_eq!(claim.workload, Some(RequestLengths { prompt_tokens: 512, output_tokens: 32 }));
    }
}
