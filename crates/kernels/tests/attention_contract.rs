//! The attention and small kernels against their contract: every input pattern, the emulation of the class bit for bit,
//! and the f64 oracle within its bounds.

mod harness;

use harness::{Buffer, Kernel, build, host, runs_here};
use kernels::emulate::emulate;
use kernels::inputs::{Batch, CaseInputs, CaseSpec, Pattern, generate};
use kernels::numerics::Arith;
use kernels::{generator, oracle};
use plan::operation::{QkvRope, slot};
use plan::{ArgsV1, KvDtype, KvLayout, Operation, RowBucket};

const ALL_ROWS: RowBucket = RowBucket { low: 1, high: u32::MAX };
const NAMES: [[&str; 2]; 3] = [
    ["attention-portable", "small-portable"],
    ["attention-avx512", "small-avx512"],
    ["attention-avx2", "small-avx2"],
];

/// `OUT` and the caches after a call.
fn run(
    kernel: &Kernel,
    operation: &Operation,
    case: &CaseInputs,
    threads: u32,
) -> (Vec<f32>, Vec<u8>, Vec<u8>) {
    let mut args = ArgsV1::new(case.rows);
    args.ints = case.ints;
    let mut buffers: Vec<(usize, Buffer)> =
        case.tensors.iter().map(|(slot, tensor)| (*slot, Buffer::from_bytes(tensor.bytes()))).collect();
    buffers.retain(|(index, _)| *index != slot::OUT);
    buffers.push((slot::OUT, Buffer::poisoned((case.rows * operation.out_width()) as usize * 4)));
    for (index, buffer) in &mut buffers {
        args.tensors[*index] = buffer.tensor();
    }
    kernel.run(&mut args, threads);
    let mut after = (Vec::new(), Vec::new(), Vec::new());
    for (index, buffer) in &buffers {
        buffer.check(&format!("slot {index}"));
        match *index {
            slot::OUT => after.0 = buffer.f32(),
            slot::K_CACHE => after.1 = buffer.bytes().to_vec(),
            slot::V_CACHE => after.2 = buffer.bytes().to_vec(),
            _ => assert_eq!(buffer.bytes(), case.tensors[index].bytes(), "slot {index} is an input"),
        }
    }
    after
}

fn check(name: &str, operation: &Operation, kernel: &Kernel, arith: Arith, spec: &CaseSpec) {
    let what = format!("{name} {operation} {spec:?}");
    let case = generate(operation, spec).expect("inputs");
    let want = emulate(operation, arith, &case).expect("the emulation");
    let reference = oracle::oracle(operation, &case).expect("the oracle");
    let (out, keys, values) = run(kernel, operation, &case, 2);
    for (i, (got, want)) in out.iter().zip(&want.out).enumerate() {
        assert!(got.to_bits() == want.to_bits(), "{what}: element {i} is {got:e}, not {want:e}");
    }
    if let Some((want_keys, want_values)) = &want.caches {
        assert!(keys == *want_keys && values == *want_values, "{what}: the caches differ");
    }
    let verdict = oracle::check(operation, &case, &reference, &out, Some((&keys, &values))).expect("shapes");
    assert!(verdict.is_ok(), "{what}: {}", verdict.unwrap_err());
}

/// All patterns of an operation at some row counts.
fn contract(operation: Operation, kind: usize) {
    for names in NAMES {
        let (name, target) = (names[kind], host(2));
        let generator = generator(name).expect(name);
        let Some(point) = generator.start(&operation, ALL_ROWS, &target) else {
            assert!(!name.ends_with("portable"), "{name} makes {operation}");
            eprintln!("SKIPPED: {name} on {target}: this CPU lacks its features");
            continue;
        };
        let generated = generator.generate(&operation, ALL_ROWS, &target, &point, 64).expect("the start");
        if !runs_here(name, &generated) {
            continue;
        }
        let kernel = build(&generated, name);
        let separate = generator.numeric_class(&operation).ends_with("nofma");
        let arith = if separate { Arith::Separate } else { Arith::Fused };
        for (i, pattern) in Pattern::of(&operation).into_iter().enumerate() {
            let batches = [
                (1, Batch::DecodeAt { context: 40 }),
                (19, Batch::Mixed { context: 70 }),
                (8, Batch::Decode { context: 50 }),
                (33, Batch::Prefill { past: 9 }),
            ];
            for (rows, batch) in [batches[i % 4], batches[(i + 1) % 4]] {
                let spec = CaseSpec { rows, batch, pattern, seed: i as u64 };
                check(name, &operation, &kernel, arith, &spec);
            }
        }
    }
}

fn kv(dtype: KvDtype) -> KvLayout {
    KvLayout { dtype, block_tokens: 16 }
}

#[test]
fn attention() {
    for (dtype, window) in [(KvDtype::F16, None), (KvDtype::F32, Some(20)), (KvDtype::Bf16, None)] {
        contract(Operation::Attention { heads: 6, kv_heads: 2, head_dim: 32, kv: kv(dtype), window }, 0);
    }
}

#[test]
fn rope() {
    for (dtype, eps) in [(KvDtype::F16, None), (KvDtype::F32, Some(1e-6f32.to_bits())), (KvDtype::Bf16, None)]
    {
        let q =
            QkvRope { heads: 4, kv_heads: 2, head_dim: 32, bias: true, qk_norm_eps_bits: eps, kv: kv(dtype) };
        contract(Operation::RopeKv(q), 1);
    }
}

#[test]
fn norm_and_gate() {
    contract(Operation::RmsNorm { width: 96, eps_bits: 1e-6f32.to_bits() }, 1);
    contract(Operation::SiluGate { ffn: 80 }, 1);
}
