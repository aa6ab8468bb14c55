//! The scheduler as a state machine: whatever is submitted and cancelled, every pass keeps its bounds, no page leaks
//! and every request ends.

use engine::pages::{PagePool, ROOT};
use engine::request::{FinishReason, Request, RequestId};
use engine::scheduler::{Limits, Purpose, Scheduler};
use engine::{Batch, PrefixCache};
use plan::Phase;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn limits() -> Limits {
    Limits {
        max_sequences: 4,
        max_rows: 12,
        separate: false,
        prefill_chunk: 5,
        logit_rows: 6,
        max_context: 48,
        block_tokens: 4,
        pages: 16,
        prefix_cache: PrefixCache::On,
    }
}

fn batch(limits: &Limits) -> Batch {
    Batch::new(limits.max_context.div_ceil(limits.block_tokens), limits.block_tokens)
}

/// A stand-in for model and sampler: the next token follows from the last one and the length.
fn next_token(last: u32, length: usize) -> u32 {
    (last * 31 + length as u32 * 17 + 5) % 50
}

/// One pass; returns the ids that ended.
fn pass(scheduler: &mut Scheduler, batch: &mut Batch) -> Result<Vec<RequestId>, TestCaseError> {
    let bounds = *scheduler.limits();
    let ran = scheduler.schedule(batch);
    scheduler.check().map_err(TestCaseError::fail)?;
    prop_assert_eq!(ran, !scheduler.is_idle(), "open requests mean rows");
    prop_assert!(batch.rows() <= bounds.max_rows as usize);
    prop_assert!(batch.sequences() <= bounds.max_sequences as usize);
    prop_assert!(batch.logit_rows().len() <= bounds.logit_rows as usize);
    prop_assert_eq!(batch.logit_rows().len(), scheduler.pass().logits.len());
    if bounds.separate && batch.phase() == Phase::Decode {
        prop_assert!(batch.rows() <= bounds.max_sequences as usize);
        prop_assert!(scheduler.pass().logits.iter().all(|row| row.purpose == Purpose::Next));
    }
    let rows = scheduler.pass().logits.clone();
    let mut ended = Vec::new();
    scheduler.commit(&mut ended);
    for row in rows {
        if row.purpose == Purpose::Next {
            let length = scheduler.length(row.id);
            let last = scheduler.token(row.id, length - 1).unwrap_or(0);
            if scheduler.append(row.id, next_token(last, length)).is_some() {
                ended.push(row.id);
            }
        }
    }
    scheduler.check().map_err(TestCaseError::fail)?;
    Ok(ended)
}

#[derive(Clone, Debug)]
enum Order {
    Submit { prompt: usize, max_tokens: u32, family: u32, logprobs: bool },
    Cancel(usize),
    Passes(usize),
}

fn orders() -> impl Strategy<Value = Vec<Order>> {
    let submit = (1usize..60, 0u32..30, 0u32..3, prop::bool::weighted(0.1)).prop_map(
        |(prompt, max_tokens, family, logprobs)| Order::Submit { prompt, max_tokens, family, logprobs },
    );
    prop::collection::vec(
        prop_oneof![4 => submit, 1 => (0usize..40).prop_map(Order::Cancel), 3 => (1usize..6).prop_map(Order::Passes)],
        1..60,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_leaks_and_all_end(orders in orders(), sharing: bool, separate: bool) {
        let prefix_cache = if sharing { PrefixCache::On } else { PrefixCache::Off };
        let bounds = Limits { prefix_cache, separate, ..limits() };
        let mut scheduler = Scheduler::new(bounds);
        let mut batch = batch(&bounds);
        let mut open = BTreeSet::new();
        for (number, order) in orders.iter().enumerate() {
            match order {
                Order::Submit { prompt, max_tokens, family, logprobs } => {
                    // Families share beginnings, so that prefixes are found.
                    let tokens = (0..*prompt as u32).map(|i| (i * 7 + family) % 50).collect();
                    let mut request = Request::new(number as u64, tokens, *max_tokens);
                    request.prompt_logprobs = logprobs.then_some(0);
                    request.stop_tokens = vec![3];
                    let fits = prompt + usize::from(*max_tokens > 0) <= 48;
                    prop_assert_eq!(scheduler.submit(&request).is_ok(), fits);
                    if fits {
                        open.insert(request.id);
                    }
                }
                Order::Cancel(id) => {
                    let id = RequestId(*id as u64);
                    prop_assert_eq!(scheduler.cancel(id), open.remove(&id));
                    scheduler.check().map_err(TestCaseError::fail)?;
                }
                Order::Passes(count) => for _ in 0..*count {
                    for id in pass(&mut scheduler, &mut batch)? {
                        prop_assert!(open.remove(&id), "{} ended twice", id);
                    }
                },
            }
        }
        for _ in 0..20_000 {
            if scheduler.is_idle() {
                break;
            }
            for id in pass(&mut scheduler, &mut batch)? {
                prop_assert!(open.remove(&id), "{} ended twice", id);
            }
        }
        prop_assert!(open.is_empty(), "never ended: {:?}", open);
        prop_assert_eq!(scheduler.pool().used(), 0);
    }

    /// Tokens of a request do not depend on its company, on preemption or on prefixes: every row of a sequence is
    /// scheduled once per residence, in order, with the right token and position.
    #[test]
    fn rows_cover_every_token(lengths in prop::collection::vec((1usize..20, 1u32..20), 1..12), separate: bool) {
        let bounds = Limits { pages: 12, separate, ..limits() };
        let mut scheduler = Scheduler::new(bounds);
        let mut batch = batch(&bounds);
        let mut outputs: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
        for (id, (prompt, max_tokens)) in lengths.iter().enumerate() {
            let tokens: Vec<u32> = (0..*prompt as u32).map(|i| (i * 3 + 1) % 50).collect();
            let request = Request::new(id as u64, tokens, *max_tokens);
            scheduler.submit(&request).map_err(TestCaseError::fail)?;
            outputs.insert(request.id, request.prompt);
        }
        for _ in 0..5_000 {
            if !scheduler.schedule(&mut batch) {
                break;
            }
            let rows = scheduler.pass().logits.clone();
            scheduler.commit(&mut Vec::new());
            for row in rows {
                let output = outputs.get_mut(&row.id).ok_or_else(|| TestCaseError::fail("unknown"))?;
                prop_assert_eq!(scheduler.length(row.id), output.len());
                let token = next_token(output[output.len() - 1], output.len());
                output.push(token);
                scheduler.append(row.id, token);
            }
        }
        prop_assert!(scheduler.is_idle());
        for (id, (prompt, max_tokens)) in lengths.iter().enumerate() {
            let output = &outputs[&RequestId(id as u64)];
            prop_assert_eq!(output.len(), prompt + *max_tokens as usize);
        }
    }
}

#[test]
fn decoding_goes_on_beside_a_long_prefill() {
    let bounds = Limits { max_context: 64, ..limits() };
    let mut scheduler = Scheduler::new(bounds);
    let mut batch = batch(&bounds);
    let short = Request::new(1, vec![1, 2], 20);
    let long = Request::new(2, (0..30).collect(), 2);
    scheduler.submit(&short).expect("fits");
    assert!(scheduler.schedule(&mut batch));
    scheduler.commit(&mut Vec::new());
    scheduler.append(short.id, 9);
    scheduler.submit(&long).expect("fits");
    for round in 0..6 {
        assert!(scheduler.schedule(&mut batch));
        // One decode row, at most `prefill_chunk` others.
        assert_eq!(batch.rows(), 6, "round {round}");
        assert_eq!(scheduler.pass().logits[0].id, short.id);
        let last = scheduler.pass().logits.len();
        assert_eq!(last, if round == 5 { 2 } else { 1 });
        scheduler.commit(&mut Vec::new());
        scheduler.append(short.id, 9);
    }
}

#[test]
fn prompts_and_generated_tokens_take_turns_where_they_have_passes_of_their_own() {
    let bounds = Limits { max_context: 64, separate: true, ..limits() };
    let mut scheduler = Scheduler::new(bounds);
    let mut batch = batch(&bounds);
    let (short, long) = (Request::new(1, vec![1, 2], 20), Request::new(2, (0..12).collect(), 3));
    let mut turn = |scheduler: &mut Scheduler| {
        assert!(scheduler.schedule(&mut batch));
        scheduler.check().expect("sound");
        let rows = scheduler.pass().logits.clone();
        scheduler.commit(&mut Vec::new());
        rows.iter().for_each(|row| drop(scheduler.append(row.id, 9)));
        (batch.phase(), batch.rows(), rows.len())
    };
    scheduler.submit(&short).expect("fits");
    assert_eq!(turn(&mut scheduler), (Phase::Prefill, 2, 1));
    assert_eq!(turn(&mut scheduler), (Phase::Decode, 1, 1));
    scheduler.submit(&long).expect("fits");
    // Five prompt rows at most, then one of every sequence that generates.
    for prompt in [(5, 0), (5, 0), (2, 1)] {
        assert_eq!(turn(&mut scheduler), (Phase::Prefill, prompt.0, prompt.1));
        let both = usize::from(prompt.1 == 1);
        assert_eq!(turn(&mut scheduler), (Phase::Decode, 1 + both, 1 + both));
    }
}

#[test]
fn first_come_first_served_and_the_youngest_yields() {
    let bounds = Limits { pages: 4, max_context: 16, prefix_cache: PrefixCache::Off, ..limits() };
    let mut scheduler = Scheduler::new(bounds);
    let mut batch = batch(&bounds);
    for id in 1..=3 {
        scheduler.submit(&Request::new(id, vec![1, 2, 3, 4], 10)).expect("fits");
    }
    let (mut ended, mut preempted) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        if !scheduler.schedule(&mut batch) {
            break;
        }
        scheduler.check().expect("sound");
        preempted.extend_from_slice(&scheduler.pass().preempted);
        let rows = scheduler.pass().logits.clone();
        scheduler.commit(&mut Vec::new());
        for row in rows {
            if scheduler.append(row.id, 7) == Some(FinishReason::Length) {
                ended.push(row.id.0);
            }
        }
    }
    assert_eq!(ended, [1, 2, 3]);
    assert!(preempted.contains(&RequestId(2)), "4 pages do not hold two sequences of 14 tokens");
    assert!(!preempted.contains(&RequestId(1)), "the oldest never yields");
}

#[test]
fn pages_are_found_by_their_whole_past_and_dropped_oldest_first() {
    let mut pool = PagePool::new(3, 2, PrefixCache::On);
    let take = |pool: &mut PagePool, text: &[u32]| {
        let mut pages = Vec::new();
        let mut key = pool.acquire_prefix(text, &mut pages);
        let found = pages.len();
        for block in text.chunks_exact(2).skip(found) {
            let page = pool.allocate().expect("a page");
            key = pool.publish(page, &key, block);
            pages.push(page);
        }
        (pages, found)
    };
    let give = |pool: &mut PagePool, pages: &[u32]| pages.iter().rev().for_each(|p| pool.release(*p));
    let (first, found) = take(&mut pool, &[1, 2, 3, 4]);
    assert_eq!((first.len(), found), (2, 0));
    give(&mut pool, &first);
    assert_eq!((pool.used(), pool.cached(), pool.available()), (0, 2, 3));
    // The same tokens after another beginning are another page.
    let (other, found) = take(&mut pool, &[3, 4]);
    assert_eq!(found, 0);
    give(&mut pool, &other);
    let (again, found) = take(&mut pool, &[1, 2, 3, 4]);
    assert_eq!((&again, found), (&first, 2));
    // Two users of one page.
    let (shared, found) = take(&mut pool, &[1, 2]);
    assert_eq!((shared[0], found), (first[0], 1));
    pool.check(&[first[0], first[0], first[1]]).expect("sound");
    give(&mut pool, &again);
    give(&mut pool, &shared);
    // Three new pages push out all; the oldest unused (`other`) goes first.
    assert_eq!(pool.allocate(), Some(other[0]));
    assert_eq!(pool.allocate(), Some(first[1]), "ends go before beginnings");
    let mut pages = Vec::new();
    assert_ne!(pool.acquire_prefix(&[1, 2], &mut pages), ROOT);
    assert_eq!(pool.allocate(), None);
    pool.check(&[other[0], first[1], first[0]]).expect("sound");
}
