//! Candidate engines: composed from kernels, written as bundles into a scratch folder, run in sandboxed workers.

use super::tasks::{self, PlannedTask};
use crate::assemble::{KernelSet, Recipe};
use crate::goal::Workload;
use crate::portable::{self, Loaded};
use crate::trial::driver::{Mode, Trial};
use crate::trial::protocol::ReplayKind;
use anyhow::{Context, Result, anyhow};
use emit::{About, Contents, PackedFile, PlanChoices};
use evidence::{Candidate, Change, Id};
use ledger::Fold;
use plan::{Plan, Target};
use sandbox::Builder;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Makes trial bundles. Packed weights are made once for each choice of layouts.
pub struct Bench<'a> {
    pub loaded: &'a Loaded,
    pub target: Target,
    pub builder: Builder,
    pub workload: Workload,
    pub scratch: PathBuf,
    packed: BTreeMap<String, PackedFile>,
    made: u32,
}

/// A kernel for one operation and bucket of a plan: the recipe, and where it stands in the ledger.
pub type Chosen = BTreeMap<(String, u32), Recipe>;

impl<'a> Bench<'a> {
    /// A bench with a scratch folder of its own.
    pub fn new(
        loaded: &'a Loaded,
        target: Target,
        builder: Builder,
        workload: Workload,
        scratch: PathBuf,
    ) -> Result<Self> {
        std::fs::create_dir_all(&scratch).with_context(|| format!("making {}", scratch.display()))?;
        Ok(Self { loaded, target, builder, workload, scratch, packed: BTreeMap::new(), made: 0 })
    }

    /// The tasks of a plan with these choices.
    pub fn tasks(&self, choices: &PlanChoices) -> Result<Vec<PlannedTask>> {
        tasks::tasks(&self.loaded.shape, choices, &self.target, &self.workload)
    }

    /// The packed weights for these choices.
    pub fn packed(&mut self, plan: &Plan, choices: &PlanChoices) -> Result<PackedFile> {
        let key: Vec<String> = choices.classes.iter().map(|c| c.weight.to_string()).collect();
        let key = key.join("-");
        if let Some(file) = self.packed.get(&key) {
            return Ok(file.clone());
        }
        let path = self.scratch.join(format!("weights-{key}.bin"));
        let file = emit::bundle::pack_file(&self.loaded.model, plan, choices, &path)?;
        self.packed.insert(key, file.clone());
        Ok(file)
    }

    /// A plan with its kernels.
    pub fn compose(&self, choices: &PlanChoices, chosen: &Chosen) -> Result<(Plan, KernelSet)> {
        let mut set = KernelSet::default();
        for planned in self.tasks(choices)? {
            let t = &planned.task;
            let recipe = chosen
                .get(&(planned.name.clone(), t.rows.low))
                .ok_or_else(|| anyhow!("no kernel for {} rows {}", planned.name, t.rows))?;
            set.add(&planned.name, &t.operation, &t.target, recipe, &self.builder)?;
        }
        let shape = &self.loaded.shape;
        let plan = emit::compose("champion", shape, choices, self.target.clone(), &set.tables);
        Ok((plan, set))
    }

    /// Writes a trial bundle and returns its folder.
    pub fn bundle(&mut self, choices: &PlanChoices, chosen: &Chosen) -> Result<PathBuf> {
        let (plan, set) = self.compose(choices, chosen)?;
        let packed = self.packed(&plan, choices)?;
        self.made += 1;
        let folder = self.scratch.join(format!("trial-{}", self.made));
        let about = About { model_name: self.loaded.name.clone(), ..About::default() };
        let contents = Contents {
            model: &self.loaded.model,
            choices,
            champion: &plan,
            portable: &plan,
            kernels: &set.files,
            about: &about,
        };
        emit::bundle::write(&folder, &contents, &packed)?;
        Ok(folder)
    }

    /// The final bundle: champion and portable plan.
    pub fn emit(&mut self, out: &Path, choices: &PlanChoices, chosen: &Chosen, about: &About) -> Result<()> {
        let (plan, mut set) = self.compose(choices, chosen)?;
        let (portable, plain) = portable::plan(&self.loaded.shape, choices, &self.builder)?;
        set.files.extend(plain.files);
        let packed = self.packed(&plan, choices)?;
        let contents = Contents {
            model: &self.loaded.model,
            choices,
            champion: &plan,
            portable: &portable,
            kernels: &set.files,
            about,
        };
        emit::bundle::write(out, &contents, &packed)?;
        Ok(())
    }

    /// Milliseconds for one output token by fixed step replays, geometric mean over the workload's concurrencies.
    pub fn replay_cost(&self, bundle: &Path) -> Result<f64> {
        let mut trial = Trial::start(bundle, "champion", Mode::Executor)?;
        let (prompt, output) = (self.workload.prompt_tokens, self.workload.output_tokens);
        let plan: Plan = serde_json::from_slice(&std::fs::read(bundle.join("plan.json"))?)?;
        let chunk = plan.batching.prefill_chunk.min(prompt).max(1);
        let context = (prompt + output / 2).min(plan.model.context);
        let per = |trial: &mut Trial, kind, rows, context, passes: u32| -> Result<f64> {
            let mut best = f64::INFINITY;
            for _ in 0..2 {
                let time = trial.replay(kind, rows, context, passes)?;
                best = best.min(time.as_secs_f64() * 1e3 / f64::from(passes));
            }
            Ok(best)
        };
        let prefill = per(&mut trial, ReplayKind::Prefill, chunk, 0, 3)?;
        let mut log = 0.0;
        for &c in &self.workload.concurrency {
            let rows = c.min(plan.batching.max_sequences);
            let passes = (24 / (1 + rows / 4)).max(6);
            let decode = per(&mut trial, ReplayKind::Decode, rows, context, passes)?;
            let prefills = f64::from(prompt.div_ceil(chunk)) / f64::from(output);
            log += (decode / f64::from(rows) + prefills * prefill).ln();
        }
        Ok((log / self.workload.concurrency.len() as f64).exp())
    }

    /// Time of one pass of `rows` rows, milliseconds: one row of each of as many sequences, or a prompt's first rows.
    pub fn pass_ms(&self, trial: &mut Trial, kind: ReplayKind, rows: u32, passes: u32) -> Result<f64> {
        let context = match kind {
            ReplayKind::Decode => self.workload.prompt_tokens + self.workload.output_tokens / 2,
            ReplayKind::Prefill => 0,
        };
        let time = trial.replay(kind, rows, context, passes)?;
        Ok(time.as_secs_f64() * 1e3 / f64::from(passes))
    }
}

/// The best generator's start point for every task: fast code that nobody has judged yet, for the sandbox alone.
pub fn start_recipes(tasks: &[PlannedTask]) -> Result<Chosen> {
    let mut chosen = Chosen::new();
    for planned in tasks {
        let t = &planned.task;
        let last = tasks::fitting(&t.operation, &t.target)
            .into_iter()
            .rfind(|g| g.numeric_class(&t.operation) == t.class);
        let recipe = match last.and_then(|g| Some((g, g.start(&t.operation, t.rows, &t.target)?))) {
            Some((g, point)) => recipe(g.name(), point, planned),
            None => recipe(&planned.baseline.generator, planned.baseline.point.clone(), planned),
        };
        chosen.insert((planned.name.clone(), t.rows.low), recipe);
    }
    Ok(chosen)
}

fn recipe(generator: &str, point: evidence::Point, planned: &PlannedTask) -> Recipe {
    Recipe {
        generator: generator.to_owned(),
        point,
        rows: planned.task.rows,
        max_rows: planned.task.max_rows,
        candidate: None,
        decision: None,
    }
}

/// The champions of all tasks as recipes; `None` while a task has none. An operation whose buckets are not all of its
/// task's class takes the portable kernel for all of them: a plan uses one class for an operation.
pub fn champions(fold: &Fold, tasks: &[PlannedTask]) -> Result<Option<Chosen>> {
    let mut chosen = Chosen::new();
    let mut mixed: Vec<&str> = Vec::new();
    for planned in tasks {
        let id = judge::task_id(&planned.task);
        let Some(champion) = fold.champions.get(id) else { return Ok(None) };
        if !fold.candidates.contains_key(&champion) {
            return Ok(None);
        }
        let made = judged_recipe(fold, planned, champion)?;
        let g = crate::assemble::generator(&made.generator)?;
        if g.numeric_class(&planned.task.operation) != planned.task.class {
            mixed.push(&planned.name);
        }
        chosen.insert((planned.name.clone(), planned.task.rows.low), made);
    }
    for planned in tasks.iter().filter(|p| mixed.contains(&p.name.as_str())) {
        let plain = recipe(&planned.baseline.generator, planned.baseline.point.clone(), planned);
        chosen.insert((planned.name.clone(), planned.task.rows.low), plain);
    }
    Ok(Some(chosen))
}

/// The kernels that a plan candidate names. A task that it does not name runs its portable kernel.
pub fn named(
    fold: &Fold,
    tasks: &[PlannedTask],
    kernels: &BTreeMap<String, Id<Candidate>>,
) -> Result<Chosen> {
    let mut chosen = Chosen::new();
    for planned in tasks {
        let key = (planned.name.clone(), planned.task.rows.low);
        let made = match kernels.get(&kernel_name(&planned.name, planned.task.rows.low)) {
            None => recipe(&planned.baseline.generator, planned.baseline.point.clone(), planned),
            Some(id) => judged_recipe(fold, planned, *id)?,
        };
        chosen.insert(key, made);
    }
    Ok(chosen)
}

/// A candidate of a task as a recipe.
pub fn judged_recipe(fold: &Fold, planned: &PlannedTask, id: Id<Candidate>) -> Result<Recipe> {
    let Some(Change::Recipe { generator, point, .. }) = fold.candidates.get(&id).map(|c| &c.change) else {
        return Err(anyhow!("candidate {} of {} is no recipe", id.short(), planned.name));
    };
    let task = judge::task_id(&planned.task);
    let reign = fold.champions.history(task).iter().rev().find(|r| r.champion == id);
    Ok(Recipe {
        candidate: Some(id.to_string()),
        decision: reign.map(|r| r.decision.to_string()),
        ..recipe(generator, point.clone(), planned)
    })
}

/// An operation and the first rows of a bucket, as plan candidates name them.
pub fn kernel_name(operation: &str, low: u32) -> String {
    format!("{operation}/{low}")
}

/// Whether a task's champion is of the task's own numeric class.
pub fn has_own_class(fold: &Fold, planned: &PlannedTask) -> bool {
    let champion = fold.champions.get(judge::task_id(&planned.task));
    match champion.and_then(|c| fold.candidates.get(&c)).map(|c| &c.change) {
        Some(Change::Recipe { generator, .. }) => crate::assemble::generator(generator)
            .is_ok_and(|g| g.numeric_class(&planned.task.operation) == planned.task.class),
        Some(_) => true,
        None => false,
    }
}

/// Candidates of a choice of kernels, as plan candidates name them.
pub fn candidate_ids(chosen: &Chosen) -> BTreeMap<String, Id<Candidate>> {
    chosen
        .iter()
        .filter_map(|((name, low), r)| {
            let digest = r.candidate.as_ref()?.parse().ok()?;
            Some((kernel_name(name, *low), Id::from_digest(digest)))
        })
        .collect()
}
