//! The page through which judge and worker talk: a doorbell each way, one command, one reply, and the table of calls.
//!
//! What the worker writes is untrusted: the judge copies it, checks it and treats nonsense as the candidate's fault.

use plan::abi::TENSOR_SLOTS;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Offset of the call table.
pub(crate) const CALLS_OFFSET: usize = 4096;

/// The header of the channel.
#[repr(C)]
pub(crate) struct Header {
    /// Bumped by the judge.
    pub bell: Line<AtomicU32>,
    /// Set to `bell`'s value by the worker when the command is done.
    pub reply: Line<AtomicU32>,
    pub command: AtomicU32,
    pub first: AtomicU32,
    pub count: AtomicU32,
    pub threads: AtomicU32,
    pub phases: AtomicU32,
    pub status: AtomicU32,
    /// The worker's own reading of a batch, for cross-checks only.
    pub elapsed_ns: AtomicU64,
    /// Where a fault happened: code of the signal and address.
    pub fault_signal: AtomicU32,
    pub fault_region: AtomicU32,
    pub fault_offset: AtomicU64,
    pub text_bytes: AtomicU32,
    pub text: [std::sync::atomic::AtomicU8; 1024],
}

/// On a cache line of its own.
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub T);

pub(crate) mod command {
    pub const PREPARE: u32 = 1;
    pub const RUN: u32 = 2;
}

pub(crate) mod status {
    /// No reply was written.
    pub const NONE: u32 = 0;
    pub const READY: u32 = 1;
    pub const DONE: u32 = 2;
    /// The worker cannot go on, by our fault or the host's; the text says why.
    pub const FAILED: u32 = 3;
    /// The artifact could not be loaded.
    pub const REFUSED: u32 = 4;
    /// MXCSR was not as before.
    pub const MXCSR: u32 = 5;
    /// A memory fault; the fault fields say where.
    pub const FAULT: u32 = 6;
}

/// Where a tensor lies: region number (1 = first; 0 = none), offset and bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub region: u32,
    pub reserved: u32,
    pub offset: u64,
    pub bytes: u64,
}

impl Place {
    /// `bytes` bytes at `offset` of the region with that index (0 = first region of the worker).
    pub fn new(region_index: usize, offset: usize, bytes: usize) -> Self {
        Self { region: region_index as u32 + 1, reserved: 0, offset: offset as u64, bytes: bytes as u64 }
    }
}

/// One call, by places.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub rows: u32,
    pub reserved: u32,
    pub tensors: [Place; TENSOR_SLOTS],
    pub ints: [i64; 8],
    /// Scratch of all threads: `bytes` is the size for each thread.
    pub scratch: Place,
    pub shared: Place,
}

impl Call {
    /// A call with empty slots.
    pub fn new(rows: u32) -> Self {
        Self {
            rows,
            reserved: 0,
            tensors: [Place::default(); TENSOR_SLOTS],
            ints: [0; 8],
            scratch: Place::default(),
            shared: Place::default(),
        }
    }
}

/// Waits until `word` differs from `seen`, at most `timeout`; polls `spin` rounds first. May return early.
pub(crate) fn wait(word: &AtomicU32, seen: u32, spin: u32, timeout: Duration) {
    for _ in 0..spin {
        if word.load(Ordering::Acquire) != seen {
            return;
        }
        std::hint::spin_loop();
    }
    let time = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    };
    // SAFETY: the word and the time are valid for reads; without the private flag other processes are woken too.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const time) };
}

/// Wakes whoever waits on `word`, in any process.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the pointer as a key only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

impl Header {
    /// Writes a text, cut at the field's end.
    pub fn set_text(&self, text: &str) {
        let bytes = text.as_bytes();
        let n = bytes.len().min(self.text.len());
        for (place, byte) in self.text.iter().zip(&bytes[..n]) {
            place.store(*byte, Ordering::Relaxed);
        }
        self.text_bytes.store(n as u32, Ordering::Release);
    }

    /// Reads the text; garbage is replaced.
    pub fn text(&self) -> String {
        let n = (self.text_bytes.load(Ordering::Acquire) as usize).min(self.text.len());
        let bytes: Vec<u8> = self.text[..n].iter().map(|b| b.load(Ordering::Relaxed)).collect();
        String::from_utf8_lossy(&bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// The table of calls begins behind the header.
const _: () = assert!(size_of::<Header>() <= CALLS_OFFSET);
