//! Builds and runs untrusted kernels (layer 2). It judges nothing, and no candidate code runs elsewhere.
//!
//! * [`Builder`] compiles source in a confined child (own scratch folder, no environment, network or files).
//! * [`inspect()`] reads the binary: its form, then every instruction. A filter, not the boundary.
//! * [`Worker`] is the boundary: a re-executed child that starts its threads, gives up the file system, the network
//!   and all system calls but waiting and ending, maps the kernel itself (no dynamic loader) and then runs batches of
//!   calls at the judge's doorbell. The judge's clock stands outside.
//!
//! Programs that use it call [`worker_main`] from a hidden subcommand, see [`Helper`].

pub mod build;
mod channel;
mod child;
mod confine;
mod elf;
mod engine;
pub mod error;
pub mod filter;
pub mod inspect;
mod loader;
mod memory;
mod process;
mod toolchain;
mod worker;

pub use build::{Artifact, BuildLimits, Builder};
pub use channel::{Call, Place};
pub use child::{RegionAccess, worker_main};
pub use confine::Layers;
pub use elf::{Access, Image, Relocation, Segment};
pub use engine::confine_engine;
pub use error::SandboxError;
pub use filter::check_source;
pub use inspect::{Inspection, inspect};
pub use memory::SharedMemory;
pub use process::Helper;
pub use toolchain::Toolchain;
pub use worker::{Batch, Region, Worker, WorkerConfig};
