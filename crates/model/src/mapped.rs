//! Read-only memory maps: the only unsafe code of loading.

use crate::error::{Error, Result};
use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A whole file, mapped read-only. Clones share the map.
#[derive(Clone)]
pub struct Mapped {
    path: Arc<PathBuf>,
    bytes: Arc<Source>,
}

enum Source {
    Map(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl Mapped {
    /// Maps `path`. An empty file gives an empty slice.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened or mapped.
    #[allow(unsafe_code)]
    pub fn open(path: &Path) -> Result<Mapped> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let metadata = file.metadata().map_err(Error::io("stat", path))?;
        if metadata.is_dir() {
            return Err(Error::NotAModel { path: path.to_owned(), reason: "this is a folder".into() });
        }
        if metadata.len() == 0 {
            return Ok(Mapped::from_bytes(path, Vec::new()));
        }
        // SAFETY: the map is private and read-only. Its one duty is that nobody truncates or rewrites the file while it is
        // mapped; model files are written by atomic rename (a new inode), never in place, by everything in this project, and
        // a foreign writer can at worst change weights or raise SIGBUS, as with every engine that maps its weights.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io("map", path))?;
        Ok(Mapped { path: Arc::new(path.to_owned()), bytes: Arc::new(Source::Map(map)) })
    }

    /// Wraps bytes already in memory; `path` is used in errors only.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Mapped {
        Mapped { path: Arc::new(path.to_owned()), bytes: Arc::new(Source::Owned(bytes)) }
    }

    /// The file's path, for errors.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Deref for Mapped {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &*self.bytes {
            Source::Map(map) => map,
            Source::Owned(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapped({}, {} bytes)", self.path.display(), self.len())
    }
}
