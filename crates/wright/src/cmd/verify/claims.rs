//! Claims, measured again.

use super::finding::Finding;
use crate::cmd::bench;
use crate::report::records::Records;
use crate::summary::Summary;
use crate::text::HeldOut;
use crate::trial::driver::{Mode, Trial};
use crate::trial::quality::{Quality, Yardstick};
use crate::{paths, portable};
use anyhow::{Context, Result, anyhow, bail};
use evidence::{Entry, Evidence, Outcome, Samples};
use load::{Prompt, PromptSpec};
use model::{TextFiles, Tokenizer};
use plan::{Claim, Manifest, RequestLengths};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A speed claim agrees from this share of it on: machines are shared, and noise only slows.
const SPEED_SHARE: f64 = 0.7;
/// Relative agreement of quality figures on the same machine, and on another one (another reference arithmetic).
const QUALITY_SAME: f64 = 1e-6;
const QUALITY_OTHER: f64 = 0.02;
/// Runs of a speed claim before it is called different.
const TRIES: usize = 4;
/// Share of the processors' time that others may take while a speed is measured that then counts against a claim.
const FOREIGN: f64 = 0.05;
/// Facts that must be equal for speeds to be comparable.
const SPEED_FACTS: [&str; 4] = ["cpu", "cpu_family", "cpu_model", "stepping"];

/// What a claim's id means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind<'a> {
    /// A figure of [`Quality::figures`].
    Quality(&'a str),
    /// Output tokens per second at a concurrency.
    Speed(usize),
    Unknown,
}

impl<'a> Kind<'a> {
    fn of(id: &'a str) -> Self {
        match id.split_once('.') {
            Some(("quality", figure @ ("kl" | "top1" | "perplexity"))) => Kind::Quality(figure),
            Some(("speed", at)) => match at.strip_prefix('c').and_then(|n| n.parse().ok()) {
                Some(n @ 1..=1024) => Kind::Speed(n),
                _ => Kind::Unknown,
            },
            _ => Kind::Unknown,
        }
    }
}

/// What claims are checked against.
#[derive(Clone, Copy)]
pub struct Bundle<'a> {
    pub folder: &'a Path,
    pub manifest: &'a Manifest,
    pub records: Option<&'a Records>,
    /// Path or name of the model, where the caller gave one.
    pub model: Option<&'a str>,
}

/// Runs the claims again; `say` hears of each as it is known.
pub fn check(bundle: Bundle, claims: &[&Claim], say: &mut impl FnMut(Finding)) {
    let origin = Origin::of(bundle.manifest, &machine::fingerprint::facts());
    let mut verifier = Verifier { bundle, origin, quality: None, prompts: None };
    for claim in claims {
        if let Some(problem) = bundle.records.and_then(|r| contradicted(claim, r)) {
            say(Finding::differs(&claim.id, problem));
            continue;
        }
        say(match Kind::of(&claim.id) {
            Kind::Quality(figure) => verifier.quality(claim, figure),
            Kind::Speed(concurrency) => verifier.speed(claim, concurrency),
            Kind::Unknown => Finding::open(&claim.id, "this version cannot measure such a claim"),
        });
    }
}

struct Verifier<'a> {
    bundle: Bundle<'a>,
    origin: Origin,
    /// Measured once for all its figures.
    quality: Option<Result<Quality, Unmeasured>>,
    prompts: Option<Arc<Tokenizer>>,
}

/// Why a figure was not measured.
#[derive(Clone, Debug)]
enum Unmeasured {
    /// Nothing that the bundle answers for.
    Absent(String),
    /// The engine failed.
    Failed(String),
}

impl Verifier<'_> {
    fn quality(&mut self, claim: &Claim, figure: &str) -> Finding {
        let measured = match &self.quality {
            Some(known) => known.clone(),
            None => self.quality.insert(self.measure_quality()).clone(),
        };
        let found = match measured {
            Ok(quality) => quality.figures().get(figure).copied().unwrap_or(f64::NAN),
            Err(Unmeasured::Absent(why)) => return Finding::open(&claim.id, why),
            Err(Unmeasured::Failed(why)) => return Finding::differs(&claim.id, why),
        };
        let tolerance = if self.origin == Origin::Here { QUALITY_SAME } else { QUALITY_OTHER };
        let detail = format!("claimed {}, found {found} (tolerance {tolerance:e} relative)", claim.value);
        let off = (found - claim.value).abs() / claim.value.abs().max(f64::MIN_POSITIVE);
        match found == claim.value || off <= tolerance {
            true => Finding::agrees(&claim.id, detail),
            false => Finding::differs(&claim.id, format!("{detail}: off by {:.3} %", off * 100.0)),
        }
        .with_values(claim.value, found)
    }

    fn measure_quality(&self) -> Result<Quality, Unmeasured> {
        let absent = |e: anyhow::Error| Unmeasured::Absent(format!("{e:#}"));
        let loaded = self.model().map_err(absent)?;
        eprintln!("measuring quality on held-out text");
        let cache = paths::cache().map_err(absent)?.join("reference");
        let yardstick = Yardstick::new(&loaded.model, HeldOut::Confirm, &cache)
            .context("computing the reference model")
            .map_err(absent)?;
        yardstick.measure(self.bundle.folder, "champion").map_err(|e| Unmeasured::Failed(format!("{e:#}")))
    }

    /// The model that the bundle was made of: it is not in the bundle, so the caller says where it is, or it is found by
    /// name. Its digest decides.
    fn model(&self) -> Result<portable::Loaded> {
        let manifest = self.bundle.manifest;
        let names = match self.bundle.model {
            Some(given) => vec![given.to_owned()],
            None => {
                let mut names = vec![manifest.model_name.clone()];
                names.extend(Summary::read(self.bundle.folder)?.map(|s| s.model));
                names
            }
        };
        let mut problem = anyhow!("the bundle names no model");
        for name in names.iter().filter(|n| !n.is_empty()) {
            match portable::load(name) {
                Ok(loaded) if loaded.model.digest() == manifest.model_digest => return Ok(loaded),
                Ok(_) => problem = anyhow!("'{name}' is here another model than the bundle's"),
                Err(e) => problem = e.context(format!("the model '{name}' is not here")),
            }
        }
        Err(problem.context("pass the model that the bundle was made of by --model PATH_OR_NAME"))
    }

    fn speed(&mut self, claim: &Claim, concurrency: usize) -> Finding {
        match &self.origin {
            Origin::Here => {}
            // Nobody can check it here, so that it does not fail.
            Origin::Elsewhere(how) => {
                return Finding::unchecked(&claim.id, format!("not comparable here: {how}"));
            }
            Origin::Unknown => {
                return Finding::open(&claim.id, "the bundle does not say on which machine it was measured");
            }
        }
        let lengths = match lengths(claim) {
            Ok(lengths) => lengths,
            Err(why) => return Finding::open(&claim.id, why),
        };
        let mut runs = Vec::new();
        for n in 0..TRIES {
            eprintln!("measuring {} (run {})", claim.id, n + 1);
            match self.measure_speed(lengths, concurrency, n) {
                Ok(speed) => runs.push(speed),
                Err(e) => return Finding::differs(&claim.id, format!("{e:#}")),
            }
            if runs[n].0 >= SPEED_SHARE * claim.value {
                break;
            }
        }
        speed_finding(claim, &runs)
    }

    fn measure_speed(&mut self, lengths: RequestLengths, concurrency: usize, run: usize) -> Result<Run> {
        let tokenizer = match &self.prompts {
            Some(t) => t.clone(),
            None => {
                self.prompts.insert(TextFiles::open(&self.bundle.folder.join("tokenizer"))?.tokenizer).clone()
            }
        };
        let spec = spec(lengths, concurrency, run);
        let prompts = ids(&tokenizer, spec)?;
        let warm = ids(&tokenizer, PromptSpec { count: 1, seed: spec.seed ^ 0xffff, ..spec })?;
        let _lane = judge::Lane::of_machine().enter()?;
        let mut trial = Trial::start(self.bundle.folder, "champion", Mode::Engine)?;
        trial.workload(&warm, 8, 1).context("warming up")?;
        let (samples, foreign) = judge::disturbance::while_running(&[trial.pid()], || {
            trial.workload(&prompts, lengths.output_tokens, concurrency)
        });
        let speed = samples?.tokens_per_s();
        if !speed.is_finite() {
            bail!("no time passed: nothing was measured");
        }
        Ok((speed, foreign.unwrap_or(0.0)))
    }
}

/// The lengths of a speed claim's requests, or why there are none to measure.
fn lengths(claim: &Claim) -> std::result::Result<RequestLengths, String> {
    let Some(lengths) = claim.workload else {
        return Err(
            "it does not say with which prompts and answers it was measured, as an older version wrote \
                    it; build the bundle again"
                .to_owned(),
        );
    };
    let (prompt, output) = (lengths.prompt_tokens, lengths.output_tokens);
    // Prompts are made before the engine can refuse them.
    match prompt > 0 && output > 0 && prompt.saturating_add(output) <= portable::MAX_CONTEXT {
        true => Ok(lengths),
        false => Err(format!(
            "prompts of {prompt} and answers of {output} tokens are nothing that an engine takes (up to {} in all)",
            portable::MAX_CONTEXT
        )),
    }
}

/// The prompts of a run: others in each.
fn spec(lengths: RequestLengths, concurrency: usize, run: usize) -> PromptSpec {
    PromptSpec {
        count: concurrency.max(4),
        tokens: lengths.prompt_tokens as usize,
        seed: 0x5eed_0000 + (1000 * run + concurrency) as u64,
    }
}

fn ids(tokenizer: &Tokenizer, spec: PromptSpec) -> Result<Vec<Vec<u32>>> {
    // The trial says how long answers are.
    let items = bench::items(tokenizer, spec, 1)?;
    items
        .into_iter()
        .map(|item| match item.prompt {
            Prompt::Ids(ids) => Ok(ids),
            _ => bail!("a prompt is no list of tokens"),
        })
        .collect()
}

/// Tokens per second of a run, and the share of the processors' time that others took meanwhile.
type Run = (f64, f64);

fn speed_finding(claim: &Claim, runs: &[Run]) -> Finding {
    let (found, foreign) =
        runs.iter().copied().fold((f64::NAN, 0.0), |a, b| if b.0 > a.0 || a.0.is_nan() { b } else { a });
    let runs = runs.len();
    let against = match claim.interval {
        Some((low, high)) if (low..=high).contains(&found) => {
            format!("within the claimed interval {low:.1} to {high:.1}")
        }
        Some((low, high)) => {
            format!("{:.2} x the claim, outside its interval {low:.1} to {high:.1}", found / claim.value)
        }
        None => format!("{:.2} x the claim", found / claim.value),
    };
    let detail =
        format!("claimed {:.1} {}, found {found:.1} (best of {runs}): {against}", claim.value, claim.unit);
    match found >= SPEED_SHARE * claim.value {
        true => Finding::agrees(&claim.id, detail),
        false if foreign > FOREIGN => Finding::open(
            &claim.id,
            format!(
                "{detail}; others took {:.0} % of the processors' time meanwhile: try again",
                100.0 * foreign
            ),
        ),
        false => Finding::differs(&claim.id, format!("{detail}; below {SPEED_SHARE} x the claim")),
    }
    .with_values(claim.value, found)
}

/// Where the claims were measured.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// On a machine like this one.
    Here,
    /// On another one: how they differ, in words.
    Elsewhere(String),
    /// The bundle does not say.
    Unknown,
}

impl Origin {
    fn of(manifest: &Manifest, here: &BTreeMap<String, String>) -> Self {
        let mut origin = Origin::Unknown;
        for fact in SPEED_FACTS {
            if let Some(there) = manifest.machine.get(fact) {
                let here = here.get(fact).map_or("unknown", String::as_str);
                if here != there {
                    return Origin::Elsewhere(format!("{fact} is '{here}' here, was '{there}'"));
                }
                origin = Origin::Here;
            }
        }
        origin
    }
}

/// Whether the evidence that a claim cites speaks against it.
fn contradicted(claim: &Claim, records: &Records) -> Option<String> {
    let cited = records.records.iter().filter_map(|r| match &r.entry {
        Entry::Observed(e) if claim.evidence.contains(&r.content.to_string()) => Some(e),
        _ => None,
    });
    let ranges: Vec<(f64, f64)> = cited.filter_map(|e| range(&claim.id, e)).collect();
    let fits = |(low, high): &(f64, f64)| {
        let slack = QUALITY_SAME * claim.value.abs();
        (*low - slack..=*high + slack).contains(&claim.value)
    };
    // Evidence may carry no such figure, and one citation that fits is enough.
    if ranges.is_empty() || ranges.iter().any(fits) {
        return None;
    }
    Some(format!("claimed {}, but its own evidence says {ranges:?}", claim.value))
}

/// The least and greatest value that evidence has for a claim.
fn range(id: &str, evidence: &Evidence) -> Option<(f64, f64)> {
    let Outcome::Measured(measured) = &evidence.outcome else { return None };
    match Kind::of(id) {
        Kind::Quality(figure) => measured.check.quality.get(figure).map(|v| (*v, *v)),
        Kind::Speed(n) => {
            let Samples::Series { series, .. } = &measured.samples else { return None };
            let values = series.get(&format!("tokens_per_s_c{n}")).filter(|v| !v.is_empty())?;
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            Some((low, values.iter().copied().fold(f64::NEG_INFINITY, f64::max)))
        }
        Kind::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::super::tests::manifest;
    use super::*;

    fn claim(id: &str, value: f64, interval: Option<(f64, f64)>) -> Claim {
        let (what, unit) = (id.to_owned(), "tokens/s".to_owned());
        Claim { id: id.into(), what, value, unit, interval, evidence: vec![], workload: None }
    }

    /// What is found of a claim of a bundle whose files are not there.
    fn found(claim: &Claim, machine: &[(&str, &str)], model: Option<&str>) -> Finding {
        let mut manifest = manifest();
        manifest.model_name = "no-such-name".to_owned();
        manifest.machine = machine.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let bundle =
            Bundle { folder: Path::new("/no/such/bundle"), manifest: &manifest, records: None, model };
        let mut findings = Vec::new();
        check(bundle, &[claim], &mut |f| findings.push(f));
        findings.remove(0)
    }

    #[test]
    fn a_speed_is_measured_with_the_lengths_of_its_claim() {
        let mut claim = claim("speed.c2", 100.0, None);
        let mut with = |prompt_tokens, output_tokens| {
            claim.workload = Some(RequestLengths { prompt_tokens, output_tokens });
            lengths(&claim)
        };
        assert_eq!(spec(with(512, 64).unwrap(), 2, 0).tokens, 512);
        assert_eq!(with(512, 64).unwrap().output_tokens, 64);
        for (prompt, output) in [(0, 1), (1, 0), (u32::MAX, u32::MAX), (portable::MAX_CONTEXT, 1)] {
            assert!(with(prompt, output).is_err(), "{prompt}/{output}");
        }
    }

    #[test]
    fn speeds_without_lengths_stay_open() {
        let facts = machine::fingerprint::facts();
        let here: Vec<(&str, &str)> =
            SPEED_FACTS.iter().filter_map(|f| Some((*f, facts.get(*f)?.as_str()))).collect();
        let finding = found(&claim("speed.c1", 100.0, None), &here, None);
        assert!(finding.open, "{finding:?}");
        if !here.is_empty() {
            assert!(finding.detail.contains("build the bundle again"), "{finding:?}");
        }
    }

    #[test]
    fn only_another_machine_excuses_a_speed() {
        let claim = claim("speed.c1", 100.0, None);
        let elsewhere = found(&claim, &[("cpu", "an abacus")], None);
        assert_eq!((elsewhere.status, elsewhere.open), (Status::Unchecked, false));
        let unknown = found(&claim, &[], None);
        assert_eq!((unknown.status, unknown.open), (Status::Unchecked, true));
    }

    #[test]
    fn a_quality_without_its_model_says_how_to_pass_it() {
        for (model, named) in [(None, "no-such-name"), (Some("/no/such.gguf"), "/no/such.gguf")] {
            let finding = found(&claim("quality.kl", 0.1, None), &[], model);
            assert!(finding.open && finding.status == Status::Unchecked, "{finding:?}");
            assert!(finding.detail.contains("--model") && finding.detail.contains(named), "{finding:?}");
        }
    }

    #[test]
    fn ids_of_claims() {
        assert_eq!(Kind::of("quality.kl"), Kind::Quality("kl"));
        assert_eq!(Kind::of("speed.c16"), Kind::Speed(16));
        for id in ["speed.c0", "speed.16", "quality.x", "kl", "speed.c99999999999"] {
            assert_eq!(Kind::of(id), Kind::Unknown, "{id}");
        }
    }

    #[test]
    fn speeds_agree_from_seventy_percent_on() {
        let claim = claim("speed.c1", 100.0, Some((95.0, 105.0)));
        for (found, status, words) in [
            (101.0, Status::Agrees, "within the claimed interval"),
            (71.0, Status::Agrees, "0.71 x the claim, outside"),
            (69.0, Status::Differs, "0.69 x the claim"),
            (f64::NAN, Status::Differs, "NaN"),
        ] {
            let finding = speed_finding(&claim, &[(found, 0.0)]);
            assert_eq!(finding.status, status, "{found}");
            assert!(finding.detail.contains(words), "{}", finding.detail);
        }
    }

    #[test]
    fn a_disturbed_machine_proves_nothing() {
        let claim = claim("speed.c1", 100.0, None);
        let status = |runs: &[Run]| speed_finding(&claim, runs).status;
        assert_eq!(status(&[(60.0, 0.01), (50.0, 0.4)]), Status::Differs, "the best run was quiet");
        assert_eq!(status(&[(50.0, 0.01), (60.0, 0.4)]), Status::Unchecked);
        assert_eq!(status(&[(50.0, 0.01), (80.0, 0.4)]), Status::Agrees);
    }
}
