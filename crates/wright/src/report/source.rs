//! Where a page's content comes from: a bundle's folder or a ledger.

use super::records::Records;
use crate::summary::Summary;
use anyhow::{Context, Result, bail};
use ledger::{Fold, Record};
use plan::Manifest;
use std::path::Path;

/// Everything that a page is made of.
#[derive(Clone, Debug, Default)]
pub struct Source {
    pub summary: Option<Summary>,
    pub manifest: Option<Manifest>,
    pub fold: Fold,
    pub entries: usize,
    /// Time of the first and the last entry, milliseconds since 1970.
    pub span_ms: (u64, u64),
    /// What is wrong with the evidence, in words.
    pub damage: Option<String>,
}

impl Source {
    /// Opens a bundle (a folder with a manifest) or a ledger (a file, or a folder that holds one).
    ///
    /// # Errors
    /// If it is neither, or cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        if path.join("manifest.json").is_file() {
            return Self::bundle(path);
        }
        if !path.exists() {
            bail!("{}: there is no such bundle or ledger", path.display());
        }
        let text = path.to_str().context("the path is not valid UTF-8")?;
        let ledger = crate::cmd::ledger::open(Some(text))
            .with_context(|| format!("{} is neither a bundle nor a ledger", path.display()))?;
        let mut fold = Fold::default();
        let records = fold.catch_up(&*ledger)?;
        Ok(Self { entries: records.len(), span_ms: span(&records), fold, ..Self::default() })
    }

    fn bundle(path: &Path) -> Result<Self> {
        let read = |name: &str| std::fs::read(path.join(name)).with_context(|| format!("reading {name}"));
        let manifest = serde_json::from_slice(&read("manifest.json")?).context("reading manifest.json")?;
        let records = match std::fs::read_to_string(path.join("evidence.jsonl")) {
            Ok(text) => Records::parse(&text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Records::default(),
            Err(e) => return Err(e).context("reading evidence.jsonl"),
        };
        Ok(Self {
            summary: Summary::read(path)?,
            manifest: Some(manifest),
            fold: records.fold(),
            entries: records.records.len(),
            span_ms: span(&records.records),
            damage: records.damage,
        })
    }
}

fn span(records: &[Record]) -> (u64, u64) {
    let times = || records.iter().map(|r| r.recorded_ms);
    (times().min().unwrap_or(0), times().max().unwrap_or(0))
}
