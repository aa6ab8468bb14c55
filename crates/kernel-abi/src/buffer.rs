//! Memory for tensors: zeroed, aligned to pages, in huge pages where the system has them.

use crate::error::KernelAbiError;
use std::num::NonZero;
use std::ptr::NonNull;

const PAGE: usize = 4096;
const DANGLING: NonZero<usize> = NonZero::new(PAGE).unwrap();
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed memory aligned to 4096 bytes (2 MiB from 2 MiB on, with huge pages advised). Pages are given by the system
/// when first touched.
#[derive(Debug)]
pub struct AlignedBuffer {
    data: NonNull<u8>,
    bytes: usize,
    /// The mapping that holds the data; null for an empty buffer.
    mapping: *mut libc::c_void,
    mapped: usize,
}

// SAFETY: the memory is owned and not tied to a thread; shared access goes through `&self` and is read-only.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `bytes` zero bytes for `what` (named in the error).
    ///
    /// # Errors
    /// `Memory` if the system refuses.
    pub fn zeroed(bytes: usize, what: &str) -> Result<Self, KernelAbiError> {
        if bytes == 0 {
            return Ok(Self {
                // Dangling but aligned as promised, like an empty slice.
                data: NonNull::without_provenance(DANGLING),
                bytes: 0,
                mapping: std::ptr::null_mut(),
                mapped: 0,
            });
        }
        let refuse = |source| KernelAbiError::Memory { what: what.to_owned(), bytes, source };
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let mapped = bytes
            .checked_add(align + PAGE)
            .filter(|m| isize::try_from(*m).is_ok())
            .ok_or_else(|| refuse(std::io::ErrorKind::OutOfMemory.into()))?
            & !(PAGE - 1);
        // SAFETY: an anonymous private mapping at an address of the system's choice touches no existing memory.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if mapping == libc::MAP_FAILED {
            return Err(refuse(std::io::Error::last_os_error()));
        }
        let skip = mapping.addr().next_multiple_of(align) - mapping.addr();
        // SAFETY: `skip < align` and `mapped >= bytes + align`, so the data lies within the mapping.
        let data = unsafe { mapping.cast::<u8>().add(skip) };
        if align == HUGE_PAGE {
            // SAFETY: advice about our own mapping; a refusal changes nothing, so the result is not needed.
            unsafe { libc::madvise(data.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        let data = NonNull::new(data).ok_or_else(|| refuse(std::io::ErrorKind::OutOfMemory.into()))?;
        Ok(Self { data, bytes, mapping, mapped })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte, for kernels. Writing through it while a slice of the buffer is borrowed is undefined.
    pub fn pointer(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is owned, initialised (zeroed) and `bytes` long.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.bytes) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and `&mut self` excludes others.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.bytes) }
    }

    /// The whole elements as f32.
    pub fn f32s(&self) -> &[f32] {
        // SAFETY: as `bytes`; aligned to pages, and every bit pattern is an f32.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), self.bytes / 4) }
    }

    /// The whole elements as f32, to write.
    pub fn f32s_mut(&mut self) -> &mut [f32] {
        // SAFETY: as `f32s`, and `&mut self` excludes others.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().cast(), self.bytes / 4) }
    }

    /// The whole elements as u32, to write.
    pub fn u32s_mut(&mut self) -> &mut [u32] {
        // SAFETY: as `f32s_mut`; every bit pattern is a u32.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().cast(), self.bytes / 4) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if !self.mapping.is_null() {
            // SAFETY: the mapping is ours, whole, and nothing borrows it any more.
            unsafe { libc::munmap(self.mapping, self.mapped) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_writable() -> Result<(), KernelAbiError> {
        for bytes in [0, 1, 63, 4096, 70_000, HUGE_PAGE - 1, HUGE_PAGE, 5 * HUGE_PAGE + 17] {
            let mut buffer = AlignedBuffer::zeroed(bytes, "test")?;
            assert_eq!(buffer.len(), bytes);
            let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
            assert_eq!(buffer.pointer().addr() % align, 0, "{bytes}");
            assert!(buffer.bytes().iter().all(|b| *b == 0));
            buffer.bytes_mut().fill(7);
            assert!(buffer.bytes().iter().all(|b| *b == 7));
            assert_eq!(buffer.f32s().len(), bytes / 4);
        }
        Ok(())
    }

    #[test]
    fn refusal_names_the_purpose() {
        let error = AlignedBuffer::zeroed(usize::MAX - 5, "keys of layer 3").unwrap_err();
        assert!(error.to_string().contains("keys of layer 3"), "{error}");
        assert!(AlignedBuffer::zeroed(1 << 60, "much").is_err());
    }
}
