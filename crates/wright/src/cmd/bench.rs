//! `wright bench`: latency and throughput as vLLM and SGLang define them.

use crate::cli::Bench;
use crate::served::Served;
use crate::{http_get, portable, workshop};
use anyhow::{Context, Result, anyhow, bail};
use comfy_table::{Cell, Table, presets::UTF8_FULL_CONDENSED};
use load::{Abandon, Comparison, Item, Prompt, PromptSpec, Slo, Summary, Workload};
use model::{ControlTokens, EncodeOptions, TextFiles, Tokenizer};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// One side of a measurement: a server that was there, or one of ours in a child process.
struct Side {
    url: String,
    model: String,
    served: Option<Served>,
}

impl Side {
    fn open(target: &str) -> Result<Self> {
        if target.starts_with("http://") {
            let url = target.trim_end_matches('/').trim_end_matches("/v1").to_owned();
            // A server that lists nothing takes any name, or says itself what it wants.
            let model = listed_model(&url).unwrap_or_else(|| "default".to_owned());
            return Ok(Self { url, model, served: None });
        }
        if target.starts_with("https://") {
            bail!("{target}: https is not supported by the load client; measure where the server runs");
        }
        let served = Served::start(Path::new(target), &[])?;
        Ok(Self { url: served.url.clone(), model: served.model.clone(), served: Some(served) })
    }
}

/// The first model that `url`/v1/models lists; `None` where nobody answers or nothing is listed.
fn listed_model(url: &str) -> Option<String> {
    let list: serde_json::Value = serde_json::from_str(&http_get::get(url, "/v1/models")?).ok()?;
    Some(list.get("data")?.get(0)?.get("id")?.as_str()?.to_owned())
}

/// Runs the measurement and prints a table or JSON.
pub fn run(args: &Bench) -> Result<()> {
    let extra = serde_json::from_str(&args.extra).context("--extra is not a JSON object")?;
    let slo = args.slo.as_deref().map(parse_slo).transpose()?;
    if args.concurrency.is_empty() || args.concurrency.contains(&0) {
        bail!("--concurrency lists numbers of at least 1");
    }
    let tokenizer = tokenizer(args)?;
    let ours = Side::open(&args.target)?;
    let theirs = args.against.as_deref().map(Side::open).transpose()?;
    let mut raw = args.raw.as_deref().map(Raw::create).transpose()?;
    let mut summaries = Vec::new();
    let mut comparisons = Vec::new();
    for &concurrency in &args.concurrency {
        let requests = args.requests.unwrap_or((4 * concurrency).max(8)) as usize;
        let cell = Measurement { concurrency, requests, args, tokenizer: &tokenizer };
        let workload = cell.workload(&ours, &extra)?;
        match &theirs {
            None => {
                eprintln!("concurrency {concurrency}: {requests} requests");
                let run = load::run(&Workload { items: cell.items(0)?, ..workload })?;
                if let Some(raw) = &mut raw {
                    run.samples.iter().try_for_each(|sample| raw.line(&(concurrency, sample)))?;
                }
                summaries.push((concurrency, run.summary(slo)));
            }
            Some(theirs) => {
                let other = cell.workload(theirs, &extra)?;
                eprintln!("concurrency {concurrency}: {} rounds of {requests} requests a side", args.rounds);
                let rounds = args.rounds as usize;
                let comparison = load::compare(&workload, &other, rounds, slo, |round| {
                    cell.items(round).map_err(|e| load::LoadError::Tokenizer(format!("{e:#}")))
                })?;
                if let Some(raw) = &mut raw {
                    raw.line(&(concurrency, &comparison))?;
                }
                comparisons.push((concurrency, comparison));
            }
        }
    }
    if args.json {
        let memory = ours.served.as_ref().and_then(Served::peak_memory);
        println!(
            "{}",
            serde_json::json!({
                "measured_s": workshop::now_s(), "summaries": summaries, "comparisons": comparisons,
                "peak_memory_bytes": memory,
            })
        );
    } else if theirs.is_some() {
        print_comparisons(&comparisons);
    } else {
        println!("{}", summary_table(&summaries));
    }
    let alone = summaries.iter().map(|(c, s)| (args.target.as_str(), *c, s));
    let paired = comparisons.iter().flat_map(|(c, compared)| {
        let other = args.against.as_deref().unwrap_or_default();
        compared
            .rounds
            .iter()
            .flat_map(move |r| [(args.target.as_str(), *c, &r.ours), (other, *c, &r.theirs)])
    });
    for (target, concurrency, summary) in alone.chain(paired) {
        if summary.completed == 0 && summary.failed > 0 {
            let why = summary
                .failures
                .iter()
                .next()
                .map_or(String::new(), |(why, n)| format!(": {why} ({n} times)"));
            bail!("no request to {target} succeeded at concurrency {concurrency}{why}");
        }
    }
    Ok(())
}

/// The file of `--raw`.
struct Raw<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Raw<'a> {
    fn create(path: &'a Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("--raw: making {}", path.display()))?;
        Ok(Self { path, file })
    }

    /// Adds a value as a line of JSON.
    fn line(&mut self, value: &impl serde::Serialize) -> Result<()> {
        let line = serde_json::to_string(value)?;
        writeln!(self.file, "{line}").with_context(|| format!("--raw: writing {}", self.path.display()))
    }
}

/// One cell of the measurement.
struct Measurement<'a> {
    concurrency: u32,
    requests: usize,
    args: &'a Bench,
    tokenizer: &'a Arc<Tokenizer>,
}

impl Measurement<'_> {
    fn workload(&self, side: &Side, extra: &serde_json::Map<String, serde_json::Value>) -> Result<Workload> {
        let mut workload = Workload::closed(&side.url, &side.model, self.concurrency as usize, Vec::new());
        workload.extra = extra.clone();
        let warm = PromptSpec {
            count: self.concurrency.min(4) as usize,
            tokens: self.args.prompt_tokens as usize,
            seed: self.args.seed ^ 0x5eed,
        };
        workload.warm_up = items(self.tokenizer, warm, self.args.output_tokens.min(16))?;
        if self.args.disconnect {
            workload.abandon = Some(Abandon {
                fraction: 1.0 / 3.0,
                max_chunks: self.args.output_tokens / 2,
                early_ms: 200,
                seed: self.args.seed,
            });
        }
        Ok(workload)
    }

    /// Fresh prompts for each round, so that no prefix cache helps.
    fn items(&self, round: usize) -> Result<Vec<Item>> {
        let spec = PromptSpec {
            count: self.requests,
            tokens: self.args.prompt_tokens as usize,
            seed: self.args.seed.wrapping_add(1000 * round as u64 + u64::from(self.concurrency)),
        };
        items(self.tokenizer, spec, self.args.output_tokens)
    }
}

/// Prompts as token ids, distinct and of exact length.
pub fn items(tokenizer: &Tokenizer, spec: PromptSpec, output_tokens: u32) -> Result<Vec<Item>> {
    let made = load::prompts(
        spec,
        |text| tokenizer.encode(text, EncodeOptions::default()).map_err(|e| e.to_string()),
        |ids| Ok(tokenizer.decode(ids, ControlTokens::Show)),
    )?;
    Ok(made.into_iter().map(|p| Item { prompt: Prompt::Ids(p.ids), output_tokens }).collect())
}

fn tokenizer(args: &Bench) -> Result<Arc<Tokenizer>> {
    let named = args.tokenizer.as_deref();
    let bundle = named.unwrap_or(&args.target);
    let folder = Path::new(bundle).join("tokenizer");
    if folder.is_dir() {
        return Ok(TextFiles::open(&folder)?.tokenizer);
    }
    let name = named.unwrap_or(if args.target.starts_with("http") { "smollm2-135m" } else { &args.target });
    Ok(portable::load(name)?.model.tokenizer().clone())
}

fn parse_slo(text: &str) -> Result<Slo> {
    let mut slo = Slo { ttft_ms: None, tpot_ms: None, e2el_ms: None };
    for part in text.split(',') {
        let (name, value) = part.split_once('=').ok_or_else(|| anyhow!("--slo '{part}': write name=ms"))?;
        let ms: f64 = value.parse().with_context(|| format!("--slo '{part}'"))?;
        match name.trim() {
            "ttft" => slo.ttft_ms = Some(ms),
            "tpot" => slo.tpot_ms = Some(ms),
            "e2el" => slo.e2el_ms = Some(ms),
            other => bail!("--slo knows ttft, tpot and e2el, not '{other}'"),
        }
    }
    Ok(slo)
}

fn summary_table(rows: &[(u32, Summary)]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header([
        "concurrency",
        "requests",
        "failed",
        "output tok/s",
        "TTFT ms",
        "TPOT ms",
        "ITL ms",
        "E2EL ms",
        "goodput",
    ]);
    for (concurrency, s) in rows {
        let latency = |d: &Option<load::Distribution>| match d {
            None => "-".to_owned(),
            Some(d) => match d.p95_ms {
                Some(p95) => format!("{:.1} (p95 {p95:.1})", d.median_ms),
                None => format!("{:.1}", d.median_ms),
            },
        };
        let goodput = s.goodput.as_ref().map_or("-".to_owned(), |g| format!("{:.2}/s", g.requests_per_s));
        table.add_row([
            Cell::new(concurrency),
            Cell::new(s.completed),
            Cell::new(s.failed),
            Cell::new(format!("{:.1}", s.output_tokens_per_s)),
            Cell::new(latency(&s.ttft)),
            Cell::new(latency(&s.tpot)),
            Cell::new(latency(&s.itl)),
            Cell::new(latency(&s.e2el)),
            Cell::new(goodput),
        ]);
    }
    table
}

fn print_comparisons(rows: &[(u32, Comparison)]) {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header([
        "concurrency",
        "metric",
        "first / second",
        "interval",
        "rounds",
        "verdict",
    ]);
    for (concurrency, comparison) in rows {
        for ratio in &comparison.ratios {
            table.add_row([
                concurrency.to_string(),
                ratio.metric.clone(),
                format!("{:.3}", ratio.median),
                format!("{:.3} to {:.3}", ratio.low, ratio.high),
                ratio.per_round.len().to_string(),
                ratio.verdict.word().to_owned(),
            ]);
        }
    }
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// The model found at a server that gives `answer`.
    fn found(answer: &'static str) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            assert!(request.starts_with(b"GET /v1/models HTTP/1.0\r\n"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let model = listed_model(&url);
        server.join().unwrap();
        model
    }

    #[test]
    fn a_full_disk_is_named() {
        let error = Raw::create(Path::new("/dev/full")).unwrap().line(&1).unwrap_err();
        assert!(format!("{error:#}").starts_with("--raw: writing /dev/full: "), "{error:#}");
    }

    #[test]
    fn the_first_listed_model_is_asked_for() {
        let list =
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"data\":[{\"id\":\"tiny\"},{\"id\":\"other\"}]}";
        assert_eq!(found(list).as_deref(), Some("tiny"));
        for empty in
            ["HTTP/1.1 200 OK\r\n\r\n{\"data\":[]}", "HTTP/1.1 404 Not Found\r\n\r\n{}", "", "\r\n\r\n"]
        {
            assert_eq!(found(empty), None, "{empty}");
        }
        assert_eq!(listed_model("http://127.0.0.1:1"), None);
    }
}
