//! kernel-abi
