//! Writes a GGUF file of a known architecture and size with random weights: for speed and code paths of models that no
//! registry carries. Random weights have no outliers, so nothing about quality follows from them.
//!
//! `cargo run --release -p model --example random_gguf -- TOKENIZER.gguf SHAPE OUT.gguf [SEED]`
//!
//! The tokenizer and its vocabulary are those of `TOKENIZER.gguf`. Matrices are Q4_1, the (tied) embedding Q8_0, norms and biases F32.

use half::f16;
use model::gguf::{Gguf, GgufTensor, Value, write_gguf};
use model::{DataType, Rope, RopeScaling};
use std::path::Path;
use std::process::ExitCode;

/// One architecture and size, as its authors published it but for the vocabulary.
struct Shape {
    name: &'static str,
    architecture: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    context: u32,
    theta: f32,
    eps: f32,
    qkv_bias: bool,
    qk_norm: bool,
    /// Goes into the file as one divisor for each frequency.
    rope_scaling: RopeScaling,
}

static SHAPES: [Shape; 3] = [
    Shape {
        name: "qwen2-0.5b",
        architecture: "qwen2",
        layers: 24,
        hidden: 896,
        heads: 14,
        kv_heads: 2,
        head_dim: 64,
        ffn: 4864,
        context: 32_768,
        theta: 1_000_000.0,
        eps: 1e-6,
        qkv_bias: true,
        qk_norm: false,
        rope_scaling: RopeScaling::None,
    },
    Shape {
        name: "qwen3-0.6b",
        architecture: "qwen3",
        layers: 28,
        hidden: 1024,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        ffn: 3072,
        context: 40_960,
        theta: 1_000_000.0,
        eps: 1e-6,
        qkv_bias: false,
        qk_norm: true,
        rope_scaling: RopeScaling::None,
    },
    Shape {
        name: "llama3-1b",
        architecture: "llama",
        layers: 16,
        hidden: 2048,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        ffn: 8192,
        context: 131_072,
        theta: 500_000.0,
        eps: 1e-5,
        qkv_bias: false,
        qk_norm: false,
        rope_scaling: RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        },
    },
];

/// SplitMix64: weights need no better.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn of(seed: u64, name: &str) -> Self {
        Self(
            name.bytes()
                .fold(seed ^ 0x9e37_79b9_7f4a_7c15, |s, b| (s ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)),
        )
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
}

/// Blocks of Q4_1 whose weights are even over sixteen levels, of standard deviation `sigma` give or take a fifth.
fn q4_1(mut random: Random, weights: usize, sigma: f32) -> Vec<u8> {
    let mut out = Vec::with_capacity(weights / 32 * 20);
    for _ in 0..weights / 32 {
        // Sixteen even levels one apart deviate by sqrt(255 / 12).
        let d = sigma / (255.0f32 / 12.0).sqrt() * (0.8 + 0.4 * random.unit());
        out.extend(f16::from_f32(d).to_le_bytes());
        out.extend(f16::from_f32(-7.5 * d).to_le_bytes());
        out.extend(random.next().to_le_bytes());
        out.extend(random.next().to_le_bytes());
    }
    out
}

/// Blocks of Q8_0, even over 255 levels.
fn q8_0(mut random: Random, weights: usize, sigma: f32) -> Vec<u8> {
    let mut out = Vec::with_capacity(weights / 32 * 34);
    for _ in 0..weights / 32 {
        let d = sigma / (255.0f32 * 255.0 / 12.0).sqrt() * (0.8 + 0.4 * random.unit());
        out.extend(f16::from_f32(d).to_le_bytes());
        for _ in 0..32 {
            out.push(((random.next() >> 32) % 255) as u8 ^ 0x80);
        }
    }
    out
}

fn f32s(mut random: Random, count: usize, middle: f32, spread: f32) -> Vec<u8> {
    (0..count).flat_map(|_| (middle + spread * (2.0 * random.unit() - 1.0)).to_le_bytes()).collect()
}

fn write(source: &Path, shape: &Shape, out: &Path, seed: u64) -> Result<(), Box<dyn std::error::Error>> {
    let gguf = Gguf::open(source)?;
    let Some(vocab) = gguf.tensor("token_embd.weight").map(|t| t.shape()[0]) else {
        return Err(format!("{}: no token_embd.weight", source.display()).into());
    };
    let key = |name: &str| format!("{}.{name}", shape.architecture);
    let number = |name: &str, value: usize| (key(name), Value::U32(value as u32));
    let mut metadata = vec![
        ("general.architecture".to_owned(), Value::String(shape.architecture.into())),
        (
            "general.name".to_owned(),
            Value::String(format!("{} with random weights, seed {seed}", shape.name)),
        ),
        // Mostly Q4_1.
        ("general.file_type".to_owned(), Value::U32(3)),
        ("general.quantization_version".to_owned(), Value::U32(2)),
        number("block_count", shape.layers),
        (key("context_length"), Value::U32(shape.context)),
        number("embedding_length", shape.hidden),
        number("feed_forward_length", shape.ffn),
        number("attention.head_count", shape.heads),
        number("attention.head_count_kv", shape.kv_heads),
        number("attention.key_length", shape.head_dim),
        number("attention.value_length", shape.head_dim),
        number("rope.dimension_count", shape.head_dim),
        number("vocab_size", vocab),
        (key("attention.layer_norm_rms_epsilon"), Value::F32(shape.eps)),
        (key("rope.freq_base"), Value::F32(shape.theta)),
    ];
    metadata.extend(gguf.metadata().iter().filter(|(k, _)| k.starts_with("tokenizer.")).cloned());

    let scaled =
        Rope { dim: shape.head_dim, theta: f64::from(shape.theta), scaling: shape.rope_scaling.clone() };
    let divisors = scaled.divisors();
    let mut tensors = Vec::new();
    let mut add = |name: String, format: DataType, dims: &[usize], spread: f32| {
        let count: usize = dims.iter().product();
        let random = Random::of(seed, &name);
        let norm = name.contains("norm");
        tensors.push(GgufTensor {
            name,
            format,
            dims: dims.iter().map(|&d| d as u64).collect(),
            data: Box::new(move || match format {
                DataType::Q4_1 => q4_1(random.clone(), count, spread),
                DataType::Q8_0 => q8_0(random.clone(), count, spread),
                _ => f32s(random.clone(), count, if norm { 1.0 } else { 0.0 }, spread),
            }),
        });
    };
    add("token_embd.weight".into(), DataType::Q8_0, &[shape.hidden, vocab], 0.05);
    add("output_norm.weight".into(), DataType::F32, &[shape.hidden], 0.1);
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    // What comes out of a matrix then varies like what goes in; the residual stream grows slowly.
    let inner = |inputs: usize| 1.0 / (inputs as f32).sqrt();
    let outer = |inputs: usize| inner(inputs) / (2.0 * shape.layers as f32).sqrt();
    for layer in 0..shape.layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        for (part, inputs, outputs, spread) in [
            ("attn_q.weight", shape.hidden, q, inner(shape.hidden)),
            ("attn_k.weight", shape.hidden, kv, inner(shape.hidden)),
            ("attn_v.weight", shape.hidden, kv, inner(shape.hidden)),
            ("attn_output.weight", q, shape.hidden, outer(q)),
            ("ffn_gate.weight", shape.hidden, shape.ffn, inner(shape.hidden)),
            ("ffn_up.weight", shape.hidden, shape.ffn, inner(shape.hidden)),
            ("ffn_down.weight", shape.ffn, shape.hidden, outer(shape.ffn)),
        ] {
            add(name(part), DataType::Q4_1, &[inputs, outputs], spread);
        }
        add(name("attn_norm.weight"), DataType::F32, &[shape.hidden], 0.1);
        add(name("ffn_norm.weight"), DataType::F32, &[shape.hidden], 0.1);
        if shape.qkv_bias {
            for (part, count) in [("attn_q.bias", q), ("attn_k.bias", kv), ("attn_v.bias", kv)] {
                add(name(part), DataType::F32, &[count], 0.1);
            }
        }
        if shape.qk_norm {
            add(name("attn_q_norm.weight"), DataType::F32, &[shape.head_dim], 0.1);
            add(name("attn_k_norm.weight"), DataType::F32, &[shape.head_dim], 0.1);
        }
    }
    if scaled.scaling != RopeScaling::None {
        tensors.push(GgufTensor::f32_vector("rope_freqs.weight", &divisors));
    }
    write_gguf(out, &metadata, &tensors)?;
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
    let (source, shape, out, seed) = match arguments.as_slice() {
        [source, shape, out] => (source, shape, out, Some(1)),
        [source, shape, out, seed] => (source, shape, out, seed.parse().ok()),
        _ => {
            eprintln!("usage: random_gguf TOKENIZER.gguf {} OUT.gguf [SEED]", names.join("|"));
            return ExitCode::from(2);
        }
    };
    let (Some(shape), Some(seed)) = (SHAPES.iter().find(|s| s.name == shape), seed) else {
        eprintln!("random_gguf: the shape is one of {}, the seed a number", names.join(", "));
        return ExitCode::from(2);
    };
    match write(Path::new(source), shape, Path::new(out), seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("random_gguf: {error}");
            ExitCode::FAILURE
        }
    }
}
