//! Sending a workload.

use crate::client::{Destination, HangUp, send};
use crate::error::LoadError;
use crate::host::{HostMark, HostUse};
use crate::sample::{Failure, Outcome, Sample};
use crate::seeded::Seeded;
use crate::workload::{Abandon, Arrival, Endpoint, Item, Prompt, Workload};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Everything that one run saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// One per item, in the order of the items
    pub samples: Vec<Sample>,
    /// First request's start to last request's end, ns
    pub wall_ns: u64,
    /// What the client cost and what the host took
    pub host: HostUse,
    /// Open or closed loop
    pub arrival: Arrival,
}

/// Sends the workload from a thread of its own and waits for it (blocking: from async code use `spawn_blocking`).
/// Takes at most (requests / concurrency) x the total timeout.
///
/// # Errors
/// Only when nothing could be sent at all: bad URL, empty workload, no thread.
pub fn run(workload: &Workload) -> Result<Run, LoadError> {
    check(workload)?;
    let to = Arc::new(Destination::of(workload)?);
    std::thread::scope(|scope| {
        let client = std::thread::Builder::new().name("load".into()).spawn_scoped(scope, || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(LoadError::Start)?;
            runtime.block_on(async {
                if !workload.warm_up.is_empty() {
                    let warm_up = Workload { abandon: None, items: Vec::new(), ..workload.clone() };
                    send_all(&warm_up, &workload.warm_up, &to).await;
                }
                let mark = HostMark::now();
                let (samples, wall_ns) = send_all(workload, &workload.items, &to).await;
                Ok(Run { samples, wall_ns, host: mark.until_now(wall_ns), arrival: workload.arrival })
            })
        });
        client.map_err(LoadError::Start)?.join().map_err(|_| LoadError::Died)?
    })
}

fn check(workload: &Workload) -> Result<(), LoadError> {
    let refuse = |reason: &str| Err(LoadError::Workload(reason.into()));
    if workload.items.is_empty() {
        return refuse("it has no requests");
    }
    let all = || workload.items.iter().chain(&workload.warm_up);
    if workload.endpoint == Endpoint::Chat && all().any(|item| matches!(item.prompt, Prompt::Ids(_))) {
        return refuse("chat takes text prompts, not token ids");
    }
    match workload.arrival {
        Arrival::Closed { concurrency: 0 } => refuse("concurrency is 0"),
        Arrival::Poisson { per_second, .. } if !(per_second > 0.0 && per_second.is_finite()) => {
            refuse("the rate must be a positive number")
        }
        Arrival::Poisson { max_in_flight: 0, .. } => refuse("max_in_flight is 0"),
        _ => Ok(()),
    }
}

/// One request, ready to go: bodies are made before the clock starts.
struct Job {
    index: usize,
    body: Vec<u8>,
    hang_up: Option<HangUp>,
}

fn jobs(workload: &Workload, items: &[Item]) -> Vec<Job> {
    let mut random = Seeded::new(workload.abandon.map_or(0, |a| a.seed));
    let jobs = items.iter().enumerate().map(|(index, item)| Job {
        index,
        body: workload.body(item),
        hang_up: workload.abandon.and_then(|a| hang_up(a, &mut random)),
    });
    jobs.collect()
}

fn hang_up(abandon: Abandon, random: &mut Seeded) -> Option<HangUp> {
    // All three are drawn always, so that one request's fate does not shift the next one's.
    let (chance, chunks, wait) =
        (random.unit(), random.below(abandon.max_chunks as usize + 1), random.unit());
    let wait = Duration::from_secs_f64(abandon.early_ms as f64 / 1e3 * wait);
    (chance < abandon.fraction).then_some(HangUp { chunks: chunks as u32, wait })
}

async fn send_all(workload: &Workload, items: &[Item], to: &Arc<Destination>) -> (Vec<Sample>, u64) {
    let jobs = jobs(workload, items);
    let epoch = Instant::now();
    let mut samples = match workload.arrival {
        Arrival::Closed { concurrency } => closed(jobs, concurrency, to, epoch).await,
        Arrival::Poisson { per_second, seed, max_in_flight } => {
            poisson(jobs, per_second, seed, max_in_flight, to, epoch).await
        }
    };
    samples.sort_by_key(|s| s.index);
    let first = samples.iter().map(|s| s.start_ns).min().unwrap_or(0);
    let last = samples.iter().map(|s| s.end_ns).max().unwrap_or(0);
    (samples, last.saturating_sub(first))
}

async fn closed(jobs: Vec<Job>, concurrency: usize, to: &Arc<Destination>, epoch: Instant) -> Vec<Sample> {
    let clients = concurrency.min(jobs.len());
    let jobs = Arc::new(jobs);
    let next = Arc::new(AtomicUsize::new(0));
    let mut set = JoinSet::new();
    for _ in 0..clients {
        let (jobs, next, to) = (Arc::clone(&jobs), Arc::clone(&next), Arc::clone(to));
        set.spawn(async move {
            let mut samples = Vec::new();
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                samples.push(send(&to, job.index, job.body.clone(), job.hang_up, epoch).await);
            }
            samples
        });
    }
    let mut samples = Vec::with_capacity(jobs.len());
    while let Some(done) = set.join_next().await {
        // A task of ours is never cancelled; a panic in it is a bug and shows as missing samples in the summary.
        samples.extend(done.unwrap_or_default());
    }
    samples
}

async fn poisson(
    jobs: Vec<Job>,
    per_second: f64,
    seed: u64,
    max_in_flight: usize,
    to: &Arc<Destination>,
    epoch: Instant,
) -> Vec<Sample> {
    let mut random = Seeded::new(seed);
    let mut set = JoinSet::new();
    let mut samples = Vec::with_capacity(jobs.len());
    // Due times are absolute, so that a late wake-up does not lower the rate.
    let mut due = 0.0f64;
    for job in jobs {
        tokio::time::sleep_until((epoch + Duration::from_secs_f64(due)).into()).await;
        due += -(1.0 - random.unit()).ln() / per_second;
        while let Some(done) = set.try_join_next() {
            samples.extend(done);
        }
        if set.len() >= max_in_flight {
            samples.push(not_sent(job.index, epoch));
            continue;
        }
        let to = Arc::clone(to);
        set.spawn(async move { send(&to, job.index, job.body, job.hang_up, epoch).await });
    }
    while let Some(done) = set.join_next().await {
        samples.extend(done);
    }
    samples
}

fn not_sent(index: usize, epoch: Instant) -> Sample {
    let now = epoch.elapsed().as_nanos() as u64;
    Sample {
        index,
        start_ns: now,
        ttft_ns: None,
        gaps_ns: Vec::new(),
        end_ns: now,
        chunks: 0,
        prompt_tokens: None,
        completion_tokens: None,
        finish_reason: None,
        text: String::new(),
        outcome: Outcome::Failed(Failure::ClientLimit),
    }
}
