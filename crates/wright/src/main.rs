//! The command `wright`.

mod assemble;
mod build;
mod cli;
mod cmd;
mod goal;
mod http_get;
mod paths;
mod portable;
mod report;
mod served;
mod summary;
mod text;
mod trial;
mod workshop;

use clap::Parser;
use cli::{Cli, Command};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Pull(args) => cmd::pull::run(args),
        Command::Build(args) => build::run(args),
        Command::Serve(args) => cmd::serve::run(args),
        Command::Bench(args) => cmd::bench::run(args),
        Command::Verify(args) => cmd::verify::run(args),
        Command::Report(args) => cmd::report::run(args),
        Command::Explain(args) => cmd::explain::run(args),
        Command::Doctor(args) => cmd::doctor::run(args),
        Command::Redteam(args) => cmd::redteam::run(args),
        Command::Kernel(cli::Kernel::Build(args)) => build::kernel::run(args),
        Command::Ledger(args) => cmd::ledger::run(args),
        Command::Lessons(args) => cmd::lessons::run(args),
        Command::Agent(_) => later("agent", "the built-in operators of `wright build` need no LLM"),
        Command::Worker(_) => later("worker", "`wright build` evaluates on this machine"),
        Command::Mcp(_) => later("mcp", "`wright ledger` and `wright explain` print JSON"),
        Command::Dashboard(_) => later("dashboard", "`wright report` writes a page"),
        Command::SandboxWorker(args) => sandbox::worker_main(args.rest.iter().map(Into::into)),
        Command::EngineWorker(args) => trial::worker::run(&args.bundle, &args.plan, &args.mode, &args.logits),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wright: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn later(name: &str, instead: &str) -> anyhow::Result<()> {
    anyhow::bail!("`wright {name}` is not in this version; {instead}")
}
