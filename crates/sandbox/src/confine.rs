//! What a child process gives up before it touches anything of a candidate. Every layer is best effort, except those
//! that are always there on Linux; the layers that stood are reported and become part of the evidence.

use crate::error::SandboxError;
use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
    path_beneath_rules,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, sock_filter};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Limits of a child process.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    /// CPU seconds of all threads together.
    pub cpu_s: u64,
    /// Bytes of address space; 0 for no limit.
    pub memory_bytes: u64,
    /// Bytes of the largest file.
    pub file_bytes: u64,
    /// Processes and threads, where a user namespace makes the count its own.
    pub processes: u64,
}

/// Names of the layers that stood.
pub type Layers = Vec<String>;

/// Sets resource limits. The number of processes is only limited in a user namespace of one's own, since it counts
/// all processes of the user otherwise.
pub(crate) fn limit(limits: &Limits, own_user: Layer) -> Result<(), SandboxError> {
    let mut list = vec![
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_CPU, limits.cpu_s),
        (libc::RLIMIT_FSIZE, limits.file_bytes),
        (libc::RLIMIT_NOFILE, 256),
    ];
    if limits.memory_bytes > 0 {
        list.push((libc::RLIMIT_AS, limits.memory_bytes));
    }
    if own_user == Layer::Stands {
        list.push((libc::RLIMIT_NPROC, limits.processes));
    }
    for (resource, value) in list {
        let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
        // SAFETY: the struct is valid for reads.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err(SandboxError::last_os(format!("set resource limit {resource}")));
        }
    }
    Ok(())
}

/// Whether a layer could be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    Stands,
    Absent,
}

/// Enters namespaces of one's own; single-threaded callers only. Returns whether the user namespace stands.
pub(crate) fn namespaces(layers: &mut Layers) -> Layer {
    // SAFETY: takes flags only; the process has one thread.
    let all = unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWIPC) };
    if all == 0 {
        layers.push("user-namespace".into());
        layers.push("network-namespace".into());
        return Layer::Stands;
    }
    // SAFETY: as above.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        layers.push("network-namespace".into());
    }
    Layer::Absent
}

/// Ends the process with the one that started it.
pub(crate) fn die_with_parent(parent: i32) -> Result<(), SandboxError> {
    // SAFETY: takes integers only.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(SandboxError::last_os("tie the child to its parent"));
    }
    // SAFETY: takes nothing.
    if unsafe { libc::getppid() } != parent {
        return Err(SandboxError::Worker("the parent is gone".into()));
    }
    Ok(())
}

/// No gain of privileges by executing files.
pub(crate) fn no_new_privileges(layers: &mut Layers) -> Result<(), SandboxError> {
    // SAFETY: takes integers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(SandboxError::last_os("give up new privileges"));
    }
    layers.push("no-new-privileges".into());
    Ok(())
}

/// Files that stay reachable.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Paths {
    /// Read and execute.
    pub readable: Vec<PathBuf>,
    /// Everything.
    pub writable: Vec<PathBuf>,
}

/// Restricts file system, TCP, abstract sockets and signals with Landlock, as far as the kernel knows them.
pub(crate) fn landlock(paths: &Paths, layers: &mut Layers) {
    let abi = ABI::V6;
    let rules = || {
        Ruleset::default()
            .handle_access(AccessFs::from_all(abi))?
            .handle_access(AccessNet::from_all(abi))?
            .scope(Scope::from_all(abi))?
            .create()?
            .add_rules(path_beneath_rules(&paths.readable, AccessFs::from_read(abi)))?
            .add_rules(path_beneath_rules(&paths.writable, AccessFs::from_all(abi)))?
            .restrict_self()
    };
    match rules().map(|status| status.ruleset) {
        Ok(RulesetStatus::FullyEnforced) => layers.push("landlock".into()),
        Ok(RulesetStatus::PartiallyEnforced) => layers.push("landlock-partial".into()),
        _ => {}
    }
}

/// What the worker may still call while it loads a kernel (stage 1).
#[cfg(target_arch = "x86_64")]
const LOADING: &[i64] = &[
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_pread64,
    libc::SYS_fstat,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_close,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_prctl,
    libc::SYS_seccomp,
];

/// What stays allowed while candidate code runs (stage 2): waiting, giving memory back, ending.
const RUNNING: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_getppid,
    libc::SYS_clock_gettime,
];

fn filter(allowed: &[&[i64]]) -> Result<BpfProgram, SandboxError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)
        .map_err(|e| SandboxError::Worker(format!("seccomp: {e}")))?;
    let mut rules: BTreeMap<i64, Vec<_>> =
        allowed.iter().flat_map(|list| list.iter()).map(|n| (*n, Vec::new())).collect();
    // The allocator may ask for plain memory; never for executable memory.
    let no_exec = seccompiler::SeccompCondition::new(
        2,
        seccompiler::SeccompCmpArgLen::Dword,
        seccompiler::SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64),
        0,
    )
    .and_then(|c| seccompiler::SeccompRule::new(vec![c]))
    .map_err(|e| SandboxError::Worker(format!("seccomp: {e}")))?;
    rules.entry(libc::SYS_mmap).or_insert_with(|| vec![no_exec]);
    // `clone3` and the rest end the process at once.
    SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch)
        .and_then(TryInto::try_into)
        .map_err(|e| SandboxError::Worker(format!("seccomp: {e}")))
}

/// Stage 1 of the worker's filter, on all its threads: enough to load a kernel.
#[cfg(target_arch = "x86_64")]
pub(crate) fn allow_loading() -> Result<(), SandboxError> {
    apply(&filter(&[LOADING, RUNNING])?)
}

/// Stage 2, on all threads: enough to run one.
pub(crate) fn allow_running(layers: &mut Layers) -> Result<(), SandboxError> {
    apply(&filter(&[RUNNING])?)?;
    layers.push("seccomp".into());
    Ok(())
}

/// The filter of a loaded engine, on all threads: `allowed` beside what every worker may do.
pub(crate) fn allow_serving(allowed: &[i64], layers: &mut Layers) -> Result<(), SandboxError> {
    apply(&filter(&[allowed, RUNNING])?)?;
    layers.push("seccomp".into());
    Ok(())
}

fn apply(program: &BpfProgram) -> Result<(), SandboxError> {
    seccompiler::apply_filter_all_threads(program)
        .map_err(|e| SandboxError::Worker(format!("cannot install the system call filter: {e}")))
}

/// System calls that a compiler has no use for.
const NOT_FOR_COMPILERS: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
];

/// The compiler's filter: sockets and the machine's administration fail with EPERM. A deny-list, since the compiler is
/// trusted and its needs are not ours to know; the x32 numbers that it would miss end the process.
pub(crate) fn deny_network(layers: &mut Layers) -> Result<(), SandboxError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)
        .map_err(|e| SandboxError::Worker(format!("seccomp: {e}")))?;
    let rules = NOT_FOR_COMPILERS.iter().map(|n| (*n, Vec::new())).collect();
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let program: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, denied, arch)
        .and_then(TryInto::try_into)
        .map_err(|e| SandboxError::Worker(format!("seccomp: {e}")))?;
    // BPF: load the number (offset 0); at or above the x32 bit: end the process; else go on.
    let x32 = [
        sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 },
        sock_filter { code: 0x35, jt: 0, jf: 1, k: 0x4000_0000 },
        sock_filter { code: 0x06, jt: 0, jf: 0, k: 0x8000_0000 },
    ];
    let program: BpfProgram = x32.into_iter().chain(program).collect();
    apply(&program)?;
    layers.push("seccomp".into());
    Ok(())
}
