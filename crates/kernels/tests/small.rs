//! RopeKv, RmsNorm and SiluGate kernels against the scalar emulation of their class, bit for bit, at several row counts
//! and thread counts; what a kernel has no business writing stays as it was.

mod harness;

use harness::{Buffer, Kernel, build, host, runs_here};
use kernels::generator;
use kernels::numerics::{Arith, rms_norm, rope_pair, silu};
use plan::operation::{QkvRope, int, slot};
use plan::{ArgsV1, KvDtype, KvLayout, Operation, RowBucket};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// The kernel at the start of its space, with changes; none where this CPU cannot run it.
fn make(name: &str, operation: &Operation, change: &[(&str, &str)]) -> Option<(Kernel, Arith)> {
    let (generator, target) = (generator(name).expect(name), host(2));
    let rows = RowBucket { low: 1, high: u32::MAX };
    let Some(mut point) = generator.start(operation, rows, &target) else {
        assert!(!name.ends_with("portable"), "{name} makes {operation}");
        eprintln!("SKIPPED: {name} on {target}: this CPU lacks its features");
        return None;
    };
    for (axis, value) in change {
        point = point.with(axis, *value);
    }
    let generated = generator.generate(operation, rows, &target, &point, 64).expect("a member of the space");
    let nofma = generator.numeric_class(operation).ends_with("nofma");
    let arith = if nofma { Arith::Separate } else { Arith::Fused };
    runs_here(name, &generated).then(|| (build(&generated, name), arith))
}

/// Values of many magnitudes, both signs, some zeros.
fn random(rng: &mut StdRng, n: usize) -> Vec<f32> {
    (0..n)
        .map(|_| match rng.random_range(0..20) {
            0 => 0.0,
            1 => rng.random_range(-100.0..100.0),
            2 => rng.random_range(-1e-6..1e-6),
            _ => rng.random_range(-3.0f32..3.0),
        })
        .collect()
}

fn assert_same(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits(), "{what}: element {i} is {g:e}, not {w:e}");
    }
}

fn run(kernel: &Kernel, rows: usize, threads: u32, slots: &mut [(usize, Buffer)]) {
    let mut args = ArgsV1::new(rows as u32);
    args.ints[int::PAGES] = 8;
    for (index, buffer) in slots.iter_mut() {
        args.tensors[*index] = buffer.tensor();
    }
    kernel.run(&mut args, threads);
    for (index, buffer) in slots.iter() {
        buffer.check(&format!("slot {index}"));
    }
}

fn check_norm(name: &str, width: usize, columns: &str) {
    let eps = 1e-5f32;
    let operation = Operation::RmsNorm { width: width as u32, eps_bits: eps.to_bits() };
    let Some((kernel, arith)) = make(name, &operation, &[("columns", columns)]) else { return };
    let mut rng = StdRng::seed_from_u64(width as u64);
    for rows in [1, 2, 3, 7, 40] {
        let (x, weight) = (random(&mut rng, rows * width), random(&mut rng, width));
        let mut want = vec![0.0; x.len()];
        for (x, out) in x.chunks_exact(width).zip(want.chunks_exact_mut(width)) {
            rms_norm(arith, x, &weight, eps, out);
        }
        for threads in 1..=3 {
            let mut slots = [
                (slot::X, Buffer::from_f32(&x)),
                (slot::NORM, Buffer::from_f32(&weight)),
                (slot::OUT, Buffer::poisoned(x.len() * 4)),
            ];
            run(&kernel, rows, threads, &mut slots);
            assert_same(
                &format!("{name} {operation} {rows} rows {threads} threads"),
                &slots[2].1.f32(),
                &want,
            );
        }
    }
}

fn check_silu(name: &str, ffn: usize) {
    let operation = Operation::SiluGate { ffn: ffn as u32 };
    let Some((kernel, arith)) = make(name, &operation, &[]) else { return };
    let mut rng = StdRng::seed_from_u64(ffn as u64);
    for rows in [1, 2, 5, 40] {
        let x = random(&mut rng, rows * 2 * ffn);
        let row = |x: &[f32]| (0..ffn).map(|i| silu(arith, x[i]) * x[ffn + i]).collect::<Vec<_>>();
        let want: Vec<f32> = x.chunks_exact(2 * ffn).flat_map(row).collect();
        for threads in 1..=3 {
            let mut slots = [(slot::X, Buffer::from_f32(&x)), (slot::OUT, Buffer::poisoned(rows * ffn * 4))];
            run(&kernel, rows, threads, &mut slots);
            assert_same(
                &format!("{name} {operation} {rows} rows {threads} threads"),
                &slots[1].1.f32(),
                &want,
            );
        }
    }
}

fn store(dtype: KvDtype, to: &mut [u8], element: usize, x: f32) {
    let width = dtype.bytes();
    to[element * width..][..width].copy_from_slice(&match dtype {
        KvDtype::F32 => x.to_le_bytes().to_vec(),
        KvDtype::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        KvDtype::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
    });
}

const PAGES: usize = 8;
const CONTEXT: usize = 50;

struct Rope {
    q: QkvRope,
    x: Vec<f32>,
    bias: Vec<f32>,
    norms: [Vec<f32>; 2],
    table: Vec<f32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
}

impl Rope {
    fn new(q: QkvRope, rows: usize, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let dim = q.head_dim as usize;
        let n = (q.heads + 2 * q.kv_heads) as usize * dim;
        let mut all: Vec<u32> = (0..PAGES as u32 * q.kv.block_tokens).collect();
        all.shuffle(&mut rng);
        Self {
            q,
            x: random(&mut rng, rows * n),
            bias: random(&mut rng, n),
            norms: [random(&mut rng, dim), random(&mut rng, dim)],
            table: (0..CONTEXT * dim).map(|_| rng.random_range(-1.0f32..1.0)).collect(),
            positions: (0..rows).map(|_| rng.random_range(0..CONTEXT as u32)).collect(),
            slots: all[..rows].to_vec(),
        }
    }

    /// Queries, keys and values as they must be afterwards; the caches start as 0xFF.
    fn expected(&self, arith: Arith) -> (Vec<f32>, Vec<u8>, Vec<u8>) {
        let q = &self.q;
        let (heads, kv_heads, dim) = (q.heads as usize, q.kv_heads as usize, q.head_dim as usize);
        let (tokens, bytes) = (q.kv.block_tokens as usize, PAGES * q.kv.page_bytes(kv_heads, dim));
        let (mut out, mut keys, mut values) = (Vec::new(), vec![0xFF; bytes], vec![0xFF; bytes]);
        for row in 0..self.positions.len() {
            let table = &self.table[self.positions[row] as usize * dim..][..dim];
            let (page, token) = (self.slots[row] as usize / tokens, self.slots[row] as usize % tokens);
            for head in 0..heads + 2 * kv_heads {
                let from = (row * (heads + 2 * kv_heads) + head) * dim;
                let mut x = self.x[from..from + dim].to_vec();
                if q.bias {
                    x.iter_mut().zip(&self.bias[head * dim..]).for_each(|(x, b)| *x += b);
                }
                let rotated = head < heads + kv_heads;
                if let (true, Some(eps)) = (rotated, q.qk_norm_eps_bits) {
                    let plain = x.clone();
                    rms_norm(
                        arith,
                        &plain,
                        &self.norms[(head >= heads) as usize],
                        f32::from_bits(eps),
                        &mut x,
                    );
                }
                for i in 0..if rotated { dim / 2 } else { 0 } {
                    (x[i], x[i + dim / 2]) =
                        rope_pair(arith, x[i], x[i + dim / 2], table[i], table[dim / 2 + i]);
                }
                for (i, x) in x.into_iter().enumerate() {
                    if head < heads {
                        out.push(x);
                    } else if rotated {
                        let element = ((page * kv_heads + head - heads) * dim + i) * tokens + token;
                        store(q.kv.dtype, &mut keys, element, x);
                    } else {
                        let element =
                            ((page * kv_heads + head - heads - kv_heads) * tokens + token) * dim + i;
                        store(q.kv.dtype, &mut values, element, x);
                    }
                }
            }
        }
        (out, keys, values)
    }
}

fn check_rope(name: &str, q: QkvRope) {
    let operation = Operation::RopeKv(q);
    let Some((kernel, arith)) = make(name, &operation, &[]) else { return };
    let bytes = PAGES * q.kv.page_bytes(q.kv_heads as usize, q.head_dim as usize);
    for rows in [1, 2, 5, 40] {
        let case = Rope::new(q, rows, rows as u64);
        let (out, keys, values) = case.expected(arith);
        for threads in 1..=3 {
            let mut slots = [
                (slot::X, Buffer::from_f32(&case.x)),
                (slot::OUT, Buffer::poisoned(out.len() * 4)),
                (slot::K_CACHE, Buffer::poisoned(bytes)),
                (slot::V_CACHE, Buffer::poisoned(bytes)),
                (slot::BIAS, Buffer::from_f32(&case.bias)),
                (slot::Q_NORM, Buffer::from_f32(&case.norms[0])),
                (slot::K_NORM, Buffer::from_f32(&case.norms[1])),
                (slot::ROPE, Buffer::from_f32(&case.table)),
                (slot::POSITIONS, Buffer::from_u32(&case.positions)),
                (slot::SLOTS, Buffer::from_u32(&case.slots)),
            ];
            run(&kernel, rows, threads, &mut slots);
            let what = format!("{name} {operation} {rows} rows {threads} threads");
            assert_same(&what, &slots[1].1.f32(), &out);
            assert!(slots[2].1.bytes() == keys, "{what}: keys");
            assert!(slots[3].1.bytes() == values, "{what}: values");
        }
    }
}

fn qkv(heads: u32, kv_heads: u32, head_dim: u32, dtype: KvDtype) -> QkvRope {
    let kv = KvLayout { dtype, block_tokens: 16 };
    QkvRope { heads, kv_heads, head_dim, bias: false, qk_norm_eps_bits: None, kv }
}

fn check_ropes(name: &str) {
    check_rope(name, qkv(9, 3, 64, KvDtype::F16));
    check_rope(name, QkvRope { bias: true, ..qkv(4, 4, 32, KvDtype::F32) });
    let eps = Some(1e-6f32.to_bits());
    check_rope(name, QkvRope { qk_norm_eps_bits: eps, ..qkv(8, 1, 128, KvDtype::Bf16) });
    check_rope(name, QkvRope { qk_norm_eps_bits: eps, bias: true, ..qkv(3, 1, 96, KvDtype::F16) });
}

#[test]
fn portable_norms() {
    check_norm("small-portable", 576, "1");
    check_norm("small-portable", 100, "0");
    check_norm("small-portable", 128, "8");
}

#[test]
fn portable_gates() {
    check_silu("small-portable", 1536);
    check_silu("small-portable", 40);
}

#[test]
fn portable_ropes() {
    check_ropes("small-portable");
    check_rope("small-portable", qkv(2, 1, 80, KvDtype::Bf16));
    check_rope("small-portable", QkvRope { qk_norm_eps_bits: Some(0), ..qkv(2, 2, 30, KvDtype::F32) });
}

#[test]
fn vector_norms() {
    for name in ["small-avx512", "small-avx2"] {
        check_norm(name, 576, "1");
        check_norm(name, 128, "8");
    }
}

#[test]
fn vector_gates() {
    for name in ["small-avx512", "small-avx2"] {
        check_silu(name, 1536);
        check_silu(name, 48);
    }
}

#[test]
fn vector_ropes() {
    for name in ["small-avx512", "small-avx2"] {
        check_ropes(name);
    }
}
