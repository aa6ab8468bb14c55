//! Persistent compute threads that run one job together. The thread that owns the pool is member 0 and takes part,
//! so that dispatch costs one store that the spinning others see.

use crate::barrier::{Barrier, Broken, Gate};
use crate::error::KernelAbiError;
use crate::processors::pin_current_thread;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// One thread's part in a job.
#[derive(Clone, Copy)]
pub struct Member<'a> {
    /// 0 for the owner of the pool.
    pub thread: u32,
    pub threads: u32,
    barrier: &'a Barrier,
}

impl Member<'_> {
    /// Waits for all members of the job.
    ///
    /// # Errors
    /// [`Broken`] if one of them panicked: the job must end at once.
    #[inline]
    pub fn barrier(&self) -> Result<(), Broken> {
        self.barrier.wait()
    }
}

type Job<'a> = dyn Fn(Member<'_>) -> Result<(), Broken> + Sync + 'a;

struct Shared {
    /// Bumped when a job is set or the pool ends.
    jobs: Gate,
    /// Bumped when the last worker has left the job.
    done: Gate,
    remaining: AtomicU32,
    /// Written by the owner between jobs, read by workers within one.
    job: UnsafeCell<Option<*const Job<'static>>>,
    barrier: Barrier,
    ending: AtomicBool,
    panic: Mutex<Option<String>>,
    spin: u32,
}

// SAFETY: `job` is written only by the owner while no worker is in a job (before `jobs` is bumped, after `done`
// was), and read by workers only after they saw that bump; all other fields are Sync. The closure behind the
// pointer is Sync.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is not tied to a thread.
unsafe impl Send for Shared {}

impl Shared {
    fn take_part(&self, job: &Job<'_>, thread: u32, threads: u32) {
        let member = Member { thread, threads, barrier: &self.barrier };
        // A `Broken` result needs no report: the panic that caused it has one.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(member))) {
            let mut slot = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            slot.get_or_insert_with(|| format!("thread {thread}: {}", words(payload.as_ref())));
            drop(slot);
            self.barrier.break_up();
        }
    }
}

fn words(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

/// Compute threads that start once and run jobs until they are dropped.
///
/// A panic in a job breaks the barrier, so that no member waits for ever, and ends the pool's usefulness: this and
/// all later runs fail.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    threads: u32,
}

impl Pool {
    /// Starts `threads - 1` workers; the calling thread is member 0. Member i is pinned to `processors[i]`, the
    /// caller too, if there are as many (an empty list pins nobody). Waiting members poll `spin` rounds, then
    /// sleep.
    ///
    /// # Errors
    /// `System` if a thread cannot be started or pinned.
    pub fn new(threads: u32, spin: u32, processors: &[usize]) -> Result<Self, KernelAbiError> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            jobs: Gate::default(),
            done: Gate::default(),
            remaining: AtomicU32::new(0),
            job: UnsafeCell::new(None),
            barrier: Barrier::new(threads, spin),
            ending: AtomicBool::new(false),
            panic: Mutex::new(None),
            spin,
        });
        let pinned = processors.len() >= threads as usize;
        let mut pool = Self { shared: shared.clone(), workers: Vec::new(), threads };
        for thread in 1..threads {
            let shared = shared.clone();
            let seen = shared.jobs.value();
            let worker = std::thread::Builder::new()
                .name(format!("compute-{thread}"))
                .spawn(move || work(&shared, thread, threads, seen))
                .map_err(|source| KernelAbiError::System {
                    what: format!("start compute thread {thread}"),
                    source,
                })?;
            pool.workers.push(worker);
        }
        if pinned {
            pool.pin(processors)?;
        }
        Ok(pool)
    }

    fn pin(&mut self, processors: &[usize]) -> Result<(), KernelAbiError> {
        let failure = Mutex::new(None);
        self.run(&|member| {
            if let Err(error) = pin_current_thread(processors[member.thread as usize]) {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
            Ok(())
        })?;
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Members, the owner included.
    pub fn threads(&self) -> u32 {
        self.threads
    }

    /// Runs `job` on all members and returns when all have left it. Writes of every member happen before the return.
    ///
    /// # Errors
    /// `Panicked` if a member panicked, now or in an earlier run.
    pub fn run(
        &mut self,
        job: &(dyn Fn(Member<'_>) -> Result<(), Broken> + Sync),
    ) -> Result<(), KernelAbiError> {
        let shared = &*self.shared;
        if !shared.barrier.is_broken() {
            if self.threads > 1 {
                // SAFETY: only the lifetime changes; `run` does not return before all workers have left the job
                // (it waits for `done`, panics of its own part are caught), so the reference outlives its use.
                let erased: *const Job<'static> = unsafe {
                    std::mem::transmute::<*const Job<'_>, *const Job<'static>>(std::ptr::from_ref(job))
                };
                let done = shared.done.value();
                // SAFETY: no worker is in a job (`&mut self`, and the last run waited for `done`).
                unsafe { *shared.job.get() = Some(erased) };
                shared.remaining.store(self.threads - 1, Ordering::Relaxed);
                shared.jobs.bump();
                shared.take_part(job, 0, self.threads);
                shared.done.wait(done, shared.spin);
            } else {
                shared.take_part(job, 0, 1);
            }
        }
        if shared.barrier.is_broken() {
            let slot = shared.panic.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(KernelAbiError::Panicked(slot.clone().unwrap_or_default()));
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        self.shared.jobs.bump();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of jobs; there is nothing else in them that could panic.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, thread: u32, threads: u32, mut seen: u32) {
    loop {
        shared.jobs.wait(seen, shared.spin);
        if shared.ending.load(Ordering::SeqCst) {
            return;
        }
        // The owner bumps once per job and waits for its end, so the gate moved by exactly one.
        seen = seen.wrapping_add(1);
        // SAFETY: the bump that ended the wait was made after the job was written, and the owner does not write
        // again before this worker has decremented `remaining`.
        let job = unsafe { *shared.job.get() };
        if let Some(job) = job {
            // SAFETY: the owner keeps the closure alive until `remaining` is 0.
            shared.take_part(unsafe { &*job }, thread, threads);
        }
        if shared.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            shared.done.bump();
        }
    }
}
