//! The judge's side of a worker: starting it, preparing calls, timing batches from outside, ending it.

use crate::build::Artifact;
use crate::channel::{CALLS_OFFSET, Call, Header, command, status, wait, wake};
use crate::child::{RegionAccess, Tiles, WorkerOrder, layers_of};
use crate::confine::{Layers, Limits};
use crate::error::SandboxError;
use crate::memory::SharedMemory;
use crate::process::{Helper, describe, kill, spawn};
use evidence::Reason;
use plan::{Feature, Target};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Memory that a worker is given, and what it may do with it.
#[derive(Clone, Debug)]
pub struct Region {
    pub memory: Arc<SharedMemory>,
    pub access: RegionAccess,
}

/// How workers are started.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    pub helper: Helper,
    /// Processors for the threads, in order; empty: not pinned.
    pub processors: Vec<usize>,
    /// Rounds that waiting threads of a worker poll before they sleep.
    pub spin: u32,
    /// Most calls that can be prepared at once.
    pub max_calls: u32,
    /// CPU seconds that a worker may use in its life.
    pub cpu_s: u64,
    /// Address space beside the regions, bytes.
    pub memory_bytes: u64,
    /// Time for start-up and for each command that runs no candidate code.
    pub patience: Duration,
}

impl WorkerConfig {
    /// Limits that suit kernels.
    pub fn new(helper: Helper, processors: Vec<usize>) -> Self {
        Self {
            helper,
            processors,
            spin: 3000,
            max_calls: 4096,
            cpu_s: 120,
            memory_bytes: 1 << 30,
            patience: Duration::from_secs(10),
        }
    }
}

/// One batch as the judge saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// From the doorbell to the reply, by the judge's clock.
    pub elapsed: Duration,
    /// The worker's own reading: a cross-check, never a result.
    pub claimed: Duration,
}

/// A process that runs one kernel and nothing else. Dropped: ended.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    channel: SharedMemory,
    phases: u32,
    prepared: u32,
    max_calls: u32,
    threads: u32,
    patience: Duration,
    layers: Layers,
    /// Why it is no longer usable.
    over: Option<(Reason, String)>,
}

impl Worker {
    /// Starts a worker with `target.threads` threads for `artifact`, with `phases` phases for each call.
    ///
    /// # Errors
    /// [`Reason::Inspection`] if the artifact cannot be loaded, [`Reason::Unsupported`] if the machine lacks AMX
    /// permission; other errors are not the candidate's fault. Nothing of the candidate has run yet.
    pub fn start(
        config: &WorkerConfig,
        artifact: &Artifact,
        target: &Target,
        phases: u32,
        regions: &[Region],
    ) -> Result<Self, SandboxError> {
        let channel = SharedMemory::new(CALLS_OFFSET + config.max_calls as usize * size_of::<Call>())?;
        let binary = SharedMemory::new(artifact.bytes.len())?;
        binary.write(0, &artifact.bytes);
        let total: usize = regions.iter().map(|r| r.memory.bytes()).sum();
        let wants_tiles =
            target.features.contains(&Feature::AmxInt8) || target.features.contains(&Feature::AmxBf16);
        let order = WorkerOrder {
            threads: target.threads,
            processors: config.processors.clone(),
            spin: config.spin,
            tiles: if wants_tiles { Tiles::Wanted } else { Tiles::Unused },
            limits: Limits {
                cpu_s: config.cpu_s,
                memory_bytes: config.memory_bytes + total as u64,
                file_bytes: 0,
                processes: u64::from(target.threads),
            },
            artifact_bytes: artifact.bytes.len(),
            channel_bytes: channel.bytes(),
            max_calls: config.max_calls,
            regions: regions.iter().map(|r| (r.memory.bytes(), r.access)).collect(),
            parent: std::process::id() as i32,
        };
        let order = serde_json::to_string(&order)
            .map_err(|e| SandboxError::Worker(format!("cannot encode the order: {e}")))?;
        let mut command = config.helper.command();
        command.arg("run").arg(order).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // The worker announces itself as if bell 1 had been rung; rung before it starts, so that it never sees less.
        // SAFETY: as in `header`.
        let header = unsafe { &*channel.base().cast::<Header>() };
        header.bell.0.store(1, Ordering::Release);
        let fds: Vec<_> =
            [channel.fd(), binary.fd()].into_iter().chain(regions.iter().map(|r| r.memory.fd())).collect();
        let mut worker = Self {
            child: spawn(command, &fds)?,
            channel,
            phases,
            prepared: 0,
            max_calls: config.max_calls,
            threads: target.threads,
            patience: config.patience,
            layers: Layers::new(),
            over: None,
        };
        let outcome = worker.wait_for(1, 0, worker.patience);
        let text = worker.header().text();
        match (outcome, worker.header().status.load(Ordering::Acquire)) {
            (Ok(()), status::READY) => {
                worker.layers = layers_of(&text);
                Ok(worker)
            }
            (Ok(()), status::REFUSED) => Err(SandboxError::rejected(Reason::Inspection, text)),
            (Ok(()), _) => Err(SandboxError::Worker(text)),
            (Err(error), _) => Err(SandboxError::Worker(format!("it did not start: {error}"))),
        }
    }

    /// Sandbox layers that stand around the worker.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Process id of the worker.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Threads of the worker.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    fn header(&self) -> &Header {
        // SAFETY: the channel is page-aligned, at least a page long and lives as long as `self`; all fields of the
        // header are atomics, so that the other process may write at any time.
        unsafe { &*self.channel.base().cast::<Header>() }
    }

    /// Hands over calls; they replace those of before.
    ///
    /// # Errors
    /// [`SandboxError::Worker`] if there are too many or a place lies outside its region (the judge's fault).
    pub fn prepare(&mut self, calls: &[Call]) -> Result<(), SandboxError> {
        if calls.len() > self.max_calls as usize {
            return Err(SandboxError::Worker(format!("{} calls; at most {}", calls.len(), self.max_calls)));
        }
        for (i, call) in calls.iter().enumerate() {
            let bytes = std::ptr::from_ref(call).cast::<u8>();
            // SAFETY: `Call` is repr(C) without padding (u32 pairs, u64 and i64 fields), so all its bytes are set.
            let bytes = unsafe { std::slice::from_raw_parts(bytes, size_of::<Call>()) };
            self.channel.write(CALLS_OFFSET + i * size_of::<Call>(), bytes);
        }
        self.prepared = 0;
        self.command(command::PREPARE, 0, calls.len() as u32, 1, self.patience)?;
        self.prepared = calls.len() as u32;
        Ok(())
    }

    /// Runs prepared calls `first..first + count` on `threads` threads, one after another, and times the whole.
    ///
    /// # Errors
    /// [`Reason::Crash`], [`Reason::Timeout`] or [`Reason::Memory`] if the candidate misbehaved; the worker is over
    /// then, and every later command returns the same.
    pub fn run(
        &mut self,
        first: u32,
        count: u32,
        threads: u32,
        timeout: Duration,
    ) -> Result<Batch, SandboxError> {
        if first.checked_add(count).is_none_or(|end| end > self.prepared) {
            let what = format!("calls {first}+{count} of {} were not prepared", self.prepared);
            return Err(SandboxError::Worker(what));
        }
        let elapsed = self.command(command::RUN, first, count, threads, timeout)?;
        let claimed = Duration::from_nanos(self.header().elapsed_ns.load(Ordering::Relaxed));
        Ok(Batch { elapsed, claimed })
    }

    fn command(
        &mut self,
        what: u32,
        first: u32,
        count: u32,
        threads: u32,
        timeout: Duration,
    ) -> Result<Duration, SandboxError> {
        if let Some((reason, detail)) = &self.over {
            return Err(SandboxError::rejected(*reason, detail.clone()));
        }
        let header = self.header();
        header.command.store(what, Ordering::Relaxed);
        header.first.store(first, Ordering::Relaxed);
        header.count.store(count, Ordering::Relaxed);
        header.threads.store(threads, Ordering::Relaxed);
        header.phases.store(self.phases, Ordering::Relaxed);
        header.status.store(status::NONE, Ordering::Relaxed);
        let before = header.bell.0.load(Ordering::Relaxed);
        let bell = before.wrapping_add(1);
        // A reply that is there before the question was forged in the last batch.
        let seen = header.reply.0.load(Ordering::Acquire);
        if seen == bell {
            return Err(self.end(Reason::Crash, "the worker's reply page was tampered with".into()));
        }
        let start = Instant::now();
        header.bell.0.store(bell, Ordering::Release);
        wake(&header.bell.0);
        self.wait_for(bell, seen, timeout)?;
        let elapsed = start.elapsed();
        match self.header().status.load(Ordering::Acquire) {
            status::DONE => Ok(elapsed),
            status::MXCSR => Err(self.end(
                Reason::Memory,
                "the kernel changed MXCSR (rounding, flush to zero or exception masks)".into(),
            )),
            status::FAILED => {
                let text = self.header().text();
                kill(&mut self.child);
                Err(SandboxError::Worker(text))
            }
            other => Err(self.end(Reason::Crash, format!("a reply that makes no sense (status {other})"))),
        }
    }

    /// Waits until the reply is `bell`; anything else than `seen` in between is garbage.
    fn wait_for(&mut self, bell: u32, seen: u32, timeout: Duration) -> Result<(), SandboxError> {
        let deadline = Instant::now() + timeout;
        loop {
            let reply = self.header().reply.0.load(Ordering::Acquire);
            if reply == bell {
                return Ok(());
            }
            if reply != seen {
                return Err(self.end(Reason::Crash, format!("reply {reply} to question {bell}")));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.end(Reason::Timeout, format!("no reply within {timeout:?}")));
            }
            wait(&self.header().reply.0, reply, 0, left.min(Duration::from_millis(5)));
            if self.header().reply.0.load(Ordering::Acquire) == bell {
                return Ok(());
            }
            if let Some(end) = self.ended()? {
                return Err(self.end(Reason::Crash, end));
            }
        }
    }

    /// How the process ended, if it has.
    fn ended(&mut self) -> Result<Option<String>, SandboxError> {
        let status = self.child.try_wait().map_err(|e| SandboxError::host("look after a worker", e))?;
        let Some(status) = status else { return Ok(None) };
        let header = self.header();
        if header.status.load(Ordering::Acquire) != status::FAULT {
            return Ok(Some(format!("the worker ended: {}", describe(status))));
        }
        let region = header.fault_region.load(Ordering::Relaxed);
        let offset = header.fault_offset.load(Ordering::Relaxed);
        Ok(Some(match region {
            0 => "memory fault outside all tensors".into(),
            n => format!(
                "memory fault at byte {offset} of region {} (a write to an input, or beyond the end)",
                n - 1
            ),
        }))
    }

    fn end(&mut self, reason: Reason, detail: String) -> SandboxError {
        kill(&mut self.child);
        self.over = Some((reason, detail.clone()));
        SandboxError::rejected(reason, detail)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}
