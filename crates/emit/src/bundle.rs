//! Writes engine bundles. A bundle appears whole or not at all: it is written beside its place and renamed.

use crate::choices::PlanChoices;
use crate::error::EmitError;
use crate::place::Place;
use crate::weights;
use model::Model;
use plan::{ABI_VERSION, Claim, KernelEntry, Manifest, PLAN_VERSION, Plan, TensorEntry};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A kernel with its files' contents. The entry's paths and digests are filled in here.
#[derive(Clone, Debug, PartialEq)]
pub struct BundledKernel {
    pub entry: KernelEntry,
    pub source: String,
    pub binary: Vec<u8>,
}

/// Facts that go into the manifest beside what follows from the plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    pub model_name: String,
    pub created_s: u64,
    pub machine: BTreeMap<String, String>,
    pub toolchain: String,
    pub ledger_head: Option<(u64, String)>,
    pub claims: Vec<Claim>,
    /// Ledger entries as JSON lines.
    pub evidence: String,
}

/// What a bundle is made of.
pub struct Contents<'a> {
    pub model: &'a Model,
    pub choices: &'a PlanChoices,
    pub champion: &'a Plan,
    pub portable: &'a Plan,
    /// By the name that plans use.
    pub kernels: &'a BTreeMap<String, BundledKernel>,
    pub about: &'a About,
}

const PAGE: u64 = 4096;

/// Packed weights on disk, made once for all bundles of the same choices.
#[derive(Clone, Debug)]
pub struct PackedFile {
    pub path: PathBuf,
    pub tensors: BTreeMap<String, TensorEntry>,
    pub bytes: u64,
    pub digest: String,
}

/// Packs the weights of `model` into a new file at `path`.
pub fn pack_file(
    model: &Model,
    plan: &Plan,
    choices: &PlanChoices,
    path: &Path,
) -> Result<PackedFile, EmitError> {
    let file = File::create(path).map_err(EmitError::io(path))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut whole = blake3::Hasher::new();
    let mut tensors = BTreeMap::new();
    let mut offset = 0u64;
    let zeros = [0u8; PAGE as usize];
    weights::pack_all(model, &plan.model, choices, |t| {
        let bytes = t.bytes.len() as u64;
        let padding = bytes.next_multiple_of(PAGE) - bytes;
        for part in [&t.bytes[..], &zeros[..padding as usize]] {
            whole.update(part);
            out.write_all(part).map_err(EmitError::io(path))?;
        }
        let digest = blake3::hash(&t.bytes).to_hex().to_string();
        tensors.insert(t.name, TensorEntry { offset, bytes, layout: t.layout, digest });
        offset += bytes + padding;
        Ok(())
    })?;
    let file = out.into_inner().map_err(|e| EmitError::io(path)(e.into_error()))?;
    file.sync_all().map_err(EmitError::io(path))?;
    let digest = whole.finalize().to_hex().to_string();
    Ok(PackedFile { path: path.to_owned(), tensors, bytes: offset, digest })
}

/// Writes a bundle to `out`, replacing a bundle that is there. `packed` is linked or copied in.
///
/// # Errors
/// [`EmitError::Io`] with the path; `out` is then as it was.
pub fn write(out: &Path, contents: &Contents, packed: &PackedFile) -> Result<Manifest, EmitError> {
    if out.exists() && !out.join("manifest.json").exists() && !is_empty(out) {
        return Err(EmitError::Io {
            path: out.to_owned(),
            source: std::io::Error::new(
                std::io::ErrorKind::AlreadyExists,
                "the folder holds something that is no bundle; choose another --out",
            ),
        });
    }
    let place = Place::new(out);
    place.prepare()?;
    let result = fill(&place.staged(), contents, packed).and_then(|manifest| {
        place.swap()?;
        Ok(manifest)
    });
    if result.is_err() {
        let _ = fs::remove_dir_all(place.staged());
    }
    result
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

fn fill(folder: &Path, contents: &Contents, packed: &PackedFile) -> Result<Manifest, EmitError> {
    let kernel_folder = folder.join("kernels");
    fs::create_dir_all(&kernel_folder).map_err(EmitError::io(&kernel_folder))?;
    let mut kernels = BTreeMap::new();
    for (name, kernel) in contents.kernels {
        let mut entry = kernel.entry.clone();
        entry.source = format!("kernels/{name}.rs");
        entry.binary = format!("kernels/{name}.so");
        entry.source_digest = blake3::hash(kernel.source.as_bytes()).to_hex().to_string();
        entry.binary_digest = blake3::hash(&kernel.binary).to_hex().to_string();
        put(&folder.join(&entry.source), kernel.source.as_bytes())?;
        put(&folder.join(&entry.binary), &kernel.binary)?;
        kernels.insert(name.clone(), entry);
    }
    let weights = folder.join("weights.bin");
    if fs::hard_link(&packed.path, &weights).is_err() {
        fs::copy(&packed.path, &weights).map_err(EmitError::io(&weights))?;
    }
    put_json(&folder.join("plan.json"), contents.champion)?;
    put_json(&folder.join("plan-portable.json"), contents.portable)?;
    let text = folder.join("tokenizer");
    contents.model.write_text_files(&text).map_err(|e| EmitError::Model(e.to_string()))?;
    put(&folder.join("NOTICE"), notice(contents.model).as_bytes())?;
    let mut files = BTreeMap::new();
    let named = ["plan.json", "plan-portable.json", "NOTICE"].map(|name| folder.join(name));
    for path in named.into_iter().chain(inside(&text)?) {
        let bytes = fs::read(&path).map_err(EmitError::io(&path))?;
        let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
        files.insert(name, blake3::hash(&bytes).to_hex().to_string());
    }
    let about = contents.about;
    put(&folder.join("evidence.jsonl"), about.evidence.as_bytes())?;
    let manifest = Manifest {
        version: PLAN_VERSION,
        abi: ABI_VERSION,
        model_name: about.model_name.clone(),
        model_digest: contents.model.digest().to_owned(),
        created_s: about.created_s,
        machine: about.machine.clone(),
        toolchain: about.toolchain.clone(),
        kernels,
        tensors: packed.tensors.clone(),
        weights_bytes: packed.bytes,
        weights_digest: packed.digest.clone(),
        files,
        ledger_head: about.ledger_head.clone(),
        claims: about.claims.clone(),
    };
    put_json(&folder.join("manifest.json"), &manifest)?;
    Ok(manifest)
}

/// The files in a folder.
fn inside(folder: &Path) -> Result<Vec<PathBuf>, EmitError> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.map(|e| Ok(e?.path())).collect());
    entries.map_err(EmitError::io(folder))
}

/// Makes a scratch folder beside the bundle `out`, and removes what builds that were killed left there. The caller
/// removes it in the end.
///
/// # Errors
/// [`EmitError::Io`] if the folder cannot be made.
pub fn scratch_beside(out: &Path) -> Result<PathBuf, EmitError> {
    let place = Place::new(out);
    place.prepare()?;
    let scratch = place.scratch();
    fs::create_dir_all(&scratch).map_err(EmitError::io(&scratch))?;
    Ok(scratch)
}

/// Seals a finished bundle: `manifest` with the claims that were measured on the bundle itself and with the digest of
/// `summary` (`build.json`), and the evidence. Each file appears whole or not at all, the manifest last.
///
/// # Errors
/// [`EmitError::Io`] and [`EmitError::Json`] with the path.
pub fn set_claims(
    folder: &Path,
    mut manifest: Manifest,
    evidence: &str,
    summary: &[u8],
) -> Result<(), EmitError> {
    manifest.files.insert("build.json".to_owned(), blake3::hash(summary).to_hex().to_string());
    let sealed = json(&folder.join("manifest.json"), &manifest)?;
    for (name, bytes) in
        [("build.json", summary), ("evidence.jsonl", evidence.as_bytes()), ("manifest.json", &sealed)]
    {
        let staged = folder.join(format!(".{name}.new"));
        put(&staged, bytes)?;
        let path = folder.join(name);
        fs::rename(&staged, &path).map_err(EmitError::io(&path))?;
    }
    Ok(())
}

fn notice(model: &Model) -> String {
    format!(
        "This bundle holds weights of a model in a packed form.\nLicence of the model, as its files name it: {}\n\
         Kernels, plans and the engine: Apache-2.0 (Enginewright).\n",
        model.licence().unwrap_or("not named; ask its makers")
    )
}

fn json<T: serde::Serialize>(path: &Path, value: &T) -> Result<Vec<u8>, EmitError> {
    let wrap = |source| EmitError::Json { path: path.to_owned(), source };
    let mut bytes = serde_json::to_vec_pretty(value).map_err(wrap)?;
    bytes.push(b'\n');
    Ok(bytes)
}

fn put_json<T: serde::Serialize>(path: &Path, value: &T) -> Result<(), EmitError> {
    put(path, &json(path, value)?)
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), EmitError> {
    let mut file = File::create(path).map_err(EmitError::io(path))?;
    file.write_all(bytes).map_err(EmitError::io(path))?;
    file.sync_all().map_err(EmitError::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_seals_the_summary() {
        let folder = tempfile::tempdir().unwrap();
        let manifest: Manifest = serde_json::from_value(serde_json::json!({
            "version": PLAN_VERSION, "abi": ABI_VERSION, "model_name": "m", "model_digest": "", "created_s": 0,
            "machine": {}, "toolchain": "", "kernels": {}, "tensors": {}, "weights_bytes": 0, "weights_digest": "",
            "files": {"NOTICE": "d"}, "ledger_head": null, "claims": [],
        }))
        .unwrap();
        set_claims(folder.path(), manifest, "entries\n", b"{}").unwrap();
        let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
        assert_eq!((read("build.json"), read("evidence.jsonl")), (b"{}".to_vec(), b"entries\n".to_vec()));
        let sealed: Manifest = serde_json::from_slice(&read("manifest.json")).unwrap();
        assert_eq!(sealed.files["build.json"], blake3::hash(b"{}").to_hex().as_str());
        assert_eq!(sealed.files["NOTICE"], "d");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "something staged was left");
    }
}
