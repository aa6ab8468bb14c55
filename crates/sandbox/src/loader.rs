//! Maps an inspected image without running anything of it: no dynamic loader, no constructors, no imports.

use crate::elf::{Access, Image};
use crate::error::SandboxError;
use crate::memory::Mapping;
use plan::ArgsV1;

/// The entry point's type.
pub(crate) type Entry = unsafe extern "C" fn(*const ArgsV1, u32, u32, u32);

/// A mapped kernel.
pub(crate) struct Loaded {
    mapping: Mapping,
    kernel: usize,
}

impl Loaded {
    /// Maps `file`'s segments, applies its relative relocations and sets the final protection.
    pub fn new(file: &[u8], image: &Image) -> Result<Self, SandboxError> {
        let mapping = Mapping::reserve(image.span as usize)?;
        let base = mapping.base.as_ptr();
        protect(base, image.span as usize, libc::PROT_READ | libc::PROT_WRITE)?;
        for segment in &image.segments {
            let bytes = image.file_bytes(file, segment);
            // SAFETY: `Image::parse` checked that address + memory_bytes (>= file bytes) lies within the span.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    bytes.as_ptr(),
                    base.add(segment.address as usize),
                    bytes.len(),
                );
            }
        }
        for relocation in &image.relocations {
            let value = base as u64 + relocation.addend;
            // SAFETY: `Image::parse` checked that the 8 bytes at the place lie within a segment.
            unsafe { base.add(relocation.at as usize).cast::<u64>().write_unaligned(value) };
        }
        // Gaps between segments end up without access.
        protect(base, image.span as usize, libc::PROT_NONE)?;
        for segment in &image.segments {
            let start = segment.address as usize / 4096 * 4096;
            let end = ((segment.address + segment.memory_bytes) as usize).next_multiple_of(4096);
            let access = match segment.access {
                Access::Execute => libc::PROT_READ | libc::PROT_EXEC,
                Access::Read | Access::Relocated => libc::PROT_READ,
            };
            // SAFETY: within the span; segments share no page.
            protect(unsafe { base.add(start) }, end - start, access)?;
        }
        Ok(Self { kernel: base as usize + image.kernel as usize, mapping })
    }

    /// The entry point. Valid as long as `self`.
    pub fn entry(&self) -> Entry {
        debug_assert!(self.kernel - (self.mapping.base.as_ptr() as usize) < self.mapping.bytes);
        // SAFETY: the address lies in the image's executable segment, checked by `Image::parse`; that the code there
        // has this signature is the candidate's claim, and a false one costs the worker only.
        unsafe { std::mem::transmute::<usize, Entry>(self.kernel) }
    }
}

fn protect(at: *mut u8, bytes: usize, protection: i32) -> Result<(), SandboxError> {
    // SAFETY: callers pass ranges of the reserved mapping, to which no references exist.
    match unsafe { libc::mprotect(at.cast(), bytes, protection) } {
        0 => Ok(()),
        _ => Err(SandboxError::last_os("set the protection of a kernel's memory")),
    }
}
