//! Starting and ending child processes.

use crate::error::SandboxError;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The program that is re-executed as a child: it must call [`crate::worker_main`] with the arguments behind `args`.
#[derive(Clone, Debug)]
pub struct Helper {
    pub program: PathBuf,
    /// For example `["__worker"]`.
    pub args: Vec<OsString>,
}

impl Helper {
    /// The running program with one hidden subcommand.
    ///
    /// # Errors
    /// If the program's path cannot be found.
    pub fn current(subcommand: &str) -> Result<Self, SandboxError> {
        let program =
            std::env::current_exe().map_err(|e| SandboxError::host("find the running program", e))?;
        Ok(Self { program, args: vec![subcommand.into()] })
    }

    /// Another program without a subcommand, such as `sandbox-worker`.
    pub fn program(path: impl Into<PathBuf>) -> Self {
        Self { program: path.into(), args: Vec::new() }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().process_group(0);
        command
    }
}

/// First file descriptor that a child gets from us.
pub(crate) const FIRST_FD: RawFd = 10;

/// Starts a child that sees `fds` as descriptors 10, 11, ... (at most 16 of them).
///
/// All children are started by one thread that lives as long as the process, since a child that is tied to its parent
/// (PR_SET_PDEATHSIG) is tied to the thread that started it.
pub(crate) fn spawn(mut command: Command, fds: &[RawFd]) -> Result<Child, SandboxError> {
    type Job = Box<dyn FnOnce() + Send>;
    static SPAWNER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = channel::<Job>();
        let run = move || receiver.into_iter().for_each(|job| job());
        // Without the thread, every send below fails and is reported there.
        let _ = std::thread::Builder::new().name("sandbox-spawner".into()).spawn(run);
        Mutex::new(sender)
    });
    let fds: Vec<RawFd> = fds.to_vec();
    // SAFETY: the closure only calls dup2 and fcntl, which are async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            // First out of the way of the targets, then onto them.
            let mut moved = [-1; 16];
            for (place, fd) in moved.iter_mut().zip(&fds) {
                *place = libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 64);
                if *place < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            for (i, fd) in moved.iter().take(fds.len()).enumerate() {
                if libc::dup2(*fd, FIRST_FD + i as RawFd) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let (answer, result) = channel();
    let job: Job = Box::new(move || {
        // The receiver waits; it cannot be gone.
        let _ = answer.send(command.spawn());
    });
    spawner
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send(job)
        .map_err(|_| SandboxError::Worker("the thread that starts processes is gone".into()))?;
    result
        .recv()
        .map_err(|_| SandboxError::Worker("the thread that starts processes is gone".into()))?
        .map_err(|e| SandboxError::host("start a sandbox process", e))
}

/// Ends a child and its process group, and reaps it.
pub(crate) fn kill(child: &mut Child) {
    // SAFETY: takes integers; the group was created for this child, which is not reaped yet.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    // Both fail only if the child is gone already.
    let _ = child.kill();
    let _ = child.wait();
}

/// What a child left behind.
pub(crate) struct Finished {
    pub status: ExitStatus,
    /// Its standard error, cut at the limit.
    pub stderr: String,
}

/// Why a child was ended.
pub(crate) enum Ended {
    Exited(Finished),
    TimedOut,
}

/// Waits for a child with a time limit, collecting at most `output_limit` bytes of its standard error (which must be
/// a pipe). The whole process group is gone afterwards.
pub(crate) fn finish(
    mut child: Child,
    timeout: Duration,
    output_limit: usize,
) -> Result<Ended, SandboxError> {
    let deadline = Instant::now() + timeout;
    let mut stderr = Vec::new();
    if let Some(pipe) = child.stderr.take() {
        let complete = read_until(pipe.as_raw_fd(), deadline, output_limit, &mut stderr)?;
        if complete == Reading::TimedOut {
            kill(&mut child);
            return Ok(Ended::TimedOut);
        }
    }
    // Its output is closed, so it is about to end; some hosts have no pidfd to wait on, so it is asked.
    let status = loop {
        let ended = child.try_wait().map_err(|e| SandboxError::host("wait for a sandbox process", e))?;
        if let Some(status) = ended {
            break status;
        }
        if Instant::now() >= deadline {
            kill(&mut child);
            return Ok(Ended::TimedOut);
        }
        std::thread::sleep(Duration::from_micros(300));
    };
    // SAFETY: takes integers. Members of the group that outlived the leader are ended; the group's id cannot have
    // been given to somebody else while members exist, and ESRCH is harmless.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
    Ok(Ended::Exited(Finished { status, stderr: String::from_utf8_lossy(&stderr).into_owned() }))
}

fn wait_readable(fd: RawFd, deadline: Instant) -> Result<bool, SandboxError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        match unsafe { libc::poll(&raw mut poll, 1, left.as_millis().min(60_000) as i32 + 1) } {
            0 if Instant::now() >= deadline => return Ok(false),
            0 => {}
            n if n > 0 => return Ok(true),
            _ => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(SandboxError::host("wait for a sandbox process", error));
                }
            }
        }
    }
}

#[derive(PartialEq)]
enum Reading {
    Complete,
    TimedOut,
}

fn read_until(
    fd: RawFd,
    deadline: Instant,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<Reading, SandboxError> {
    let mut buffer = [0u8; 8192];
    loop {
        if !wait_readable(fd, deadline)? {
            return Ok(Reading::TimedOut);
        }
        // SAFETY: the buffer is valid for writes of its length.
        let n = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        match n {
            0 => return Ok(Reading::Complete),
            n if n > 0 => {
                // What exceeds the limit is read and dropped, so that the child does not block.
                let keep = (n as usize).min(limit.saturating_sub(out.len()));
                out.extend_from_slice(&buffer[..keep]);
            }
            _ => {
                let error = std::io::Error::last_os_error();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    return Err(SandboxError::host("read a sandbox process's output", error));
                }
            }
        }
    }
}

/// A signal or exit status in words.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(libc::SIGSEGV), _) => "segmentation fault".into(),
        (Some(libc::SIGBUS), _) => "bus error".into(),
        (Some(libc::SIGILL), _) => "illegal instruction or reached unreachable code".into(),
        (Some(libc::SIGTRAP), _) => "breakpoint instruction".into(),
        (Some(libc::SIGFPE), _) => "arithmetic exception".into(),
        (Some(libc::SIGSYS), _) => "forbidden system call".into(),
        (Some(libc::SIGXCPU), _) => "CPU time limit".into(),
        (Some(libc::SIGXFSZ), _) => "file size limit".into(),
        (Some(libc::SIGKILL), _) => "killed".into(),
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => "unknown end".into(),
    }
}
