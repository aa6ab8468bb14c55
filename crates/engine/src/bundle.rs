//! Opening a bundle: manifest, plan, weights and kernels, each checked before it is used.

use crate::check;
use crate::error::EngineError;
use crate::options::{EngineOptions, PlanChoice, Verification, WeightMemory};
use crate::sizes::Sizes;
use kernel_abi::{AlignedBuffer, Kernel};
use memmap2::Mmap;
use plan::{ABI_VERSION, KernelEntry, Manifest, PLAN_VERSION, Plan};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Component, Path, PathBuf};

const ALIGNMENT: u64 = 4096;

/// Packed weights in memory.
enum Weights {
    Mapped(Mmap),
    Private(AlignedBuffer),
}

impl Weights {
    fn bytes(&self) -> &[u8] {
        match self {
            Weights::Mapped(map) => map,
            Weights::Private(buffer) => buffer.bytes(),
        }
    }
}

/// An opened bundle whose parts fit together: what [`crate::Executor`] runs.
pub struct Bundle {
    pub dir: PathBuf,
    pub manifest: Manifest,
    pub plan: Plan,
    pub sizes: Sizes,
    weights: Weights,
    kernels: BTreeMap<String, Kernel>,
}

/// Read before the rest, whose shape may differ between versions.
#[derive(Deserialize)]
struct Versions {
    version: u32,
    abi: u32,
}

impl Bundle {
    /// Opens the bundle at `dir`: reads and checks manifest and plan, maps the weights, checks and loads the kernels
    /// of the plan.
    ///
    /// # Errors
    /// What does not fit, and where: missing or damaged files, versions, an instruction set that the machine lacks,
    /// a plan that contradicts its manifest.
    pub fn open(dir: &Path, options: &EngineOptions) -> Result<Self, EngineError> {
        let manifest: Manifest = read_versioned(&dir.join("manifest.json"))?;
        let plan = match &options.plan {
            PlanChoice::Champion => read_versioned(&dir.join("plan.json"))?,
            PlanChoice::Portable => read_versioned(&dir.join("plan-portable.json"))?,
            PlanChoice::Given(plan) => (**plan).clone(),
        };
        let features = options.features.clone().unwrap_or_else(kernel_abi::detect);
        check_target(&plan, &features)?;
        let sizes = Sizes::new(&plan, options)?;
        let path = dir.join("weights.bin");
        let weights = open_weights(&path, &manifest, options.weights)?;
        check_tensors(&path, &manifest, weights.bytes(), options.verify)?;
        check::check_plan(&plan, &manifest, &sizes)?;
        let mut kernels = BTreeMap::new();
        for (name, entry) in check::used_kernels(&plan, &manifest)? {
            kernels.insert(name.to_owned(), load(dir, name, entry, options)?);
        }
        Ok(Self { dir: dir.to_owned(), manifest, plan, sizes, weights, kernels })
    }

    /// The bytes of a packed tensor.
    pub fn tensor(&self, name: &str) -> Option<&[u8]> {
        let entry = self.manifest.tensors.get(name)?;
        let start = usize::try_from(entry.offset).ok()?;
        let end = start.checked_add(usize::try_from(entry.bytes).ok()?)?;
        self.weights.bytes().get(start..end)
    }

    /// A loaded kernel of the plan.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.get(name)
    }
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, EngineError> {
    std::fs::read(path).map_err(|source| EngineError::Read { path: path.to_owned(), source })
}

fn read_versioned<T: DeserializeOwned>(path: &Path) -> Result<T, EngineError> {
    let bytes = read_bytes(path)?;
    let json = |source| EngineError::Json { path: path.to_owned(), source };
    let versions: Versions = serde_json::from_slice(&bytes).map_err(json)?;
    let same = |what: &str, found, expected| {
        if found == expected {
            return Ok(());
        }
        Err(EngineError::Version { what: format!("{what} of {}", path.display()), found, expected })
    };
    same("the format", versions.version, PLAN_VERSION)?;
    same("the kernel ABI", versions.abi, ABI_VERSION)?;
    serde_json::from_slice(&bytes).map_err(json)
}

fn check_target(plan: &Plan, features: &BTreeSet<plan::Feature>) -> Result<(), EngineError> {
    let arch = kernel_abi::architecture();
    for (what, found, expected) in
        [("the format", plan.version, PLAN_VERSION), ("the kernel ABI", plan.abi, ABI_VERSION)]
    {
        if found != expected {
            let what = format!("{what} of plan `{}`", plan.name);
            return Err(EngineError::Version { what, found, expected });
        }
    }
    if plan.target.runs_on(arch, features) {
        return Ok(());
    }
    let missing: Vec<&str> =
        plan.target.features.difference(features).map(|feature| feature.name()).collect();
    let missing = if plan.target.arch == arch {
        missing.join(", ")
    } else {
        format!("the architecture {}", plan.target.arch)
    };
    Err(EngineError::Target {
        plan: plan.name.clone(),
        needed: plan.target.to_string(),
        arch: arch.to_owned(),
        missing,
    })
}

fn open_weights(path: &Path, manifest: &Manifest, memory: WeightMemory) -> Result<Weights, EngineError> {
    let read = |source| EngineError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read)?;
    let found = file.metadata().map_err(read)?.len();
    if found != manifest.weights_bytes {
        let problem = format!("it has {found} bytes instead of {}", manifest.weights_bytes);
        return Err(EngineError::Damaged { path: path.to_owned(), problem });
    }
    // SAFETY: the mapping is read-only and private. A bundle that is rewritten in place while it is served would
    // show torn weights; `wright` writes bundles to a new folder and renames it.
    let map = unsafe { Mmap::map(&file) }.map_err(read)?;
    let huge = match memory {
        WeightMemory::Auto => huge_pages_pay(map.len() as u64),
        WeightMemory::HugePages => true,
        WeightMemory::Mapped => false,
    };
    if huge {
        let mut buffer = AlignedBuffer::zeroed(map.len(), "the weights")?;
        buffer.bytes_mut().copy_from_slice(&map);
        return Ok(Weights::Private(buffer));
    }
    // Advice only: reading ahead, as the whole file is used in every pass.
    let _ = map.advise(memmap2::Advice::WillNeed);
    Ok(Weights::Mapped(map))
}

/// Whether the system gives huge pages on request, and has room for a copy beside the mapped file.
fn huge_pages_pay(bytes: u64) -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let given = setting.contains("[madvise]") || setting.contains("[always]");
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    given && available.is_some_and(|kib| kib / 2 > bytes / 1024)
}

fn check_tensors(
    path: &Path,
    manifest: &Manifest,
    weights: &[u8],
    verify: Verification,
) -> Result<(), EngineError> {
    let damaged = |problem| EngineError::Damaged { path: path.to_owned(), problem };
    for (name, entry) in &manifest.tensors {
        let end = entry.offset.checked_add(entry.bytes);
        if !entry.offset.is_multiple_of(ALIGNMENT) {
            return Err(damaged(format!(
                "tensor `{name}` begins at {}, not a multiple of {ALIGNMENT}",
                entry.offset
            )));
        }
        let end = end.filter(|end| *end <= weights.len() as u64).ok_or_else(|| {
            damaged(format!(
                "tensor `{name}` of {} bytes at {} ends beyond the file",
                entry.bytes, entry.offset
            ))
        })?;
        // In range of usize: both are at most the length of a slice.
        let bytes = &weights[entry.offset as usize..end as usize];
        if verify == Verification::Everything && blake3::hash(bytes).to_hex().as_str() != entry.digest {
            return Err(damaged(format!("tensor `{name}` has another digest")));
        }
    }
    if verify == Verification::Everything
        && blake3::hash(weights).to_hex().as_str() != manifest.weights_digest
    {
        return Err(damaged("the file has another digest".into()));
    }
    Ok(())
}

fn load(dir: &Path, name: &str, entry: &KernelEntry, options: &EngineOptions) -> Result<Kernel, EngineError> {
    let relative = Path::new(&entry.binary);
    let path = dir.join(relative);
    if relative.components().any(|c| !matches!(c, Component::Normal(_))) {
        let problem = format!("the path of kernel `{name}` leads out of the bundle");
        return Err(EngineError::Damaged { path, problem });
    }
    let object = read_bytes(&path)?;
    if blake3::hash(&object).to_hex().as_str() != entry.binary_digest {
        let problem = format!("kernel `{name}` has another digest");
        return Err(EngineError::Damaged { path, problem });
    }
    if let Some(inspector) = &options.inspector {
        inspector(entry, &object)
            .map_err(|reason| EngineError::Inspection { kernel: name.to_owned(), reason })?;
    }
    // SAFETY: the bytes are those of the manifest (digest) and passed the caller's inspection; kernels of a bundle
    // follow the ABI, which `Manifest::abi` names and `read_versioned` compared.
    Ok(unsafe { Kernel::from_bytes(name, &object)? })
}
