//! Portable kernels compile for aarch64. They are not run: no such machine is at hand.

use kernels::generators::generators;
use plan::operation::QkvRope;
use plan::{
    Activation, Epilogue, KvDtype, KvLayout, Operation, Prologue, RowBucket, Target, WeightFormat,
    WeightLayout, Zero,
};
use std::process::Command;

const TRIPLE: &str = "aarch64-unknown-linux-gnu";

fn rustc() -> Command {
    Command::new(std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned()))
}

/// Whether the toolchain has the standard library of that target.
fn is_installed() -> bool {
    let output = rustc().args(["--print", "target-libdir", "--target", TRIPLE]).output().expect("run rustc");
    let folder = String::from_utf8_lossy(&output.stdout);
    std::fs::read_dir(folder.trim()).is_ok_and(|mut entries| entries.next().is_some())
}

fn operations() -> Vec<Operation> {
    let kv = KvLayout { dtype: KvDtype::F16, block_tokens: 16 };
    let qkv = QkvRope { heads: 4, kv_heads: 2, head_dim: 32, bias: true, qk_norm_eps_bits: None, kv };
    let layout = |format| WeightLayout { format, n_block: 16 };
    let q4 = layout(WeightFormat::Affine { bits: 4, group: 32, zero: Zero::Stored });
    let q8 = layout(WeightFormat::Affine { bits: 8, group: 32, zero: Zero::Midpoint });
    let norm = Prologue::RmsNorm { eps_bits: 1e-5f32.to_bits() };
    let linear = |n, k, prologue, epilogue, weight, activation| Operation::Linear {
        n,
        k,
        prologue,
        epilogue,
        weight,
        activation,
    };
    vec![
        linear(256, 128, norm, Epilogue::QkvRope(qkv), q4, Activation::I8),
        linear(128, 128, Prologue::None, Epilogue::Add, q8, Activation::I16),
        linear(128, 128, norm, Epilogue::SiluGate, q4, Activation::I8),
        linear(96, 128, norm, Epilogue::Store, layout(WeightFormat::F32), Activation::F32),
        linear(96, 128, Prologue::None, Epilogue::Store, layout(WeightFormat::Bf16), Activation::F32),
        Operation::Attention { heads: 4, kv_heads: 2, head_dim: 32, kv, window: None },
        Operation::Embed { vocab: 100, hidden: 64, weight: q8 },
        Operation::RmsNorm { width: 96, eps_bits: 1e-5f32.to_bits() },
        Operation::RopeKv(qkv),
        Operation::SiluGate { ffn: 96 },
    ]
}

#[test]
fn portable_kernels_compile_for_aarch64() {
    if !is_installed() {
        eprintln!("SKIPPED: the toolchain cannot compile for {TRIPLE} (rustup target add {TRIPLE})");
        return;
    }
    let target = Target { arch: "aarch64".to_owned(), features: Default::default(), threads: 2 };
    let dir = tempfile::tempdir().expect("a temporary folder");
    for operation in operations() {
        let rows = RowBucket { low: 1, high: u32::MAX };
        let mut made = 0;
        for generator in generators() {
            let Some(point) = generator.start(&operation, rows, &target) else { continue };
            let kernel =
                generator.generate(&operation, rows, &target, &point, 64).expect("a member of the space");
            assert!(
                kernel.features.is_empty(),
                "{} needs features of another architecture",
                generator.name()
            );
            let source = dir.path().join("kernel.rs");
            std::fs::write(&source, &kernel.source).expect("write the source");
            let mut compile = rustc();
            compile.args(["--edition", "2024", "--crate-type", "lib", "--emit", "obj", "--target", TRIPLE]);
            compile.args(["-C", "opt-level=3", "-C", "panic=abort", "-C", "codegen-units=1", "-o"]);
            let output = compile.arg(dir.path().join("kernel.o")).arg(&source).output().expect("run rustc");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{} for {operation}: {errors}", generator.name());
            made += 1;
        }
        assert!(made > 0, "no portable kernel for {operation}");
    }
}
