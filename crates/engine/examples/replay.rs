//! Times a bundle without a server: `cargo run --release -p engine --example replay -- BUNDLE [champion|portable]`.
//! Prints decode and prefill passes, where the time of a decode pass goes, and the share of the engine's own work.

use engine::{
    Bundle, Engine, EngineError, EngineOptions, Event, Executor, PlanChoice, Profiling, Replay, Request,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn passes(executor: &mut Executor) -> Result<(), EngineError> {
    let sizes = *executor.sizes();
    println!("{sizes:?}, {} MiB of memory", executor.memory_bytes() >> 20);
    let context = sizes.max_context.min(128);
    for sequences in [1, 4, 16].into_iter().filter(|n| *n <= sizes.max_sequences) {
        let time = median(executor.replay(Replay::Decode { sequences, context }, 30)?);
        println!("decode, {sequences} sequences at context {context}: {time:?}");
    }
    let rows = sizes.max_rows.min(sizes.max_context);
    let time = median(executor.replay(Replay::Prefill { rows, start: 0 }, 3)?);
    println!("prefill, {rows} rows: {time:?}");
    executor.set_profiling(Profiling::On);
    let count = 30;
    executor.replay(Replay::Decode { sequences: 1, context }, count)?;
    let mut by_kernel: BTreeMap<(String, String), u64> = BTreeMap::new();
    for step in executor.profile() {
        *by_kernel.entry((step.operation, step.kernel)).or_default() += step.nanoseconds;
    }
    for ((operation, kernel), nanoseconds) in by_kernel {
        println!("  {operation:<24} {kernel:<40} {:>9.1} us", nanoseconds as f64 / f64::from(count) / 1e3);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("usage: replay BUNDLE [champion|portable]")?);
    let plan = match arguments.next().as_deref() {
        Some("portable") => PlanChoice::Portable,
        _ => PlanChoice::Champion,
    };
    let options = EngineOptions { plan, ..EngineOptions::default() };
    let begin = Instant::now();
    let bundle = Bundle::open(&dir, &options)?;
    println!("opened in {:?}", begin.elapsed());
    passes(&mut Executor::new(bundle, &options)?)?;

    let engine = Engine::start(&dir, options)?;
    let prompt = vec![1; 16.min(engine.max_context() as usize / 2)];
    let mut request = Request::new(1, prompt, 64);
    request.params.temperature = 0.0;
    let tokens =
        engine.submit_channel(request)?.iter().filter(|event| matches!(event, Event::Token { .. })).count();
    let stats = engine.stats();
    let own = stats.overhead.as_secs_f64();
    println!(
        "engine, {tokens} tokens alone: {:.3} ms a pass, own work {:.1} us ({:.2} %)",
        stats.forward.as_secs_f64() * 1e3 / stats.steps as f64,
        own * 1e6 / stats.steps as f64,
        100.0 * own / (own + stats.forward.as_secs_f64())
    );
    engine.shutdown();
    Ok(())
}
