use super::*;
use proptest::prelude::*;

fn params() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..SamplingParams::default() }
}

fn draw_at(logits: &[f32], params: &SamplingParams, position: u32) -> u32 {
    let history = History::default();
    let draw = Draw { params, history: &history, banned: &[], position };
    Sampler::default().sample(logits, &draw).expect("a candidate").token
}

/// Plain f64 probabilities after all filters, by sorting: shares nothing with the selection.
fn reference(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |l: f32| ((f64::from(l) - f64::from(max)) / f64::from(params.temperature)).exp();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    order.retain(|i| weight(logits[*i]) >= f64::from(params.min_p));
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let total: f64 = order.iter().map(|i| weight(logits[*i])).sum();
    let mut kept = 0.0;
    let mut end = order.len();
    for (place, i) in order.iter().enumerate() {
        kept += weight(logits[*i]);
        if kept >= f64::from(params.top_p) * total {
            end = place + 1;
            break;
        }
    }
    let mut out = vec![0.0; logits.len()];
    for i in &order[..end] {
        out[*i] = weight(logits[*i]) / kept;
    }
    out
}

/// Total variation distance of 20,000 draws from the reference stays within chance (about 0.4 * sqrt(k / n) for k
/// outcomes).
fn check_distribution(logits: &[f32], params: &SamplingParams) {
    let draws = 20_000u32;
    let mut counts = vec![0f64; logits.len()];
    for position in 0..draws {
        counts[draw_at(logits, params, position) as usize] += 1.0;
    }
    let want = reference(logits, params);
    let support = want.iter().filter(|p| **p > 0.0).count();
    for (index, (count, p)) in counts.iter().zip(&want).enumerate() {
        assert!(*p > 0.0 || *count == 0.0, "token {index} is filtered out but was drawn");
    }
    let distance: f64 =
        counts.iter().zip(&want).map(|(c, p)| (c / f64::from(draws) - p).abs()).sum::<f64>() / 2.0;
    let bound = 0.8 * (support as f64 / f64::from(draws)).sqrt() + 0.002;
    assert!(distance < bound, "{distance} > {bound} for {support} tokens, {params:?}");
}

fn wavy(n: usize) -> Vec<f32> {
    (0..n).map(|i| 3.0 * ((i * 37 % 101) as f32 * 0.1).sin() - (i % 5) as f32 * 0.3).collect()
}

#[test]
fn distributions_match_the_reference() {
    let logits = wavy(300);
    let base = params();
    for params in [
        base.clone(),
        SamplingParams { temperature: 0.5, ..base.clone() },
        SamplingParams { temperature: 2.5, top_p: 0.9, ..base.clone() },
        SamplingParams { top_k: 7, ..base.clone() },
        SamplingParams { top_p: 0.6, ..base.clone() },
        SamplingParams { min_p: 0.2, ..base.clone() },
        SamplingParams { top_k: 40, top_p: 0.5, ..base.clone() },
        SamplingParams { top_k: 100, top_p: 0.95, min_p: 0.05, temperature: 1.3, ..base },
    ] {
        check_distribution(&logits, &params);
    }
}

#[test]
fn a_number_depends_on_seed_choice_and_position_alone() {
    let logits = wavy(1000);
    let with = |seed, choice| SamplingParams { seed, choice, ..params() };
    let text = |p: &SamplingParams| (0..64).map(|i| draw_at(&logits, p, i)).collect::<Vec<_>>();
    assert_eq!(text(&with(5, 0)), text(&with(5, 0)));
    assert_ne!(text(&with(5, 0)), text(&with(6, 0)));
    assert_ne!(text(&with(5, 0)), text(&with(5, 1)));
    // A used sampler answers like a fresh one.
    let mut sampler = Sampler::default();
    let history = History::default();
    for position in 0..64 {
        for p in [with(1, 0), SamplingParams { top_p: 0.5, ..with(2, 0) }] {
            let draw = Draw { params: &p, history: &history, banned: &[], position };
            let used = sampler.sample(&logits, &draw).expect("a candidate").token;
            assert_eq!(used, draw_at(&logits, &p, position));
        }
    }
}

/// Neighbouring seeds, choices and positions give unrelated numbers: each family fills 20 cells evenly, and the
/// products of neighbours have the mean of independent ones.
#[test]
fn random_numbers_are_even_and_unrelated() {
    let families: [fn(u32) -> f64; 3] =
        [|i| random::uniform(u64::from(i), 0, 7), |i| random::uniform(1, i, 7), |i| random::uniform(1, 0, i)];
    for family in families {
        let n = 40_000u32;
        let mut cells = [0u32; 20];
        let mut product = 0.0;
        for i in 0..n {
            let u = family(i);
            assert!((0.0..1.0).contains(&u));
            cells[(u * 20.0) as usize] += 1;
            product += (u - 0.5) * (family(i + 1) - 0.5);
        }
        let expected = f64::from(n) / 20.0;
        let chi: f64 = cells.iter().map(|c| (f64::from(*c) - expected).powi(2) / expected).sum();
        assert!(chi < 50.0, "chi square of 19 degrees: {chi}");
        assert!((product / f64::from(n)).abs() < 0.003);
    }
}

#[test]
fn penalties_and_bias() {
    let logits = [1.0f32, 2.0, 3.0, -1.0];
    let sample = |params: SamplingParams, prompt: &[u32], generated: &[u32]| {
        let mut history = History::new(&params, prompt);
        generated.iter().for_each(|t| history.record(*t));
        let draw = Draw { params: &params, history: &history, banned: &[], position: 0 };
        Sampler::default().sample(&logits, &draw).expect("a candidate").token
    };
    let greedy = SamplingParams::default();
    assert_eq!(sample(greedy.clone(), &[2], &[2, 2]), 2);
    assert_eq!(sample(SamplingParams { logit_bias: vec![(3, 5.0)], ..greedy.clone() }, &[], &[]), 3);
    let presence = SamplingParams { presence_penalty: 1.5, ..greedy.clone() };
    assert_eq!(sample(presence.clone(), &[2], &[]), 2, "the prompt does not count");
    assert_eq!(sample(presence, &[], &[2]), 1);
    let frequency = SamplingParams { frequency_penalty: 0.6, ..greedy.clone() };
    assert_eq!(sample(frequency.clone(), &[], &[2]), 2);
    assert_eq!(sample(frequency, &[], &[2, 2]), 1);
    let repetition = SamplingParams { repetition_penalty: 2.0, ..greedy };
    assert_eq!(sample(repetition.clone(), &[2], &[]), 1, "the prompt counts");
    assert_eq!(sample(repetition, &[2], &[2, 1]), 2, "3 / 2 once, not twice, against 2 / 2 and 1");
}

#[test]
fn odd_logits() {
    let history = History::default();
    let sample = |logits: &[f32], params: &SamplingParams, banned: &[u32]| {
        let draw = Draw { params, history: &history, banned, position: 3 };
        Sampler::default().sample(logits, &draw).map(|s| s.token)
    };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    for p in [SamplingParams::default(), params(), SamplingParams { top_p: 0.3, ..params() }] {
        assert_eq!(sample(&[nan, nan], &p, &[]), Err(NoCandidate));
        assert_eq!(sample(&[-inf, nan], &p, &[]), Err(NoCandidate));
        assert_eq!(sample(&[nan, -inf, 0.5, nan], &p, &[]), Ok(2));
        assert_eq!(sample(&[0.0, inf, nan, inf], &p, &[]), Ok(1));
        assert_eq!(sample(&[5.0, -inf, 1e30], &p, &[2, 0, 9]), Err(NoCandidate));
        assert_eq!(sample(&[5.0, 4.0], &p, &[0]), Ok(1));
        assert_eq!(sample(&[-3e38, 3e38], &p, &[]), Ok(1));
    }
}

#[test]
fn log_probabilities() {
    let logits = wavy(500);
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    let want = |i: u32| (f64::from(logits[i as usize] - max) - total.ln()) as f32;
    let answer = Sampler::default().logprobs(&logits, 123, 5).expect("finite");
    assert!((answer.logprob - want(123)).abs() < 1e-5);
    assert_eq!(answer.rank as usize, logits.iter().filter(|l| **l > logits[123]).count());
    let mut order: Vec<u32> = (0..500).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    assert_eq!(answer.top.iter().map(|(i, _)| *i).collect::<Vec<_>>(), &order[..5]);
    assert!(answer.top.iter().all(|(i, l)| (l - want(*i)).abs() < 1e-5));
    assert!(Sampler::default().logprobs(&logits, 1, 0).expect("finite").top.is_empty());
    assert_eq!(Sampler::default().logprobs(&logits, 500, 1), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the filters, the choice is one that the sorting reference keeps (ties and rounding at the very
    /// threshold excepted: the chosen token may be a neighbour within 1e-5).
    #[test]
    fn choices_lie_within_the_reference(
        logits in prop::collection::vec(-20f32..20.0, 1..400),
        temperature in 0.1f32..5.0,
        top_k in 0u32..50,
        top_p in 0.05f32..1.0,
        min_p in 0f32..0.5,
        seed: u64,
    ) {
        let p = SamplingParams { temperature, top_k, top_p, min_p, seed, ..params() };
        let chosen = draw_at(&logits, &p, 1) as usize;
        let slack = SamplingParams { top_p: (top_p + 1e-5).min(1.0), min_p: min_p * 0.9999, ..p };
        prop_assert!(reference(&logits, &slack)[chosen] > 0.0);
    }
}
