//! The place of a bundle: the folder beside it where it is staged, the swap, and what killed processes left there.

use crate::error::EmitError;
use std::fs;
use std::path::{Path, PathBuf};

/// Where a bundle goes.
pub struct Place<'a> {
    out: &'a Path,
    parent: &'a Path,
    name: &'a str,
}

/// Kinds of folders beside a bundle; each carries the id of the process that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// `.NAME.PID.new`: a bundle that is being written.
    New,
    /// `.NAME.PID.old`: the bundle that was at the place before.
    Old,
    /// `.NAME.scratch.PID`: trial bundles of a build.
    Scratch,
}

impl<'a> Place<'a> {
    /// The place at `out`.
    pub fn new(out: &'a Path) -> Self {
        let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = out.file_name().and_then(|n| n.to_str()).unwrap_or("bundle");
        Self { out, parent, name }
    }

    /// Where this process writes the bundle.
    pub fn staged(&self) -> PathBuf {
        self.beside("new")
    }

    /// Where this process keeps trial bundles.
    pub fn scratch(&self) -> PathBuf {
        self.parent.join(format!(".{}.scratch.{}", self.name, std::process::id()))
    }

    fn beside(&self, kind: &str) -> PathBuf {
        self.parent.join(format!(".{}.{}.{kind}", self.name, std::process::id()))
    }

    /// Makes the folder around the place, and clears what dead processes left. A bundle that one of them had moved aside
    /// without putting the new one there is put back.
    ///
    /// # Errors
    /// [`EmitError::Io`] if the folder cannot be made.
    pub fn prepare(&self) -> Result<(), EmitError> {
        fs::create_dir_all(self.parent).map_err(EmitError::io(self.parent))?;
        for (kind, path) in self.leftovers() {
            if kind == Beside::Old && !self.out.exists() && path.join("manifest.json").is_file() {
                let _ = fs::rename(&path, self.out);
            } else {
                let _ = fs::remove_dir_all(&path);
            }
        }
        Ok(())
    }

    /// Puts the staged bundle at the place. A kill between the two renames leaves the old bundle beside it, for
    /// [`Self::prepare`].
    ///
    /// # Errors
    /// [`EmitError::Io`]; the place is then as it was.
    pub fn swap(&self) -> Result<(), EmitError> {
        let old = self.beside("old");
        if self.out.exists() {
            fs::rename(self.out, &old).map_err(EmitError::io(self.out))?;
        }
        if let Err(error) = fs::rename(self.staged(), self.out) {
            let _ = fs::rename(&old, self.out);
            return Err(EmitError::io(self.out)(error));
        }
        let _ = fs::remove_dir_all(&old);
        Ok(())
    }

    /// Folders beside the place of processes that run no more, and of an earlier write by this one.
    fn leftovers(&self) -> Vec<(Beside, PathBuf)> {
        let entries = fs::read_dir(self.parent).into_iter().flatten().flatten();
        let found = entries.filter_map(|entry| {
            let (kind, pid) = self.parse(entry.file_name().to_str()?)?;
            let ours = pid == std::process::id() && kind != Beside::Scratch;
            let left = (ours || !running(pid)) && entry.file_type().ok()?.is_dir();
            left.then(|| (kind, entry.path()))
        });
        found.collect()
    }

    /// What a name beside the place is, and whose; `None` for all names that are not exactly ours.
    fn parse(&self, name: &str) -> Option<(Beside, u32)> {
        let rest = name.strip_prefix('.')?.strip_prefix(self.name)?.strip_prefix('.')?;
        let (kind, digits) = match rest.strip_prefix("scratch.") {
            Some(digits) => (Beside::Scratch, digits),
            None => match rest.rsplit_once('.')? {
                (digits, "new") => (Beside::New, digits),
                (digits, "old") => (Beside::Old, digits),
                _ => return None,
            },
        };
        let pid = digits.parse::<u32>().ok()?;
        // Not `+7` nor `007`.
        (pid.to_string() == digits).then_some((kind, pid))
    }
}

/// Whether a process runs; where that cannot be seen, it may.
fn running(pid: u32) -> bool {
    !Path::new("/proc/self").exists() || Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id of a process that has ended.
    fn dead() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    fn bundle(path: &Path, words: &str) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("manifest.json"), words).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_leftovers_of_dead_processes_go() {
        let folder = tempfile::tempdir().unwrap();
        let (dead, ours) = (dead(), std::process::id());
        let out = folder.path().join("a.b");
        bundle(&out, "there");
        for name in [
            format!(".a.b.{dead}.new"),
            format!(".a.b.{dead}.old"),
            format!(".a.b.scratch.{dead}"),
            format!(".a.b.{ours}.new"),
        ] {
            bundle(&folder.path().join(name), "left");
        }
        let kept = [
            format!(".a.b.scratch.{ours}"),
            ".a.b.1.new".to_owned(),
            format!(".a.b.0{dead}.new"),
            format!(".a.b.{dead}.newer"),
            format!(".a.b.c.{dead}.new"),
            format!(".a.{dead}.new"),
            format!("a.b.{dead}.new"),
            "a.b".to_owned(),
        ];
        for name in &kept {
            bundle(&folder.path().join(name), "kept");
        }
        Place::new(&out).prepare().unwrap();
        let mut kept = kept.to_vec();
        kept.sort();
        assert_eq!(names(folder.path()), kept);
    }

    #[test]
    fn a_bundle_that_a_killed_process_moved_aside_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("engine");
        bundle(&folder.path().join(format!(".engine.{}.old", dead())), "whole");
        Place::new(&out).prepare().unwrap();
        assert_eq!(fs::read_to_string(out.join("manifest.json")).unwrap(), "whole");
        assert_eq!(names(folder.path()), ["engine"]);
    }

    #[test]
    fn a_swap_leaves_the_new_bundle_alone() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("engine");
        let place = Place::new(&out);
        for words in ["first", "second"] {
            place.prepare().unwrap();
            bundle(&place.staged(), words);
            place.swap().unwrap();
            assert_eq!(fs::read_to_string(out.join("manifest.json")).unwrap(), words);
            assert_eq!(names(folder.path()), ["engine"]);
        }
        assert!(place.swap().is_err());
        assert_eq!(fs::read_to_string(out.join("manifest.json")).unwrap(), "second");
    }
}
