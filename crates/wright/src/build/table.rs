//! The final table: reference, portable baseline and champion, side by side. Engines are measured over HTTP.

use crate::cmd::bench;
use crate::goal::Workload as Goal;
use crate::http_get;
use crate::served::Served;
use crate::summary::{Row, Spent, Step, Summary};
use crate::trial::driver::{Mode, Trial};
use crate::trial::protocol::ReplayKind;
use anyhow::Result;
use comfy_table::{Cell, CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use load::{PromptSpec, Workload};
use model::reference::Reference;
use model::{Model, Tokenizer};
use plan::Batching;
use std::path::Path;
use std::time::Instant;

/// Output tokens of the reference and of the portable baseline, which are slow.
const FEW: u32 = 16;

/// Passes that a profile times.
const PROFILED: u32 = 20;

/// The f32 reference model at concurrency 1 over 16 tokens.
pub fn reference(model: &Model, prompt: &[u32]) -> Result<Row> {
    let reference = Reference::new(model)?;
    let mut session = reference.session();
    let start = Instant::now();
    let width = model.config().hidden;
    let mut hidden = session.append(prompt)?;
    let (mut ttft, mut itl, mut last) = (Vec::new(), Vec::new(), start);
    for i in 0..FEW {
        let logits = reference.logits(&hidden[hidden.len() - width..]);
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(t, _)| t as u32);
        let now = Instant::now();
        let gap = now.duration_since(last).as_secs_f64() * 1e3;
        if i == 0 {
            ttft.push(gap)
        } else {
            itl.push(gap)
        }
        last = now;
        hidden = session.append(&[best])?;
    }
    let wall = last.duration_since(start).as_secs_f64();
    Ok(Row {
        engine: "reference".into(),
        concurrency: 1,
        prompt_tokens: prompt.len() as u32,
        output_tokens: FEW,
        requests: 1,
        tokens_per_s: f64::from(FEW) / wall,
        ttft_ms: ttft,
        itl_ms: itl,
        memory_bytes: 4 * model.parameters(),
        vs_portable: None,
        spent: None,
        evidence: Vec::new(),
    })
}

/// Portable plan and champion, served, at each concurrency of the goal. The portable plan answers fewer and shorter
/// requests; the champion answers those too, so that their ratio compares equal work.
pub fn engines(bundle: &Path, goal: &Goal, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Row>> {
    let few = |c: u32| Load { requests: c, prompt: goal.prompt_tokens.min(32), output: FEW };
    let whole =
        |c: u32| Load { requests: (2 * c).max(6), prompt: goal.prompt_tokens, output: goal.output_tokens };
    let mut rows = Vec::new();
    let _alone = judge::Lane::of_machine().enter()?;
    let portable = Served::start(bundle, &["--portable"])?;
    for &c in &goal.concurrency {
        rows.push(row(&portable, "portable", c, few(c), tokenizer, seed)?);
    }
    drop(portable);
    let champion = Served::start(bundle, &[])?;
    for (i, &c) in goal.concurrency.iter().enumerate() {
        let same = row(&champion, "champion", c, few(c), tokenizer, seed)?;
        let mut full = row(&champion, "champion", c, whole(c), tokenizer, seed)?;
        full.vs_portable = Some(same.tokens_per_s / rows[i].tokens_per_s).filter(|r| r.is_finite());
        rows.push(full);
    }
    Ok(rows)
}

/// Steps of the champion's passes at the goal's concurrencies, half-way through a request, and of a prompt.
pub fn profile(bundle: &Path, goal: &Goal, batching: &Batching) -> Result<Vec<Step>> {
    let mut trial = Trial::start(bundle, "champion", Mode::Executor)?;
    let _alone = judge::Lane::of_machine().enter()?;
    let middle = goal.prompt_tokens + goal.output_tokens / 2;
    let decode =
        goal.concurrency.iter().map(|c| (ReplayKind::Decode, (*c).min(batching.max_sequences), middle));
    let prompt = (ReplayKind::Prefill, goal.prompt_tokens.clamp(1, batching.prefill_chunk), 0);
    let mut out = Vec::new();
    for (kind, rows, context) in decode.chain([prompt]) {
        let (pass, steps) = trial.profile(kind, rows, context, PROFILED)?;
        let mut add = |step: String, ns: f64| out.push(Step { rows, context, step, ns });
        let inside: f64 = steps.iter().map(|s| s.ns + s.waiting_ns).sum();
        add("barriers".into(), steps.iter().map(|s| s.waiting_ns).sum());
        // What a pass takes beside its steps: waking the threads, preparing arguments, the end.
        add("dispatch".into(), (pass - inside).max(0.0));
        steps.into_iter().for_each(|s| add(s.operation, s.ns));
    }
    Ok(out)
}

/// Requests of one row.
#[derive(Clone, Copy)]
struct Load {
    requests: u32,
    prompt: u32,
    output: u32,
}

fn row(
    served: &Served,
    name: &str,
    concurrency: u32,
    load: Load,
    tokenizer: &Tokenizer,
    seed: u64,
) -> Result<Row> {
    let spec = |count: u32, seed| PromptSpec { count: count as usize, tokens: load.prompt as usize, seed };
    let items = bench::items(tokenizer, spec(load.requests, seed + u64::from(concurrency)), load.output)?;
    let closed = |items| Workload::closed(&served.url, &served.model, concurrency as usize, items);
    // By itself, so that the server's counters begin after it.
    load::run(&closed(bench::items(tokenizer, spec(concurrency.min(2), seed ^ 0x77), 4)?))?;
    let before = engine_seconds(served);
    let run = load::run(&closed(items))?;
    let after = engine_seconds(served);
    let summary = run.summary(None);
    if summary.failed > 0 {
        anyhow::bail!("{} of {} requests failed: {:?}", summary.failed, load.requests, summary.failures);
    }
    Ok(Row {
        engine: name.to_owned(),
        concurrency,
        prompt_tokens: load.prompt,
        output_tokens: load.output,
        requests: load.requests,
        tokens_per_s: summary.output_tokens_per_s,
        ttft_ms: run.samples.iter().filter_map(|s| s.ttft_ns).map(ms).collect(),
        itl_ms: run.samples.iter().flat_map(|s| s.gaps_ns.iter().copied()).map(ms).collect(),
        memory_bytes: served.peak_memory().unwrap_or(0),
        vs_portable: None,
        spent: before.zip(after).map(|(before, after)| {
            let wall_s = run.wall_ns as f64 / 1e9;
            Spent {
                wall_s,
                passes_s: after.0 - before.0,
                engine_s: after.1 - before.1,
                client_s: run.host.client_cpu_share.map(|s| s * wall_s),
            }
        }),
        evidence: Vec::new(),
    })
}

/// Seconds that the server's engine has spent in passes, and in the rest of its loop.
fn engine_seconds(served: &Served) -> Option<(f64, f64)> {
    let page = http_get::get(&served.url, "/metrics")?;
    let value = |name: &str| {
        let line = page.lines().find(|l| l.strip_prefix(name).is_some_and(|r| r.starts_with(['{', ' '])))?;
        line.rsplit(' ').next()?.parse::<f64>().ok()
    };
    Some((value("wright_engine_forward_seconds_total")?, value("wright_engine_overhead_seconds_total")?))
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The table for people.
pub fn print(summary: &Summary) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header([
        "engine",
        "concurrency",
        "prompt+output",
        "output tok/s",
        "vs portable",
        "TTFT ms",
        "ITL ms",
        "memory MB",
    ]);
    let median = |values: &[f64]| statistics::median(values).map_or("-".to_owned(), |m| format!("{m:.1}"));
    for row in &summary.table {
        let base = row.vs_portable.map_or("-".to_owned(), |r| format!("{r:.1}x"));
        let p95 = |values: &[f64]| {
            let tail = statistics::Sample::new(values).ok().and_then(|s| s.tail().ok().map(|t| t.p95()));
            match tail.filter(|_| row.requests >= 100) {
                Some(p) => format!("{} (p95 {p:.1})", median(values)),
                None => median(values),
            }
        };
        let cells = [
            row.engine.clone(),
            row.concurrency.to_string(),
            format!("{}+{}", row.prompt_tokens, row.output_tokens),
            format!("{:.1}", row.tokens_per_s),
            base,
            p95(&row.ttft_ms),
            p95(&row.itl_ms),
            format!(
                "{:.0}{}",
                row.memory_bytes as f64 / 1e6,
                if row.weights_only() { " (weights)" } else { "" }
            ),
        ];
        let aligned = cells.into_iter().enumerate().map(|(i, c)| {
            Cell::new(c).set_alignment(if i == 0 { CellAlignment::Left } else { CellAlignment::Right })
        });
        table.add_row(aligned);
    }
    table
}
