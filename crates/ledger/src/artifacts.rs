//! Files named by the digest of their content: `artifacts/ab/abcdef...`.

use crate::error::LedgerError;
use evidence::{Content, Digest, Id, Machine};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes temporary names of one process distinct.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// A content-addressed folder. Safe for any number of processes: a file appears whole or not at all.
#[derive(Clone, Debug)]
pub struct Artifacts {
    root: PathBuf,
}

impl Artifacts {
    /// The store in `root`; the folder is made with the first artifact.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Stores `content` (written, synced, renamed, folder synced) and returns its digest.
    pub fn put(&self, content: &[u8]) -> Result<Digest, LedgerError> {
        let digest = Digest::of(content);
        let path = self.path(digest);
        // A damaged file of that name is replaced; an intact one is left alone.
        if !fs::read(&path).is_ok_and(|there| Digest::of(&there) == digest) {
            write_whole(&path, content)?;
        }
        Ok(digest)
    }

    /// The content with this digest, verified.
    pub fn get(&self, digest: Digest) -> Result<Vec<u8>, LedgerError> {
        let path = self.path(digest);
        let content = read(&path, digest)?;
        match Digest::of(&content) {
            found if found == digest => Ok(content),
            found => Err(LedgerError::DamagedArtifact { path, found }),
        }
    }

    /// Whether there is a file for the digest (its content is not read).
    pub fn contains(&self, digest: Digest) -> bool {
        self.path(digest).is_file()
    }

    /// Stores the full description of a machine, under the id that evidence carries.
    pub fn put_machine(&self, machine: &Machine) -> Result<Id<Machine>, LedgerError> {
        let id = machine.id();
        let path = self.machine_path(id);
        if !path.is_file() {
            write_whole(&path, &machine.canonical())?;
        }
        Ok(id)
    }

    /// The description of a machine, verified.
    pub fn machine(&self, id: Id<Machine>) -> Result<Machine, LedgerError> {
        let path = self.machine_path(id);
        let content = read(&path, id.digest())?;
        match serde_json::from_slice::<Machine>(&content) {
            Ok(machine) if machine.id() == id => Ok(machine),
            _ => Err(LedgerError::DamagedArtifact { path, found: Digest::of(&content) }),
        }
    }

    /// Where the content with this digest lies or would lie.
    pub fn path(&self, digest: Digest) -> PathBuf {
        let name = digest.to_string();
        self.root.join(&name[..2]).join(name)
    }

    fn machine_path(&self, id: Id<Machine>) -> PathBuf {
        self.root.join("machines").join(format!("{id}.json"))
    }
}

fn read(path: &Path, digest: Digest) -> Result<Vec<u8>, LedgerError> {
    fs::read(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => LedgerError::NoArtifact { path: path.to_owned(), digest },
        _ => LedgerError::File { path: path.to_owned(), doing: "cannot be read", source },
    })
}

/// Writes beside the destination, syncs, renames, syncs the folder: after a crash the file is whole or absent.
fn write_whole(path: &Path, content: &[u8]) -> Result<(), LedgerError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!(".new-{}-{serial}", std::process::id()));
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|source| {
        // Best effort: what stays is a hidden file that nothing reads.
        let _ = fs::remove_file(&temporary);
        match source.kind() {
            ErrorKind::StorageFull => LedgerError::Full { path: path.to_owned() },
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                LedgerError::ReadOnly { path: path.to_owned() }
            }
            _ => LedgerError::File { path: path.to_owned(), doing: "cannot be written", source },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_goes_in_comes_out_and_damage_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let store = Artifacts::at(folder.path().join("artifacts"));
        let digest = store.put(b"kernel").unwrap();
        assert_eq!(store.put(b"kernel").unwrap(), digest);
        assert_eq!(store.get(digest).unwrap(), b"kernel");
        fs::write(store.path(digest), b"kernel!").unwrap();
        assert!(matches!(store.get(digest), Err(LedgerError::DamagedArtifact { .. })));
        store.put(b"kernel").unwrap();
        assert_eq!(store.get(digest).unwrap(), b"kernel");
        let absent = Digest::of(b"absent");
        assert!(matches!(store.get(absent), Err(LedgerError::NoArtifact { .. })));
        let names: Vec<_> = fs::read_dir(store.path(digest).parent().unwrap()).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file stays");
    }

    #[test]
    fn machines_by_their_id() {
        let folder = tempfile::tempdir().unwrap();
        let store = Artifacts::at(folder.path());
        let machine = Machine {
            facts: BTreeMap::from([("cpu".to_owned(), "x".to_owned())]),
            features: vec![],
            cores: 2,
            ceilings: BTreeMap::from([("stream_bytes_per_s_t2".to_owned(), 1.1e10 / 3.0)]),
        };
        let id = store.put_machine(&machine).unwrap();
        assert_eq!(store.machine(id).unwrap(), machine);
    }

    #[test]
    fn an_impossible_folder_is_a_clear_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(matches!(Artifacts::at(&file).put(b"x"), Err(LedgerError::File { .. })));
    }
}
