//! Does the plan fit its manifest and itself? What passes here can run without checks in the passes.

use crate::error::EngineError;
use crate::sizes::Sizes;
use plan::operation::slot;
use plan::{
    Binding, Buffer, Epilogue, KernelEntry, Manifest, Operation, Phase, Plan, PlannedOperation, Prologue,
    QkvRope, RowSet, Source, Step,
};
use std::collections::{BTreeMap, BTreeSet};

type Outcome<T> = Result<T, EngineError>;

/// Largest size of anything in memory.
const MOST_BYTES: u128 = i64::MAX as u128;

struct Checker<'a> {
    plan: &'a Plan,
    manifest: &'a Manifest,
    sizes: &'a Sizes,
    buffers: BTreeMap<&'a str, &'a Buffer>,
}

/// Checks the whole plan.
///
/// # Errors
/// `Plan`, naming the place and what is wrong there.
pub fn check_plan(plan: &Plan, manifest: &Manifest, sizes: &Sizes) -> Outcome<()> {
    let mut buffers = BTreeMap::new();
    for buffer in &plan.buffers {
        if buffers.insert(buffer.name.as_str(), buffer).is_some() {
            return Err(refuse(plan, format!("buffer `{}`", buffer.name), "is declared twice"));
        }
    }
    let checker = Checker { plan, manifest, sizes, buffers };
    checker.check_shape()?;
    for (name, planned) in &plan.operations {
        checker.check_operation(name, planned)?;
    }
    for phase in plan.phases() {
        checker.check_steps(plan.steps_of(*phase))?;
    }
    Ok(())
}

/// The manifest's entries of the kernels that the plan names.
///
/// # Errors
/// `Plan` if the manifest lacks one.
pub fn used_kernels<'a>(
    plan: &'a Plan,
    manifest: &'a Manifest,
) -> Outcome<BTreeMap<&'a str, &'a KernelEntry>> {
    let mut used = BTreeMap::new();
    for (name, planned) in &plan.operations {
        for bucket in &planned.kernels {
            let entry = manifest.kernels.get(&bucket.kernel).ok_or_else(|| {
                let problem = format!("kernel `{}` is not in the manifest", bucket.kernel);
                refuse(plan, format!("operation `{name}`, rows {}", bucket.rows), problem)
            })?;
            used.insert(bucket.kernel.as_str(), entry);
        }
    }
    Ok(used)
}

fn refuse(plan: &Plan, place: String, problem: impl Into<String>) -> EngineError {
    EngineError::Plan { plan: plan.name.clone(), place, problem: problem.into() }
}

/// What a step reads and writes, of memory that steps share.
pub(crate) fn effects<'a>(
    operation: &Operation,
    bindings: &'a [Binding],
) -> (Vec<&'a Source>, Vec<&'a Source>) {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let adds = matches!(operation, Operation::Linear { epilogue: Epilogue::Add, .. });
    let stores =
        matches!(operation, Operation::RopeKv(_) | Operation::Linear { epilogue: Epilogue::QkvRope(_), .. });
    for binding in bindings {
        let source = &binding.source;
        match binding.slot as usize {
            slot::OUT => {
                writes.push(source);
                if adds {
                    reads.push(source);
                }
            }
            slot::K_CACHE | slot::V_CACHE if stores => writes.push(source),
            _ if matches!(source, Source::Weight(_)) => {}
            _ => reads.push(source),
        }
    }
    (reads, writes)
}

impl<'a> Checker<'a> {
    fn refuse(&self, place: String, problem: impl Into<String>) -> EngineError {
        refuse(self.plan, place, problem)
    }

    fn check_shape(&self) -> Outcome<()> {
        let model = &self.plan.model;
        for (value, name) in [
            (model.layers, "layers"),
            (model.hidden, "hidden"),
            (model.heads, "heads"),
            (model.kv_heads, "kv_heads"),
            (model.head_dim, "head_dim"),
            (model.vocab, "vocab"),
        ] {
            if value == 0 {
                return Err(self.refuse(format!("model.{name}"), "is 0"));
            }
        }
        if !model.heads.is_multiple_of(model.kv_heads) {
            let problem = format!("{} is no multiple of kv_heads {}", model.heads, model.kv_heads);
            return Err(self.refuse("model.heads".into(), problem));
        }
        // A product that wraps would make buffers that are smaller than what kernels write.
        let wide = |value: u32| u128::from(value);
        let columns = (wide(model.heads) + 2 * wide(model.kv_heads)) * wide(model.head_dim);
        let page = wide(model.kv_heads) * wide(model.head_dim) * wide(self.plan.kv.block_tokens) * 4;
        if columns > wide(u32::MAX) || page > MOST_BYTES {
            let problem =
                format!("{} and {} heads of {} are too large", model.heads, model.kv_heads, model.head_dim);
            return Err(self.refuse("model.heads".into(), problem));
        }
        Ok(())
    }

    /// Every step fits its operation, reads what was written before, and the logits come out at the end.
    fn check_steps(&self, steps: &'a [Step]) -> Outcome<()> {
        let mut written: BTreeSet<&Source> = BTreeSet::new();
        let gathered: Vec<(Source, Source)> = steps
            .iter()
            .filter_map(|step| match step {
                Step::GatherLogitRows { from, to } => {
                    Some((Source::Buffer(from.clone()), Source::Buffer(to.clone())))
                }
                Step::Run { .. } => None,
            })
            .collect();
        let mut targets: BTreeSet<&Source> = BTreeSet::new();
        let mut gathers = gathered.iter();
        for (index, step) in steps.iter().enumerate() {
            match step {
                Step::Run { operation, rows, bindings, .. } => {
                    self.check_step(index, operation, *rows, bindings, &mut written, &targets)?;
                }
                Step::GatherLogitRows { from, to } => {
                    self.check_gather(index, from, to)?;
                    if let Some((from, to)) = gathers.next() {
                        self.check_written(index, from, &written, &targets)?;
                        targets.insert(to);
                    }
                }
            }
        }
        self.check_logits(&written)?;
        self.check_barriers(steps)
    }

    /// Buckets without gap or overlap, kernels that exist, compute this operation and may run so.
    fn check_operation(&self, name: &str, planned: &PlannedOperation) -> Outcome<()> {
        let operation = &planned.operation;
        if let Some((layout, n, k)) = operation.weight() {
            let k = k as usize;
            // More than its bytes can be: eight for each weight, with a block and a group that are not full.
            let bound = (u128::from(n) + u128::from(layout.n_block)) * k.max(layout.group(k)) as u128 * 8;
            let large = || (bound > MOST_BYTES).then(|| format!("{operation} is too large"));
            if let Some(problem) = layout.refuse(k).or_else(large) {
                return Err(self.refuse(format!("operation `{name}`"), problem));
            }
        }
        if let Operation::SiluGate { ffn } = operation
            && *ffn > u32::MAX / 2
        {
            return Err(self.refuse(format!("operation `{name}`"), format!("{operation} is too large")));
        }
        self.check_heads(name, operation)?;
        let most = self.most_rows(name);
        let mut next = 1;
        let mut buckets: Vec<_> = planned.kernels.iter().collect();
        buckets.sort_by_key(|b| b.rows.low);
        for bucket in buckets {
            let place = format!("operation `{name}`, rows {}", bucket.rows);
            if bucket.rows.low != next || bucket.rows.high < bucket.rows.low {
                let problem = format!("the bucket should begin at {next} row(s): gap or overlap");
                return Err(self.refuse(place, problem));
            }
            next = bucket.rows.high.saturating_add(1);
            let entry = self.manifest.kernels.get(&bucket.kernel).ok_or_else(|| {
                let problem = format!("kernel `{}` is not in the manifest", bucket.kernel);
                self.refuse(place.clone(), problem)
            })?;
            self.check_kernel(&place, &bucket.kernel, entry, operation, bucket.rows.high.min(most))?;
        }
        if next <= most {
            let problem = format!("no kernel for {next} rows (a pass has up to {most})");
            return Err(self.refuse(format!("operation `{name}`"), problem));
        }
        Ok(())
    }

    /// Most rows that the steps of an operation work on: those whose logits are wanted, or all of a pass.
    fn most_rows(&self, name: &str) -> u32 {
        let most = |phase: &Phase| {
            let all = self.plan.steps_of(*phase).iter().any(|step| {
                matches!(step, Step::Run { operation, rows, .. } if operation == name && *rows == RowSet::All)
            });
            if all { self.sizes.rows_of(*phase) } else { 0 }
        };
        match self.plan.phases().iter().map(most).max() {
            None | Some(0) => self.sizes.logit_rows,
            Some(most) => most,
        }
    }

    fn check_kernel(
        &self,
        place: &str,
        name: &str,
        entry: &KernelEntry,
        operation: &Operation,
        high: u32,
    ) -> Outcome<()> {
        let problem = if entry.operation != *operation {
            format!("kernel `{name}` computes {}, not {operation}", entry.operation)
        } else if !entry.target.runs_on(&self.plan.target.arch, &self.plan.target.features) {
            format!("kernel `{name}` is made for {}, the plan for {}", entry.target, self.plan.target)
        } else if entry.launch.phases == 0 {
            format!("kernel `{name}` has no phase")
        } else if entry.launch.max_rows < high {
            format!("kernel `{name}` takes up to {} rows", entry.launch.max_rows)
        } else if entry.launch.max_threads < self.sizes.threads {
            format!(
                "kernel `{name}` takes up to {} threads, the engine has {}",
                entry.launch.max_threads, self.sizes.threads
            )
        } else {
            return Ok(());
        };
        Err(self.refuse(place.to_owned(), problem))
    }

    /// Heads and cache layout as in the model.
    fn check_heads(&self, name: &str, operation: &Operation) -> Outcome<()> {
        let (heads, kv_heads, head_dim, kv) = match operation {
            Operation::RopeKv(q) | Operation::Linear { epilogue: Epilogue::QkvRope(q), .. } => {
                (q.heads, q.kv_heads, q.head_dim, q.kv)
            }
            Operation::Attention { heads, kv_heads, head_dim, kv, .. } => (*heads, *kv_heads, *head_dim, *kv),
            Operation::Embed { vocab, .. } if *vocab < self.plan.model.vocab => {
                let problem = format!("embeds {vocab} tokens of {}", self.plan.model.vocab);
                return Err(self.refuse(format!("operation `{name}`"), problem));
            }
            _ => return Ok(()),
        };
        let model = &self.plan.model;
        let same = (heads, kv_heads, head_dim) == (model.heads, model.kv_heads, model.head_dim);
        if !same || kv != self.plan.kv {
            let problem = format!("{operation} has other heads or another cache than the model");
            return Err(self.refuse(format!("operation `{name}`"), problem));
        }
        if let Operation::Linear { n, epilogue: Epilogue::QkvRope(q), .. } = operation
            && *n != (q.heads + 2 * q.kv_heads) * q.head_dim
        {
            let problem = format!("{n} columns are not those of its heads");
            return Err(self.refuse(format!("operation `{name}`"), problem));
        }
        Ok(())
    }

    fn check_step(
        &self,
        index: usize,
        name: &str,
        rows: RowSet,
        bindings: &'a [Binding],
        written: &mut BTreeSet<&'a Source>,
        gathered: &BTreeSet<&Source>,
    ) -> Outcome<()> {
        let place = format!("step {index} (`{name}`)");
        let planned = self
            .plan
            .operations
            .get(name)
            .ok_or_else(|| self.refuse(place.clone(), "names no operation of the plan"))?;
        let operation = &planned.operation;
        let mut needed = needed_slots(operation);
        for binding in bindings {
            let Some(what) = needed.remove(&(binding.slot as usize)) else {
                let problem = format!("binds slot {}, twice or without use", binding.slot);
                return Err(self.refuse(place, problem));
            };
            self.check_binding(&place, operation, rows, what, &binding.source)?;
        }
        if let Some((slot, what)) = needed.pop_first() {
            return Err(self.refuse(place, format!("slot {slot} ({what:?}) is not bound")));
        }
        let (reads, writes) = effects(operation, bindings);
        for read in reads {
            self.check_written(index, read, written, gathered)?;
        }
        written.extend(writes);
        Ok(())
    }

    /// Buffers are written before they are read; all else is there from the start.
    fn check_written(
        &self,
        index: usize,
        read: &Source,
        written: &BTreeSet<&Source>,
        gathered: &BTreeSet<&Source>,
    ) -> Outcome<()> {
        if let Source::Buffer(name) = read
            && !written.contains(read)
            && !gathered.contains(read)
        {
            let problem = format!("reads buffer `{name}`, which no step before it writes");
            return Err(self.refuse(format!("step {index}"), problem));
        }
        Ok(())
    }

    fn check_binding(
        &self,
        place: &str,
        operation: &Operation,
        rows: RowSet,
        what: Content,
        source: &Source,
    ) -> Outcome<()> {
        let refuse = |problem: String| Err(self.refuse(place.to_owned(), problem));
        let all_rows = rows == RowSet::All;
        match (what, source) {
            (Content::Rows(width), Source::Buffer(name)) => {
                let Some(buffer) = self.buffers.get(name.as_str()) else {
                    return refuse(format!("buffer `{name}` is not declared"));
                };
                if buffer.width != width {
                    return refuse(format!(
                        "buffer `{name}` is {} wide, {operation} needs {width}",
                        buffer.width
                    ));
                }
                if buffer.rows != rows {
                    return refuse(format!("buffer `{name}` holds {:?} rows, not {rows:?}", buffer.rows));
                }
                Ok(())
            }
            (Content::Weight(bytes), Source::Weight(name)) => self.check_tensor(place, name, bytes, bytes),
            (Content::RopeTable, Source::Weight(name)) => {
                let row = u64::from(self.plan.model.head_dim) * 4;
                let least = u64::from(self.sizes.max_context) * row;
                self.check_tensor(place, name, least, u64::MAX)
            }
            (Content::Keys, Source::KeyCache(layer)) | (Content::Values, Source::ValueCache(layer))
                if all_rows =>
            {
                if *layer < self.plan.model.layers {
                    return Ok(());
                }
                refuse(format!("layer {layer} of {}", self.plan.model.layers))
            }
            (Content::Positions, Source::Positions)
            | (Content::Slots, Source::Slots)
            | (Content::RowSequence, Source::RowSequence)
            | (Content::BlockTables, Source::BlockTables)
            | (Content::Tokens, Source::Tokens)
                if all_rows =>
            {
                Ok(())
            }
            _ => refuse(format!("{what:?} cannot be {source:?} with {rows:?} rows")),
        }
    }

    fn check_tensor(&self, place: &str, name: &str, least: u64, most: u64) -> Outcome<()> {
        let Some(entry) = self.manifest.tensors.get(name) else {
            return Err(self.refuse(place.into(), format!("tensor `{name}` is not in the manifest")));
        };
        if entry.bytes < least || entry.bytes > most {
            let problem = format!(
                "tensor `{name}` ({}) has {} bytes, the operation needs {least}",
                entry.layout, entry.bytes
            );
            return Err(self.refuse(place.into(), problem));
        }
        Ok(())
    }

    fn check_gather(&self, index: usize, from: &str, to: &str) -> Outcome<()> {
        let place = format!("step {index} (gather)");
        let find = |name: &str, rows: RowSet| {
            let buffer = self.buffers.get(name);
            buffer
                .filter(|b| b.rows == rows)
                .ok_or_else(|| self.refuse(place.clone(), format!("`{name}` is no buffer of {rows:?} rows")))
        };
        let (from, to) = (find(from, RowSet::All)?, find(to, RowSet::Logits)?);
        if from.width != to.width {
            let problem = format!("`{}` and `{}` differ in width", from.name, to.name);
            return Err(self.refuse(place, problem));
        }
        Ok(())
    }

    fn check_logits(&self, written: &BTreeSet<&Source>) -> Outcome<()> {
        let name = &self.plan.logits;
        let place = "logits".to_owned();
        let Some(buffer) = self.buffers.get(name.as_str()) else {
            return Err(self.refuse(place, format!("buffer `{name}` is not declared")));
        };
        if buffer.rows != RowSet::Logits || buffer.width != self.plan.model.vocab {
            let problem =
                format!("buffer `{name}` is not [logit rows][vocabulary {}]", self.plan.model.vocab);
            return Err(self.refuse(place, problem));
        }
        if !written.contains(&Source::Buffer(name.clone())) {
            return Err(self.refuse(place, format!("no step writes buffer `{name}`")));
        }
        Ok(())
    }

    /// Steps that may overlap (no barrier between them) touch nothing that another of them writes.
    fn check_barriers(&self, steps: &[Step]) -> Outcome<()> {
        let mut open: Vec<(usize, Vec<&Source>, Vec<&Source>)> = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let Step::Run { operation, bindings, barrier, .. } = step else {
                // The executor puts barriers around gathers.
                open.clear();
                continue;
            };
            let Some(planned) = self.plan.operations.get(operation) else { continue };
            let (reads, writes) = effects(&planned.operation, bindings);
            for (other, other_reads, other_writes) in &open {
                let clash = writes.iter().find(|w| other_reads.contains(w) || other_writes.contains(w));
                let clash = clash.or_else(|| reads.iter().find(|r| other_writes.contains(r)));
                if let Some(source) = clash {
                    let problem = format!("needs a barrier after it: step {index} uses {source:?} too");
                    return Err(self.refuse(format!("step {other}"), problem));
                }
            }
            if *barrier {
                open.clear();
            } else {
                open.push((index, reads, writes));
            }
        }
        Ok(())
    }
}

/// What a slot must be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// A buffer of this width.
    Rows(u32),
    /// A tensor of so many bytes.
    Weight(u64),
    RopeTable,
    Keys,
    Values,
    Positions,
    Slots,
    RowSequence,
    BlockTables,
    Tokens,
}

fn needed_slots(operation: &Operation) -> BTreeMap<usize, Content> {
    let mut slots = BTreeMap::new();
    slots.insert(slot::OUT, Content::Rows(operation.out_width()));
    if operation.in_width() > 0 {
        slots.insert(slot::X, Content::Rows(operation.in_width()));
    }
    if let Some((layout, n, k)) = operation.weight() {
        slots.insert(slot::W, Content::Weight(layout.bytes(n as usize, k as usize) as u64));
    }
    let floats = |n: u32| Content::Weight(u64::from(n) * 4);
    match operation {
        Operation::Linear { k, prologue, epilogue, .. } => {
            if let Prologue::RmsNorm { .. } = prologue {
                slots.insert(slot::NORM, floats(*k));
            }
            if let Epilogue::QkvRope(q) = epilogue {
                add_qkv_slots(q, &mut slots);
            }
        }
        Operation::RopeKv(q) => add_qkv_slots(q, &mut slots),
        Operation::Attention { .. } => {
            slots.insert(slot::K_CACHE, Content::Keys);
            slots.insert(slot::V_CACHE, Content::Values);
            slots.insert(slot::POSITIONS, Content::Positions);
            slots.insert(slot::ROW_SEQUENCE, Content::RowSequence);
            slots.insert(slot::BLOCK_TABLES, Content::BlockTables);
        }
        Operation::Embed { .. } => {
            slots.insert(slot::TOKENS, Content::Tokens);
        }
        Operation::RmsNorm { width, .. } => {
            slots.insert(slot::NORM, floats(*width));
        }
        Operation::SiluGate { .. } => {}
    }
    slots
}

fn add_qkv_slots(q: &QkvRope, slots: &mut BTreeMap<usize, Content>) {
    let floats = |n: u32| Content::Weight(u64::from(n) * 4);
    slots.insert(slot::ROPE, Content::RopeTable);
    slots.insert(slot::K_CACHE, Content::Keys);
    slots.insert(slot::V_CACHE, Content::Values);
    slots.insert(slot::POSITIONS, Content::Positions);
    slots.insert(slot::SLOTS, Content::Slots);
    if q.bias {
        slots.insert(slot::BIAS, floats((q.heads + 2 * q.kv_heads) * q.head_dim));
    }
    if q.qk_norm_eps_bits.is_some() {
        slots.insert(slot::Q_NORM, floats(q.head_dim));
        slots.insert(slot::K_NORM, floats(q.head_dim));
    }
}
