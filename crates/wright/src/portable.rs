//! A bundle of the portable plan, for `serve MODEL` and as the base of every build. Kept in the cache by digest.

use crate::assemble::{self, KernelSet};
use crate::{paths, workshop};
use anyhow::{Context, Result};
use emit::{About, Contents, PlanChoices};
use model::Model;
use plan::{ModelShape, Plan};
use sandbox::Builder;
use std::path::{Path, PathBuf};

/// Longest context that engines offer.
pub const MAX_CONTEXT: u32 = 32_768;

/// A model with what follows from it.
pub struct Loaded {
    pub name: String,
    pub model: Model,
    pub shape: ModelShape,
    pub start: PlanChoices,
    pub sources: [Option<emit::SourceFormat>; 5],
}

/// Opens a known name, a GGUF file or a Hugging Face folder, fetching known models into the cache.
pub fn load(target: &str) -> Result<Loaded> {
    let path = model::resolve(target)?;
    let model = Model::open(&path)?;
    let shape = emit::shape_of(&model, MAX_CONTEXT)
        .with_context(|| format!("{} cannot be served yet", path.display()))?;
    let sources = emit::source_formats(&model);
    let start = PlanChoices::start(&shape, &sources);
    let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or("model");
    let name = if Path::new(target).exists() { stem } else { target };
    Ok(Loaded { name: name.to_lowercase(), model, shape, start, sources })
}

/// Where pulled models lie.
pub fn model_cache() -> Result<PathBuf> {
    Ok(paths::cache()?.join("models"))
}

/// The portable plan of a model with its kernels, over the weights of `choices`. Prompts have no arithmetic of their own: that
/// pays with instructions that portable code lacks.
pub fn plan(shape: &ModelShape, choices: &PlanChoices, builder: &Builder) -> Result<(Plan, KernelSet)> {
    let choices = &choices.together();
    let operations = emit::operations(shape, choices);
    let set = assemble::portable_set(&operations, choices.batching.max_rows, builder)?;
    let target = assemble::portable_target();
    let plan = emit::compose("portable", shape, choices, target, &set.tables);
    Ok((plan, set))
}

/// The cached portable bundle of a model, made if it is not there.
pub fn bundle(loaded: &Loaded) -> Result<PathBuf> {
    let builder = workshop::builder()?;
    let key = blake3::hash(
        format!(
            "{} {:?} {} {}",
            loaded.model.digest(),
            loaded.start,
            builder.toolchain().version(),
            env!("CARGO_PKG_VERSION")
        )
        .as_bytes(),
    );
    let folder = paths::cache()?.join("portable").join(&key.to_hex()[..16]);
    if folder.join("manifest.json").is_file() {
        return Ok(folder);
    }
    eprintln!("making the portable plan of {} (once)", loaded.name);
    let (plan, set) = self::plan(&loaded.shape, &loaded.start, &builder)?;
    let parent = folder.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    let weights = parent.join(format!(".weights.{}", std::process::id()));
    let packed = emit::bundle::pack_file(&loaded.model, &plan, &loaded.start, &weights)?;
    let about = About {
        model_name: loaded.name.clone(),
        created_s: workshop::now_s(),
        toolchain: builder.toolchain().version().to_owned(),
        ..About::default()
    };
    let contents = Contents {
        model: &loaded.model,
        choices: &loaded.start,
        champion: &plan,
        portable: &plan,
        kernels: &set.files,
        about: &about,
    };
    let written = emit::bundle::write(&folder, &contents, &packed);
    let _ = std::fs::remove_file(&weights);
    written?;
    Ok(folder)
}
