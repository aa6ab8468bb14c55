//! Attention kernels against the scalar emulation of their class, bit for bit: ragged batches, page edges, windows,
//! stored types, head ratios, thread counts; and each row alone against the same row in a batch.

mod harness;

use harness::{Buffer, build, emulating, forms, runs_here};
use kernels::numerics::{Arith, Page, attend, attend_tiles};
use kernels::{Generator, generator};
use plan::operation::{int, slot};
use plan::{ArgsV1, KvDtype, KvLayout, Operation, RowBucket};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

#[derive(Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    dtype: KvDtype,
    tokens: usize,
    window: Option<u32>,
}

impl Shape {
    fn operation(&self) -> Operation {
        Operation::Attention {
            heads: self.heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.dim as u32,
            kv: KvLayout { dtype: self.dtype, block_tokens: self.tokens as u32 },
            window: self.window,
        }
    }
}

/// A batch over a cache whose unused tokens are NaN. Sequences are lists of ascending positions.
struct Batch {
    shape: Shape,
    queries: Vec<f32>,
    keys: Vec<u8>,
    values: Vec<u8>,
    positions: Vec<u32>,
    sequences: Vec<u32>,
    tables: Vec<u32>,
    max_blocks: usize,
}

fn stored(dtype: KvDtype, x: f32) -> Vec<u8> {
    match dtype {
        KvDtype::F32 => x.to_le_bytes().to_vec(),
        KvDtype::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        KvDtype::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
    }
}

fn widened(dtype: KvDtype, bytes: &[u8]) -> f32 {
    match dtype {
        KvDtype::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        KvDtype::F16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        KvDtype::Bf16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
    }
}

impl Batch {
    fn new(shape: Shape, sequences: &[Vec<u32>], seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let longest = sequences.iter().flatten().max().copied().unwrap_or(0) as usize;
        let max_blocks = longest / shape.tokens + 2;
        let needed: Vec<usize> =
            sequences.iter().map(|s| s.last().map_or(0, |p| *p as usize / shape.tokens + 1)).collect();
        let pages = needed.iter().sum::<usize>() + 3;
        let mut free: Vec<u32> = (0..pages as u32).collect();
        free.shuffle(&mut rng);
        let width = shape.dtype.bytes();
        let page = shape.kv_heads * shape.dim * shape.tokens;
        let mut batch = Self {
            shape,
            queries: Vec::new(),
            keys: vec![0xFF; pages * page * width],
            values: vec![0xFF; pages * page * width],
            positions: Vec::new(),
            sequences: Vec::new(),
            tables: vec![u32::MAX; sequences.len() * max_blocks],
            max_blocks,
        };
        for (i, positions) in sequences.iter().enumerate() {
            for block in 0..needed[i] {
                batch.tables[i * max_blocks + block] = free.pop().unwrap();
            }
            let last = *positions.last().unwrap() as usize;
            // Large scores in places, so that the running maximum moves.
            let scale = [0.3f32, 1.0, 3.0][i % 3];
            for t in 0..=last {
                for head in 0..shape.kv_heads {
                    for d in 0..shape.dim {
                        let (k, v) = batch.at(i, t, head, d);
                        let x: f32 = rng.random_range(-1.0..1.0) * scale;
                        batch.keys[k * width..][..width].copy_from_slice(&stored(shape.dtype, x));
                        let x: f32 = rng.random_range(-2.0..2.0);
                        batch.values[v * width..][..width].copy_from_slice(&stored(shape.dtype, x));
                    }
                }
            }
            for position in positions {
                batch.positions.push(*position);
                batch.sequences.push(i as u32);
                batch.queries.extend((0..shape.heads * shape.dim).map(|_| rng.random_range(-3.0f32..3.0)));
            }
        }
        batch
    }

    /// Element indices of a key and a value.
    fn at(&self, sequence: usize, token: usize, head: usize, d: usize) -> (usize, usize) {
        let Shape { tokens, kv_heads, dim, .. } = self.shape;
        let base = self.tables[sequence * self.max_blocks + token / tokens] as usize * kv_heads + head;
        let t = token % tokens;
        ((base * dim + d) * tokens + t, (base * tokens + t) * dim + d)
    }

    fn rows(&self) -> usize {
        self.positions.len()
    }

    /// One row of this batch on its own.
    fn alone(&self, row: usize) -> Self {
        let width = self.shape.heads * self.shape.dim;
        Self {
            shape: self.shape,
            queries: self.queries[row * width..][..width].to_vec(),
            keys: self.keys.clone(),
            values: self.values.clone(),
            positions: vec![self.positions[row]],
            sequences: vec![self.sequences[row]],
            tables: self.tables.clone(),
            max_blocks: self.max_blocks,
        }
    }

    fn run(&self, kernel: &harness::Kernel, threads: u32) -> Vec<f32> {
        let shape = self.shape;
        let mut slots = [
            (slot::X, Buffer::from_f32(&self.queries)),
            (slot::OUT, Buffer::poisoned(self.rows() * shape.heads * shape.dim * 4)),
            (slot::K_CACHE, Buffer::from_bytes(&self.keys)),
            (slot::V_CACHE, Buffer::from_bytes(&self.values)),
            (slot::POSITIONS, Buffer::from_u32(&self.positions)),
            (slot::ROW_SEQUENCE, Buffer::from_u32(&self.sequences)),
            (slot::BLOCK_TABLES, Buffer::from_u32(&self.tables)),
        ];
        let mut args = ArgsV1::new(self.rows() as u32);
        args.ints[int::MAX_BLOCKS] = self.max_blocks as i64;
        args.ints[int::PAGES] =
            (self.keys.len() / (shape.kv_heads * shape.dim * shape.tokens * shape.dtype.bytes())) as i64;
        for (index, buffer) in &mut slots {
            args.tensors[*index] = buffer.tensor();
        }
        kernel.run(&mut args, threads);
        for (index, buffer) in &slots {
            buffer.check(&format!("slot {index}"));
        }
        slots[1].1.f32()
    }

    fn expected(&self, arith: Arith) -> Vec<f32> {
        let Shape { heads, kv_heads, dim, tokens, dtype, window } = self.shape;
        let mut out = vec![0.0f32; self.rows() * heads * dim];
        let size = dim * tokens * dtype.bytes();
        let widen =
            |bytes: &[u8]| bytes.chunks_exact(dtype.bytes()).map(|b| widened(dtype, b)).collect::<Vec<_>>();
        for row in 0..self.rows() {
            let (position, sequence) = (self.positions[row] as usize, self.sequences[row] as usize);
            let first = (position + 1).saturating_sub(window.map_or(usize::MAX, |w| w as usize));
            let blocks: Vec<usize> = (first / tokens..=position / tokens).collect();
            if arith == Arith::Tiles {
                let gather = |cache: &[u8], values: bool| -> Vec<f32> {
                    let element = |t: usize, i: usize| {
                        let (k, v) = self.at(sequence, t, i / dim, i % dim);
                        widened(dtype, &cache[if values { v } else { k } * dtype.bytes()..])
                    };
                    let all = (0..kv_heads).flat_map(|h| {
                        (0..=position).flat_map(move |t| (0..dim).map(move |d| (t, h * dim + d)))
                    });
                    all.map(|(t, i)| element(t, i)).collect()
                };
                let (keys, values) = (gather(&self.keys, false), gather(&self.values, true));
                for head in 0..heads {
                    let at = (row * heads + head) * dim;
                    let plane = head * kv_heads / heads * (position + 1) * dim;
                    let (keys, values) = (&keys[plane..], &values[plane..]);
                    attend_tiles(
                        &self.queries[at..at + dim],
                        keys,
                        values,
                        first..position + 1,
                        &mut out[at..at + dim],
                    );
                }
                continue;
            }
            for kv_head in 0..kv_heads {
                let pages: Vec<(Vec<f32>, Vec<f32>)> = blocks
                    .iter()
                    .map(|b| {
                        let page = self.tables[sequence * self.max_blocks + b] as usize * kv_heads + kv_head;
                        (widen(&self.keys[page * size..][..size]), widen(&self.values[page * size..][..size]))
                    })
                    .collect();
                for head in kv_head * heads / kv_heads..(kv_head + 1) * heads / kv_heads {
                    let at = (row * heads + head) * dim;
                    let pages = pages.iter().zip(&blocks).map(|((keys, values), block)| {
                        let start = block * tokens;
                        let visible = first.max(start) - start..(position + 1).min(start + tokens) - start;
                        Page { keys, values, tokens, visible }
                    });
                    attend(arith, &self.queries[at..at + dim], pages, &mut out[at..at + dim]);
                }
            }
        }
        out
    }
}

fn assert_same(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits(), "{what}: element {i} is {g:e}, not {w:e}");
    }
}

/// Sequences of the batches that every kernel sees: alone, page edges, chunks, decode rows and all of them mixed.
fn batches(tokens: u32) -> Vec<Vec<Vec<u32>>> {
    let t = tokens;
    let mut mixed: Vec<Vec<u32>> = vec![vec![5], (3..3 + t.min(32) / 2).collect(), vec![2 * t + 1], vec![0]];
    mixed.push((t - 3..t + 4).collect());
    mixed.push(vec![t - 1, t, 2 * t - 1, 3 * t + 2]);
    mixed.push((0..9).collect());
    vec![
        vec![vec![0]],
        vec![vec![t - 1]],
        vec![vec![t]],
        vec![vec![3 * t + t / 2 + 1]],
        vec![vec![7], vec![t + 15]],
        vec![((t + 5).saturating_sub(40)..t + 5).collect()],
        vec![(2 * t - 7..2 * t + 10).collect()],
        // Beyond one chunk of the class that works in chunks, and across the edge of two.
        vec![vec![2 * 256 + 37], (250..262).collect()],
        mixed,
    ]
}

fn arith(generator: &dyn Generator, operation: &Operation) -> Arith {
    Arith::of_class(&generator.numeric_class(operation)).expect("a class with an arithmetic")
}

/// Every batch at 1 to 3 threads, and rows alone.
fn check(name: &str, shape: Shape, change: &[(&str, &str)]) {
    let operation = shape.operation();
    let (generator, target) = (generator(name).expect(name), emulating(2));
    let rows = RowBucket { low: 1, high: u32::MAX };
    let Some(mut point) = generator.start(&operation, rows, &target) else {
        assert!(!name.ends_with("portable"), "{name} makes {operation}");
        eprintln!("SKIPPED: {name} on {target}: this CPU lacks its features");
        return;
    };
    for (axis, value) in change {
        point = point.with(axis, *value);
    }
    let generated =
        generator.generate(&operation, rows, &target, &point, 256).expect("a member of the space");
    let arith = arith(generator, &operation);
    for (form, most_threads) in forms(generated) {
        if !runs_here(name, &form) {
            continue;
        }
        let kernel = build(&form, name);
        for (i, sequences) in batches(shape.tokens as u32).iter().enumerate() {
            let batch = Batch::new(shape, sequences, i as u64);
            let want = batch.expected(arith);
            assert!(want.iter().all(|v| v.is_finite()));
            let what = |threads| format!("{name} {operation} {point} batch {i}, {threads} threads");
            for threads in 1..=most_threads {
                assert_same(&what(threads), &batch.run(&kernel, threads), &want);
            }
            let width = shape.heads * shape.dim;
            for row in (0..batch.rows()).step_by(batch.rows().div_ceil(4)) {
                let alone = batch.alone(row).run(&kernel, most_threads.min(2));
                assert_same(&format!("{} row {row} alone", what(2)), &alone, &want[row * width..][..width]);
            }
        }
    }
}

fn shape(heads: usize, kv_heads: usize, dim: usize, dtype: KvDtype, tokens: usize) -> Shape {
    Shape { heads, kv_heads, dim, dtype, tokens, window: None }
}

#[test]
fn portable_shapes() {
    check("attention-portable", shape(9, 3, 64, KvDtype::F16, 64), &[]);
    check("attention-portable", shape(9, 3, 64, KvDtype::F16, 32), &[("share", "1")]);
    check("attention-portable", shape(4, 4, 128, KvDtype::F32, 16), &[]);
    check("attention-portable", shape(8, 1, 80, KvDtype::Bf16, 32), &[("share", "4")]);
    check("attention-portable", shape(2, 1, 30, KvDtype::F32, 16), &[]);
}

#[test]
fn portable_windows() {
    for window in [1, 64, 100] {
        let shape = Shape { window: Some(window), ..shape(6, 3, 64, KvDtype::F16, 32) };
        check("attention-portable", shape, &[]);
    }
}

fn vector_shapes(name: &str) {
    check(name, shape(9, 3, 64, KvDtype::F16, 64), &[]);
    check(
        name,
        shape(9, 3, 64, KvDtype::F16, 64),
        &[("stage", "no"), ("prefetch", "page"), ("split", "row")],
    );
    check(name, shape(4, 4, 128, KvDtype::F32, 16), &[("register", "4")]);
    check(name, shape(9, 3, 64, KvDtype::F16, 32), &[("deal", "8"), ("split", "row")]);
    check(name, shape(8, 1, 80, KvDtype::Bf16, 32), &[("tile", "2"), ("deal", "2")]);
    check(name, shape(4, 2, 64, KvDtype::Bf16, 128), &[("register", "3"), ("tile", "8")]);
    check(name, shape(7, 1, 64, KvDtype::F32, 64), &[("tile", "1"), ("prefetch", "near")]);
}

fn vector_windows(name: &str) {
    for window in [20, 33] {
        let shape = Shape { window: Some(window), ..shape(6, 3, 64, KvDtype::F16, 32) };
        check(name, shape, &[("tile", "16")]);
    }
}

#[test]
fn avx512_shapes() {
    vector_shapes("attention-avx512");
}

#[test]
fn avx512_windows() {
    vector_windows("attention-avx512");
}

#[test]
fn avx2_shapes() {
    vector_shapes("attention-avx2");
}

#[test]
fn avx2_windows() {
    vector_windows("attention-avx2");
}

#[test]
fn amx_shapes() {
    let name = "attention-amxbf16";
    check(name, shape(9, 3, 64, KvDtype::Bf16, 32), &[]);
    check(name, shape(9, 3, 64, KvDtype::Bf16, 64), &[("tile", "5"), ("split", "query"), ("deal", "2")]);
    check(name, shape(4, 4, 128, KvDtype::Bf16, 32), &[("tile", "1")]);
    check(name, shape(8, 1, 96, KvDtype::Bf16, 128), &[("tile", "2")]);
    check(name, shape(7, 1, 32, KvDtype::Bf16, 32), &[("tile", "64")]);
}

#[test]
fn amx_windows() {
    for window in [1, 33, 300] {
        let shape = Shape { window: Some(window), ..shape(6, 3, 64, KvDtype::Bf16, 32) };
        check("attention-amxbf16", shape, &[("tile", "16")]);
    }
}
