//! The end of a build: bundle, final table, claims, summary.

use super::engines::{Bench, Chosen};
use super::plan_trials::last_ns;
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
use evidence::{Change, Contract, Direction, Metric, Outcome, Task, Workloads};
use ledger::{BuildEvent, BuildId, Fold, Ledger, Position, Seen};
use load::PromptSpec;
use model::{ControlTokens, EncodeOptions};
use plan::Claim;
use std::collections::BTreeMap;
use std::path::Path;

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
    pub search_s: f64,
    pub scales: &'a mut Scales,
}

impl Work<'_> {
    /// Writes the bundle, measures the table on it, and puts the claims in.
    pub fn finish(
        &mut self,
        bench: &mut Bench<'_>,
        ledger: &mut dyn Ledger,
        build: &BuildId,
        choices: &PlanChoices,
        chosen: &Chosen,
        audit: Vec<summary::Audit>,
    ) -> Result<()> {
        let about = About {
            model_name: self.loaded.name.clone(),
            created_s: workshop::now_s(),
            machine: self.site.machine.facts.clone(),
            toolchain: self.site.builder.toolchain().version().to_owned(),
            ..About::default()
        };
        eprintln!("writing the bundle to {}", self.out.display());
        bench.emit(self.out, choices, chosen, &about)?;
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
        let fold = Fold::read(ledger)?;
        let mut summary = self.summary(&fold, choices, chosen, rows, &quality, build);
        summary.audit = audit;
        // A picture for the report: the bundle is whole without it.
        match table::profile(self.out, workload, &choices.batching) {
            Ok(steps) => summary.profile = steps,
            Err(e) => eprintln!("no profile of the passes: {e:#}"),
        }
        self.claims(ledger, &fold, &quality, build)?;
        let path = self.out.join("build.json");
        let bytes = serde_json::to_vec_pretty(&summary)?;
        std::fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
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
        quality: &Quality,
        build: &BuildId,
    ) -> Summary {
        let site = self.site;
        let planned = super::tasks::tasks(&self.loaded.shape, choices, &site.target, &site.goal.workload);
        let mut operations = Vec::new();
        let mut counts = BTreeMap::new();
        for p in planned.unwrap_or_default() {
            let id = judge::task_id(&p.task);
            if let Some(s) = fold.statistics.get(&id) {
                *counts.entry("evaluated".to_owned()).or_insert(0) += s.observed;
                *counts.entry("kept".to_owned()).or_insert(0) += s.promoted;
                *counts.entry("not better".to_owned()).or_insert(0) += s.kept;
                *counts.entry("refused".to_owned()).or_insert(0) += s.refused.values().sum::<u64>();
                *counts.entry("inconclusive".to_owned()).or_insert(0) += s.inconclusive.values().sum::<u64>();
            }
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
                ns: ns.unwrap_or(0.0),
                floor_ns: (floor > 0.0).then_some(floor),
                baseline_ns: first.and_then(|c| last_ns(fold, c)).unwrap_or(0.0),
                calls_per_pass: p.per_pass,
                candidate: Some(candidate),
                decision: recipe.decision.clone(),
            });
        }
        let task = evidence::Content::id(&engine_task(site, self.loaded, build));
        let trials = fold.proposed.get(&task).into_iter().flatten().filter_map(|id| {
            let Change::Plan { choices, .. } = &fold.candidates.get(id)?.change else { return None };
            let decided = fold.last_decision(*id).map_or("undecided".to_owned(), |d| verdict(&d.verdict));
            Some(summary::PlanTrial { choices: choices.to_string(), verdict: decided })
        });
        let seen = self.champion_evidence(fold, build);
        Summary {
            model: self.loaded.name.clone(),
            machine: site.machine.facts.clone(),
            ceilings: site.machine.ceilings.clone(),
            target: site.target.to_string(),
            seed: site.seed,
            search_s: self.search_s,
            evaluations: counts.get("evaluated").copied().unwrap_or(0),
            counts,
            table,
            quality: Some(summary::Quality {
                kl: quality.kl,
                top1: quality.top1,
                perplexity: quality.perplexity,
                reference_perplexity: quality.reference_perplexity,
                tokens: quality.tokens as u64,
                bound_kl: Some(site.goal.constraints.max_kl),
                evidence: seen.map_or(String::new(), |s| s.id.to_string()),
            }),
            operations,
            profile: Vec::new(),
            audit: Vec::new(),
            plan: choices.point().0,
            plan_trials: trials.collect(),
        }
    }

    /// The latest evidence of the build's champion engine.
    fn champion_evidence<'f>(&self, fold: &'f Fold, build: &BuildId) -> Option<&'f Seen> {
        let task = evidence::Content::id(&engine_task(self.site, self.loaded, build));
        fold.evidence_of(fold.champions.get(task)?).last()
    }

    fn claims(&self, ledger: &dyn Ledger, fold: &Fold, q: &Quality, build: &BuildId) -> Result<()> {
        let seen = self.champion_evidence(fold, build);
        let claim = |id: String, what: String, value: f64, unit: &str| Claim {
            id,
            what,
            value,
            unit: unit.to_owned(),
            interval: None,
            evidence: seen.iter().map(|s| s.id.to_string()).collect(),
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
            for &c in &self.site.goal.workload.concurrency {
                let Some(values) = series.get(&format!("tokens_per_s_c{c}")) else { continue };
                let Ok(sample) = statistics::Sample::new(values) else { continue };
                claims.push(Claim {
                    id: format!("speed.c{c}"),
                    what: format!("output tokens/s at concurrency {c}, in process"),
                    value: sample.median(),
                    unit: "tokens/s".into(),
                    // Fewer runs show no spread.
                    interval: (values.len() > 2).then(|| (sample.min(), sample.max())),
                    evidence: vec![id.to_string()],
                });
            }
        }
        let mut manifest = manifest(self.out)?;
        let head = ledger.head()?;
        manifest.ledger_head = Some((head.position.0, head.chain.to_string()));
        manifest.claims = claims;
        let mut exported = Vec::new();
        ledger::export(ledger, Position::START, &mut exported)?;
        emit::bundle::set_claims(self.out, &manifest, &String::from_utf8_lossy(&exported))?;
        Ok(())
    }
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
