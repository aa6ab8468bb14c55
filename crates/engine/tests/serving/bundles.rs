//! Bundles and plans that do not fit are refused, saying what and where.

use crate::executor::options;
use crate::tiny;
use engine::*;
use plan::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a scratch folder");
    copy_tree(tiny::bundle(), dir.path());
    dir
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("writable");
    for entry in std::fs::read_dir(from).expect("readable") {
        let path = entry.expect("readable").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_tree(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("writable");
        }
    }
}

fn refusal(dir: &Path, options: &EngineOptions) -> String {
    match Bundle::open(dir, options) {
        Ok(_) => panic!("the bundle was accepted"),
        Err(error) => error.to_string(),
    }
}

fn assert_words(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "`{text}` should say `{word}`");
    }
}

#[test]
fn a_sound_bundle_opens() {
    let everything =
        EngineOptions { verify: Verification::Everything, weights: WeightMemory::HugePages, ..options() };
    let bundle = Bundle::open(tiny::bundle(), &everything).expect("sound");
    assert_eq!(bundle.tensor("norm").map(<[u8]>::len), Some(4 * tiny::HIDDEN));
    assert!(bundle.tensor("nothing").is_none());
}

#[test]
fn missing_and_damaged_files() {
    for file in ["manifest.json", "plan-portable.json", "weights.bin", "kernels/qkv.so"] {
        let dir = copy();
        std::fs::remove_file(dir.path().join(file)).expect("there");
        assert_words(&refusal(dir.path(), &options()), &["cannot read", file]);
    }
    let dir = copy();
    let path = dir.path().join("weights.bin");
    let mut bytes = std::fs::read(&path).expect("readable");
    let place = bytes.len() - 5;
    bytes[place] ^= 1;
    std::fs::write(&path, &bytes).expect("writable");
    let all = EngineOptions { verify: Verification::Everything, ..options() };
    assert_words(&refusal(dir.path(), &all), &["weights.bin", "tensor `1.down`", "digest"]);
    bytes.truncate(place);
    std::fs::write(&path, &bytes).expect("writable");
    assert_words(&refusal(dir.path(), &options()), &["weights.bin", "bytes instead of"]);

    let dir = copy();
    let path = dir.path().join("kernels/o.so");
    let mut bytes = std::fs::read(&path).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, &bytes).expect("writable");
    assert_words(&refusal(dir.path(), &options()), &["o.so", "kernel `o-many`", "digest"]);

    let dir = copy();
    std::fs::write(dir.path().join("manifest.json"), "{ \"version\": 1, ").expect("writable");
    assert_words(&refusal(dir.path(), &options()), &["manifest.json", "not valid"]);
    let nowhere = dir.path().join("nowhere");
    assert_words(&refusal(&nowhere, &options()), &["nowhere", "is it a bundle"]);
}

#[test]
fn versions_and_instruction_sets() {
    for (file, key, words) in [
        ("manifest.json", "version", "format"),
        ("plan-portable.json", "version", "format"),
        ("plan-portable.json", "abi", "kernel ABI"),
    ] {
        let dir = copy();
        let path = dir.path().join(file);
        let text = std::fs::read_to_string(&path).expect("readable");
        let changed = text.replacen(&format!("\"{key}\": 1"), &format!("\"{key}\": 9"), 1);
        assert_ne!(text, changed);
        std::fs::write(&path, changed).expect("writable");
        assert_words(&refusal(dir.path(), &options()), &[words, file, "version 9", "reads version 1"]);
    }
    let champion = EngineOptions { plan: PlanChoice::Champion, features: Some(BTreeSet::new()), ..options() };
    assert_words(&refusal(tiny::bundle(), &champion), &["champion", "lacks avx2", "--portable"]);
    let able = EngineOptions { features: Some(BTreeSet::from([Feature::Avx2])), ..champion };
    assert!(Bundle::open(tiny::bundle(), &able).is_ok());
    let mut other = tiny::plan("other");
    other.target.arch = "riscv64".into();
    assert_words(&refusal(tiny::bundle(), &given(other)), &["riscv64", "--portable"]);
}

fn given(plan: Plan) -> EngineOptions {
    EngineOptions { plan: PlanChoice::Given(Box::new(plan)), ..options() }
}

#[test]
fn an_inspector_may_refuse() {
    let options = EngineOptions {
        inspector: Some(Arc::new(|entry: &KernelEntry, object: &[u8]| {
            assert!(object.starts_with(b"\x7fELF"));
            if entry.operation.kind() == "attention" { Err("a system call at 0x10".into()) } else { Ok(()) }
        })),
        ..options()
    };
    assert_words(&refusal(tiny::bundle(), &options), &["attention", "a system call at 0x10"]);
}

/// Each change makes one thing wrong; the message names it and its place.
#[test]
fn plans_that_contradict_themselves() {
    type Change = fn(&mut Plan);
    let step = |plan: &mut Plan, index: usize, slot: u32, source: Option<Source>| {
        let Step::Run { bindings, .. } = &mut plan.steps[index] else { panic!("a gather") };
        match source {
            Some(source) => bindings.iter_mut().find(|b| b.slot == slot).expect("bound").source = source,
            None => bindings.retain(|b| b.slot != slot),
        }
    };
    let kernels: [(Change, &[&str]); 14] = [
        (
            |p| p.operations.get_mut("o").expect("there").kernels[1].rows.low = 3,
            &["operation `o`", "at 2 row", "gap"],
        ),
        (
            |p| p.operations.get_mut("o").expect("there").kernels[1].rows.high = 20,
            &["`o`", "no kernel for 21 rows"],
        ),
        (|p| drop(p.operations.get_mut("o").expect("there").kernels.remove(0)), &["`o`", "at 1 row"]),
        (
            |p| p.operations.get_mut("qkv").expect("there").kernels[0].kernel = "x".into(),
            &["`qkv`", "`x`", "manifest"],
        ),
        (
            |p| p.operations.get_mut("o").expect("there").kernels[0].kernel = "embed-one".into(),
            &["`o`", "computes embed"],
        ),
        (|p| p.batching.max_rows = 2000, &["takes up to 1000 rows"]),
        (|p| p.target.threads = 9, &["takes up to 8 threads", "has 9"]),
        (|p| p.batching.max_rows = 0, &["batching.max_rows", "is 0"]),
        (|p| p.kv.block_tokens = 32, &["another cache"]),
        (|p| p.model.heads = 4, &["other heads"]),
        (|p| (p.model.head_dim, p.model.heads) = (1 << 31, 4), &["model.heads", "too large"]),
        (
            |p| match &mut p.operations.get_mut("o").expect("there").operation {
                Operation::Linear { n, k, .. } => (*n, *k) = (u32::MAX, 1 << 31),
                _ => panic!("not linear"),
            },
            &["operation `o`", "too large"],
        ),
        (|p| p.logits = "hl".into(), &["logits", "`hl`", "vocabulary 64"]),
        (|p| p.steps.truncate(3), &["no step writes buffer `logits`"]),
    ];
    for (change, words) in kernels {
        let mut plan = tiny::plan("changed");
        change(&mut plan);
        assert_words(&refusal(tiny::bundle(), &given(plan)), words);
    }
    let w = |name: &str| Some(Source::Weight(name.into()));
    let b = |name: &str| Some(Source::Buffer(name.into()));
    let bindings: [(usize, u32, Option<Source>, &[&str]); 10] = [
        (1, 1, w("nothing"), &["step 1 (`qkv`)", "`nothing`", "manifest"]),
        (1, 1, w("norm"), &["step 1", "`norm`", "128 bytes", "needs 8192"]),
        (1, 3, None, &["step 1", "slot 3", "not bound"]),
        (1, 0, b("nothing"), &["step 1", "`nothing`", "not declared"]),
        (1, 0, b("logits"), &["step 1", "`logits`", "64 wide", "32"]),
        (1, 2, b("hl"), &["step 1", "`hl`", "Logits"]),
        (1, 0, b("a"), &["step 1", "reads buffer `a`", "no step before"]),
        (1, 8, Some(Source::KeyCache(2)), &["step 1", "layer 2 of 2"]),
        (1, 8, Some(Source::ValueCache(0)), &["step 1", "Keys cannot be"]),
        (1, 7, w("norm"), &["step 1", "`norm`", "the operation needs"]),
    ];
    for (index, slot, source, words) in bindings {
        let mut plan = tiny::plan("changed");
        step(&mut plan, index, slot, source);
        assert_words(&refusal(tiny::bundle(), &given(plan)), words);
    }
    let mut plan = tiny::plan("changed");
    let Step::Run { barrier, .. } = &mut plan.steps[1] else { panic!("a gather") };
    *barrier = false;
    assert_words(&refusal(tiny::bundle(), &given(plan)), &["step 1", "needs a barrier", "step 2"]);
}

#[test]
fn options_that_cannot_be() {
    for (options, words) in [
        (EngineOptions { kv_tokens: Some(15), ..options() }, ["kv_tokens", "page of 16"]),
        (EngineOptions { kv_tokens: Some(u32::MAX), ..options() }, ["cannot allocate", "keys of layer 0"]),
        (EngineOptions { max_context: Some(97), ..options() }, ["max_context", "context of 96"]),
        (EngineOptions { threads: Some(0), ..options() }, ["threads", "is 0"]),
        (EngineOptions { threads: Some(9), ..options() }, ["takes up to 8", "9"]),
        (EngineOptions { max_sequences: Some(0), ..options() }, ["max_sequences", "is 0"]),
    ] {
        match Engine::start(tiny::bundle(), options) {
            Ok(_) if words[0] == "cannot allocate" => eprintln!("SKIPPED: this system promises any memory"),
            Ok(_) => panic!("{words:?} was accepted"),
            Err(error) => assert_words(&error.to_string(), &words),
        }
    }
}
