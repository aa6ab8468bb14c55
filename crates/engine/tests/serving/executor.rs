use crate::tiny;
use engine::*;
use plan::Phase;

pub fn options() -> EngineOptions {
    // Other tests run at the same time: pinned threads of several engines would wait for each other.
    EngineOptions { plan: PlanChoice::Portable, pinning: Pinning::Free, ..EngineOptions::default() }
}

/// The plan whose prompts have an arithmetic of their own.
pub fn separate() -> EngineOptions {
    let features = Some(std::collections::BTreeSet::from([plan::Feature::Avx2]));
    EngineOptions { plan: PlanChoice::Champion, features, ..options() }
}

pub fn executor(options: &EngineOptions) -> Executor {
    let bundle = Bundle::open(tiny::bundle(), options).expect("a sound bundle");
    Executor::new(bundle, options).expect("memory and threads")
}

pub fn text(length: usize, family: u32) -> Vec<u32> {
    (0..length as u32).map(|i| (i * i * 7 + i * 3 + family * 11) % tiny::VOCAB as u32).collect()
}

fn logits(executor: &mut Executor, tokens: &[u32], chunk: u32) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    executor
        .logits_for(Phase::Prefill, tokens, 0, chunk, &mut |position, row| {
            assert_eq!(position, all.len());
            all.push(row.to_vec());
        })
        .expect("fits");
    all
}

#[test]
fn agrees_with_the_reference() {
    for threads in [1, 2, 3] {
        let mut executor = executor(&EngineOptions { threads: Some(threads), ..options() });
        let tokens = text(70, 1);
        let want = tiny::reference(&tokens);
        let got = logits(&mut executor, &tokens, 20);
        assert_eq!(got.len(), want.len());
        let mut largest = 0f64;
        for (got, want) in got.iter().zip(&want) {
            for (g, w) in got.iter().zip(want) {
                assert!((f64::from(*g) - w).abs() < 2e-4, "{g} for {w}, {threads} threads");
                largest = largest.max(w.abs());
            }
        }
        assert!(largest > 1.0, "logits that say something");
    }
}

#[test]
fn chunks_and_threads_do_not_change_a_bit() {
    let tokens = text(60, 2);
    let mut one = executor(&EngineOptions { threads: Some(1), ..options() });
    let want = logits(&mut one, &tokens, 1);
    for (threads, chunk) in [(1, 24), (2, 1), (2, 5), (3, 24)] {
        let mut other = executor(&EngineOptions { threads: Some(threads), ..options() });
        assert_eq!(logits(&mut other, &tokens, chunk), want, "{threads} threads, chunks of {chunk}");
    }
}

#[test]
fn a_plan_may_tell_prompts_from_generated_tokens() {
    let tokens = text(40, 3);
    let mut executor = executor(&separate());
    let mut of = |phase, chunk| {
        let mut all = Vec::new();
        executor.logits_for(phase, &tokens, 0, chunk, &mut |_, row| all.push(row.to_vec())).expect("fits");
        all
    };
    let (prompt, generated) = (of(Phase::Prefill, 24), of(Phase::Decode, 24));
    assert_ne!(prompt, generated, "the tiny plan leaves a step out for prompts");
    assert_eq!(generated, of(Phase::Decode, 1));
    assert_eq!(prompt, of(Phase::Prefill, 3));
    assert_eq!(generated, logits(&mut self::executor(&options()), &tokens, 24), "all else is alike");
    let mut batch = executor.new_batch();
    batch.begin(Phase::Decode);
    batch.begin_sequence(&[0, 1]);
    for position in 0..7 {
        batch.push(1, position);
    }
    let refused = executor.forward(&batch).expect_err("more rows than sequences");
    assert!(refused.to_string().contains("7 rows, not 1 to 6"), "{refused}");
}

#[test]
fn only_wanted_rows_have_logits() {
    let mut executor = executor(&options());
    let tokens = text(10, 3);
    let want = logits(&mut executor, &tokens, 24);
    let mut batch = executor.new_batch();
    batch.begin_sequence(&[3]);
    tokens.iter().enumerate().for_each(|(i, t)| {
        batch.push(*t, i as u32);
    });
    assert!(executor.forward(&batch).expect("fits").is_empty(), "none wanted");
    batch.want_logits(2);
    batch.want_logits(9);
    let got = executor.forward(&batch).expect("fits");
    assert_eq!(got, [&want[2][..], &want[9][..]].concat());
    let seen = std::sync::Mutex::new(Vec::new());
    executor
        .visit_logits(&|_, row, logits| seen.lock().expect("sound").push((row, logits.to_vec())))
        .expect("no panic");
    let mut seen = seen.into_inner().expect("sound");
    seen.sort_by_key(|(row, _)| *row);
    assert_eq!(seen, [(0, want[2].clone()), (1, want[9].clone())]);
}

#[test]
fn replays_and_profiles() {
    let mut executor = executor(&options());
    executor.set_profiling(Profiling::On);
    let times = executor.replay(Replay::Decode { sequences: 4, context: 30 }, 5).expect("fits");
    assert_eq!(times.len(), 5);
    let profile = executor.profile();
    assert_eq!(profile.len(), executor.plan().steps.len());
    assert!(profile.iter().all(|s| s.nanoseconds > 0 && s.waiting_nanoseconds < s.nanoseconds));
    assert!(profile.iter().any(|s| s.waiting_nanoseconds > 0), "there are barriers");
    assert_eq!((profile[1].operation.as_str(), profile[1].kernel.as_str()), ("qkv", "qkv-many"));
    let sum: u64 = profile.iter().map(|s| s.nanoseconds).sum();
    let whole: u128 = times.iter().map(std::time::Duration::as_nanos).sum();
    assert!(u128::from(sum) <= whole, "steps are parts of passes");
    executor.set_profiling(Profiling::Off);
    executor.replay(Replay::Prefill { rows: 24, start: 40 }, 2).expect("fits");
    assert!(executor.profile().iter().all(|s| s.nanoseconds == 0));
    for bad in [
        Replay::Decode { sequences: 7, context: 10 },
        Replay::Decode { sequences: 1, context: 97 },
        Replay::Prefill { rows: 25, start: 0 },
        Replay::Prefill { rows: 0, start: 0 },
        Replay::Prefill { rows: 10, start: 90 },
    ] {
        assert!(matches!(executor.replay(bad, 1), Err(EngineError::Batch(_))), "{bad:?}");
    }
}

/// Nothing that a caller may put into a batch leads a kernel out of its memory.
#[test]
fn impossible_rows_are_refused() {
    let mut executor = executor(&options());
    type Fill = fn(&mut Batch);
    let cases: [(&str, Fill); 10] = [
        ("0 rows", |_| {}),
        ("vocabulary", |b| {
            b.begin_sequence(&[0]);
            b.push(64, 0);
        }),
        ("no page", |b| {
            b.push(1, 0);
        }),
        ("a page beyond", |b| {
            b.begin_sequence(&[36, 0]);
            b.push(1, 16);
        }),
        ("no page", |b| {
            b.begin_sequence(&[36]);
            b.push(1, 0);
        }),
        ("beyond the context", |b| {
            b.begin_sequence(&[0; 6]);
            b.push(1, 96);
        }),
        ("ascend", |b| {
            b.begin_sequence(&[0]);
            b.push(1, 5);
            b.push(1, 5);
        }),
        ("25 rows", |b| {
            b.begin_sequence(&[0, 1]);
            (0..25).for_each(|i| {
                b.push(1, i);
            });
        }),
        ("7 block tables", |b| {
            (0..7).for_each(|i| {
                b.begin_sequence(&[i]);
                b.push(1, 0);
            });
        }),
        ("logit rows", |b| {
            b.begin_sequence(&[0]);
            b.push(1, 0);
            b.want_logits(1);
        }),
    ];
    for (words, fill) in cases {
        let mut batch = executor.new_batch();
        fill(&mut batch);
        let error = executor.forward(&batch).expect_err(words).to_string();
        assert!(error.contains(words), "{error} should say {words}");
    }
    let mut batch = Batch::new(2, 16);
    batch.begin_sequence(&[0]);
    batch.push(1, 0);
    assert!(executor.forward(&batch).is_err(), "a batch of another executor");
}
