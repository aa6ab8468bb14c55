//! A sense-reversing barrier that spins for a while and then parks in the kernel, so that it is fast when every
//! thread has a processor and makes progress when they have not.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A member of the group panicked: the barrier never closes again, all waiters return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Sleeps until `word` is woken, unless it no longer holds `seen`. May return at any time.
fn futex_wait(word: &AtomicU32, seen: u32) {
    // SAFETY: the pointer is valid for the call, the kernel only reads it, and a null timeout means none.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            seen,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

/// Wakes all that sleep on `word`.
fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: the kernel uses the pointer as a key only.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX);
    }
}

/// A counter that threads wait on until it changes. On its own cache lines.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Gate {
    value: AtomicU32,
    /// Threads that sleep or are about to. A bump that sees none makes no system call.
    sleepers: AtomicU32,
}

impl Gate {
    pub(crate) fn value(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Changes the value (publishing all earlier writes) and wakes the sleepers.
    pub(crate) fn bump(&self) {
        // Sequentially consistent with the sleeper's increment and its re-read: one of the two sees the other.
        self.value.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            futex_wake_all(&self.value);
        }
    }

    /// Waits until the value differs from `seen`: `spin` rounds of polling, then asleep.
    pub(crate) fn wait(&self, seen: u32, spin: u32) {
        for _ in 0..spin {
            if self.value.load(Ordering::Acquire) != seen {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.value.load(Ordering::SeqCst) == seen {
            futex_wait(&self.value, seen);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A barrier for a fixed group of threads.
///
/// The generation is the sense: it changes once per round, when the last member arrives. Writes before
/// [`Barrier::wait`] of any member happen before reads after it of every member.
#[derive(Debug)]
pub struct Barrier {
    gate: Gate,
    arrived: Arrived,
    broken: AtomicBool,
    members: u32,
    spin: u32,
}

#[repr(align(128))]
#[derive(Debug, Default)]
struct Arrived(AtomicU32);

impl Barrier {
    /// A barrier of `members` threads (at least 1), each of which polls `spin` rounds before it sleeps.
    pub fn new(members: u32, spin: u32) -> Self {
        Self {
            gate: Gate::default(),
            arrived: Arrived::default(),
            broken: AtomicBool::new(false),
            members: members.max(1),
            spin,
        }
    }

    /// Waits until all members have come.
    ///
    /// # Errors
    /// [`Broken`] once any member has called [`Barrier::break_up`].
    #[inline]
    pub fn wait(&self) -> Result<(), Broken> {
        if self.members > 1 {
            // Read before arriving: after arrival the generation may change at any time. Read before `broken`
            // too: `break_up` sets `broken` first, so a thread that sees it unset waits on the old generation
            // and leaves with the bump.
            let generation = self.gate.value();
            if self.broken.load(Ordering::SeqCst) {
                return Err(Broken);
            }
            if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
                // Before the generation changes: nobody of the next round can arrive yet.
                self.arrived.0.store(0, Ordering::Relaxed);
                self.gate.bump();
            } else {
                self.gate.wait(generation, self.spin);
            }
        }
        if self.broken.load(Ordering::Acquire) { Err(Broken) } else { Ok(()) }
    }

    /// Lets all present and future waiters return [`Broken`], for good.
    pub fn break_up(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.gate.bump();
    }

    /// Whether [`Barrier::break_up`] was called.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }
}
