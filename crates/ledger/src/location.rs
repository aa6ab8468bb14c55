//! Where a ledger lies.

use crate::error::LedgerError;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// File name inside a folder.
const FILE: &str = "ledger.sqlite";

/// A SQLite file, with its artifacts beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub file: PathBuf,
}

impl Location {
    /// Reads `sqlite:PATH`, `sqlite://PATH` or a plain path. A folder (or a path that ends in `/`) stands for
    /// `ledger.sqlite` in it. `postgres:` is refused until that backend exists.
    pub fn parse(url: &str) -> Result<Self, LedgerError> {
        let refuse = |what| Err(LedgerError::Url { url: url.to_owned(), what });
        let path = match url.split_once(':') {
            Some(("sqlite", rest)) => rest.strip_prefix("//").unwrap_or(rest),
            Some(("postgres" | "postgresql", _)) => {
                return refuse("a PostgreSQL ledger is not supported yet");
            }
            Some((scheme, _)) if scheme.len() > 1 && scheme.chars().all(|c| c.is_ascii_alphabetic()) => {
                return refuse("unknown kind of ledger");
            }
            _ => url,
        };
        if path.is_empty() {
            return refuse("the path is empty");
        }
        if path.contains('?') {
            return refuse("query parameters are not supported");
        }
        Ok(Self::at(Path::new(path)))
    }

    /// A plain path: the file itself, or a folder that holds (or will hold) `ledger.sqlite`.
    pub fn at(path: &Path) -> Self {
        let folder = path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
        Self { file: if folder { path.join(FILE) } else { path.to_owned() } }
    }

    /// `$XDG_DATA_HOME/enginewright/ledger/ledger.sqlite`, else the same under `~/.local/share`.
    pub fn in_data_folder() -> Result<Self, LedgerError> {
        Self::in_data_folder_of(std::env::var_os("XDG_DATA_HOME"), std::env::var_os("HOME"))
    }

    fn in_data_folder_of(data: Option<OsString>, home: Option<OsString>) -> Result<Self, LedgerError> {
        // Relative paths in these variables are to be ignored (XDG base directory specification).
        let absolute = |v: Option<OsString>| v.map(PathBuf::from).filter(|p| p.is_absolute());
        let base = absolute(data)
            .or_else(|| absolute(home).map(|h| h.join(".local/share")))
            .ok_or(LedgerError::NoDataFolder)?;
        Ok(Self { file: base.join("enginewright/ledger").join(FILE) })
    }

    /// The folder of the file.
    pub fn folder(&self) -> &Path {
        match self.file.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        }
    }

    /// The folder of the artifacts.
    pub fn artifacts(&self) -> PathBuf {
        self.folder().join("artifacts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let file = |url| Location::parse(url).unwrap().file;
        assert_eq!(file("sqlite:a/b.db"), Path::new("a/b.db"));
        assert_eq!(file("sqlite:///a/b.db"), Path::new("/a/b.db"));
        assert_eq!(file("a/b.db"), Path::new("a/b.db"));
        assert_eq!(file("new-folder/"), Path::new("new-folder/ledger.sqlite"));
        let there = tempfile::tempdir().unwrap();
        assert_eq!(Location::at(there.path()).file, there.path().join("ledger.sqlite"));
    }

    #[test]
    fn refusals_name_what_works() {
        for url in ["postgres://db/x", "postgresql:x", "redis:x", "sqlite:", "", "sqlite:a?mode=ro"] {
            let text = Location::parse(url).unwrap_err().to_string();
            assert!(text.contains("use sqlite:PATH or a plain path"), "{text}");
        }
        assert!(Location::parse("postgres://db/x").unwrap_err().to_string().contains("not supported yet"));
    }

    #[test]
    fn data_folder() {
        let of = |d: Option<&str>, h: Option<&str>| {
            Location::in_data_folder_of(d.map(OsString::from), h.map(OsString::from))
        };
        assert_eq!(
            of(Some("/d"), Some("/h")).unwrap().file,
            Path::new("/d/enginewright/ledger/ledger.sqlite")
        );
        assert_eq!(
            of(Some("relative"), Some("/h")).unwrap().file,
            Path::new("/h/.local/share/enginewright/ledger/ledger.sqlite")
        );
        assert!(matches!(of(None, None), Err(LedgerError::NoDataFolder)));
    }
}
