//! The exclusive measure lane: one evaluation at a time on this machine, whatever processes want one.

use crate::error::JudgeError;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

static IN_PROCESS: Mutex<()> = Mutex::new(());

/// Where the lane's lock file lies.
#[derive(Clone, Debug)]
pub struct Lane {
    path: PathBuf,
}

/// Held while something is timed.
pub struct LaneGuard {
    _file: File,
    _process: MutexGuard<'static, ()>,
}

impl Lane {
    /// The lane of this machine: a lock file in the system's temporary folder, the same for all processes of the user.
    pub fn of_machine() -> Self {
        Self { path: std::env::temp_dir().join("enginewright-measure.lock") }
    }

    /// A lane at a path of its own (for tests).
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Waits for the lane.
    ///
    /// # Errors
    /// [`JudgeError::Lane`] if the lock file cannot be opened or locked.
    pub fn enter(&self) -> Result<LaneGuard, JudgeError> {
        let process = IN_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let fail = |source| JudgeError::Lane { path: self.path.clone(), source };
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(&self.path).map_err(fail)?;
        file.lock().map_err(fail)?;
        Ok(LaneGuard { _file: file, _process: process })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let lane = Lane::at(&folder.path().join("lock"));
        let guard = lane.enter().unwrap();
        let other = OpenOptions::new().write(true).open(folder.path().join("lock")).unwrap();
        assert!(other.try_lock().is_err());
        drop(guard);
        assert!(other.try_lock().is_ok());
    }
}
