//! Loading a kernel's shared object and calling it.

use crate::error::KernelAbiError;
use plan::ArgsV1;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::File;
use std::io::{Error, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

/// The exported function of a kernel, see [`plan::abi`].
pub type KernelFn = unsafe extern "C" fn(args: *const ArgsV1, phase: u32, thread: u32, threads: u32);

/// A loaded kernel. Unloaded when dropped.
#[derive(Debug)]
pub struct Kernel {
    name: String,
    library: NonNull<c_void>,
    function: KernelFn,
    /// The memory file that the library was loaded from. It stays open while the library is loaded: the loader
    /// knows libraries by path, and `/proc/self/fd/N` would otherwise name another one later.
    _file: Option<File>,
}

// SAFETY: the library handle is only used by `drop`; kernels have no state of their own (contract of `from_bytes`).
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Loads a kernel from the bytes of its shared object, through an anonymous memory file: what was digested and
    /// inspected is what runs.
    ///
    /// # Errors
    /// `System`, `Load` or `Symbol`, naming the kernel.
    ///
    /// # Safety
    /// The object comes from a trusted build or was inspected: it runs in this process. It has no constructors,
    /// and its `kernel` follows [`plan::abi`].
    pub unsafe fn from_bytes(name: &str, object: &[u8]) -> Result<Self, KernelAbiError> {
        let mut file = memory_file(name)?;
        let failed = |source| KernelAbiError::System { what: format!("copy kernel {name}"), source };
        file.write_all(object).map_err(failed)?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(|e| failed(Error::other(e)))?;
        // SAFETY: the caller's promise is passed on.
        unsafe { Self::open(name, &path, Some(file)) }
    }

    /// Loads a kernel from a file.
    ///
    /// # Errors
    /// `Read`, `Load` or `Symbol`, naming the file.
    ///
    /// # Safety
    /// As [`Self::from_bytes`], and the file does not change while it is loaded.
    pub unsafe fn from_file(path: &Path) -> Result<Self, KernelAbiError> {
        let read = |source| KernelAbiError::Read { path: path.to_owned(), source };
        // An absolute path: the loader would search for a bare name elsewhere.
        let absolute = std::fs::canonicalize(path).map_err(read)?;
        let c_path = CString::new(absolute.as_os_str().as_bytes()).map_err(|e| read(Error::other(e)))?;
        // SAFETY: the caller's promise is passed on.
        unsafe { Self::open(&path.display().to_string(), &c_path, None) }
    }

    unsafe fn open(name: &str, path: &CStr, file: Option<File>) -> Result<Self, KernelAbiError> {
        // SAFETY: the path is a C string; what the object may do on loading is the caller's promise.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(library) = NonNull::new(library) else {
            return Err(KernelAbiError::Load { name: name.to_owned(), problem: loader_error() });
        };
        // SAFETY: the handle is open and the name is a C string.
        let symbol = unsafe { libc::dlsym(library.as_ptr(), c"kernel".as_ptr()) };
        if symbol.is_null() {
            let problem = loader_error();
            // SAFETY: the handle is open and used no more.
            unsafe { libc::dlclose(library.as_ptr()) };
            return Err(KernelAbiError::Symbol { name: name.to_owned(), problem });
        }
        // SAFETY: the symbol `kernel` has this type by the caller's promise.
        let function = unsafe { std::mem::transmute::<*mut c_void, KernelFn>(symbol) };
        Ok(Self { name: name.to_owned(), library, function, _file: file })
    }

    /// The name given when it was loaded.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The function itself. It must not be called after the kernel was dropped.
    pub fn function(&self) -> KernelFn {
        self.function
    }

    /// Runs one thread's share of one phase.
    ///
    /// # Safety
    /// `args` fits the kernel's operation: every slot is valid for the accesses that [`plan::operation`] gives it,
    /// scratch is as [`plan::Launch`] demands, integers within lie in their ranges. All `threads` threads make the
    /// call once per phase, with a barrier between phases; nothing else touches the outputs meanwhile. The
    /// processor has the features that the kernel was built for.
    #[inline]
    pub unsafe fn call(&self, args: &ArgsV1, phase: u32, thread: u32, threads: u32) {
        // SAFETY: the caller's promise; the library is loaded as long as `self` lives.
        unsafe { (self.function)(args, phase, thread, threads) }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: the handle is open; callers do not use the function after this.
        unsafe { libc::dlclose(self.library.as_ptr()) };
    }
}

fn loader_error() -> String {
    // SAFETY: dlerror returns null or a C string that lives until the next call of this thread.
    let message: *const c_char = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader gave no reason".into();
    }
    // SAFETY: not null, so a C string, copied at once.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// An anonymous file in memory that may be mapped executable.
fn memory_file(name: &str) -> Result<File, KernelAbiError> {
    /// Linux 6.3 and later want to be told; earlier ones refuse the flag.
    const MFD_EXEC: libc::c_uint = 0x10;
    for flags in [libc::MFD_CLOEXEC | MFD_EXEC, libc::MFD_CLOEXEC] {
        // SAFETY: the name is a C string, the call creates a new descriptor.
        let descriptor = unsafe { libc::memfd_create(c"kernel".as_ptr(), flags) };
        if descriptor >= 0 {
            // SAFETY: the descriptor is new and ours.
            return Ok(unsafe { File::from_raw_fd(descriptor) });
        }
    }
    Err(KernelAbiError::System {
        what: format!("create a memory file for kernel {name}"),
        source: Error::last_os_error(),
    })
}
