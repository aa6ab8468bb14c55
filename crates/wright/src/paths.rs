//! Where things lie on this machine: caches and data of the user.

use anyhow::{Result, anyhow};
use std::path::PathBuf;

fn home_folder(variable: &str, below_home: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable).filter(|v| !v.is_empty()) {
        return Ok(PathBuf::from(path).join("enginewright"));
    }
    let home = std::env::var_os("HOME")
        .ok_or_else(|| anyhow!("neither {variable} nor HOME is set; set one of them"))?;
    Ok(PathBuf::from(home).join(below_home).join("enginewright"))
}

/// Things that can be made again: models, built kernels, reference states, machine ceilings.
pub fn cache() -> Result<PathBuf> {
    home_folder("XDG_CACHE_HOME", ".cache")
}

/// Things that cannot: the default ledger.
pub fn data() -> Result<PathBuf> {
    home_folder("XDG_DATA_HOME", ".local/share")
}

/// The default ledger.
pub fn ledger() -> Result<PathBuf> {
    Ok(data()?.join("ledger").join("ledger.sqlite"))
}
