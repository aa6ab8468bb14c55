//! Random linear calls with the result that their numeric class defines, bit for bit.

use crate::harness::{Buffer, Kernel};
use half::{bf16, f16};
use kernels::numerics::{self, Arith};
use kernels::pack::{AffineRows, pack_affine, pack_f32, unpack, unpack_affine};
use plan::operation::{QkvRope, slot};
use plan::{Activation, ArgsV1, Epilogue, KvDtype, Operation, Prologue, WeightFormat, Zero};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Positions that rope tables cover.
const CONTEXT: usize = 64;

/// Inputs of one operation, for up to `rows` rows.
pub struct Case {
    operation: Operation,
    n: usize,
    k: usize,
    rows: usize,
    x: Vec<f32>,
    norm: Vec<f32>,
    bias: Vec<f32>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    rope: Vec<f32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    out: Vec<f32>,
    pub weight: Vec<u8>,
    pages: usize,
}

/// What a call leaves: outputs and, for QKV, the caches.
#[derive(PartialEq)]
pub struct Outcome {
    pub out: Vec<f32>,
    pub keys: Vec<u8>,
    pub values: Vec<u8>,
}

impl Case {
    pub fn random(operation: Operation, rows: usize, seed: u64) -> Self {
        let Operation::Linear { n, k, epilogue, weight, .. } = operation else {
            panic!("a linear operation")
        };
        let (n, k) = (n as usize, k as usize);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut floats = |len: usize, scale: f32| -> Vec<f32> {
            (0..len).map(|_| (rng.random::<f32>() - 0.5) * scale).collect()
        };
        let mut x = floats(rows * k, 4.0);
        // A silent group and a loud value: the edges of quantisation.
        x[..16.min(k)].fill(0.0);
        x[k - 1] = 40.0;
        let (norm, bias, out) = (floats(k, 3.0), floats(n, 1.0), floats(rows * n, 2.0));
        let heads = match epilogue {
            Epilogue::QkvRope(q) => q,
            _ => no_heads(),
        };
        let dim = heads.head_dim as usize;
        let (q_norm, k_norm) = (floats(dim, 2.0), floats(dim, 2.0));
        let rope = floats(CONTEXT * dim, 2.0);
        let tokens = heads.kv.block_tokens as usize;
        let pages = rows.div_ceil(tokens) + 2;
        let positions = (0..rows).map(|_| rng.random_range(0..CONTEXT as u32)).collect();
        let mut slots: Vec<u32> = (0..(pages * tokens) as u32).collect();
        for i in (1..slots.len()).rev() {
            slots.swap(i, rng.random_range(0..=i));
        }
        slots.truncate(rows);
        let weight = random_weight(&weight, n, k, &mut rng);
        Self {
            operation,
            n,
            k,
            rows,
            x,
            norm,
            bias,
            q_norm,
            k_norm,
            rope,
            positions,
            slots,
            out,
            weight,
            pages,
        }
    }

    fn heads(&self) -> QkvRope {
        match self.operation {
            Operation::Linear { epilogue: Epilogue::QkvRope(q), .. } => q,
            _ => no_heads(),
        }
    }

    fn cache_bytes(&self) -> usize {
        let q = self.heads();
        self.pages * q.kv.page_bytes(q.kv_heads as usize, q.head_dim as usize)
    }

    /// Runs `rows` rows on `threads` threads.
    pub fn run(&self, kernel: &Kernel, rows: usize, threads: u32) -> Outcome {
        assert!(rows <= self.rows);
        let width = self.operation.out_width() as usize;
        let is_add = matches!(self.operation, Operation::Linear { epilogue: Epilogue::Add, .. });
        let mut out = if is_add {
            Buffer::from_f32(&self.out[..rows * width])
        } else {
            Buffer::poisoned(rows * width * 4)
        };
        let mut keys = Buffer::poisoned(self.cache_bytes());
        let mut values = Buffer::poisoned(self.cache_bytes());
        let mut inputs = [
            (slot::X, Buffer::from_f32(&self.x[..rows * self.k])),
            (slot::W, Buffer::from_bytes(&self.weight)),
            (slot::NORM, Buffer::from_f32(&self.norm)),
            (slot::BIAS, Buffer::from_f32(&self.bias)),
            (slot::Q_NORM, Buffer::from_f32(&self.q_norm)),
            (slot::K_NORM, Buffer::from_f32(&self.k_norm)),
            (slot::ROPE, Buffer::from_f32(&self.rope)),
            (slot::POSITIONS, Buffer::from_u32(&self.positions[..rows])),
            (slot::SLOTS, Buffer::from_u32(&self.slots[..rows])),
        ];
        let mut args = ArgsV1::new(rows as u32);
        let before: Vec<Vec<u8>> = inputs.iter().map(|(_, b)| b.bytes().to_vec()).collect();
        for (slot, buffer) in &mut inputs {
            args.tensors[*slot] = buffer.tensor();
        }
        args.tensors[slot::OUT] = out.tensor();
        args.tensors[slot::K_CACHE] = keys.tensor();
        args.tensors[slot::V_CACHE] = values.tensor();
        args.ints[plan::operation::int::PAGES] = self.pages as i64;
        kernel.run(&mut args, threads);
        for (what, buffer) in [("out", &out), ("keys", &keys), ("values", &values)] {
            buffer.check(what);
        }
        for ((slot, buffer), before) in inputs.iter().zip(before) {
            assert!(buffer.bytes() == before, "input slot {slot} was written");
        }
        Outcome { out: out.f32(), keys: keys.bytes().to_vec(), values: values.bytes().to_vec() }
    }

    /// What the class defines.
    pub fn emulate(&self, arith: Arith, rows: usize) -> Outcome {
        let Operation::Linear { epilogue, weight, .. } = self.operation else { unreachable!() };
        let width = self.operation.out_width() as usize;
        let is_add = epilogue == Epilogue::Add;
        let mut out = if is_add { self.out[..rows * width].to_vec() } else { vec![f32::NAN; rows * width] };
        let (mut keys, mut values) = (vec![0xFFu8; self.cache_bytes()], vec![0xFFu8; self.cache_bytes()]);
        for r in 0..rows {
            let mut y = self.products(arith, r);
            let o = &mut out[r * width..][..width];
            match epilogue {
                Epilogue::Store => o.copy_from_slice(&y),
                Epilogue::Add => o.iter_mut().zip(&y).for_each(|(o, y)| *o += y),
                Epilogue::SiluGate => {
                    let nb = weight.n_block as usize;
                    for (i, o) in o.iter_mut().enumerate() {
                        let gate = i / nb * 2 * nb + i % nb;
                        *o = numerics::silu(arith, y[gate]) * y[gate + nb];
                    }
                }
                Epilogue::QkvRope(q) => self.qkv(arith, r, &q, &mut y, o, &mut keys, &mut values),
            }
        }
        Outcome { out, keys, values }
    }

    fn qkv(
        &self,
        arith: Arith,
        r: usize,
        q: &QkvRope,
        y: &mut [f32],
        out: &mut [f32],
        keys: &mut [u8],
        values: &mut [u8],
    ) {
        let (dim, tokens) = (q.head_dim as usize, q.kv.block_tokens as usize);
        let (heads, kv) = (q.heads as usize, q.kv_heads as usize);
        let (page, token) = (self.slots[r] as usize / tokens, self.slots[r] as usize % tokens);
        if q.bias {
            y.iter_mut().zip(&self.bias).for_each(|(y, b)| *y += b);
        }
        for (h, y) in y.chunks_exact_mut(dim).enumerate() {
            if h < heads + kv {
                if let Some(eps) = q.qk_norm_eps_bits {
                    let x = y.to_vec();
                    let weight = if h < heads { &self.q_norm } else { &self.k_norm };
                    numerics::rms_norm(arith, &x, weight, f32::from_bits(eps), y);
                }
                let table = &self.rope[self.positions[r] as usize * dim..][..dim];
                for i in 0..dim / 2 {
                    let (a, b) =
                        numerics::rope_pair(arith, y[i], y[i + dim / 2], table[i], table[i + dim / 2]);
                    (y[i], y[i + dim / 2]) = (a, b);
                }
            }
            for (i, v) in y.iter().enumerate() {
                if h < heads {
                    out[h * dim + i] = *v;
                } else if h < heads + kv {
                    put(keys, q.kv.dtype, ((page * kv + h - heads) * dim + i) * tokens + token, *v);
                } else {
                    put(values, q.kv.dtype, ((page * kv + h - heads - kv) * tokens + token) * dim + i, *v);
                }
            }
        }
    }

    fn products(&self, arith: Arith, r: usize) -> Vec<f32> {
        let Operation::Linear { prologue, weight, activation, .. } = self.operation else { unreachable!() };
        let mut x = self.x[r * self.k..][..self.k].to_vec();
        if let Prologue::RmsNorm { eps_bits } = prologue {
            let raw = x.clone();
            numerics::rms_norm(arith, &raw, &self.norm, f32::from_bits(eps_bits), &mut x);
        }
        match (activation, weight.format) {
            (Activation::F32, _) => {
                let w = unpack(&weight, self.n, self.k, &self.weight).expect("unpack");
                let dot = |row: &[f32]| row.iter().zip(&x).fold(0.0, |acc, (w, x)| arith.fma(*x, *w, acc));
                w.chunks_exact(self.k).map(dot).collect()
            }
            (Activation::Bf16, _) => {
                let mut w = unpack(&weight, self.n, self.k, &self.weight).expect("unpack");
                w.iter_mut().for_each(|w| *w = numerics::to_bf16(*w));
                let x: Vec<f32> = x.iter().map(|v| numerics::to_bf16(*v)).collect();
                let dot = |row: &[f32]| match arith {
                    Arith::Tiles => row
                        .chunks(32)
                        .zip(x.chunks(32))
                        .fold(0.0, |acc, (w, x)| numerics::add_tile(acc, x, w)),
                    _ => row
                        .chunks_exact(2)
                        .zip(x.chunks_exact(2))
                        .fold(0.0, |acc, (w, x)| arith.fma(x[0], w[0], arith.fma(x[1], w[1], acc))),
                };
                w.chunks_exact(self.k).map(dot).collect()
            }
            (Activation::Row16, _) => {
                let rows = unpack_affine(&weight, self.n, self.k, &self.weight).expect("unpack");
                let mut xq = vec![0i32; self.k];
                let d = numerics::quantise_group(&x, 16256.0, &mut xq);
                let groups = self.k / rows.group;
                let column = |c: usize| {
                    let at = c * groups..(c + 1) * groups;
                    let column = numerics::wide_column(rows.bits, &rows.scale[at.clone()], &rows.min[at]);
                    let weight = |k: usize| {
                        let (s, t) = column.groups[k / rows.group];
                        s * i32::from(rows.q[c * self.k + k]) + t
                    };
                    numerics::wide_sum(arith, (0..self.k).map(weight), &xq, column.unit, d)
                };
                (0..self.n).map(column).collect()
            }
            (_, WeightFormat::Affine { bits, group, zero }) => {
                let rows = unpack_affine(&weight, self.n, self.k, &self.weight).expect("unpack");
                let limit = if activation == Activation::I8 { 127.0 } else { 16256.0 };
                let group = group as usize;
                let mut xq = vec![0i32; self.k];
                let d: Vec<f32> = x
                    .chunks_exact(group)
                    .zip(xq.chunks_exact_mut(group))
                    .map(|(x, q)| numerics::quantise_group(x, limit, q))
                    .collect();
                let groups = self.k / group;
                let column = |c: usize| {
                    (0..groups).fold(0.0, |acc, g| {
                        let q = &rows.q[c * self.k + g * group..][..group];
                        let xs = &xq[g * group..][..group];
                        let s: i32 = q.iter().zip(xs).map(|(q, x)| *q as i32 * x).sum();
                        let at = c * groups + g;
                        let t = xs.iter().sum();
                        numerics::add_group(arith, acc, bits, zero, s, t, d[g], rows.scale[at], rows.min[at])
                    })
                };
                (0..self.n).map(column).collect()
            }
            _ => unreachable!(),
        }
    }
}

/// Panics with the first difference.
pub fn assert_same(what: &str, got: &Outcome, want: &Outcome) {
    let differ = got.out.iter().zip(&want.out).position(|(g, w)| g.to_bits() != w.to_bits());
    assert!(
        differ.is_none(),
        "{what}: out differs at {differ:?}: {:?} for {:?}",
        differ.map(|i| got.out[i]),
        differ.map(|i| want.out[i])
    );
    assert!(
        got.keys == want.keys,
        "{what}: keys differ at byte {:?}",
        got.keys.iter().zip(&want.keys).position(|(g, w)| g != w)
    );
    assert!(got.values == want.values, "{what}: values differ");
}

fn put(cache: &mut [u8], dtype: KvDtype, at: usize, v: f32) {
    match dtype {
        KvDtype::F32 => cache[at * 4..][..4].copy_from_slice(&v.to_le_bytes()),
        KvDtype::F16 => cache[at * 2..][..2].copy_from_slice(&f16::from_f32(v).to_le_bytes()),
        KvDtype::Bf16 => cache[at * 2..][..2].copy_from_slice(&bf16::from_f32(v).to_le_bytes()),
    }
}

/// Packed random weights with quants over their whole range.
pub fn random_weight(layout: &plan::WeightLayout, n: usize, k: usize, rng: &mut StdRng) -> Vec<u8> {
    let packed = match layout.format {
        WeightFormat::Affine { bits, group, zero } => {
            let groups = n * k / group as usize;
            let scale: Vec<f32> =
                (0..groups).map(|_| f16::from_f32(0.001 + rng.random::<f32>() * 0.01).to_f32()).collect();
            let min = match zero {
                Zero::Stored => scale.iter().map(|s| f16::from_f32(-s * 7.3).to_f32()).collect(),
                Zero::Midpoint => scale.iter().map(|s| -s * (1 << (bits - 1)) as f32).collect(),
            };
            let q = (0..n * k).map(|_| (rng.random::<u32>() & ((1 << bits) - 1)) as u8).collect();
            pack_affine(layout, n, k, &AffineRows { bits, group: group as usize, k, q, scale, min })
        }
        _ => pack_f32(layout, n, k, &(0..n * k).map(|_| rng.random::<f32>() - 0.5).collect::<Vec<_>>()),
    };
    packed.expect("pack").bytes
}

/// A stand-in for operations without heads.
pub fn no_heads() -> QkvRope {
    QkvRope {
        heads: 1,
        kv_heads: 1,
        head_dim: 16,
        bias: false,
        qk_norm_eps_bits: None,
        kv: plan::KvLayout { dtype: KvDtype::F32, block_tokens: 16 },
    }
}
