//! What kernels need of the machine (layer 2): loading them, knowing the processor's features, compute threads with
//! barriers, aligned memory. The calling convention itself is [`plan::abi`].

pub mod barrier;
pub mod buffer;
pub mod error;
pub mod features;
pub mod library;
pub mod pool;
pub mod processors;

pub use barrier::{Barrier, Broken};
pub use buffer::AlignedBuffer;
pub use error::KernelAbiError;
pub use features::{architecture, detect, request_amx};
pub use library::{Kernel, KernelFn};
pub use pool::{Member, Pool};
pub use processors::{allowed_processors, pin_current_thread};
