//! The judge's side of an engine trial: starts the sandboxed engine, holds the clock, recomputes quality.

use super::protocol::{Command, ReplayKind, Reply, StepTime};
use anyhow::{Context, Result, anyhow};
use plan::Phase;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Which half of the engine a trial runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The executor alone: fixed steps and logits.
    Executor,
    /// Scheduler and all: whole requests.
    Engine,
}

/// What ended a trial and is the engine's own doing: it crashed, hung, or answered what it should not have. Any other
/// error is the host's.
#[derive(Debug)]
pub struct EngineFault(String);

impl std::fmt::Display for EngineFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EngineFault {}

macro_rules! fault {
    ($($words:tt)*) => { return Err(EngineFault(format!($($words)*)).into()) };
}

/// Longest wait for one reply.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest line that a worker may send.
const LONGEST_LINE: u64 = 1 << 20;

/// A running trial. Dropping it ends the worker.
pub struct Trial {
    child: Child,
    input: ChildStdin,
    replies: Receiver<(Instant, Result<Reply, String>)>,
    logits: File,
    pub resident: u64,
    pub layers: Vec<String>,
    /// Phases whose arithmetic differs.
    pub phases: Vec<Phase>,
    vocab: usize,
}

/// What one closed-loop run of requests saw, by the judge's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkloadSamples {
    pub wall_s: f64,
    pub output_tokens: u64,
    pub ttft_ms: Vec<f64>,
    pub itl_ms: Vec<f64>,
    /// Tokens of each request, in submission order.
    pub tokens: Vec<Vec<u32>>,
}

impl WorkloadSamples {
    /// Aggregate output tokens per second.
    pub fn tokens_per_s(&self) -> f64 {
        self.output_tokens as f64 / self.wall_s
    }
}

impl Trial {
    /// Starts the engine of `bundle` with its plan `plan` (`champion` or `portable`) in a worker process.
    pub fn start(bundle: &Path, plan: &str, mode: Mode) -> Result<Self> {
        let scratch = tempfile_in_memory()?;
        let mut command = Process::new(std::env::current_exe()?);
        command
            .arg("__engine")
            .arg(bundle)
            .arg(plan)
            .arg(match mode {
                Mode::Executor => "executor",
                Mode::Engine => "engine",
            })
            .arg(&scratch.path)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = command.spawn().context("starting the engine worker")?;
        let input = child.stdin.take().ok_or_else(|| anyhow!("the worker has no input pipe"))?;
        let output = child.stdout.take().ok_or_else(|| anyhow!("the worker has no output pipe"))?;
        let (send, replies) = channel();
        std::thread::Builder::new().name("trial-replies".into()).spawn(move || {
            let mut reader = BufReader::with_capacity(1 << 16, output);
            let mut line = Vec::new();
            loop {
                line.clear();
                let n = (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line);
                let at = Instant::now();
                if !matches!(n, Ok(1..)) {
                    break;
                }
                let reply = serde_json::from_slice(&line).map_err(|e| format!("garbled reply: {e}"));
                if send.send((at, reply)).is_err() {
                    break;
                }
            }
        })?;
        let mut trial = Self {
            child,
            input,
            replies,
            logits: scratch.file,
            resident: 0,
            layers: Vec::new(),
            phases: Vec::new(),
            vocab: 0,
        };
        match trial.reply()?.1 {
            Reply::Ready { phases, resident, layers, vocab } => {
                trial.phases = phases;
                trial.resident = resident;
                trial.layers = layers;
                trial.vocab = vocab as usize;
            }
            other => fault!("the engine worker began with {other:?}"),
        }
        // The worker has mapped the file; nobody else needs its name.
        let _ = std::fs::remove_file(&scratch.path);
        Ok(trial)
    }

    /// The worker's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn send(&mut self, command: &Command) -> Result<()> {
        let mut line = serde_json::to_vec(command)?;
        line.push(b'\n');
        let sent = self.input.write_all(&line);
        sent.map_err(|e| EngineFault(format!("the engine worker has ended: {e}")).into())
    }

    fn reply(&mut self) -> Result<(Instant, Reply)> {
        match self.replies.recv_timeout(PATIENCE) {
            Ok((_, Ok(Reply::Failed { what }))) => fault!("the engine worker failed: {what}"),
            Ok((at, Ok(reply))) => Ok((at, reply)),
            Ok((_, Err(what))) => fault!("{what}"),
            Err(RecvTimeoutError::Timeout) => fault!("the engine worker did not answer in {PATIENCE:?}"),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().context("waiting for the engine worker")?;
                fault!("the engine worker ended early ({status})")
            }
        }
    }

    /// Time of `passes` passes of a fixed step, by the judge's clock.
    pub fn replay(&mut self, kind: ReplayKind, rows: u32, context: u32, passes: u32) -> Result<Duration> {
        self.send(&Command::Arm { kind, rows, context, passes })?;
        self.expect(&Reply::Armed)?;
        let start = Instant::now();
        self.send(&Command::Go)?;
        let end = self.expect(&Reply::Done)?;
        Ok(end.duration_since(start))
    }

    /// Mean times of a pass and of its steps, ns, by the engine's own clock.
    pub fn profile(
        &mut self,
        kind: ReplayKind,
        rows: u32,
        context: u32,
        passes: u32,
    ) -> Result<(f64, Vec<StepTime>)> {
        self.send(&Command::Profile { kind, rows, context, passes })?;
        match self.reply()?.1 {
            Reply::Steps { pass, steps } => Ok((pass, steps)),
            other => fault!("the engine worker answered {other:?} to a profile"),
        }
    }

    fn expect(&mut self, wanted: &Reply) -> Result<Instant> {
        match self.reply()? {
            (at, reply) if reply == *wanted => Ok(at),
            (_, other) => fault!("the engine worker answered {other:?} where {wanted:?} was due"),
        }
    }

    /// Logits of the positions of `tokens` from `from` on, all of them as tokens of this phase: `[positions][vocab]`.
    pub fn logits(&mut self, phase: Phase, tokens: &[u32], from: usize) -> Result<Vec<f32>> {
        let wanted = tokens.len().saturating_sub(from);
        self.send(&Command::Logits { phase, tokens: tokens.to_vec(), from })?;
        match self.reply()?.1 {
            Reply::Logits { rows } if rows as usize == wanted => {}
            other => fault!("the engine worker answered {other:?} to {wanted} positions"),
        }
        let mut logits = vec![0f32; wanted * self.vocab];
        self.logits.seek(SeekFrom::Start(0))?;
        self.logits.read_exact(bytemuck::cast_slice_mut(&mut logits)).context("reading logits")?;
        Ok(logits)
    }

    /// Runs the prompts in a closed loop at `concurrency`, each to `output_tokens` tokens.
    pub fn workload(
        &mut self,
        prompts: &[Vec<u32>],
        output_tokens: u32,
        concurrency: usize,
    ) -> Result<WorkloadSamples> {
        let mut samples = WorkloadSamples { tokens: vec![Vec::new(); prompts.len()], ..Default::default() };
        let mut open: BTreeMap<u64, (Instant, Option<Instant>)> = BTreeMap::new();
        let mut next = 0;
        let start = Instant::now();
        let mut end = start;
        while next < prompts.len() || !open.is_empty() {
            while next < prompts.len() && open.len() < concurrency {
                let id = next as u64;
                open.insert(id, (Instant::now(), None));
                self.send(&Command::Submit { id, prompt: prompts[next].clone(), output_tokens })?;
                next += 1;
            }
            let (at, reply) = self.reply()?;
            match reply {
                Reply::Token { id, token } => {
                    let (began, last) = open
                        .get_mut(&id)
                        .ok_or_else(|| EngineFault(format!("a token of request {id}, which is not open")))?;
                    match last {
                        None => samples.ttft_ms.push(ms(at - *began)),
                        Some(before) => samples.itl_ms.push(ms(at.saturating_duration_since(*before))),
                    }
                    *last = Some(at);
                    samples.tokens[id as usize].push(token);
                }
                Reply::Finished { id, completion_tokens, reason } => {
                    open.remove(&id)
                        .ok_or_else(|| EngineFault(format!("the end of request {id}, which is not open")))?;
                    let got = samples.tokens[id as usize].len() as u32;
                    // Fewer tokens would look like speed.
                    if got != output_tokens || completion_tokens != output_tokens {
                        fault!("request {id} ended ({reason}) after {got} of {output_tokens} tokens");
                    }
                    end = at;
                }
                other => fault!("the engine worker answered {other:?} to a workload"),
            }
        }
        samples.wall_s = end.duration_since(start).as_secs_f64();
        samples.output_tokens = samples.tokens.iter().map(|t| t.len() as u64).sum();
        Ok(samples)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = self.send(&Command::Quit);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

struct Scratch {
    file: File,
    path: std::path::PathBuf,
}

/// A file for logits, in memory where the host has such a folder.
fn tempfile_in_memory() -> Result<Scratch> {
    static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("wright-logits-{}-{n}", std::process::id());
    let shared = Path::new("/dev/shm");
    let folder = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let path = folder.join(name);
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .with_context(|| format!("making {}", path.display()))?;
    Ok(Scratch { file, path })
}
