//! Times attention kernels on SmolLM2's shape (9 heads, 3 KV heads, 64 dimensions, f16 pages), in interleaved rounds over
//! the caches of 30 layers (prefill: one), one thread at a time. A tool for people who change the generators: its figures are no evidence.
//!
//! ```text
//! cargo run --release -p kernels --example bench_attention -- [prefill|decode1|decode16] [CONTEXT] [axis=value,... ...]
//! ```
//! `KV=bf16` and `PAGE=32` in the environment change the cache.
//! Each further argument is one variant of `attention-avx512` (or of `name:axis=value,...`).

#[path = "../tests/harness/mod.rs"]
mod harness;

use harness::{Buffer, Kernel, build, host};
use plan::operation::{int, slot};
use plan::{ArgsV1, KvDtype, KvLayout, Operation, RowBucket};
use std::time::Instant;

const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;
const LAYERS: usize = 30;

struct Work {
    tokens: usize,
    rows: usize,
    slots: Vec<(usize, Buffer)>,
    caches: Vec<(Buffer, Buffer)>,
    max_blocks: usize,
    /// Query-key pairs of one call, all heads.
    pairs: f64,
}

/// The cache's type: `KV=bf16`, or f16.
fn dtype() -> KvDtype {
    if std::env::var("KV").is_ok_and(|kv| kv == "bf16") { KvDtype::Bf16 } else { KvDtype::F16 }
}

impl Work {
    /// `sequences` of one row each at `context`, or one sequence of `context` rows.
    fn new(kind: &str, context: usize, tokens: usize) -> Self {
        let (sequences, prefill) = match kind {
            "prefill" => (1, true),
            "decode1" => (1, false),
            _ => (16, false),
        };
        let rows = if prefill { context } else { sequences };
        let max_blocks = context.div_ceil(tokens);
        let pages = sequences * max_blocks;
        let positions: Vec<u32> =
            if prefill { (0..rows as u32).collect() } else { vec![context as u32 - 1; rows] };
        let owner: Vec<u32> = if prefill { vec![0; rows] } else { (0..rows as u32).collect() };
        // A fixed shuffle: pages of a sequence lie apart.
        let tables: Vec<u32> = (0..pages).map(|i| (i * 7919 % pages) as u32).collect();
        let page = KV_HEADS * DIM * tokens;
        let dtype = dtype();
        let half = |i: usize| {
            let x = ((i * 2_654_435_761) % 2048) as f32 / 1024.0 - 1.0;
            if dtype == KvDtype::F16 {
                half::f16::from_f32(x).to_le_bytes()
            } else {
                half::bf16::from_f32(x).to_le_bytes()
            }
        };
        let cache: Vec<u8> = (0..pages * page).flat_map(half).collect();
        let queries: Vec<f32> =
            (0..rows * HEADS * DIM).map(|i| ((i * 40_503) % 4096) as f32 / 2048.0 - 1.0).collect();
        let pairs: f64 = positions.iter().map(|p| (*p + 1) as f64).sum::<f64>() * HEADS as f64;
        Self {
            tokens,
            rows,
            slots: vec![
                (slot::OUT, Buffer::poisoned(queries.len() * 4)),
                (slot::X, Buffer::from_f32(&queries)),
                (slot::POSITIONS, Buffer::from_u32(&positions)),
                (slot::ROW_SEQUENCE, Buffer::from_u32(&owner)),
                (slot::BLOCK_TABLES, Buffer::from_u32(&tables)),
            ],
            caches: (0..if prefill { 1 } else { LAYERS })
                .map(|_| (Buffer::from_bytes(&cache), Buffer::from_bytes(&cache)))
                .collect(),
            max_blocks,
            pairs,
        }
    }

    fn operation(&self) -> Operation {
        let kv = KvLayout { dtype: dtype(), block_tokens: self.tokens as u32 };
        Operation::Attention {
            heads: HEADS as u32,
            kv_heads: KV_HEADS as u32,
            head_dim: DIM as u32,
            kv,
            window: None,
        }
    }

    /// Microseconds of one layer's call, mean over the layers, for each of `threads` parts.
    fn time(&mut self, kernel: &Kernel, threads: u32) -> Vec<f64> {
        let mut args = ArgsV1::new(self.rows as u32);
        args.ints[int::MAX_BLOCKS] = self.max_blocks as i64;
        let mut scratch = Buffer::poisoned(kernel.launch().scratch_bytes as usize * threads as usize);
        args.scratch = scratch.tensor().data;
        args.scratch_bytes = kernel.launch().scratch_bytes;
        for (index, buffer) in &mut self.slots {
            args.tensors[*index] = buffer.tensor();
        }
        let part = |thread: u32, caches: &mut [(Buffer, Buffer)]| {
            let start = Instant::now();
            for (keys, values) in caches.iter_mut() {
                args.tensors[slot::K_CACHE] = keys.tensor();
                args.tensors[slot::V_CACHE] = values.tensor();
                kernel.phase(&args, 0, thread, threads);
            }
            start.elapsed().as_secs_f64() * 1e6 / caches.len() as f64
        };
        let mut part = part;
        (0..threads).map(|thread| part(thread, &mut self.caches)).collect()
    }
}

/// f32 multiply-adds per second of one core, measured on the widest vectors (0 where there is no AVX-512).
fn peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature is there.
        return unsafe { peak_avx512() };
    }
    0.0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn peak_avx512() -> f64 {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_reduce_add_ps, _mm512_set1_ps};
    let (a, b) = (_mm512_set1_ps(std::hint::black_box(0.5)), _mm512_set1_ps(1.0));
    let mut sums = [a; 16];
    let mut best = 0.0f64;
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..50_000 {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, a, b);
            }
        }
        best = best.max(50_000.0 * 256.0 / start.elapsed().as_secs_f64());
    }
    std::hint::black_box(sums.map(|s| _mm512_reduce_add_ps(s)));
    best
}

fn variant(text: &str, work: &Work, rows: RowBucket) -> Kernel {
    let (name, changes) = text.split_once(':').unwrap_or(("attention-avx512", text));
    let generator = kernels::generator(name).expect("the name of a generator");
    let target = host(2);
    let operation = work.operation();
    let mut point = generator.start(&operation, rows, &target).expect("made for this machine");
    if point.get("deal").is_some() {
        // Threads run one after the other here: the first would take all pieces.
        point = point.with("deal", "no");
    }
    for (axis, value) in changes.split(',').filter_map(|c| c.split_once('=')) {
        point = point.with(axis, value);
    }
    let generated = generator
        .generate(&operation, rows, &target, &point, work.rows as u32)
        .expect("a point of the space");
    build(&generated, "bench")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let kind = arguments.first().map_or("decode1", String::as_str);
    let context: usize = arguments.get(1).and_then(|c| c.parse().ok()).unwrap_or(512);
    let tokens: usize = std::env::var("PAGE").ok().and_then(|p| p.parse().ok()).unwrap_or(64);
    let mut work = Work::new(kind, context, tokens);
    let bucket =
        RowBucket::ALL.into_iter().find(|b| b.contains(work.rows as u32)).expect("buckets cover all");
    let texts: Vec<&str> = if arguments.len() > 2 {
        arguments[2..].iter().map(String::as_str).collect()
    } else {
        vec!["", "attention-avx2:", "attention-portable:"]
    };
    let kernels: Vec<Kernel> = texts.iter().map(|t| variant(t, &work, bucket)).collect();
    let peak = peak();
    let rounds: usize = std::env::var("ROUNDS").ok().and_then(|p| p.parse().ok()).unwrap_or(31);
    let mut alone = vec![Vec::new(); kernels.len()];
    let mut parts = vec![Vec::new(); kernels.len()];
    for _ in 0..rounds {
        for (i, kernel) in kernels.iter().enumerate() {
            alone[i].push(work.time(kernel, 1)[0]);
            let two = work.time(kernel, 2);
            parts[i].push(two[0].max(two[1]));
        }
    }
    println!(
        "{kind}, context {context}, {} rows, pages of {tokens}; peak {:.1} GFMA/s",
        work.rows,
        peak / 1e9
    );
    for (i, text) in texts.iter().enumerate() {
        alone[i].sort_by(f64::total_cmp);
        parts[i].sort_by(f64::total_cmp);
        let (best, median) = (alone[i][0], alone[i][rounds / 2]);
        let share = work.pairs * DIM as f64 * 2.0 / (best * 1e-6) / peak;
        println!(
            "{best:9.1} us best {median:9.1} us median {:5.1} % of peak; larger half of two threads {:9.1} us  {text}",
            share * 100.0,
            parts[i][0]
        );
    }
}
