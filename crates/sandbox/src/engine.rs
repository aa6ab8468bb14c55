//! Confinement of a process that runs a whole candidate engine: everything is loaded and all threads run, then it
//! gives up files, network, new processes and executable memory.

use crate::confine::{self, Layers};
use crate::error::SandboxError;

/// What a loaded engine still needs: its pipes and shared file, memory, waiting, time, ending.
const SERVING: &[i64] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_sigaltstack,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_ppoll,
];

/// Confines this process, all its threads included. Returns the layers that stand.
///
/// # Errors
/// [`SandboxError::Worker`] if the system call filter cannot be installed: without it nothing may run.
pub fn confine_engine() -> Result<Layers, SandboxError> {
    let mut layers = Layers::new();
    confine::no_new_privileges(&mut layers)?;
    confine::landlock(&confine::Paths::default(), &mut layers);
    confine::allow_serving(SERVING, &mut layers)?;
    Ok(layers)
}
