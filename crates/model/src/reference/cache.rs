//! Final hidden states on disk, by digest of model, tokens and arithmetic.

use super::{ARITHMETIC_VERSION, Reference};
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Final hidden states of some windows of tokens, and the key they are kept under.
#[derive(Clone, Debug, PartialEq)]
pub struct HiddenStates {
    /// Digest of model, windows and arithmetic, hexadecimal.
    pub key: String,
    /// `tokens x hidden`, windows one after the other.
    pub rows: Vec<f32>,
}

impl Reference {
    /// As [`Reference::hidden_states`], but kept in a file in `folder` and read from there the next time. A damaged file is
    /// computed and written again.
    ///
    /// # Errors
    /// [`Error::Argument`] as there; [`Error::Io`] if the file cannot be written.
    pub fn cached_hidden_states(&self, windows: &[&[u32]], folder: &Path) -> Result<HiddenStates> {
        let key = self.key(windows);
        let path = folder.join(format!("hidden-{key}.f32"));
        let floats = windows.iter().map(|w| w.len()).sum::<usize>() * self.config.hidden;
        if let Some(rows) = read(&path, floats) {
            return Ok(HiddenStates { key, rows });
        }
        let rows = self.hidden_states(windows)?;
        write(&path, folder, &rows)?;
        Ok(HiddenStates { key, rows })
    }

    fn key(&self, windows: &[&[u32]]) -> String {
        let mut hasher = Sha256::new();
        hasher.update(format!("reference {ARITHMETIC_VERSION} {}\n", self.digest));
        for window in windows {
            hasher.update((window.len() as u64).to_le_bytes());
            window.iter().for_each(|token| hasher.update(token.to_le_bytes()));
        }
        hasher.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The rows, if the file has the right length and its digest (the last 32 bytes) fits.
fn read(path: &Path, floats: usize) -> Option<Vec<f32>> {
    let bytes = std::fs::read(path).ok()?;
    let (data, digest) = bytes.split_last_chunk::<32>()?;
    let sound = data.len() == floats * 4 && Sha256::digest(data).as_slice() == digest;
    sound.then(|| data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

fn write(path: &Path, folder: &Path, rows: &[f32]) -> Result<()> {
    let path_buf = PathBuf::from(path);
    std::fs::create_dir_all(folder).map_err(Error::io("create folder", folder))?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(Error::io("create a file in", folder))?;
    let data: Vec<u8> = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
    file.write_all(&data).map_err(Error::io("write", &path_buf))?;
    file.write_all(&Sha256::digest(&data)).map_err(Error::io("write", &path_buf))?;
    file.persist(path).map_err(|e| Error::io("rename to", &path_buf)(e.error))?;
    Ok(())
}
