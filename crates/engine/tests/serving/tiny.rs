//! A tiny model as a whole bundle: two layers, random weights, kernels of plain Rust compiled here.

use plan::abi::ARGS_V1_SOURCE;
use plan::operation::slot;
use plan::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub const HIDDEN: usize = 32;
pub const HEADS: usize = 2;
pub const KV_HEADS: usize = 1;
pub const HEAD_DIM: usize = 16;
pub const FFN: usize = 32;
pub const VOCAB: usize = 64;
pub const LAYERS: usize = 2;
pub const CONTEXT: usize = 96;
pub const BLOCK: usize = 16;
pub const QKV: usize = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
pub const MAX_ROWS: u32 = 24;

const KV: KvLayout = KvLayout { dtype: KvDtype::F32, block_tokens: BLOCK as u32 };
const F32: WeightLayout = WeightLayout { format: WeightFormat::F32, n_block: 16 };

/// Weights as plain `[n][k]` matrices and vectors, by tensor name.
pub type Weights = BTreeMap<String, Vec<f32>>;

struct Tensor {
    name: String,
    n: usize,
    k: usize,
}

fn tensors() -> Vec<Tensor> {
    let t = |name: String, n, k| Tensor { name, n, k };
    let mut all = vec![
        t("embed".into(), VOCAB, HIDDEN),
        t("norm".into(), 0, HIDDEN),
        t("head".into(), VOCAB, HIDDEN),
        t("rope".into(), 0, CONTEXT * HEAD_DIM),
    ];
    for l in 0..LAYERS {
        all.push(t(format!("{l}.norm1"), 0, HIDDEN));
        all.push(t(format!("{l}.qkv"), QKV, HIDDEN));
        all.push(t(format!("{l}.o"), HIDDEN, HEADS * HEAD_DIM));
        all.push(t(format!("{l}.norm2"), 0, HIDDEN));
        all.push(t(format!("{l}.gate_up"), 2 * FFN, HIDDEN));
        all.push(t(format!("{l}.down"), HIDDEN, FFN));
    }
    all
}

/// Uniform in [-1, 1), from a counter.
fn noise(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

pub fn weights() -> Weights {
    let mut state = 42;
    let mut all = Weights::new();
    for Tensor { name, n, k } in tensors() {
        let values: Vec<f32> = if name == "rope" {
            (0..CONTEXT * HEAD_DIM)
                .map(|i| {
                    let (position, d) = (i / HEAD_DIM, i % HEAD_DIM);
                    let half = HEAD_DIM / 2;
                    let angle = position as f32 * 100f32.powf(-((d % half) as f32) / half as f32);
                    if d < half { angle.cos() } else { angle.sin() }
                })
                .collect()
        } else if n == 0 {
            (0..k).map(|_| 1.0 + 0.2 * noise(&mut state)).collect()
        } else {
            (0..n * k).map(|_| 0.5 * noise(&mut state)).collect()
        };
        all.insert(name, values);
    }
    all
}

/// `[n][k]` to blocks of 16 columns, `[block][k][16]`.
fn pack(values: &[f32], n: usize, k: usize) -> Vec<f32> {
    let mut out = vec![0.0; n * k];
    for row in 0..n {
        for i in 0..k {
            out[row / 16 * k * 16 + i * 16 + row % 16] = values[row * k + i];
        }
    }
    out
}

fn qkv_rope() -> QkvRope {
    QkvRope {
        heads: HEADS as u32,
        kv_heads: KV_HEADS as u32,
        head_dim: HEAD_DIM as u32,
        bias: false,
        qk_norm_eps_bits: None,
        kv: KV,
    }
}

/// Operations with the constants of their kernels: name, operation, KIND, N, K, NORMED, phases.
fn operations() -> Vec<(&'static str, Operation, u32, usize, usize, bool, u32)> {
    let norm = Prologue::RmsNorm { eps_bits: 1e-5f32.to_bits() };
    let linear = |n: usize, k: usize, prologue, epilogue| Operation::Linear {
        n: n as u32,
        k: k as u32,
        prologue,
        epilogue,
        weight: F32,
        activation: Activation::F32,
    };
    let attention = Operation::Attention {
        heads: HEADS as u32,
        kv_heads: KV_HEADS as u32,
        head_dim: HEAD_DIM as u32,
        kv: KV,
        window: None,
    };
    let embed = Operation::Embed { vocab: VOCAB as u32, hidden: HIDDEN as u32, weight: F32 };
    let qkv = linear(QKV, HIDDEN, norm, Epilogue::QkvRope(qkv_rope()));
    vec![
        ("embed", embed, 5, VOCAB, HIDDEN, false, 1),
        ("qkv", qkv, 3, QKV, HIDDEN, true, 1),
        ("attention", attention, 4, 0, 0, false, 2),
        (
            "o",
            linear(HIDDEN, HEADS * HEAD_DIM, Prologue::None, Epilogue::Add),
            1,
            HIDDEN,
            HEADS * HEAD_DIM,
            false,
            1,
        ),
        ("gate_up", linear(2 * FFN, HIDDEN, norm, Epilogue::SiluGate), 2, 2 * FFN, HIDDEN, true, 1),
        ("down", linear(HIDDEN, FFN, Prologue::None, Epilogue::Add), 1, HIDDEN, FFN, false, 1),
        ("head", linear(VOCAB, HIDDEN, norm, Epilogue::Store), 0, VOCAB, HIDDEN, true, 1),
    ]
}

fn run(operation: &str, rows: RowSet, bindings: &[(usize, Source)]) -> Step {
    Step::Run {
        operation: operation.into(),
        rows,
        bindings: bindings
            .iter()
            .map(|(slot, source)| Binding { slot: *slot as u32, source: source.clone() })
            .collect(),
        barrier: true,
    }
}

fn steps() -> Vec<Step> {
    let b = |name: &str| Source::Buffer(name.into());
    let w = |name: String| Source::Weight(name);
    let all = RowSet::All;
    let embed = [(slot::TOKENS, Source::Tokens), (slot::W, w("embed".into())), (slot::OUT, b("h"))];
    let mut steps = vec![run("embed", all, &embed)];
    for l in 0..LAYERS {
        let (keys, values) = (Source::KeyCache(l as u32), Source::ValueCache(l as u32));
        steps.push(run(
            "qkv",
            all,
            &[
                (slot::X, b("h")),
                (slot::W, w(format!("{l}.qkv"))),
                (slot::NORM, w(format!("{l}.norm1"))),
                (slot::OUT, b("q")),
                (slot::ROPE, w("rope".into())),
                (slot::K_CACHE, keys.clone()),
                (slot::V_CACHE, values.clone()),
                (slot::POSITIONS, Source::Positions),
                (slot::SLOTS, Source::Slots),
            ],
        ));
        steps.push(run(
            "attention",
            all,
            &[
                (slot::X, b("q")),
                (slot::OUT, b("a")),
                (slot::K_CACHE, keys),
                (slot::V_CACHE, values),
                (slot::POSITIONS, Source::Positions),
                (slot::ROW_SEQUENCE, Source::RowSequence),
                (slot::BLOCK_TABLES, Source::BlockTables),
            ],
        ));
        let add =
            |name: &str, x: &str| [(slot::X, b(x)), (slot::W, w(format!("{l}.{name}"))), (slot::OUT, b("h"))];
        steps.push(run("o", all, &add("o", "a")));
        steps.push(run(
            "gate_up",
            all,
            &[
                (slot::X, b("h")),
                (slot::W, w(format!("{l}.gate_up"))),
                (slot::NORM, w(format!("{l}.norm2"))),
                (slot::OUT, b("f")),
            ],
        ));
        steps.push(run("down", all, &add("down", "f")));
    }
    steps.push(Step::GatherLogitRows { from: "h".into(), to: "hl".into() });
    steps.push(run(
        "head",
        RowSet::Logits,
        &[
            (slot::X, b("hl")),
            (slot::W, w("head".into())),
            (slot::NORM, w("norm".into())),
            (slot::OUT, b("logits")),
        ],
    ));
    steps
}

pub fn plan(name: &str) -> Plan {
    let buffer = |name: &str, width: usize, rows| Buffer { name: name.into(), width: width as u32, rows };
    let operations = operations().into_iter().map(|(name, operation, ..)| {
        let bucket = |low, high, kernel: &str| BucketKernel {
            rows: RowBucket { low, high },
            kernel: format!("{name}-{kernel}"),
        };
        let kernels = vec![bucket(1, 1, "one"), bucket(2, u32::MAX, "many")];
        (name.to_owned(), PlannedOperation { operation, kernels })
    });
    Plan {
        version: PLAN_VERSION,
        abi: ABI_VERSION,
        name: name.into(),
        model: ModelShape {
            architecture: "tiny".into(),
            layers: LAYERS as u32,
            hidden: HIDDEN as u32,
            heads: HEADS as u32,
            kv_heads: KV_HEADS as u32,
            head_dim: HEAD_DIM as u32,
            ffn: FFN as u32,
            vocab: VOCAB as u32,
            context: CONTEXT as u32,
            rms_eps: 1e-5,
            qkv_bias: false,
            qk_norm: false,
            tied_embeddings: false,
            sliding_window: None,
        },
        target: Target::portable(std::env::consts::ARCH, 2),
        kv: KV,
        operations: operations.collect(),
        buffers: vec![
            buffer("h", HIDDEN, RowSet::All),
            buffer("q", HEADS * HEAD_DIM, RowSet::All),
            buffer("a", HEADS * HEAD_DIM, RowSet::All),
            buffer("f", FFN, RowSet::All),
            buffer("hl", HIDDEN, RowSet::Logits),
            buffer("logits", VOCAB, RowSet::Logits),
        ],
        steps: steps(),
        prefill_steps: Vec::new(),
        logits: "logits".into(),
        batching: Batching {
            max_sequences: 6,
            max_rows: MAX_ROWS,
            prefill_chunk: 7,
            kv_tokens: 6 * CONTEXT as u32,
        },
        spin: 2_000,
    }
}

fn compile(dir: &Path) -> BTreeMap<String, KernelEntry> {
    std::fs::create_dir_all(dir.join("kernels")).expect("writable");
    let body = include_str!("kernel_body.rs");
    let builds: Vec<_> = operations()
        .into_iter()
        .map(|(name, operation, kind, n, k, normed, phases)| {
            let source = format!(
                "#![allow(unsafe_op_in_unsafe_fn, dead_code, unconditional_panic)]
                const KIND: u32 = {kind}; const N: usize = {n}; const K: usize = {k}; const NORMED: bool = {normed};
                const HEADS: usize = {HEADS}; const KV_HEADS: usize = {KV_HEADS};
                const HEAD_DIM: usize = {HEAD_DIM}; const BLOCK: usize = {BLOCK};\n{ARGS_V1_SOURCE}{body}"
            );
            let (rs, so) = (format!("kernels/{name}.rs"), format!("kernels/{name}.so"));
            std::fs::write(dir.join(&rs), &source).expect("writable");
            let child = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
                .args(["--edition", "2021", "--crate-type", "cdylib", "-O", "-C", "panic=abort", "-C", "strip=symbols"])
                .arg("-o")
                .args([dir.join(&so), dir.join(&rs)])
                .spawn()
                .expect("rustc starts");
            (child, name, operation, phases, source, rs, so)
        })
        .collect();
    let mut kernels = BTreeMap::new();
    for (mut child, name, operation, phases, source, rs, so) in builds {
        assert!(child.wait().expect("rustc ends").success(), "kernel {name}");
        let object = std::fs::read(dir.join(&so)).expect("built");
        let entry = KernelEntry {
            source: rs,
            binary: so,
            source_digest: blake3::hash(source.as_bytes()).to_hex().to_string(),
            binary_digest: blake3::hash(&object).to_hex().to_string(),
            operation,
            target: Target::portable(std::env::consts::ARCH, 2),
            launch: Launch {
                phases,
                scratch_bytes: 4 * HIDDEN as u64,
                shared_bytes: 0,
                shared_bytes_per_row: if phases > 1 { 4 * (HEADS * HEAD_DIM) as u64 } else { 0 },
                max_rows: 1000,
                max_threads: 8,
            },
            candidate: None,
            decision: None,
        };
        kernels.insert(format!("{name}-one"), entry.clone());
        kernels.insert(format!("{name}-many"), entry);
    }
    kernels
}

/// Writes the bundle to `dir`.
fn write(dir: &Path) {
    let kernels = compile(dir);
    let weights = weights();
    let mut file: Vec<u8> = Vec::new();
    let mut entries = BTreeMap::new();
    for Tensor { name, n, k } in tensors() {
        let values = if n > 0 { pack(&weights[&name], n, k) } else { weights[&name].clone() };
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        file.resize(file.len().next_multiple_of(4096), 0);
        entries.insert(
            name,
            TensorEntry {
                offset: file.len() as u64,
                bytes: bytes.len() as u64,
                layout: format!("f32 {n} {k}"),
                digest: blake3::hash(&bytes).to_hex().to_string(),
            },
        );
        file.extend_from_slice(&bytes);
    }
    let manifest = Manifest {
        version: PLAN_VERSION,
        abi: ABI_VERSION,
        model_name: "tiny".into(),
        model_digest: String::new(),
        created_s: 0,
        machine: BTreeMap::new(),
        toolchain: String::new(),
        kernels,
        tensors: entries,
        weights_bytes: file.len() as u64,
        weights_digest: blake3::hash(&file).to_hex().to_string(),
        files: BTreeMap::new(),
        ledger_head: None,
        claims: Vec::new(),
    };
    std::fs::write(dir.join("weights.bin"), file).expect("writable");
    let json = |name: &str, text: String| std::fs::write(dir.join(name), text).expect("writable");
    json("manifest.json", serde_json::to_string_pretty(&manifest).expect("plain data"));
    // The champion claims an instruction set, so that its absence can be pretended.
    let mut champion = plan("champion");
    champion.target.features = BTreeSet::from([Feature::Avx2]);
    // And its prompts have an arithmetic of their own: another model really, without one of its steps.
    champion.prefill_steps = steps();
    let down = |step: &Step| matches!(step, Step::Run { operation, .. } if operation == "down");
    let first = champion.prefill_steps.iter().position(down).expect("there is one");
    champion.prefill_steps.remove(first);
    json("plan.json", serde_json::to_string_pretty(&champion).expect("plain data"));
    json("plan-portable.json", serde_json::to_string_pretty(&plan("portable")).expect("plain data"));
}

/// The bundle, built once for all tests of this binary.
pub fn bundle() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("engine-tiny-bundle");
        std::fs::create_dir_all(&dir).expect("writable");
        write(&dir);
        dir
    })
}

/// Logits of every position by a plain f64 forward pass over whole sequences, without cache, pages or batches.
pub fn reference(tokens: &[u32]) -> Vec<Vec<f64>> {
    let w = weights();
    let mul = |name: &str, n: usize, x: &[f64]| -> Vec<f64> {
        let k = x.len();
        (0..n).map(|r| (0..k).map(|i| f64::from(w[name][r * k + i]) * x[i]).sum()).collect()
    };
    let norm = |name: &str, x: &[f64]| -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        x.iter().zip(&w[name]).map(|(v, g)| v / (mean + 1e-5).sqrt() * f64::from(*g)).collect()
    };
    let rotate = |head: &mut [f64], position: usize| {
        let half = HEAD_DIM / 2;
        for i in 0..half {
            let cos = f64::from(w["rope"][position * HEAD_DIM + i]);
            let sin = f64::from(w["rope"][position * HEAD_DIM + half + i]);
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * cos - b * sin;
            head[i + half] = b * cos + a * sin;
        }
    };
    let mut h: Vec<Vec<f64>> = tokens
        .iter()
        .map(|t| (0..HIDDEN).map(|i| f64::from(w["embed"][*t as usize * HIDDEN + i])).collect())
        .collect();
    for l in 0..LAYERS {
        let mut rows: Vec<Vec<f64>> =
            h.iter().map(|x| mul(&format!("{l}.qkv"), QKV, &norm(&format!("{l}.norm1"), x))).collect();
        for (position, row) in rows.iter_mut().enumerate() {
            row.chunks_mut(HEAD_DIM).take(HEADS + KV_HEADS).for_each(|head| rotate(head, position));
        }
        for position in 0..tokens.len() {
            let mut attended = Vec::new();
            for head in 0..HEADS {
                let q = &rows[position][head * HEAD_DIM..][..HEAD_DIM];
                let group = head / (HEADS / KV_HEADS);
                let at = |t: usize, part: usize| {
                    &rows[t][(HEADS + part * KV_HEADS + group) * HEAD_DIM..][..HEAD_DIM]
                };
                let scores: Vec<f64> = (0..=position)
                    .map(|t| {
                        let dot: f64 = q.iter().zip(at(t, 0)).map(|(a, b)| a * b).sum();
                        (dot / (HEAD_DIM as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = scores.iter().sum();
                attended.extend(
                    (0..HEAD_DIM).map(|d| {
                        scores.iter().enumerate().map(|(t, s)| s / total * at(t, 1)[d]).sum::<f64>()
                    }),
                );
            }
            let o = mul(&format!("{l}.o"), HIDDEN, &attended);
            h[position].iter_mut().zip(o).for_each(|(x, y)| *x += y);
        }
        for x in &mut h {
            let gate_up = mul(&format!("{l}.gate_up"), 2 * FFN, &norm(&format!("{l}.norm2"), x));
            let act: Vec<f64> = (0..FFN)
                .map(|i| {
                    let at = i / 16 * 32 + i % 16;
                    gate_up[at] / (1.0 + (-gate_up[at]).exp()) * gate_up[at + 16]
                })
                .collect();
            let down = mul(&format!("{l}.down"), HIDDEN, &act);
            x.iter_mut().zip(down).for_each(|(x, y)| *x += y);
        }
    }
    h.iter().map(|x| mul("head", VOCAB, &norm("norm", x))).collect()
}
