//! From recipes to a bundle: generates and builds the kernels that a plan needs.

use anyhow::{Context, Result, anyhow, bail};
use emit::BundledKernel;
use evidence::Point;
use kernels::Generator;
use plan::{BucketKernel, KernelEntry, Launch, Operation, RowBucket, Target};
use sandbox::Builder;
use std::collections::BTreeMap;

/// A kernel to build for one operation and bucket of a plan.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub generator: String,
    pub point: Point,
    pub rows: RowBucket,
    pub max_rows: u32,
    /// Candidate and promoting decision in the ledger.
    pub candidate: Option<String>,
    pub decision: Option<String>,
}

/// The rows of a kernel that serves every bucket.
pub const ANY_ROWS: RowBucket = RowBucket { low: 1, high: u32::MAX };

/// The generator called `name`.
pub fn generator(name: &str) -> Result<&'static dyn Generator> {
    kernels::generators::generator(name).ok_or_else(|| anyhow!("generator '{name}' is not in this version"))
}

/// The portable recipe of an operation for some rows, for a target: plain code.
pub fn portable_recipe(
    operation: &Operation,
    rows: RowBucket,
    target: &Target,
    max_rows: u32,
) -> Result<Recipe> {
    let plain = portable_target();
    for g in kernels::generators::generators() {
        if g.start(operation, rows, &plain).is_some()
            && let Some(point) = g.start(operation, rows, target)
        {
            return Ok(Recipe {
                generator: g.name().to_owned(),
                point,
                rows,
                max_rows,
                candidate: None,
                decision: None,
            });
        }
    }
    bail!("no portable generator for {operation}")
}

/// The target of portable code on this architecture.
pub fn portable_target() -> Target {
    Target::portable(std::env::consts::ARCH, machine::fingerprint::cores())
}

/// Kernels for plans: files by name, and the table of each operation.
#[derive(Clone, Debug, Default)]
pub struct KernelSet {
    pub files: BTreeMap<String, BundledKernel>,
    pub tables: BTreeMap<String, Vec<BucketKernel>>,
}

impl KernelSet {
    /// Builds a recipe for the operation called `name` in the plan and adds it to the operation's table.
    pub fn add(
        &mut self,
        name: &str,
        operation: &Operation,
        target: &Target,
        recipe: &Recipe,
        builder: &Builder,
    ) -> Result<()> {
        let g = generator(&recipe.generator)?;
        let generated = g
            .generate(operation, recipe.rows, target, &recipe.point, recipe.max_rows)
            .with_context(|| format!("generating {name} for rows {}", recipe.rows))?;
        let needs = Target { features: generated.features.clone(), ..target.clone() };
        let artifact = builder
            .build(&generated.source, &needs)
            .with_context(|| format!("building {name} for rows {} ({})", recipe.rows, recipe.generator))?;
        let key = format!("{name}-{}-{}", recipe.generator, artifact.digest.short());
        let entry = entry(operation, needs, generated.launch, recipe);
        self.files.entry(key.clone()).or_insert_with(|| BundledKernel {
            entry,
            source: generated.source,
            binary: artifact.bytes.to_vec(),
        });
        let table = self.tables.entry(name.to_owned()).or_default();
        table.push(BucketKernel { rows: recipe.rows, kernel: key });
        table.sort_by_key(|k| k.rows);
        Ok(())
    }
}

fn entry(operation: &Operation, target: Target, launch: Launch, recipe: &Recipe) -> KernelEntry {
    KernelEntry {
        source: String::new(),
        binary: String::new(),
        source_digest: String::new(),
        binary_digest: String::new(),
        operation: *operation,
        target,
        launch,
        candidate: recipe.candidate.clone(),
        decision: recipe.decision.clone(),
    }
}

/// Portable kernels for all operations.
pub fn portable_set(
    operations: &BTreeMap<String, Operation>,
    max_rows: u32,
    builder: &Builder,
) -> Result<KernelSet> {
    let target = portable_target();
    let mut set = KernelSet::default();
    for (name, operation) in operations {
        let recipe = portable_recipe(operation, ANY_ROWS, &target, max_rows)?;
        set.add(name, operation, &target, &recipe, builder)?;
    }
    Ok(set)
}
