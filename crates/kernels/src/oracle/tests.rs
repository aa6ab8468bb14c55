//! The oracle against the honest emulation, and against planted wrong outputs.

use super::*;
use crate::emulate::{Emulated, emulate};
use crate::inputs::{Batch, CaseSpec, Pattern, Tensor, generate};
use crate::numerics::Arith;
use plan::operation::QkvRope;
use plan::{KvDtype, KvLayout, WeightLayout, Zero};
use std::sync::Arc;

const EPS: u32 = 0x3727_c5ac; // 1e-5

fn affine(bits: u8, group: u32, zero: Zero) -> WeightLayout {
    WeightLayout { format: WeightFormat::Affine { bits, group, zero }, n_block: 16 }
}

fn linear(n: u32, k: u32, epilogue: Epilogue, weight: WeightLayout, activation: Activation) -> Operation {
    let prologue = if k.is_multiple_of(3) { Prologue::RmsNorm { eps_bits: EPS } } else { Prologue::None };
    Operation::Linear { n, k, prologue, epilogue, weight, activation }
}

fn qkv(bias: bool, qk_norm: bool, dtype: KvDtype) -> QkvRope {
    let kv = KvLayout { dtype, block_tokens: 16 };
    QkvRope { heads: 4, kv_heads: 2, head_dim: 32, bias, qk_norm_eps_bits: qk_norm.then_some(EPS), kv }
}

/// Small operations of every kind, format and class.
pub(crate) fn operations() -> Vec<Operation> {
    let f32_16 = WeightLayout { format: WeightFormat::F32, n_block: 16 };
    let bf16_32 = WeightLayout { format: WeightFormat::Bf16, n_block: 32 };
    let attention = |dtype, block_tokens, window| Operation::Attention {
        heads: 6,
        kv_heads: 2,
        head_dim: 32,
        kv: KvLayout { dtype, block_tokens },
        window,
    };
    vec![
        linear(40, 128, Epilogue::Store, affine(8, 32, Zero::Midpoint), Activation::I8),
        linear(40, 192, Epilogue::Store, affine(4, 32, Zero::Stored), Activation::I8),
        linear(48, 256, Epilogue::Add, affine(4, 64, Zero::Midpoint), Activation::I16),
        linear(40, 192, Epilogue::Store, affine(8, 32, Zero::Stored), Activation::I16),
        linear(40, 96, Epilogue::Add, affine(4, 32, Zero::Stored), Activation::F32),
        linear(40, 128, Epilogue::Store, f32_16, Activation::F32),
        linear(64, 192, Epilogue::Store, bf16_32, Activation::Bf16),
        linear(40, 192, Epilogue::Store, affine(4, 32, Zero::Stored), Activation::Bf16),
        linear(48, 128, Epilogue::Add, affine(8, 64, Zero::Midpoint), Activation::Bf16),
        linear(64, 128, Epilogue::Store, bf16_32, Activation::F32),
        linear(40, 192, Epilogue::Store, affine(4, 32, Zero::Stored), Activation::Row16),
        linear(48, 128, Epilogue::Add, affine(8, 32, Zero::Midpoint), Activation::Row16),
        linear(96, 192, Epilogue::SiluGate, affine(4, 32, Zero::Stored), Activation::I8),
        linear(64, 128, Epilogue::SiluGate, affine(8, 64, Zero::Midpoint), Activation::I16),
        linear(
            256,
            192,
            Epilogue::QkvRope(qkv(false, false, KvDtype::F16)),
            affine(8, 32, Zero::Midpoint),
            Activation::I8,
        ),
        linear(
            256,
            192,
            Epilogue::QkvRope(qkv(true, true, KvDtype::F32)),
            affine(4, 32, Zero::Stored),
            Activation::I16,
        ),
        linear(256, 128, Epilogue::QkvRope(qkv(true, false, KvDtype::Bf16)), f32_16, Activation::F32),
        Operation::RopeKv(qkv(true, true, KvDtype::F16)),
        Operation::RopeKv(qkv(false, false, KvDtype::F32)),
        attention(KvDtype::F32, 16, None),
        attention(KvDtype::F16, 32, None),
        attention(KvDtype::Bf16, 16, Some(37)),
        attention(KvDtype::Bf16, 32, None),
        Operation::Embed { vocab: 50, hidden: 64, weight: affine(4, 32, Zero::Stored) },
        Operation::Embed { vocab: 50, hidden: 64, weight: bf16_32 },
        Operation::RmsNorm { width: 100, eps_bits: EPS },
        Operation::RmsNorm { width: 576, eps_bits: EPS },
        Operation::SiluGate { ffn: 72 },
    ]
}

fn verdict(
    operation: &Operation,
    inputs: &CaseInputs,
    want: &CaseOutputs,
    got: &Emulated,
) -> Result<f64, Mismatch> {
    let caches = got.caches.as_ref().map(|(k, v)| (&k[..], &v[..]));
    check(operation, inputs, want, &got.out, caches).unwrap()
}

fn spec(rows: u32, pattern: Pattern, seed: u64) -> CaseSpec {
    let batch = match seed % 3 {
        0 => Batch::Mixed { context: 70 },
        1 => Batch::Decode { context: 60 },
        _ => Batch::Prefill { past: 13 },
    };
    CaseSpec { rows, batch, pattern, seed }
}

/// Inputs must not push an honest kernel into infinity.
fn assert_representable(operation: &Operation, pattern: Pattern, want: &CaseOutputs) {
    let fits = |y: &Bounded, limit: f64| y.value.abs() + y.error < limit;
    assert!(want.out.iter().all(|y| fits(y, 1e38)), "{operation} {pattern:?}");
    let limit = match crate::dispatch::kv_layout(operation).map(|kv| kv.dtype) {
        Some(KvDtype::F16) => 65504.0,
        _ => 1e38,
    };
    let entries = want.cache.iter().flat_map(|entry| entry.key.iter().chain(&entry.value));
    assert!(entries.into_iter().all(|y| fits(y, limit)), "{operation} {pattern:?}: cache");
}

/// Shapes of models of some billion weights, a few columns of them.
#[test]
fn long_sums_stay_representable_and_tight() {
    let long = |epilogue, weight, activation, prologue| {
        let n =
            if let Epilogue::QkvRope(q) = epilogue { (q.heads + 2 * q.kv_heads) * q.head_dim } else { 32 };
        Operation::Linear { n, k: 8192, prologue, epilogue, weight, activation }
    };
    let norm = Prologue::RmsNorm { eps_bits: EPS };
    let operations = [
        long(Epilogue::Store, affine(4, 32, Zero::Stored), Activation::I8, Prologue::None),
        long(Epilogue::Add, affine(4, 32, Zero::Stored), Activation::I16, Prologue::None),
        long(Epilogue::SiluGate, affine(8, 32, Zero::Midpoint), Activation::I16, norm),
        long(Epilogue::Store, affine(4, 128, Zero::Stored), Activation::F32, norm),
        long(
            Epilogue::QkvRope(qkv(true, false, KvDtype::F16)),
            affine(4, 32, Zero::Stored),
            Activation::I8,
            norm,
        ),
        long(
            Epilogue::QkvRope(qkv(false, false, KvDtype::F16)),
            affine(8, 32, Zero::Stored),
            Activation::I8,
            Prologue::None,
        ),
    ];
    for operation in operations {
        for pattern in Pattern::of(&operation) {
            let inputs = generate(&operation, &spec(2, pattern, 17)).unwrap();
            let want = oracle(&operation, &inputs).unwrap();
            assert_representable(&operation, pattern, &want);
            let got = emulate(&operation, Arith::Separate, &inputs).unwrap();
            verdict(&operation, &inputs, &want, &got)
                .unwrap_or_else(|e| panic!("{operation} {pattern:?}: {e}"));
            if pattern != Pattern::Normal {
                continue;
            }
            let dropped = planted(&operation, &inputs, |case| {
                edit_f32(case, slot::X, |x| x.chunks_mut(8192).for_each(|x| x[8192 - 32..].fill(0.0)));
            });
            assert!(
                verdict(&operation, &inputs, &want, &dropped).is_err(),
                "{operation}: one group of 256 dropped"
            );
            let Operation::Linear { n, k, prologue, epilogue, weight, activation } = operation else {
                continue;
            };
            if activation == Activation::I16 {
                let lower =
                    Operation::Linear { n, k, prologue, epilogue, weight, activation: Activation::I8 };
                let coarse = emulate(&lower, Arith::Fused, &inputs).unwrap();
                assert!(
                    verdict(&operation, &inputs, &want, &coarse).is_err(),
                    "{operation}: int8 activations"
                );
            }
        }
    }
}

#[test]
fn honest_outputs_pass_on_every_pattern() {
    for operation in operations() {
        let mut worst = 0.0f64;
        for (i, pattern) in Pattern::of(&operation).into_iter().enumerate() {
            let spec = spec(5, pattern, i as u64);
            let inputs = generate(&operation, &spec).unwrap();
            let want = oracle(&operation, &inputs).unwrap();
            assert!(
                want.out.iter().all(|y| y.value.is_finite() && y.error.is_finite()),
                "{operation} {pattern:?}"
            );
            // Attention on bf16 caches has a third class.
            let bf16 = matches!(operation, Operation::Attention { kv, .. } if kv.dtype == KvDtype::Bf16);
            for arith in &[Arith::Fused, Arith::Separate, Arith::Tiles][..if bf16 { 3 } else { 2 }] {
                let got = emulate(&operation, *arith, &inputs).unwrap();
                match verdict(&operation, &inputs, &want, &got) {
                    Ok(ratio) => worst = worst.max(ratio),
                    Err(e) => panic!("{operation} {pattern:?} {arith:?}: {e}"),
                }
            }
        }
        eprintln!("{operation}: largest error {worst:.3} of its bound");
        // Looking up is exact for most weights; everything else rounds.
        assert!(
            worst > 0.0 || matches!(operation, Operation::Embed { .. }),
            "{operation}: nothing was compared"
        );
    }
}

#[test]
fn sums_that_cancel_exactly_are_right() {
    // The integers of a group cancel to 0; the oracle's f64 sum of the same terms leaves a rounding error.
    let operation = linear(64, 32, Epilogue::Store, affine(8, 32, Zero::Midpoint), Activation::I8);
    let mut zeros = 0;
    for seed in 0..200 {
        let inputs = generate(&operation, &spec(20, Pattern::Normal, seed)).unwrap();
        let got = emulate(&operation, Arith::Fused, &inputs).unwrap();
        zeros += got.out.iter().filter(|y| **y == 0.0).count();
        let want = oracle(&operation, &inputs).unwrap();
        assert!(verdict(&operation, &inputs, &want, &got).is_ok(), "seed {seed}");
    }
    assert!(zeros > 0, "no draw cancels");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(60))]
    /// No honest kernel is refused, whatever the draw.
    #[test]
    fn honest_outputs_pass_on_any_draw(which in 0usize..23, pattern in 0usize..15, rows in 1u32..20, seed in 0u64..1 << 40) {
        let operation = operations()[which];
        let patterns = Pattern::of(&operation);
        let inputs = generate(&operation, &spec(rows, patterns[pattern % patterns.len()], seed)).unwrap();
        let want = oracle(&operation, &inputs).unwrap();
        for arith in [Arith::Fused, Arith::Separate] {
            let got = emulate(&operation, arith, &inputs).unwrap();
            let verdict = verdict(&operation, &inputs, &want, &got);
            proptest::prop_assert!(verdict.is_ok(), "{} {:?}: {}", operation, pattern, verdict.unwrap_err());
        }
    }
}

/// Emulates with changed inputs, and hands back what should be refused for the true ones.
fn planted(operation: &Operation, inputs: &CaseInputs, change: impl Fn(&mut CaseInputs)) -> Emulated {
    let mut wrong = inputs.clone();
    change(&mut wrong);
    emulate(operation, Arith::Fused, &wrong).unwrap()
}

fn edit_weights(inputs: &mut CaseInputs, edit: impl Fn(&mut Vec<u8>)) {
    if let Some(Tensor::Bytes(w)) = inputs.tensors.get_mut(&slot::W) {
        edit(Arc::make_mut(w));
    }
}

fn edit_f32(inputs: &mut CaseInputs, slot: usize, edit: impl Fn(&mut Vec<f32>)) {
    if let Some(Tensor::F32(x)) = inputs.tensors.get_mut(&slot) {
        edit(x);
    }
}

#[test]
fn planted_errors_of_linear_operations_fail() {
    for operation in operations() {
        let Operation::Linear { k, weight, activation, epilogue, .. } = operation else { continue };
        let inputs = generate(&operation, &spec(4, Pattern::Normal, 7)).unwrap();
        let want = oracle(&operation, &inputs).unwrap();
        let refuse = |what: &str, got: &Emulated| {
            assert!(verdict(&operation, &inputs, &want, got).is_err(), "{operation}: {what} passed");
        };
        let honest = emulate(&operation, Arith::Fused, &inputs).unwrap();

        let zeros = Emulated { out: vec![0.0; honest.out.len()], caches: honest.caches.clone() };
        refuse("zeros", &zeros);
        let mut one = honest.clone();
        one.out[17] += 1e-3 * (one.out[17].abs() + 0.1);
        refuse("one element a thousandth off", &one);
        let mut nan = honest.clone();
        nan.out[3] = f32::NAN;
        refuse("NaN", &nan);
        let mut shifted = honest.clone();
        shifted.out.rotate_left(1);
        refuse("columns shifted", &shifted);

        let group = weight.group(k as usize).min(32);
        let dropped = planted(&operation, &inputs, |case| {
            edit_f32(case, slot::X, |x| {
                x.chunks_mut(k as usize).for_each(|x| x[k as usize - group..].fill(0.0))
            });
        });
        refuse("the last group of k dropped", &dropped);
        if matches!(weight.format, WeightFormat::Affine { .. }) {
            // The scale of the first column's first group, one unit in its tenth bit.
            let scaled = planted(&operation, &inputs, |case| edit_weights(case, |w| w[0] ^= 2));
            refuse("one scale a thousandth off", &scaled);
            let quant =
                planted(&operation, &inputs, |case| edit_weights(case, |w| *w.last_mut().unwrap() ^= 1));
            if weight.refuse(k as usize).is_none() && honest != quant {
                refuse("one quant one step off", &quant);
            }
        }
        let cheaper = match activation {
            Activation::I16 | Activation::Row16 => Some(Activation::I8),
            Activation::F32 if matches!(weight.format, WeightFormat::Affine { .. }) => Some(Activation::I16),
            Activation::F32 if weight.format == WeightFormat::Bf16 => Some(Activation::Bf16),
            _ => None,
        };
        if let (Some(cheaper), Operation::Linear { n, prologue, .. }) = (cheaper, operation) {
            let lower = Operation::Linear { n, k, prologue, epilogue, weight, activation: cheaper };
            refuse("a coarser activation", &emulate(&lower, Arith::Fused, &inputs).unwrap());
        }
        if matches!(epilogue, Epilogue::Add) {
            let lost = planted(&operation, &inputs, |case| edit_f32(case, slot::OUT, |x| x.fill(0.0)));
            refuse("the residual lost", &lost);
        }
    }
}

#[test]
fn planted_errors_of_caches_fail() {
    for operation in operations() {
        let Operation::RopeKv(qkv) = operation else { continue };
        let inputs = generate(&operation, &spec(6, Pattern::Normal, 3)).unwrap();
        let want = oracle(&operation, &inputs).unwrap();
        let honest = emulate(&operation, Arith::Fused, &inputs).unwrap();
        let refuse = |what: &str, got: &Emulated| {
            assert!(verdict(&operation, &inputs, &want, got).is_err(), "{operation}: {what} passed");
        };
        let (keys, values) = inputs.caches(&qkv.kv, qkv.kv_heads, qkv.head_dim).unwrap();
        refuse(
            "caches not written",
            &Emulated { caches: Some((keys.to_vec(), values.to_vec())), ..honest.clone() },
        );
        let slots = inputs.u32(slot::SLOTS, 6).unwrap();
        let free = (0..).find(|s| !slots.contains(s)).unwrap() as usize;
        let mut stray = honest.clone();
        if let Some((keys, _)) = &mut stray.caches {
            let width = qkv.kv.dtype.bytes();
            let tokens = qkv.kv.block_tokens as usize;
            let plane = free / tokens * (qkv.kv_heads * qkv.head_dim) as usize * tokens;
            keys[(plane + free % tokens) * width] ^= 1;
        }
        refuse("a byte of another slot", &stray);
        let late = planted(&operation, &inputs, |case| {
            if let Some(Tensor::U32(p)) = case.tensors.get_mut(&slot::POSITIONS) {
                p.iter_mut().for_each(|p| *p = p.saturating_sub(1));
            }
        });
        refuse("positions off by one", &late);
    }
}

#[test]
fn planted_errors_of_attention_fail() {
    for operation in operations() {
        let Operation::Attention { heads, kv_heads, head_dim, kv, window } = operation else { continue };
        let inputs = generate(&operation, &spec(9, Pattern::Normal, 6)).unwrap();
        let want = oracle(&operation, &inputs).unwrap();
        let refuse = |what: &str, got: &Emulated| {
            assert!(verdict(&operation, &inputs, &want, got).is_err(), "{operation}: {what} passed");
        };
        let earlier = planted(&operation, &inputs, |case| {
            if let Some(Tensor::U32(p)) = case.tensors.get_mut(&slot::POSITIONS) {
                p.iter_mut().for_each(|p| *p = p.saturating_sub(1));
            }
        });
        refuse("the newest token unseen", &earlier);
        let plain =
            Operation::Attention { heads, kv_heads, head_dim, kv, window: window.map_or(Some(20), |_| None) };
        refuse("another window", &emulate(&plain, Arith::Fused, &inputs).unwrap());
        // Products of bf16 have three digits less.
        let coarse = kv.dtype == KvDtype::Bf16;
        let factor = if coarse { 1.03 } else { 1.001 };
        let scaled = planted(&operation, &inputs, |case| {
            edit_f32(case, slot::X, |x| x.iter_mut().for_each(|x| *x *= factor));
        });
        refuse(&format!("a scale {factor} times as large"), &scaled);
        let rounded = planted(&operation, &inputs, |case| {
            edit_f32(case, slot::X, |x| x.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32()));
        });
        let allowed = verdict(&operation, &inputs, &want, &rounded).is_ok();
        assert_eq!(allowed, coarse, "{operation}: queries in bf16");
        let swapped = planted(&operation, &inputs, |case| {
            if let Some(Tensor::U32(tables)) = case.tensors.get_mut(&slot::BLOCK_TABLES) {
                let pages = case.ints[plan::operation::int::PAGES] as u32;
                tables.iter_mut().filter(|t| **t < pages).for_each(|t| *t = (*t + 1) % pages);
            }
        });
        refuse("pages off by one", &swapped);
    }
}

#[test]
fn planted_errors_of_row_operations_fail() {
    for operation in operations() {
        let inputs = match operation {
            Operation::RmsNorm { .. } | Operation::SiluGate { .. } | Operation::Embed { .. } => {
                generate(&operation, &spec(4, Pattern::Normal, 11)).unwrap()
            }
            _ => continue,
        };
        let want = oracle(&operation, &inputs).unwrap();
        let honest = emulate(&operation, Arith::Separate, &inputs).unwrap();
        for i in 0..honest.out.len() {
            let mut wrong = honest.clone();
            wrong.out[i] *= 1.0 + 1e-4;
            if wrong.out[i] != honest.out[i] {
                assert!(verdict(&operation, &inputs, &want, &wrong).is_err(), "{operation} at {i}");
            }
        }
    }
}

/// The class itself: its rounded activations stay within the derived worst case of the exact operation.
#[test]
fn class_rounding_stays_within_its_own_bound() {
    for operation in operations() {
        if !matches!(operation, Operation::Linear { .. }) {
            continue;
        }
        for pattern in [Pattern::Normal, Pattern::Outliers, Pattern::Ties] {
            let inputs = generate(&operation, &spec(3, pattern, 21)).unwrap();
            let (rows, columns) = (all(3), all(operation.out_width()));
            let exact = oracle_with(&operation, &inputs, &rows, &columns, Rounding::None).unwrap();
            let class = oracle(&operation, &inputs).unwrap();
            for (exact, class) in exact.out.iter().zip(&class.out) {
                assert!(
                    (exact.value - class.value).abs() <= exact.error + class.error,
                    "{operation} {pattern:?}"
                );
            }
            let got = emulate(&operation, Arith::Fused, &inputs).unwrap();
            verdict(&operation, &inputs, &exact, &got)
                .unwrap_or_else(|e| panic!("{operation} {pattern:?}: {e}"));
        }
    }
}

#[test]
fn selections_agree_with_the_whole() {
    for operation in operations() {
        let inputs = generate(&operation, &spec(5, Pattern::Normal, 5)).unwrap();
        let whole = oracle(&operation, &inputs).unwrap();
        let width = operation.out_width();
        let (rows, columns) = ([4u32, 1], [width - 1, 0, width / 2]);
        let part = oracle_at(&operation, &inputs, &rows, &columns).unwrap();
        for (i, y) in part.out.iter().enumerate() {
            let at = rows[i / 3] as usize * width as usize + columns[i % 3] as usize;
            assert_eq!(*y, whole.out[at], "{operation} at {at}");
        }
        for entry in &part.cache {
            assert!(whole.cache.contains(entry), "{operation}");
        }
        assert!(oracle_at(&operation, &inputs, &[5], &[0]).is_err());
        assert!(oracle_at(&operation, &inputs, &[0], &[width]).is_err());
    }
}

#[test]
fn projections_pass_honest_rows_and_fail_wrong_ones() {
    let prologue = Prologue::RmsNorm { eps_bits: EPS };
    let cases = [
        (affine(8, 32, Zero::Midpoint), Activation::I8, Epilogue::Store),
        (affine(4, 32, Zero::Stored), Activation::I16, Epilogue::Add),
        (affine(4, 32, Zero::Stored), Activation::Row16, Epilogue::Store),
        (affine(4, 32, Zero::Stored), Activation::F32, Epilogue::Store),
        (WeightLayout { format: WeightFormat::Bf16, n_block: 16 }, Activation::Bf16, Epilogue::Store),
        (affine(4, 32, Zero::Stored), Activation::Bf16, Epilogue::Add),
    ];
    for (weight, activation, epilogue) in cases {
        let operation = Operation::Linear { n: 300, k: 192, prologue, epilogue, weight, activation };
        for pattern in [Pattern::Normal, Pattern::Outliers, Pattern::Alternating, Pattern::Constant] {
            let inputs = generate(&operation, &spec(3, pattern, 31)).unwrap();
            let drawn = Freivalds::new(&operation, inputs.weights(&operation).unwrap(), 99).unwrap();
            for arith in [Arith::Fused, Arith::Separate] {
                let mut out = emulate(&operation, arith, &inputs).unwrap().out;
                let honest = drawn.check(&inputs, &out, &[0, 1, 2]).unwrap();
                assert!(honest.iter().all(Projection::passes), "{operation} {pattern:?}: {honest:?}");
                if pattern != Pattern::Normal {
                    continue;
                }
                out[300 + 17] += 0.2;
                out[600..].iter_mut().for_each(|y| *y *= 1.02);
                let wrong = drawn.check(&inputs, &out, &[0, 1, 2]).unwrap();
                assert_eq!(
                    wrong.iter().map(Projection::passes).collect::<Vec<_>>(),
                    [true, false, false],
                    "{wrong:?}"
                );
                out[0] = f32::NAN;
                assert!(!drawn.check(&inputs, &out, &[0]).unwrap()[0].passes());
            }
        }
    }
    let gate = linear(96, 192, Epilogue::SiluGate, affine(4, 32, Zero::Stored), Activation::I8);
    assert!(Freivalds::new(&gate, &[], 1).is_err());
}

#[test]
fn contradictions_are_refused() {
    let integers_on_floats = linear(
        40,
        128,
        Epilogue::Store,
        WeightLayout { format: WeightFormat::F32, n_block: 16 },
        Activation::I8,
    );
    let half_blocks = linear(48, 128, Epilogue::SiluGate, affine(4, 32, Zero::Stored), Activation::I8);
    let no_room = linear(
        100,
        128,
        Epilogue::QkvRope(qkv(false, false, KvDtype::F16)),
        affine(4, 32, Zero::Stored),
        Activation::I8,
    );
    for operation in [integers_on_floats, half_blocks, no_room] {
        assert!(supported(&operation).is_err(), "{operation}");
        assert!(generate(&operation, &spec(1, Pattern::Normal, 0)).is_err());
    }
    let norm = Operation::RmsNorm { width: 64, eps_bits: EPS };
    let case = CaseInputs::new(2).with(slot::X, Tensor::F32(vec![0.0; 128]));
    let text = oracle(&norm, &case).unwrap_err().to_string();
    assert!(text.contains("NORM") && text.contains("64 f32"), "{text}");
}
#[test]
fn bf16_rounding_sees_every_bit_of_an_activation() {
    // Among 48 rows of 1536 are some elements just above the middle between two bf16 values.
    let weight = affine(4, 32, Zero::Stored);
    let operation = linear(48, 1536, Epilogue::Add, weight, Activation::Bf16);
    let inputs = generate(&operation, &spec(48, Pattern::Normal, 5)).unwrap();
    let want = oracle(&operation, &inputs).unwrap();
    for arith in [Arith::Fused, Arith::Separate, Arith::Tiles] {
        let got = emulate(&operation, arith, &inputs).unwrap();
        assert!(verdict(&operation, &inputs, &want, &got).is_ok(), "{arith:?}");
    }
}
