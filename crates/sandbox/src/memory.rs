//! Memory shared between the judge and its workers.

use crate::error::SandboxError;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// Anonymous memory with a file descriptor, mapped for reading and writing.
///
/// Workers see the same bytes, so nothing here gives out references: bytes are copied in and out, and what is copied
/// out is looked at only after it was copied.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    mapping: Mapping,
}

impl SharedMemory {
    /// `bytes` zero bytes (rounded up to pages by the system).
    ///
    /// # Errors
    /// [`SandboxError::Host`] without memory.
    pub fn new(bytes: usize) -> Result<Self, SandboxError> {
        let bytes = bytes.max(1).next_multiple_of(4096);
        // SAFETY: the name is a C string; the call makes a descriptor.
        let fd = unsafe { libc::memfd_create(c"wright".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(SandboxError::last_os("make shared memory"));
        }
        // SAFETY: the descriptor was just opened and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: takes integers only.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) } != 0 {
            return Err(SandboxError::last_os(format!("make {bytes} bytes of shared memory")));
        }
        let mapping = Mapping::shared(fd.as_raw_fd(), bytes, MapAccess::ReadWrite)?;
        Ok(Self { fd, mapping })
    }

    /// Bytes, a multiple of the page size.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.mapping.base.as_ptr()
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.mapping.bytes);
        assert!(inside, "{bytes} bytes at {offset} of {} bytes of shared memory", self.mapping.bytes);
        // SAFETY: the range lies within the mapping, checked above.
        unsafe { self.base().add(offset) }
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// If the range lies outside; layouts are the judge's own.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        // SAFETY: `to` is valid for the length; a slice of ours cannot overlap shared memory, which is never lent out.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
    }

    /// Copies from `offset` into `data`.
    ///
    /// # Panics
    /// As [`SharedMemory::write`].
    pub fn read(&self, offset: usize, data: &mut [u8]) {
        let from = self.at(offset, data.len());
        // SAFETY: `from` is valid for the length and does not overlap `data`.
        unsafe { std::ptr::copy_nonoverlapping(from, data.as_mut_ptr(), data.len()) };
    }

    /// Copies out `bytes` bytes at `offset`.
    ///
    /// # Panics
    /// As [`SharedMemory::write`].
    pub fn copy_out(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.read(offset, &mut out);
        out
    }

    /// Fills a range with a repeated 4-byte pattern; `offset` and `bytes` are multiples of 4.
    ///
    /// # Panics
    /// As [`SharedMemory::write`].
    pub fn fill(&self, offset: usize, bytes: usize, pattern: u32) {
        let to = self.at(offset, bytes).cast::<u32>();
        for i in 0..bytes / 4 {
            // SAFETY: within the range checked above; pages and offsets keep it aligned to 4.
            unsafe { to.add(i).write_unaligned(pattern) };
        }
    }

    /// The first place in a range that does not hold the repeated pattern, as an offset from `offset`.
    ///
    /// # Panics
    /// As [`SharedMemory::write`].
    pub fn differs(&self, offset: usize, bytes: usize, pattern: u32) -> Option<usize> {
        let from = self.at(offset, bytes).cast::<u32>();
        // SAFETY: as in `fill`; volatile, since the worker may write at any time.
        (0..bytes / 4).find(|i| unsafe { from.add(*i).read_volatile() } != pattern).map(|i| i * 4)
    }
}

/// Access of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapAccess {
    Read,
    ReadWrite,
}

/// A mapped range, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub base: NonNull<u8>,
    pub bytes: usize,
}

// SAFETY: the mapping is plain memory; all access to it goes through raw copies and atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a descriptor's first `bytes` bytes, shared, present at once.
    pub fn shared(fd: RawFd, bytes: usize, access: MapAccess) -> Result<Self, SandboxError> {
        let protection = match access {
            MapAccess::Read => libc::PROT_READ,
            MapAccess::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        Self::map(fd, bytes, protection, libc::MAP_SHARED | libc::MAP_POPULATE)
    }

    /// Private zero memory without access.
    pub fn reserve(bytes: usize) -> Result<Self, SandboxError> {
        Self::map(-1, bytes, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    fn map(fd: RawFd, bytes: usize, protection: i32, flags: i32) -> Result<Self, SandboxError> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { base, bytes }),
            _ => Err(SandboxError::last_os(format!("map {bytes} bytes"))),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by us and nothing points into it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
