//! The child's side: what a re-executed program does before it compiles or runs candidate code.

use crate::build::{BuildOrder, NOT_STARTED};
use crate::channel::{CALLS_OFFSET, Call, Header, Place, command, status, wait, wake};
use crate::confine::{self, Layers, Limits, Paths};
use crate::elf::Image;
use crate::error::SandboxError;
use crate::loader::{Entry, Loaded};
use crate::memory::{MapAccess, Mapping};
use crate::process::FIRST_FD;
use kernel_abi::{Pool, request_amx};
use plan::{ArgsV1, TensorV1};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Order to a worker, by argument.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct WorkerOrder {
    pub threads: u32,
    pub processors: Vec<usize>,
    /// Rounds that waiting threads poll before they sleep.
    pub spin: u32,
    pub tiles: Tiles,
    pub limits: Limits,
    pub artifact_bytes: usize,
    pub channel_bytes: usize,
    pub max_calls: u32,
    /// Bytes and access of each region.
    pub regions: Vec<(usize, RegionAccess)>,
    pub parent: i32,
}

/// Whether AMX tiles are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Tiles {
    Wanted,
    Unused,
}

/// What a worker may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum RegionAccess {
    Read,
    ReadWrite,
}

/// The main function of a sandbox child; `args` are the arguments behind the hidden subcommand.
/// It never returns to its caller.
pub fn worker_main(args: impl Iterator<Item = OsString>) -> ! {
    let args: Vec<String> = args.map(|a| a.to_string_lossy().into_owned()).collect();
    let code = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["build", order] => become_compiler(order),
        ["run", order] => run_worker(order),
        _ => {
            eprintln!("this command is started by the judge, not by people");
            2
        }
    };
    std::process::exit(code)
}

fn become_compiler(order: &str) -> i32 {
    let attempt = || -> Result<std::convert::Infallible, SandboxError> {
        let order: BuildOrder = serde_json::from_str(order)
            .map_err(|e| SandboxError::Worker(format!("an order that is none: {e}")))?;
        let mut layers = Layers::new();
        let own_user = confine::namespaces(&mut layers);
        confine::die_with_parent(order.parent)?;
        confine::limit(&order.limits, own_user)?;
        layers.push("rlimits".into());
        confine::no_new_privileges(&mut layers)?;
        std::env::set_current_dir(&order.folder)
            .map_err(|e| SandboxError::host("enter the scratch folder", e))?;
        confine::landlock(&order.paths, &mut layers);
        confine::deny_network(&mut layers)?;
        eprintln!("layers: {}", layers.join(" "));
        let error = std::process::Command::new(&order.program)
            .args(&order.args)
            .env_clear()
            .env("TMPDIR", &order.folder)
            .exec();
        Err(SandboxError::host("execute the compiler", error))
    };
    match attempt() {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("{error}");
            NOT_STARTED
        }
    }
}

/// The header, for the fault handler.
static HEADER: AtomicPtr<Header> = AtomicPtr::new(std::ptr::null_mut());
/// Base and end of each region, for the fault handler.
static REGIONS: [(AtomicUsize, AtomicUsize); 8] = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 8];

fn run_worker(order: &str) -> i32 {
    let order: WorkerOrder = match serde_json::from_str(order) {
        Ok(order) => order,
        Err(error) => {
            eprintln!("an order that is none: {error}");
            return NOT_STARTED;
        }
    };
    let channel = match Mapping::shared(FIRST_FD, order.channel_bytes, MapAccess::ReadWrite) {
        Ok(channel) => channel,
        Err(error) => {
            eprintln!("{error}");
            return NOT_STARTED;
        }
    };
    let header = channel.base.as_ptr().cast::<Header>();
    HEADER.store(header, Ordering::Release);
    // SAFETY: the mapping is page-aligned, larger than the header (the judge made it) and lives to the process's end;
    // all fields are atomics.
    let header = unsafe { &*header };
    match prepare(&order, &channel) {
        Ok(worker) => worker.serve(header),
        Err(error) => {
            let refused = matches!(error, SandboxError::Rejected { .. });
            header.set_text(&error.to_string());
            header.status.store(if refused { status::REFUSED } else { status::FAILED }, Ordering::Release);
            // The first reply is to bell 1, see `Worker::start`.
            header.reply.0.store(1, Ordering::Release);
            wake(&header.reply.0);
            NOT_STARTED
        }
    }
}

/// A worker that has given up its rights and loaded its kernel.
struct Ready {
    pool: Pool,
    regions: Vec<Mapping>,
    kernel: Loaded,
    calls: Vec<ArgsV1>,
    table: *const Call,
    threads: u32,
    parent: i32,
}

fn prepare(order: &WorkerOrder, channel: &Mapping) -> Result<Ready, SandboxError> {
    let mut layers = Layers::new();
    let own_user = confine::namespaces(&mut layers);
    confine::die_with_parent(order.parent)?;
    confine::no_new_privileges(&mut layers)?;
    if order.tiles == Tiles::Wanted && !request_amx() {
        return Err(SandboxError::rejected(
            evidence::Reason::Unsupported,
            "this machine gives no permission for AMX tiles",
        ));
    }
    // Before threads exist: Landlock holds for the calling thread and those it starts.
    confine::landlock(&Paths::default(), &mut layers);
    let mut pool = Pool::new(order.threads, order.spin, &order.processors)
        .map_err(|e| SandboxError::Worker(e.to_string()))?;
    // Every thread has to be through its own start (which makes system calls) before the filter falls.
    pool.run(&|member| member.barrier()).map_err(|e| SandboxError::Worker(e.to_string()))?;
    // After the threads: their number is limited from here on.
    confine::limit(&order.limits, own_user)?;
    layers.push("rlimits".into());
    catch_faults()?;
    confine::allow_loading()?;

    let file = read_all(FIRST_FD + 1, order.artifact_bytes)?;
    let image = Image::parse(&file)?;
    let kernel = Loaded::new(&file, &image)?;
    let mut regions = Vec::new();
    for (i, (bytes, access)) in order.regions.iter().enumerate() {
        let access = match access {
            RegionAccess::Read => MapAccess::Read,
            RegionAccess::ReadWrite => MapAccess::ReadWrite,
        };
        let region = Mapping::shared(FIRST_FD + 2 + i as RawFd, *bytes, access)?;
        if let Some((base, end)) = REGIONS.get(i) {
            base.store(region.base.as_ptr() as usize, Ordering::Relaxed);
            end.store(region.base.as_ptr() as usize + region.bytes, Ordering::Relaxed);
        }
        regions.push(region);
    }
    // The descriptors would allow new mappings of read-only regions.
    for fd in FIRST_FD..FIRST_FD + 2 + order.regions.len() as RawFd {
        // SAFETY: the descriptors were given to us and are used by nobody else in this process.
        unsafe { libc::close(fd) };
    }
    let calls = Vec::with_capacity(order.max_calls as usize);
    confine::allow_running(&mut layers)?;
    // SAFETY: the judge made the channel large enough for the header page.
    let header = unsafe { &*channel.base.as_ptr().cast::<Header>() };
    header.set_text(&layers.join(" "));
    Ok(Ready {
        pool,
        regions,
        kernel,
        calls,
        // SAFETY: the channel holds the table of `max_calls` calls behind the header page.
        table: unsafe { channel.base.as_ptr().add(CALLS_OFFSET) }.cast::<Call>(),
        threads: order.threads,
        parent: order.parent,
    })
}

fn read_all(fd: RawFd, bytes: usize) -> Result<Vec<u8>, SandboxError> {
    let mut file = vec![0u8; bytes];
    let mut done = 0;
    while done < bytes {
        let rest = &mut file[done..];
        // SAFETY: the buffer is valid for writes of its length.
        let n = unsafe { libc::pread(fd, rest.as_mut_ptr().cast(), rest.len(), done as libc::off_t) };
        if n <= 0 {
            return Err(SandboxError::last_os("read the kernel's binary"));
        }
        done += n as usize;
    }
    Ok(file)
}

/// Memory faults are reported with their place before the process ends.
fn catch_faults() -> Result<(), SandboxError> {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: an all-zero sigaction is valid; its fields are set below.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = report_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the action is valid for reads; the handler only uses atomics and ends the process.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(SandboxError::last_os("watch for memory faults"));
        }
    }
    Ok(())
}

extern "C" fn report_fault(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let header = HEADER.load(Ordering::Acquire);
    if !header.is_null() {
        // SAFETY: the header stays mapped; the kernel gave a valid siginfo.
        let (header, address) = unsafe { (&*header, (*info).si_addr() as usize) };
        let mut found = (0, 0);
        for (i, (base, end)) in REGIONS.iter().enumerate() {
            let (base, end) = (base.load(Ordering::Relaxed), end.load(Ordering::Relaxed));
            // A little beyond the end is still told as that region's.
            if base > 0 && (base..end + (1 << 16)).contains(&address) {
                found = (i as u32 + 1, (address - base) as u64);
            }
        }
        header.fault_region.store(found.0, Ordering::Relaxed);
        header.fault_offset.store(found.1, Ordering::Relaxed);
        header.fault_signal.store(signal as u32, Ordering::Relaxed);
        header.status.store(status::FAULT, Ordering::Release);
    }
    // SAFETY: ends the process at once; async-signal-safe.
    unsafe { libc::_exit(139) }
}

/// Ends the process without the clean-up of threads, which would need system calls that the filter refuses.
fn leave() -> ! {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(0) }
}

impl Ready {
    fn serve(mut self, header: &Header) -> ! {
        header.status.store(status::READY, Ordering::Release);
        header.reply.0.store(1, Ordering::Release);
        wake(&header.reply.0);
        let mut seen = 1;
        loop {
            let bell = header.bell.0.load(Ordering::Acquire);
            if bell == seen {
                // No polling: the judge, who was woken a moment ago, needs this processor to stop its clock.
                wait(&header.bell.0, seen, 0, Duration::from_secs(2));
                // SAFETY: takes nothing.
                if unsafe { libc::getppid() } != self.parent {
                    leave();
                }
                continue;
            }
            seen = bell;
            let (first, count) = (header.first.load(Ordering::Acquire), header.count.load(Ordering::Acquire));
            let result = match header.command.load(Ordering::Acquire) {
                command::PREPARE => self.prepare_calls(count),
                command::RUN => self.run(header, first, count),
                _ => leave(),
            };
            let status = match result {
                Ok(status) => status,
                Err(text) => {
                    header.set_text(&text);
                    status::FAILED
                }
            };
            header.status.store(status, Ordering::Release);
            header.reply.0.store(bell, Ordering::Release);
            wake(&header.reply.0);
        }
    }

    /// Turns the table's places into pointers, in memory of our own.
    fn prepare_calls(&mut self, count: u32) -> Result<u32, String> {
        if count as usize > self.calls.capacity() {
            return Err(format!("{count} calls; at most {}", self.calls.capacity()));
        }
        self.calls.clear();
        for i in 0..count as usize {
            // SAFETY: within the table, whose capacity was checked; the judge has finished writing it.
            let call = unsafe { self.table.add(i).read_volatile() };
            let mut args = ArgsV1::new(call.rows);
            args.ints = call.ints;
            for (tensor, place) in args.tensors.iter_mut().zip(&call.tensors) {
                *tensor = self.tensor(place, 1)?;
            }
            let scratch = self.tensor(&call.scratch, u64::from(self.threads))?;
            (args.scratch, args.scratch_bytes) = (scratch.data, call.scratch.bytes);
            let shared = self.tensor(&call.shared, 1)?;
            (args.shared, args.shared_bytes) = (shared.data, shared.bytes);
            self.calls.push(args);
        }
        // The batch follows at once: threads that sleep are woken now and poll until it comes.
        self.pool.run(&|member| member.barrier()).map_err(|e| e.to_string())?;
        Ok(status::DONE)
    }

    fn tensor(&self, place: &Place, times: u64) -> Result<TensorV1, String> {
        if place.region == 0 {
            return Ok(TensorV1::NONE);
        }
        let region = self.regions.get(place.region as usize - 1);
        let region = region.ok_or_else(|| format!("no region {}", place.region))?;
        let end = place.bytes.checked_mul(times).and_then(|b| b.checked_add(place.offset));
        if end.is_none_or(|end| end > region.bytes as u64) {
            return Err(format!("{} bytes at {} of {}", place.bytes, place.offset, region.bytes));
        }
        // SAFETY: the offset lies within the mapping.
        let data = unsafe { region.base.as_ptr().add(place.offset as usize) };
        Ok(TensorV1 { data, bytes: place.bytes })
    }

    fn run(&mut self, header: &Header, first: u32, count: u32) -> Result<u32, String> {
        let threads = header.threads.load(Ordering::Acquire);
        let phases = header.phases.load(Ordering::Acquire);
        if threads == 0 || threads > self.threads || phases == 0 {
            return Err(format!("{threads} threads, {phases} phases"));
        }
        let range = first as usize..first as usize + count as usize;
        let calls = Calls(self.calls.get(range).ok_or_else(|| "calls that are not prepared".to_owned())?);
        let entry = self.kernel.entry();
        let changed = AtomicBool::new(false);
        let elapsed = AtomicU64::new(0);
        if threads == 1 {
            let start = Instant::now();
            one_thread(entry, &calls, phases, &changed);
            elapsed.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        } else {
            self.pool
                .run(&|member| {
                    let part = member.thread < threads;
                    let start = Instant::now();
                    let before = mxcsr();
                    for args in calls.list() {
                        for phase in 0..phases {
                            if part {
                                // SAFETY: pointers and sizes were checked by `prepare_calls`; what the code does
                                // with them is why this process exists.
                                unsafe { entry(args, phase, member.thread, threads) };
                            }
                            member.barrier()?;
                        }
                    }
                    if mxcsr() != before {
                        changed.store(true, Ordering::Relaxed);
                        set_mxcsr(before);
                    }
                    if member.thread == 0 {
                        elapsed.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    }
                    Ok(())
                })
                .map_err(|e| e.to_string())?;
        }
        header.elapsed_ns.store(elapsed.into_inner(), Ordering::Relaxed);
        Ok(if changed.into_inner() { status::MXCSR } else { status::DONE })
    }
}

/// Prepared calls, for the threads of the pool.
struct Calls<'a>(&'a [ArgsV1]);

// SAFETY: the arguments are only read here; that kernels write disjointly through the pointers in them is the ABI's
// rule, and breaking it costs the worker only.
unsafe impl Sync for Calls<'_> {}

impl Calls<'_> {
    /// By method, so that closures capture the whole and not the field.
    fn list(&self) -> &[ArgsV1] {
        self.0
    }
}

fn one_thread(entry: Entry, calls: &Calls<'_>, phases: u32, changed: &AtomicBool) {
    let before = mxcsr();
    for args in calls.list() {
        for phase in 0..phases {
            // SAFETY: as in `run`.
            unsafe { entry(args, phase, 0, 1) };
        }
    }
    if mxcsr() != before {
        changed.store(true, Ordering::Relaxed);
        set_mxcsr(before);
    }
}

/// The control bits of MXCSR (rounding, flush to zero, denormals, masks); the sticky status flags are left out.
fn mxcsr() -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut value = 0u32;
        // SAFETY: stores four bytes to a valid place.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack)) };
        value & !0x3f
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

fn set_mxcsr(value: u32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: loads a value that was read from the register before.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// The layer names again, for the judge's side.
pub(crate) fn layers_of(text: &str) -> Layers {
    text.split_whitespace().map(str::to_owned).collect()
}
