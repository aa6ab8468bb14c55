//! The command line. Names are fixed: tools outside rely on them.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// The inference engine factory: searches, checks and measures kernels and plans, and emits engines.
#[derive(Debug, Parser)]
#[command(name = "wright", version, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Fetch a known model into the cache and print its path
    #[command(after_help = "Example:\n  wright pull smollm2-135m")]
    Pull(Pull),
    /// Search, check and measure an engine for a model on this machine (the main job)
    #[command(
        after_help = "Example:\n  wright build smollm2-135m --budget 5m --out engines/smollm2\n\nThe same command resumes an interrupted build."
    )]
    Build(Build),
    /// Serve a bundle (or a model on the portable plan) over the OpenAI API
    #[command(after_help = "Example:\n  wright serve engines/smollm2 --port 8000")]
    Serve(Serve),
    /// Measure TTFT, TPOT, ITL, throughput and goodput of a bundle or of any OpenAI-compatible URL
    #[command(
        after_help = "Example:\n  wright bench engines/smollm2 --concurrency 1,16 --against http://127.0.0.1:8081"
    )]
    Bench(Bench),
    /// Run the claims of a bundle again on this machine; the exit status tells whether they hold
    #[command(
        after_help = "It fails when something differs, and when a claim could not be checked. Speeds are compared only where the \
            processor is the one that they were measured on; elsewhere they stay unchecked, and that alone does not fail \
            (unless --claim asks for that speed).\n\n\
            Examples:\n  wright verify engines/smollm2\n  wright verify engines/mine --model models/mine.gguf"
    )]
    Verify(Verify),
    /// Write one self-contained HTML page about a bundle or a ledger
    #[command(after_help = "Example:\n  wright report engines/smollm2 --out report.html")]
    Report(Report),
    /// Explain a candidate: source, lineage, evidence, decision, in words
    #[command(after_help = "Example:\n  wright explain 3fa1c09b72de")]
    Explain(Explain),
    /// Describe the machine: fingerprint, measured ceilings, toolchain, what works
    #[command(after_help = "Example:\n  wright doctor")]
    Doctor(Doctor),
    /// Run the exploit suite against the judge: caught, missed, honest ones refused
    #[command(after_help = "Example:\n  wright redteam --json")]
    Redteam(Redteam),
    /// The kernel factory on one operation
    #[command(subcommand)]
    Kernel(Kernel),
    /// Look into the ledger
    #[command(subcommand)]
    Ledger(Ledger),
    /// Statements distilled from evidence
    #[command(subcommand)]
    Lessons(Lessons),
    /// LLM agents as proposers (not in this version)
    Agent(Later),
    /// A stateless worker that pulls evaluations (not in this version)
    Worker(Later),
    /// The MCP server for external coding agents (not in this version)
    Mcp(Later),
    /// The live dashboard (not in this version; see `report`)
    Dashboard(Later),
    /// Internal: the sandboxed process that runs candidate kernels
    #[command(name = "__worker", hide = true)]
    SandboxWorker(Later),
    /// Internal: the sandboxed process that runs candidate engines
    #[command(name = "__engine", hide = true)]
    EngineWorker(EngineWorker),
}

#[derive(Debug, Args)]
pub struct Pull {
    /// Name of a known model, for example smollm2-135m
    pub name: String,
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Build {
    /// A known name, a GGUF file, or a Hugging Face folder
    pub model: String,
    /// What to optimise and within which bounds (TOML); see goals/
    #[arg(long)]
    pub goal: Option<PathBuf>,
    /// Folder of the bundle [default: engines/NAME]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Wall time of the search, for example 90s, 10m, 1h [default: the goal's, else 10m]
    #[arg(long, value_parser = duration)]
    pub budget: Option<Duration>,
    /// Seed of the swarm
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Ledger: a file path or sqlite:PATH [default: in the user's data folder]
    #[arg(long)]
    pub ledger: Option<String>,
    /// Start from promoted kernel recipes in this folder (not in this version: the ledger carries what was found)
    #[arg(long, value_parser = seeds_later)]
    pub seed_from: Option<PathBuf>,
    /// Print the result as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct Serve {
    /// End when standard input does: for a server that must not outlive the process that started it
    #[arg(long, hide = true)]
    pub end_with_input: bool,
    /// A bundle, a known name, a GGUF file, or a Hugging Face folder
    pub target: String,
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// 0 picks a free port
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Run the bundle's portable plan (any machine of this architecture)
    #[arg(long)]
    pub portable: bool,
    /// Name under which the model is listed [default: the bundle's]
    #[arg(long)]
    pub model_name: Option<String>,
    /// Bearer token that clients must send; may be given again
    #[arg(long = "api-key", env = "WRIGHT_API_KEY", hide_env_values = true)]
    pub api_keys: Vec<String>,
    /// Requests that may wait before new ones get 429
    #[arg(long, default_value_t = 512)]
    pub max_queue: usize,
    /// Tokens of KV cache [default: the plan's]
    #[arg(long)]
    pub kv_tokens: Option<u32>,
    /// Where the packed weights lie: mapped from the bundle, or copied to huge pages (faster)
    #[arg(long, value_enum, default_value_t = Weights::Auto)]
    pub weights: Weights,
    /// Seconds that open requests get to finish after SIGTERM
    #[arg(long, default_value_t = 30)]
    pub drain: u64,
}

/// Memory of the packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Weights {
    /// Huge pages where the system gives them and memory is free
    Auto,
    Mapped,
    Huge,
}

#[derive(Clone, Debug, Args)]
pub struct Bench {
    /// A bundle (it is served for the measurement) or a URL
    pub target: String,
    /// Another URL or bundle, measured in turn with the first, round by round
    #[arg(long)]
    pub against: Option<String>,
    #[arg(long, value_delimiter = ',', default_value = "1,4,16")]
    pub concurrency: Vec<u32>,
    #[arg(long, default_value_t = 128)]
    pub prompt_tokens: u32,
    #[arg(long, default_value_t = 128)]
    pub output_tokens: u32,
    /// Requests of each cell [default: 4 x concurrency, at least 8]
    #[arg(long)]
    pub requests: Option<u32>,
    /// Interleaved rounds of each cell with --against
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Tokenizer for prompts where the target is a URL: a bundle, GGUF file, or folder [default: smollm2-135m]
    #[arg(long)]
    pub tokenizer: Option<String>,
    /// Extra JSON fields of the request body, for example '{"cache_prompt":false}'
    #[arg(long, default_value = "{}")]
    pub extra: String,
    /// Goodput objectives in milliseconds, for example ttft=500,tpot=50
    #[arg(long)]
    pub slo: Option<String>,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Drop a third of the connections at random (a soak: what is left must be right)
    #[arg(long)]
    pub disconnect: bool,
    /// Write raw samples (JSON lines) to this file
    #[arg(long)]
    pub raw: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Verify {
    pub bundle: PathBuf,
    /// Only this claim
    #[arg(long)]
    pub claim: Option<String>,
    /// The model that the bundle was made of, for its quality: a known name, a GGUF file, or a Hugging Face folder
    /// [default: the known model of the bundle's name]
    #[arg(long)]
    pub model: Option<String>,
    /// Do not fail for claims that could not be checked
    #[arg(long)]
    pub allow_unchecked: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Report {
    /// A bundle or a ledger
    pub source: PathBuf,
    #[arg(long, default_value = "report.html")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct Explain {
    /// A candidate's id or the first digits of it
    pub id: String,
    #[arg(long)]
    pub ledger: Option<String>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Doctor {
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Redteam {
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Kernel {
    /// Search kernels for one operation of a model
    #[command(after_help = "Example:\n  wright kernel build down --model smollm2-135m --rows 1 --budget 30s")]
    Build(KernelBuild),
}

#[derive(Debug, Args)]
pub struct KernelBuild {
    /// Operation of the plan: embed, qkv, attention, o, gate_up, down, head
    pub operation: String,
    #[arg(long, default_value = "smollm2-135m")]
    pub model: String,
    /// ISA: portable, avx2, avx512, or host
    #[arg(long, default_value = "host")]
    pub target: String,
    /// A row count in the bucket, for example 1 or 16 [default: all buckets]
    #[arg(long)]
    pub rows: Option<u32>,
    #[arg(long, value_parser = duration, default_value = "1m")]
    pub budget: Duration,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[arg(long)]
    pub ledger: Option<String>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Ledger {
    /// Entries in order, one line each
    List(LedgerArgs),
    /// One entry, whole
    Show {
        /// Position or first digits of an id
        id: String,
        #[command(flatten)]
        args: LedgerArgs,
    },
    /// All entries as JSON lines on stdout
    Export(LedgerArgs),
    /// Recompute the chain of digests
    Check(LedgerArgs),
}

#[derive(Debug, Args)]
pub struct LedgerArgs {
    #[arg(long)]
    pub ledger: Option<String>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum Lessons {
    /// All lessons with scope, effect and support
    List(LedgerArgs),
    /// Those whose scope or statement contains a text
    Show {
        text: String,
        #[command(flatten)]
        args: LedgerArgs,
    },
}

#[derive(Debug, Args)]
pub struct Later {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub rest: Vec<String>,
}

#[derive(Debug, Args)]
pub struct EngineWorker {
    /// Bundle folder
    pub bundle: PathBuf,
    /// `champion` or `portable`
    pub plan: String,
    /// `executor` or `engine`
    pub mode: String,
    /// File that logits are written to
    pub logits: PathBuf,
}

/// Refused rather than ignored.
fn seeds_later(_: &str) -> Result<PathBuf, String> {
    Err("not in this version; builds of one --ledger start from what it knows".to_owned())
}

/// `90s`, `10m`, `1h`, or plain seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a time; write for example 90s, 10m or 1h");
    let (digits, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let n: f64 = digits.trim().parse().map_err(|_| bad())?;
    let factor = match unit.trim() {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    let seconds = n * factor;
    if !(0.001..=30.0 * 86_400.0).contains(&seconds) {
        return Err(format!("'{text}' is out of range (1ms to 30 days)"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations() {
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1.5h"), Ok(Duration::from_secs(5400)));
        for bad in ["", "m", "5 parsecs", "-1s", "nan", "1e30h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
