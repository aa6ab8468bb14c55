//! The ceilings of a host, measured with kernels of our own through the same ABI, pool and build as every candidate.
//!
//! * `stream_bytes_per_s_t<T>`: reading 128 MiB once, T threads (weights do not fit the last-level cache);
//! * `stream_cached_bytes_per_s_t<T>`: reading 16 MiB again and again;
//! * `int8_macs_per_s_t<T>`: VPDPBUSD (or the best int8 multiply-add that the host has), registers only;
//! * `f32_flops_per_s_t<T>`: fused multiply-adds, registers only, two operations each;
//! * `amx_int8_macs_per_s_t<T>`: TDPBUSD on resident tiles, where there is AMX;
//! * `barrier_ns_t<T>`: one empty phase, all threads meeting.

mod source;

pub use source::{Probe, probes};
