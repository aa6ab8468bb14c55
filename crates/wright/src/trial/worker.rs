//! The engine's side of a trial: a confined process that obeys the judge's commands.

use super::protocol::{Command, ReplayKind, Reply, StepTime};
use anyhow::{Context, Result, bail};
use engine::{
    Bundle, Engine, EngineOptions, Event, EventSink, Executor, FinishReason, PlanChoice, PrefixCache,
    Profiling, Replay, Request,
};
use plan::Plan;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Runs until the judge says quit or hangs up.
pub fn run(bundle: &Path, plan: &str, mode: &str, logits: &Path) -> Result<()> {
    let plan = match plan {
        "champion" => PlanChoice::Champion,
        "portable" => PlanChoice::Portable,
        other => bail!("plan '{other}' is neither champion nor portable"),
    };
    kernel_abi::request_amx();
    // Repeated text of a workload must not look like speed.
    let options = EngineOptions { plan, prefix_cache: PrefixCache::Off, ..EngineOptions::default() };
    let file = File::options()
        .read(true)
        .write(true)
        .open(logits)
        .with_context(|| format!("opening {}", logits.display()))?;
    match mode {
        "executor" => executor(bundle, options, file),
        "engine" => requests(bundle, options),
        other => bail!("mode '{other}' is neither executor nor engine"),
    }
}

fn say(reply: &Reply) -> Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    Ok(out.flush()?)
}

fn commands() -> impl Iterator<Item = Result<Command>> {
    BufReader::new(std::io::stdin()).lines().map(|line| Ok(serde_json::from_str(&line?)?))
}

fn ready(plan: &Plan) -> Result<()> {
    // Everything is loaded and all threads run: from here on nothing needs files, sockets or new processes.
    let resident = resident_bytes();
    let layers = sandbox::confine_engine().context("confining the engine worker")?;
    say(&Reply::Ready { phases: plan.phases().to_vec(), resident, layers, vocab: plan.model.vocab })
}

fn executor(bundle: &Path, options: EngineOptions, mut file: File) -> Result<()> {
    let mut executor = Executor::new(Bundle::open(bundle, &options)?, &options)?;
    ready(executor.plan())?;
    let mut armed = None;
    for command in commands() {
        let done = match command? {
            Command::Arm { kind, rows, context, passes } => {
                let replay = fixed(kind, rows, context);
                // Once before the clock: page faults and cold code are not the step's cost.
                executor.replay(replay, 1).map(|_| {
                    armed = Some((replay, passes));
                    Reply::Armed
                })
            }
            Command::Go => match armed.take() {
                Some((replay, passes)) => executor.replay(replay, passes).map(|_| Reply::Done),
                None => bail!("go without arm"),
            },
            Command::Profile { kind, rows, context, passes } => {
                profile(&mut executor, fixed(kind, rows, context), passes)
            }
            Command::Logits { phase, tokens, from } => {
                file.seek(SeekFrom::Start(0))?;
                let mut written = Ok(0);
                let visited = executor.logits_for(phase, &tokens, from, u32::MAX, &mut |_, row| {
                    if let Ok(rows) = written {
                        written = file.write_all(bytemuck::cast_slice(row)).map(|()| rows + 1);
                    }
                });
                let rows = written?;
                visited.map(|()| Reply::Logits { rows })
            }
            Command::Submit { .. } => bail!("requests need the engine mode"),
            Command::Quit => return Ok(()),
        };
        match done {
            Ok(reply) => say(&reply)?,
            Err(error) => say(&Reply::Failed { what: error.to_string() })?,
        }
    }
    Ok(())
}

fn fixed(kind: ReplayKind, rows: u32, context: u32) -> Replay {
    match kind {
        ReplayKind::Decode => Replay::Decode { sequences: rows, context },
        ReplayKind::Prefill => Replay::Prefill { rows, start: context },
    }
}

fn profile(executor: &mut Executor, replay: Replay, passes: u32) -> Result<Reply, engine::EngineError> {
    executor.replay(replay, 1)?;
    executor.set_profiling(Profiling::On);
    let timed = executor.replay(replay, passes);
    let profile = executor.profile();
    executor.set_profiling(Profiling::Off);
    // The same passes as the steps, so that what lies between them is not lost in noise.
    let whole: u128 = timed?.iter().map(Duration::as_nanos).sum();
    let mut steps: Vec<StepTime> = Vec::new();
    // Steps of the other phase did not run.
    for step in profile.into_iter().filter(|step| step.nanoseconds > 0) {
        let each = |ns: u64| ns as f64 / f64::from(passes.max(1));
        let (ns, waiting_ns) =
            (each(step.nanoseconds.saturating_sub(step.waiting_nanoseconds)), each(step.waiting_nanoseconds));
        match steps.iter_mut().find(|s| s.operation == step.operation) {
            Some(known) => {
                known.ns += ns;
                known.waiting_ns += waiting_ns;
            }
            None => steps.push(StepTime { operation: step.operation, ns, waiting_ns }),
        }
    }
    Ok(Reply::Steps { pass: whole as f64 / f64::from(passes.max(1)), steps })
}

/// Sends events of one request to the judge.
struct ToJudge {
    id: u64,
    out: Arc<Mutex<std::io::Stdout>>,
}

impl EventSink for ToJudge {
    fn send(&self, event: Event) -> std::result::Result<(), engine::Closed> {
        let reply = match event {
            Event::Token { id, .. } => Reply::Token { id: self.id, token: id },
            Event::Finished { reason, usage } => Reply::Finished {
                id: self.id,
                completion_tokens: usage.completion_tokens,
                reason: match reason {
                    FinishReason::Error(what) => what,
                    other => format!("{other:?}").to_lowercase(),
                },
            },
            Event::Started { .. } | Event::PromptToken { .. } => return Ok(()),
        };
        let Ok(mut line) = serde_json::to_vec(&reply) else { return Err(engine::Closed) };
        line.push(b'\n');
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(&line).and_then(|()| out.flush()).map_err(|_| engine::Closed)
    }
}

fn requests(bundle: &Path, options: EngineOptions) -> Result<()> {
    let handle = Engine::start(bundle, options)?;
    ready(handle.plan())?;
    let out = Arc::new(Mutex::new(std::io::stdout()));
    for command in commands() {
        match command? {
            Command::Submit { id, prompt, output_tokens } => {
                let mut request = Request::new(id, prompt, output_tokens);
                request.ignore_eos = true;
                let sink = ToJudge { id, out: out.clone() };
                if let Err(error) = handle.submit(request, Box::new(sink)) {
                    say(&Reply::Failed { what: error.to_string() })?;
                }
            }
            Command::Quit => return Ok(()),
            other => bail!("{other:?} needs the executor mode"),
        }
    }
    Ok(())
}

/// Resident memory of this process, bytes; 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kb = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kb.unwrap_or(0) * 1024
}
