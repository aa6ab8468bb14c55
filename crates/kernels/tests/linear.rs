//! Every generator of linear kernels against its numeric class, bit for bit: formats, epilogues, buckets, tails, threads.

mod harness;
#[path = "harness/linear_case.rs"]
mod linear_case;

use evidence::Point;
use harness::{build, emulating, forms, host, runs_here};
use kernels::Generator;
use kernels::numerics::Arith;
use linear_case::{Case, assert_same};
use plan::operation::QkvRope;
use plan::{
    Activation, Epilogue, KvDtype, KvLayout, Operation, Prologue, RowBucket, Target, WeightFormat,
    WeightLayout, Zero,
};

const NORM: Prologue = Prologue::RmsNorm { eps_bits: 0x3727_c5ac };

fn affine(bits: u8, group: u32, zero: Zero, n_block: u32) -> WeightLayout {
    WeightLayout { format: WeightFormat::Affine { bits, group, zero }, n_block }
}

fn linear(
    n: u32,
    k: u32,
    prologue: Prologue,
    epilogue: Epilogue,
    weight: WeightLayout,
    activation: Activation,
) -> Operation {
    Operation::Linear { n, k, prologue, epilogue, weight, activation }
}

fn qkv(head_dim: u32, dtype: KvDtype, bias: bool, qk_norm: bool) -> QkvRope {
    QkvRope {
        heads: 3,
        kv_heads: 1,
        head_dim,
        bias,
        qk_norm_eps_bits: qk_norm.then_some(0x3586_37bd),
        kv: KvLayout { dtype, block_tokens: 16 },
    }
}

/// Operations that together reach every format, epilogue and odd shape.
fn operations() -> Vec<Operation> {
    use Activation::{Bf16, F32, I8, I16};
    use Epilogue::{Add, QkvRope, SiluGate, Store};
    let q4 = affine(4, 32, Zero::Stored, 16);
    let q8 = affine(8, 32, Zero::Midpoint, 16);
    let bf16 = WeightLayout { format: WeightFormat::Bf16, n_block: 16 };
    let f32 = WeightLayout { format: WeightFormat::F32, n_block: 32 };
    let mut all = vec![
        linear(96, 128, NORM, Store, q8, I8),
        linear(83, 32, Prologue::None, Add, q4, I8),
        linear(128, 96, NORM, SiluGate, q4, I8),
        linear(320, 64, NORM, QkvRope(qkv(64, KvDtype::F32, false, false)), q4, I8),
        linear(640, 64, Prologue::None, QkvRope(qkv(128, KvDtype::F16, true, true)), q8, I8),
        linear(
            320,
            64,
            NORM,
            QkvRope(qkv(64, KvDtype::Bf16, true, false)),
            affine(4, 32, Zero::Midpoint, 32),
            I8,
        ),
        linear(100, 192, NORM, Store, affine(8, 64, Zero::Stored, 32), I8),
        linear(48, 48, NORM, Add, affine(4, 16, Zero::Stored, 16), I8),
        linear(128, 256, Prologue::None, SiluGate, affine(4, 128, Zero::Midpoint, 64), I8),
        linear(80, 96, NORM, Add, q4, I16),
        linear(50, 128, Prologue::None, Store, q8, I16),
        linear(64, 64, NORM, SiluGate, affine(8, 32, Zero::Stored, 16), I16),
        linear(40, 64, Prologue::None, Store, q4, F32),
        linear(64, 96, NORM, SiluGate, q8, F32),
        linear(320, 64, NORM, QkvRope(qkv(64, KvDtype::F32, false, true)), f32, F32),
        linear(72, 50, Prologue::None, Add, f32, F32),
        linear(72, 62, NORM, Store, bf16, F32),
        linear(72, 62, NORM, Add, bf16, Bf16),
        linear(64, 128, Prologue::None, SiluGate, bf16, Bf16),
        linear(83, 96, Prologue::None, Add, q4, Bf16),
        linear(128, 96, NORM, SiluGate, q8, Bf16),
        linear(
            320,
            64,
            NORM,
            QkvRope(qkv(64, KvDtype::F16, false, true)),
            affine(4, 32, Zero::Midpoint, 32),
            Bf16,
        ),
        linear(100, 192, NORM, Store, affine(8, 64, Zero::Stored, 32), Bf16),
    ];
    all.push(linear(32, 512, Prologue::None, Store, affine(8, 512, Zero::Stored, 16), I8));
    all
}

/// The first, the last and some middle points of a space.
fn points(
    generator: &dyn Generator,
    operation: &Operation,
    rows: RowBucket,
    target: &Target,
    count: u64,
) -> Vec<Point> {
    let Some(space) = generator.space(operation, rows, target) else { return Vec::new() };
    let start = generator.start(operation, rows, target).expect("a space has a start");
    assert!(space.contains(&start), "{}: the start {start} is outside the space", generator.name());
    let mut points = vec![start];
    let size = space.size();
    for i in 0..count {
        // A stride that is odd against the axes' sizes visits all values of each axis.
        let point = space.nth((i * 7919 + u64::from(rows.low) * 131) % size);
        if !points.contains(&point) {
            points.push(point);
        }
    }
    points
}

fn arith_of(generator: &dyn Generator, operation: &Operation) -> Arith {
    if generator.numeric_class(operation).ends_with("/nofma") { Arith::Separate } else { Arith::Fused }
}

/// Checks one generator; returns how many kernels ran.
fn check(name: &str, rows: RowBucket, counts: &[usize], per_operation: u64) -> usize {
    let generator = kernels::generator(name).expect("registered");
    let target = emulating(2);
    let mut ran = 0;
    for (i, operation) in operations().into_iter().enumerate() {
        let most = counts.iter().copied().max().unwrap_or(1);
        let case = Case::random(operation, most, i as u64 + 1);
        for point in points(generator, &operation, rows, &target, per_operation) {
            let generated =
                generator.generate(&operation, rows, &target, &point, most as u32).expect("generate");
            let what = format!("{name} {operation} rows {rows} [{point}]");
            for (form, most_threads) in forms(generated) {
                if !runs_here(&what, &form) {
                    continue;
                }
                let kernel = build(&form, name);
                ran += 1;
                for count in counts {
                    let want = case.emulate(arith_of(generator, &operation), *count);
                    for threads in 1..=most_threads {
                        let got = case.run(&kernel, *count, threads);
                        assert_same(&format!("{what}, {count} rows, {threads} threads"), &got, &want);
                    }
                }
            }
        }
    }
    ran
}

const ONE: RowBucket = RowBucket::ALL[0];
const FEW: RowBucket = RowBucket::ALL[2];
const MANY: RowBucket = RowBucket::ALL[5];

#[test]
fn portable_kernels_follow_their_class() {
    let ran = check("linear-portable", ONE, &[1], 0) + check("linear-portable", MANY, &[33, 37], 0);
    assert!(ran >= 2 * operations().len());
}

#[test]
fn vnni_kernels_follow_their_class() {
    check("linear-avx512vnni", ONE, &[1], 0);
    check("linear-avx512vnni", FEW, &[5, 7, 8], 0);
    check("linear-avx512vnni", MANY, &[33, 40], 1);
}

#[test]
fn avx2_kernels_follow_their_class() {
    check("linear-avx2", ONE, &[1], 0);
    check("linear-avx2", MANY, &[33, 37], 0);
}

#[test]
fn avx512_kernels_follow_their_class() {
    check("linear-avx512", ONE, &[1], 0);
    check("linear-avx512", MANY, &[33, 37], 1);
}

#[test]
fn bf16_kernels_follow_their_class() {
    check("linear-avx512bf16", ONE, &[1], 0);
    check("linear-avx512bf16", MANY, &[33, 37], 1);
}

#[test]
fn amx_int8_kernels_follow_the_class_of_vnni() {
    check("linear-amxint8", MANY, &[35], 0);
}

/// Bf16 operations whose k fills AMX tiles: all kinds of weights, epilogues, and depths that are not all of k.
fn bf16_operations() -> Vec<Operation> {
    use Epilogue::{Add, QkvRope, SiluGate, Store};
    let bf16 = WeightLayout { format: WeightFormat::Bf16, n_block: 32 };
    let (q4, q8) = (affine(4, 32, Zero::Stored, 16), affine(8, 64, Zero::Midpoint, 32));
    vec![
        linear(72, 192, NORM, Add, bf16, Activation::Bf16),
        linear(83, 192, Prologue::None, Store, q4, Activation::Bf16),
        linear(160, 192, NORM, SiluGate, q4, Activation::Bf16),
        linear(320, 128, NORM, QkvRope(qkv(64, KvDtype::F32, true, true)), q8, Activation::Bf16),
    ]
}

/// Operations with `Row16` activations: both widths, kinds of zero and groups, all epilogues, depths that are not all of k.
fn wide_operations() -> Vec<Operation> {
    use Epilogue::{Add, QkvRope, SiluGate, Store};
    let (q4, q8) = (affine(4, 32, Zero::Stored, 16), affine(8, 32, Zero::Midpoint, 16));
    vec![
        linear(72, 192, NORM, Add, q8, Activation::Row16),
        linear(83, 192, Prologue::None, Store, q4, Activation::Row16),
        linear(160, 192, NORM, SiluGate, affine(4, 64, Zero::Midpoint, 16), Activation::Row16),
        linear(
            320,
            128,
            NORM,
            QkvRope(qkv(64, KvDtype::F32, true, true)),
            affine(8, 64, Zero::Stored, 32),
            Activation::Row16,
        ),
    ]
}

/// 8-bit weights in groups of whole tiles.
fn byte_operations() -> Vec<Operation> {
    use Epilogue::{Add, QkvRope, SiluGate, Store};
    let wide = |group, zero, n_block| affine(8, group, zero, n_block);
    vec![
        linear(72, 192, NORM, Add, wide(192, Zero::Midpoint, 16), Activation::I16),
        linear(83, 128, Prologue::None, Store, wide(64, Zero::Stored, 16), Activation::I8),
        linear(160, 192, NORM, SiluGate, wide(64, Zero::Midpoint, 16), Activation::I16),
        linear(
            320,
            128,
            NORM,
            QkvRope(qkv(64, KvDtype::F32, true, true)),
            wide(128, Zero::Stored, 32),
            Activation::I16,
        ),
    ]
}

#[test]
fn amx_byte_kernels_follow_the_class_of_vnni() {
    check_tiles("linear-amxbytes", byte_operations(), Arith::Fused);
}

#[test]
fn plain_wide_kernels_follow_their_class() {
    check_tiles("linear-wide-portable", wide_operations(), Arith::Separate);
}

#[test]
fn amx_wide_kernels_follow_their_class() {
    check_tiles("linear-amxwide", wide_operations(), Arith::Fused);
}

#[test]
fn amx_bf16_kernels_follow_their_class() {
    check_tiles("linear-amxbf16", bf16_operations(), Arith::Tiles);
}

/// On one and three threads, all kinds of row counts, on tiles of the hardware and on emulated ones.
fn check_tiles(name: &str, operations: Vec<Operation>, arith: Arith) {
    let generator = kernels::generator(name).expect("registered");
    for (i, operation) in operations.into_iter().enumerate() {
        let case = Case::random(operation, 67, 7 + i as u64);
        for (rows, counts) in [(FEW, vec![1, 5]), (MANY, vec![33, 48, 67])] {
            for point in points(generator, &operation, rows, &emulating(2), 3) {
                let most = counts.iter().copied().max().unwrap_or(1);
                let generated = generator
                    .generate(&operation, rows, &emulating(2), &point, most as u32)
                    .expect("generate");
                for (form, most_threads) in forms(generated) {
                    if !runs_here(name, &form) {
                        continue;
                    }
                    let kernel = build(&form, name);
                    for (count, threads) in counts.iter().flat_map(|c| [(*c, 1), (*c, most_threads)]) {
                        let what = format!("{name} {operation} [{point}], {count} rows, {threads} threads");
                        let got = case.run(&kernel, count, threads);
                        assert_same(&what, &got, &case.emulate(arith, count));
                    }
                }
            }
        }
    }
}

/// Whether the binary holds bytes that `matches` accepts, at any offset.
fn holds(binary: &[u8], length: usize, matches: impl Fn(&[u8]) -> bool) -> bool {
    binary.windows(length).any(matches)
}

#[test]
fn instructions_that_cannot_run_here_are_at_least_in_the_binary() {
    let mut all = emulating(1);
    if !all.features.contains(&plan::Feature::Avx512) {
        eprintln!("SKIPPED: only x86-64 with AVX-512 builds these kernels");
        return;
    }
    all.features.insert(plan::Feature::Avx512Bf16);
    let int8 = operations()[0];
    let dir = tempfile::tempdir().expect("a temporary folder");
    let compile = |name: &str, operation: &Operation| {
        let generator = kernels::generator(name).expect("registered");
        let start = generator.start(operation, MANY, &all).expect("applies");
        let generated = generator.generate(operation, MANY, &all, &start, 64).expect("generate");
        std::fs::read(harness::compile(&generated, dir.path(), name)).expect("read the binary")
    };
    let binary = compile("linear-amxint8", &int8);
    assert!(holds(&binary, 5, |b| b == [0xC4, 0xE2, 0x52, 0x5E, 0xCC]), "TDPBSUD tmm1, tmm4, tmm5");
    assert!(holds(&binary, 5, |b| b == [0xC4, 0xE2, 0x78, 0x49, 0xC0]), "TILERELEASE");
    let binary = compile("linear-amxbf16", &bf16_operations()[0]);
    assert!(holds(&binary, 5, |b| b == [0xC4, 0xE2, 0x4A, 0x5C, 0xC4]), "TDPBF16PS tmm0, tmm4, tmm6");
    let binary = compile("linear-avx512bf16", &bf16_operations()[0]);
    // EVEX, map 0F38, prefix F3, 512 bits, opcode 52: VDPBF16PS.
    assert!(holds(&binary, 5, |b| b[0] == 0x62
        && b[1] & 7 == 2
        && b[2] & 3 == 2
        && b[3] & 0x60 == 0x40
        && b[4] == 0x52));
}

#[test]
fn embeddings_are_exact() {
    use plan::operation::slot;
    let generator = kernels::generator("embed").expect("registered");
    let formats = [
        affine(4, 32, Zero::Stored, 16),
        affine(8, 32, Zero::Midpoint, 32),
        affine(8, 64, Zero::Stored, 16),
        affine(4, 16, Zero::Midpoint, 16),
        WeightLayout { format: WeightFormat::Bf16, n_block: 16 },
        WeightLayout { format: WeightFormat::F32, n_block: 32 },
    ];
    let (vocab, hidden) = (75usize, 64usize);
    for weight in formats {
        let operation = Operation::Embed { vocab: vocab as u32, hidden: hidden as u32, weight };
        let mut rng = <rand::rngs::StdRng as rand::SeedableRng>::seed_from_u64(3);
        let packed = linear_case::random_weight(&weight, vocab, hidden, &mut rng);
        let table = kernels::pack::unpack(&weight, vocab, hidden, &packed).expect("unpack");
        let start = generator.start(&operation, ONE, &host(1)).expect("applies");
        let kernel =
            build(&generator.generate(&operation, ONE, &host(1), &start, 8).expect("generate"), "embed");
        for tokens in [&[74u32][..], &[0, 17, 33, 74, 16, 17, 1, 40][..]] {
            for threads in 1..=3 {
                let mut out = harness::Buffer::poisoned(tokens.len() * hidden * 4);
                let (mut w, mut t) =
                    (harness::Buffer::from_bytes(&packed), harness::Buffer::from_u32(tokens));
                let mut args = plan::ArgsV1::new(tokens.len() as u32);
                args.tensors[slot::W] = w.tensor();
                args.tensors[slot::TOKENS] = t.tensor();
                args.tensors[slot::OUT] = out.tensor();
                kernel.run(&mut args, threads);
                out.check("out");
                let want: Vec<f32> = tokens
                    .iter()
                    .flat_map(|t| table[*t as usize * hidden..][..hidden].iter().copied())
                    .collect();
                assert_eq!(out.f32(), want, "{weight} {threads} threads");
            }
        }
    }
}
