//! The calling convention between trusted Rust and kernels.
//!
//! A kernel is one `no_std` source with one exported function
//! `extern "C" fn kernel(args: *const ArgsV1, phase: u32, thread: u32, threads: u32)`.
//! All `threads` threads call it for phase 0, then meet at a barrier, then call it for phase 1, and so on
//! for [`Launch::phases`] phases. A kernel has no barrier of its own and writes only to output slots, to its
//! own per-thread scratch and (disjointly within one phase, or by atomic operations) to the call's shared scratch.

use serde::{Deserialize, Serialize};

/// Version of [`ArgsV1`]; kernels, plans and bundles carry it.
pub const ABI_VERSION: u32 = 1;
/// Tensor slots of one call.
pub const TENSOR_SLOTS: usize = 16;

/// One tensor of a call: dense memory of `bytes` bytes, aligned to 64.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TensorV1 {
    pub data: *mut u8,
    pub bytes: u64,
}

impl TensorV1 {
    /// A slot that the operation does not use.
    pub const NONE: Self = Self { data: std::ptr::null_mut(), bytes: 0 };
}

/// Arguments of one call. `size` is `size_of::<ArgsV1>()`, `version` is [`ABI_VERSION`].
///
/// Slot meanings stand in [`crate::operation::slot`]; integer meanings in [`crate::operation::int`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArgsV1 {
    pub size: u32,
    pub version: u32,
    /// Rows (tokens) of this call, at least 1.
    pub rows: u32,
    pub reserved: u32,
    pub tensors: [TensorV1; TENSOR_SLOTS],
    pub ints: [i64; 8],
    /// Per-thread scratch: thread `t` owns `[scratch + t * scratch_bytes, + scratch_bytes)`. Undefined contents.
    pub scratch: *mut u8,
    /// Bytes of scratch of each thread, at least [`Launch::scratch_bytes`]; a multiple of 64.
    pub scratch_bytes: u64,
    /// Scratch shared by all threads of the call, kept from phase to phase. Undefined contents at phase 0.
    pub shared: *mut u8,
    /// Bytes of shared scratch, at least `shared_bytes + rows * shared_bytes_per_row` of [`Launch`].
    pub shared_bytes: u64,
}

impl ArgsV1 {
    /// Arguments with empty slots.
    pub fn new(rows: u32) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            version: ABI_VERSION,
            rows,
            reserved: 0,
            tensors: [TensorV1::NONE; TENSOR_SLOTS],
            ints: [0; 8],
            scratch: std::ptr::null_mut(),
            scratch_bytes: 0,
            shared: std::ptr::null_mut(),
            shared_bytes: 0,
        }
    }
}

/// Declarative launch description of a kernel. Trusted code sizes everything from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Launch {
    /// Phases of one call, at least 1; all threads meet between phases.
    pub phases: u32,
    /// Scratch bytes of each thread for `max_rows` rows.
    pub scratch_bytes: u64,
    /// Shared scratch of one call: fixed part, bytes.
    pub shared_bytes: u64,
    /// Shared scratch of one call: bytes for each row.
    pub shared_bytes_per_row: u64,
    /// Most rows of one call that the kernel may be given.
    pub max_rows: u32,
    /// Most threads that the kernel may be run with.
    pub max_threads: u32,
}

/// The C view of [`ArgsV1`] that every kernel source begins with (`no_std` Rust). A test compiles it and
/// compares sizes and offsets.
pub const ARGS_V1_SOURCE: &str = r#"
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TensorV1 {
    pub data: *mut u8,
    pub bytes: u64,
}
#[repr(C)]
pub struct ArgsV1 {
    pub size: u32,
    pub version: u32,
    pub rows: u32,
    pub reserved: u32,
    pub tensors: [TensorV1; 16],
    pub ints: [i64; 8],
    pub scratch: *mut u8,
    pub scratch_bytes: u64,
    pub shared: *mut u8,
    pub shared_bytes: u64,
}
"#;
