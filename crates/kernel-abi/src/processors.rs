//! Which processors the process may use, and pinning threads to them.

use crate::error::KernelAbiError;

fn system(what: &str) -> KernelAbiError {
    KernelAbiError::System { what: what.to_owned(), source: std::io::Error::last_os_error() }
}

/// The processors that the calling thread may run on, ascending.
///
/// # Errors
/// `System` if the operating system does not tell.
pub fn allowed_processors() -> Result<Vec<usize>, KernelAbiError> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid for writes of its own size.
    let rc = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if rc != 0 {
        return Err(system("read the processor affinity"));
    }
    let bits = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: every index is below the number of bits of the set.
    Ok((0..bits).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect())
}

/// Keeps the calling thread on one processor.
///
/// # Errors
/// `System` if the processor is not allowed or does not exist.
pub fn pin_current_thread(processor: usize) -> Result<(), KernelAbiError> {
    if processor >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(KernelAbiError::System {
            what: format!("pin a thread to processor {processor}"),
            source: std::io::ErrorKind::InvalidInput.into(),
        });
    }
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index is within the set, checked above.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the set is valid for reads of its own size.
    let rc = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if rc == 0 { Ok(()) } else { Err(system(&format!("pin a thread to processor {processor}"))) }
}
