//! `wright serve`.

use crate::cli::{Serve, Weights};
use crate::portable;
use anyhow::{Context, Result, bail};
use engine::{Engine, EngineOptions, PlanChoice, WeightMemory};
use model::TextFiles;
use plan::{KernelEntry, Manifest};
use server::{ModelText, ServerOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Serves until SIGTERM or Ctrl-C.
pub fn run(args: &Serve) -> Result<()> {
    let (bundle, portable) = bundle_of(&args.target, args.portable)?;
    let manifest = manifest(&bundle)?;
    kernel_abi::request_amx();
    if args.end_with_input {
        std::thread::spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            std::process::exit(0);
        });
    }
    let options = EngineOptions {
        plan: if portable { PlanChoice::Portable } else { PlanChoice::Champion },
        max_queue: Some(args.max_queue),
        kv_tokens: args.kv_tokens,
        weights: match args.weights {
            Weights::Auto => WeightMemory::Auto,
            Weights::Mapped => WeightMemory::Mapped,
            Weights::Huge => WeightMemory::HugePages,
        },
        inspector: Some(Arc::new(inspect)),
        ..EngineOptions::default()
    };
    warn_of_other_machine(&manifest);
    let text = TextFiles::open(&bundle.join("tokenizer"))?;
    let name = args.model_name.clone().unwrap_or(manifest.model_name);
    let server_options = ServerOptions {
        host: args.host.clone(),
        port: args.port,
        model_names: vec![name.clone()],
        api_keys: args.api_keys.clone(),
        fingerprint: Some(fingerprint(&manifest.weights_digest).to_owned()),
        drain_timeout: Duration::from_secs(args.drain),
        ..ServerOptions::default()
    };
    let engine = Engine::start(&bundle, options)?;
    let plan_name = engine.plan().name.clone();
    let text = ModelText::new(text.tokenizer, text.chat_template, text.generation);
    server::serve(server_options, Arc::new(engine), Arc::new(text), |address| {
        let url = format!("http://{address}");
        println!("{}", serde_json::json!({ "url": url, "model": name, "plan": plan_name }));
        eprintln!("serving {name} ({plan_name} plan) on {url}/v1 - Ctrl-C ends");
    })?;
    Ok(())
}

/// The beginning of a digest that a bundle names: it may be any text.
fn fingerprint(digest: &str) -> &str {
    digest.get(..16).unwrap_or(digest)
}

/// The bundle to serve: the folder itself, or the cached portable bundle of a model.
fn bundle_of(target: &str, portable: bool) -> Result<(PathBuf, bool)> {
    let path = Path::new(target);
    if path.join("manifest.json").is_file() {
        return Ok((path.to_owned(), portable));
    }
    let known = model::KNOWN_MODELS.iter().any(|k| k.name == target);
    if !path.exists() && !known {
        let names: Vec<_> = model::KNOWN_MODELS.iter().map(|k| k.name).collect();
        bail!(
            "'{target}' is neither a bundle, a model file or folder, nor a known name ({}); check the path, or run \
             `wright build` first",
            names.join(", ")
        );
    }
    Ok((portable::bundle(&portable::load(target)?)?, true))
}

/// Reads a bundle's manifest.
pub fn manifest(bundle: &Path) -> Result<Manifest> {
    let path = bundle.join("manifest.json");
    let bytes = std::fs::read(&path)
        .with_context(|| format!("{}: not a bundle (no readable manifest.json)", bundle.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("{}: damaged", path.display()))
}

/// Promoted kernels are inspected again before they are loaded.
fn inspect(entry: &KernelEntry, binary: &[u8]) -> std::result::Result<(), String> {
    sandbox::inspect(binary, &entry.target).map(|_| ()).map_err(|e| e.to_string())
}

fn warn_of_other_machine(manifest: &Manifest) {
    let here = machine::fingerprint::facts();
    for key in ["cpu", "stepping", "microcode"] {
        let (Some(there), Some(now)) = (manifest.machine.get(key), here.get(key)) else { continue };
        if there != now {
            eprintln!(
                "note: the bundle's claims were measured where {key} is '{there}', here it is '{now}'; its speed \
                 claims do not hold here"
            );
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_may_stand_for_a_digest() {
        for (digest, start) in [("0123456789abcdef01", "0123456789abcdef"), ("short", "short"), ("", "")] {
            assert_eq!(fingerprint(digest), start);
        }
        // A character over the boundary.
        let odd = "0123456789abcde\u{20ac}f";
        assert_eq!(fingerprint(odd), odd);
    }
}
