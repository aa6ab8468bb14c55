//! The final table: reference, portable baseline and champion, side by side. Engines are measured over HTTP.

use super::summary::{Row, Summary};
use crate::cmd::bench;
use crate::goal::Workload as Goal;
use crate::served::Served;
use anyhow::Result;
use comfy_table::{Cell, CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use load::{PromptSpec, Workload};
use model::reference::Reference;
use model::{Model, Tokenizer};
use std::path::Path;
use std::time::Instant;

/// Output tokens of the reference and of the portable baseline, which are slow.
const FEW: u32 = 16;

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
        evidence: Vec::new(),
    })
}

/// A served engine at each concurrency of the goal.
pub fn engine(bundle: &Path, name: &str, goal: &Goal, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Row>> {
    let portable = name == "portable";
    let served = Served::start(bundle, if portable { &["--portable"] } else { &[] })?;
    let (prompt_tokens, output_tokens) =
        if portable { (goal.prompt_tokens.min(32), FEW) } else { (goal.prompt_tokens, goal.output_tokens) };
    let mut rows = Vec::new();
    for &concurrency in &goal.concurrency {
        let requests = if portable { concurrency } else { (2 * concurrency).max(6) };
        let spec =
            |count: u32, seed| PromptSpec { count: count as usize, tokens: prompt_tokens as usize, seed };
        let items = bench::items(tokenizer, spec(requests, seed + u64::from(concurrency)), output_tokens)?;
        let mut workload = Workload::closed(&served.url, &served.model, concurrency as usize, items);
        workload.warm_up = bench::items(tokenizer, spec(concurrency.min(2), seed ^ 0x77), 4)?;
        let run = load::run(&workload)?;
        let summary = run.summary(None);
        if summary.failed > 0 {
            anyhow::bail!("{} of {requests} requests failed: {:?}", summary.failed, summary.failures);
        }
        rows.push(Row {
            engine: name.to_owned(),
            concurrency,
            prompt_tokens,
            output_tokens,
            requests,
            tokens_per_s: summary.output_tokens_per_s,
            ttft_ms: run.samples.iter().filter_map(|s| s.ttft_ns).map(ms).collect(),
            itl_ms: run.samples.iter().flat_map(|s| s.gaps_ns.iter().copied()).map(ms).collect(),
            memory_bytes: served.peak_memory().unwrap_or(0),
            evidence: Vec::new(),
        });
    }
    Ok(rows)
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
        let base = summary
            .table
            .iter()
            .find(|b| b.engine == "portable" && b.concurrency == row.concurrency)
            .map_or("-".to_owned(), |b| format!("{:.1}x", row.tokens_per_s / b.tokens_per_s));
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
            format!("{:.0}", row.memory_bytes as f64 / 1e6),
        ];
        let aligned = cells.into_iter().enumerate().map(|(i, c)| {
            Cell::new(c).set_alignment(if i == 0 { CellAlignment::Left } else { CellAlignment::Right })
        });
        table.add_row(aligned);
    }
    table
}
