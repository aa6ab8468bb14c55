//! kernel-abi
pub mod error;
pub use error::KernelAbiError;
