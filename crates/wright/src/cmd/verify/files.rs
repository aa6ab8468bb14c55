//! Files of a bundle against the digests in its manifest.

use super::finding::Finding;
use crate::report::records::Records;
use anyhow::{Context, Result, anyhow, bail};
use evidence::Entry;
use plan::{ABI_VERSION, Manifest, PLAN_VERSION, Plan};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// Files that older versions left out of the manifest.
const SEALED_LATER: [&str; 2] = ["build.json", "NOTICE"];

/// Digests of weights, tensors, kernels and texts, and whether the plans fit the manifest.
pub fn check(bundle: &Path, manifest: &Manifest) -> Vec<Finding> {
    let mut findings = vec![version(manifest), weights(bundle, manifest)];
    findings.push(kernel_files(bundle, manifest));
    let plans = ["plan.json", "plan-portable.json"];
    for name in plans {
        findings.push(match plan(bundle, name, manifest) {
            Ok(detail) => Finding::agrees(name, detail),
            Err(e) => Finding::differs(name, format!("{e:#}")),
        });
    }
    findings.push(texts(bundle, manifest, &plans));
    findings.extend(SEALED_LATER.iter().filter_map(|name| sealed_later(bundle, name, manifest)));
    findings
}

fn version(manifest: &Manifest) -> Finding {
    let found = format!("format {}, kernel ABI {}", manifest.version, manifest.abi);
    if (manifest.version, manifest.abi) == (PLAN_VERSION, ABI_VERSION) {
        Finding::agrees("manifest.json", found)
    } else {
        let knows = format!("; this version knows format {PLAN_VERSION}, kernel ABI {ABI_VERSION}");
        Finding::differs("manifest.json", found + &knows)
    }
}

/// Reads the weights once: the file's digest and that of every tensor in it.
fn weights(bundle: &Path, manifest: &Manifest) -> Finding {
    let compare = || -> Result<String> {
        let path = bundle.join("weights.bin");
        let mut file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let length = file.metadata()?.len();
        if length != manifest.weights_bytes {
            bail!("{length} bytes where the manifest says {}", manifest.weights_bytes);
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(|| format!("reading {}", path.display()))?;
        if blake3::hash(&bytes).to_hex().as_str() != manifest.weights_digest {
            bail!("the digest of the file is not the manifest's");
        }
        for (name, t) in &manifest.tensors {
            let end = t.offset.checked_add(t.bytes).filter(|e| *e <= length);
            let end = end.ok_or_else(|| anyhow!("tensor {name} ends beyond the file"))?;
            let part = bytes.get(t.offset as usize..end as usize);
            let part = part.ok_or_else(|| anyhow!("the file shrank while it was read"))?;
            if blake3::hash(part).to_hex().as_str() != t.digest {
                bail!("the digest of tensor {name} is not the manifest's");
            }
        }
        Ok(format!("{:.1} MB, {} tensors", length as f64 / 1e6, manifest.tensors.len()))
    };
    finding("weights.bin", compare())
}

fn kernel_files(bundle: &Path, manifest: &Manifest) -> Finding {
    let compare = || -> Result<String> {
        for (name, k) in &manifest.kernels {
            for (file, digest) in [(&k.source, &k.source_digest), (&k.binary, &k.binary_digest)] {
                read_as(bundle, file, digest).with_context(|| format!("kernel {name}"))?;
            }
        }
        Ok(format!("{} kernels, source and binary", manifest.kernels.len()))
    };
    finding("kernels/", compare())
}

/// Reads a file whose digest the manifest has.
fn read_listed(bundle: &Path, name: &str, manifest: &Manifest) -> Result<Vec<u8>> {
    let listed = manifest.files.get(name).ok_or_else(|| anyhow!("the manifest has no digest of {name}"))?;
    read_as(bundle, name, listed)
}

/// Reads a file that must have this digest.
fn read_as(bundle: &Path, name: &str, digest: &str) -> Result<Vec<u8>> {
    let bytes = read_within(bundle, name)?;
    if blake3::hash(&bytes).to_hex().as_str() != digest {
        bail!("the digest of {name} is not the manifest's");
    }
    Ok(bytes)
}

/// Tokenizer, template and what else is listed.
fn texts(bundle: &Path, manifest: &Manifest, plans: &[&str]) -> Finding {
    let others = manifest
        .files
        .keys()
        .filter(|name| !plans.contains(&name.as_str()) && !SEALED_LATER.contains(&name.as_str()));
    let compare = || -> Result<String> {
        let names: Vec<&str> = others
            .map(|name| read_listed(bundle, name, manifest).map(|_| name.rsplit('/').next().unwrap_or(name)))
            .collect::<Result<_>>()?;
        Ok(names.join(", "))
    };
    finding("tokenizer/", compare())
}

/// A file that the manifest may not list; `None` where it is neither listed nor there.
fn sealed_later(bundle: &Path, name: &str, manifest: &Manifest) -> Option<Finding> {
    if manifest.files.contains_key(name) {
        return Some(finding(
            name,
            read_listed(bundle, name, manifest).map(|b| format!("{} bytes", b.len())),
        ));
    }
    let there = bundle.join(name).symlink_metadata().is_ok();
    there.then(|| {
        Finding::unchecked(
            name,
            "the manifest has no digest of it (older versions wrote none): it may say anything",
        )
    })
}

fn plan(bundle: &Path, name: &str, manifest: &Manifest) -> Result<String> {
    let bytes = read_listed(bundle, name, manifest)?;
    let plan: Plan = serde_json::from_slice(&bytes)?;
    if (plan.version, plan.abi) != (PLAN_VERSION, ABI_VERSION) {
        bail!("format {}, kernel ABI {} are of another version", plan.version, plan.abi);
    }
    let mut used = BTreeSet::new();
    for (operation, planned) in &plan.operations {
        for bucket in &planned.kernels {
            let kernel = manifest
                .kernels
                .get(&bucket.kernel)
                .ok_or_else(|| anyhow!("{operation} names kernel {}, which is not bundled", bucket.kernel))?;
            if kernel.operation != planned.operation {
                bail!("kernel {} computes another operation than {operation}", bucket.kernel);
            }
            used.insert(&bucket.kernel);
        }
    }
    let digest = blake3::hash(&bytes).to_hex();
    Ok(format!("{} for {}, {} kernels, digest {}", plan.name, plan.target, used.len(), &digest[..12]))
}

/// The chain of the bundled ledger entries, the head, and that claims name evidence which is there.
pub fn check_evidence(manifest: &Manifest, records: Option<&Records>) -> Vec<Finding> {
    let name = "evidence.jsonl";
    let Some(records) = records else {
        return vec![match manifest.claims.is_empty() {
            true => Finding::unchecked(name, "the bundle has none, and claims nothing"),
            false => Finding::differs(name, "the bundle claims numbers and has no evidence"),
        }];
    };
    let mut findings = vec![match &records.damage {
        Some(damage) => Finding::differs(name, damage.clone()),
        None if records.records.is_empty() && manifest.claims.is_empty() => {
            Finding::unchecked(name, "empty, and nothing is claimed")
        }
        None => Finding::agrees(
            name,
            format!(
                "{} entries with right digests; chain computed again over {}, {} begin a gap",
                records.records.len(),
                records.linked,
                records.unlinked
            ),
        ),
    }];
    if let Some((position, digest)) = &manifest.ledger_head {
        let at = format!("position {position}");
        findings.push(match records.chain_at(*position) {
            Some(chain) if chain.to_string() == *digest => Finding::agrees("ledger head", at),
            Some(_) => Finding::differs("ledger head", format!("{at}: the chain has another digest")),
            None if records.damage.is_some() => {
                Finding::unchecked("ledger head", format!("{at} stands behind the damage"))
            }
            None => Finding::unchecked("ledger head", format!("{at} is not among the bundled entries")),
        });
    }
    let seen: BTreeSet<String> = records
        .records
        .iter()
        .filter(|r| matches!(r.entry, Entry::Observed(_)))
        .map(|r| r.content.to_string())
        .collect();
    for claim in &manifest.claims {
        let absent: Vec<&str> =
            claim.evidence.iter().filter(|e| !seen.contains(*e)).map(|e| e.get(..12).unwrap_or(e)).collect();
        if claim.evidence.is_empty() || !absent.is_empty() {
            let what = match (absent.is_empty(), &records.damage) {
                (true, _) => "rests on no evidence".to_owned(),
                (false, None) => format!("rests on evidence that is not bundled: {}", absent.join(", ")),
                (false, Some(_)) => format!(
                    "rests on evidence that was not read, since it is missing or stands behind the damage: {}",
                    absent.join(", ")
                ),
            };
            findings.push(Finding::differs(&format!("claim {}", claim.id), what));
        }
    }
    findings
}

/// Reads a file that the manifest names, refusing names that lead out of the bundle.
pub fn read_within(bundle: &Path, name: &str) -> Result<Vec<u8>> {
    let relative = PathBuf::from(name);
    if relative.components().any(|c| !matches!(c, Component::Normal(_))) {
        bail!("'{name}' leads out of the bundle");
    }
    let path = bundle.join(relative);
    std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
}

fn finding(subject: &str, outcome: Result<String>) -> Finding {
    match outcome {
        Ok(detail) => Finding::agrees(subject, detail),
        Err(e) => Finding::differs(subject, format!("{e:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::super::tests::manifest;
    use super::*;

    #[test]
    fn an_edited_summary_is_found() {
        let bundle = std::env::temp_dir().join(format!("wright-verify-files-{}", std::process::id()));
        std::fs::create_dir_all(&bundle).unwrap();
        let mut manifest = manifest();
        let look = |manifest: &Manifest| sealed_later(&bundle, "build.json", manifest).map(|f| f.status);
        assert_eq!(look(&manifest), None, "older and portable bundles have none");
        std::fs::write(bundle.join("build.json"), "{\"seed\":1}").unwrap();
        assert_eq!(look(&manifest), Some(Status::Unchecked), "older bundles have no digest of it");
        let digest = blake3::hash(b"{\"seed\":1}").to_hex().to_string();
        manifest.files.insert("build.json".to_owned(), digest);
        assert_eq!(look(&manifest), Some(Status::Agrees));
        std::fs::write(bundle.join("build.json"), "{\"seed\":2}").unwrap();
        assert_eq!(look(&manifest), Some(Status::Differs));
        std::fs::remove_file(bundle.join("build.json")).unwrap();
        assert_eq!(look(&manifest), Some(Status::Differs));
        std::fs::remove_dir_all(&bundle).unwrap();
    }
}
