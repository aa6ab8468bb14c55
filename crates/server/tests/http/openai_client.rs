//! The real openai Python client against the server. Needs Python 3 and, the first time, the package registry; where
//! they are missing it says so and ends.

use crate::harness::start;
use crate::scripted::{Behaviour, HELLO, WORLD};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The version that the script was written against.
const CLIENT: &str = "openai==3.57.0";

/// Runs a command for at most `limit`; its status and output.
fn bounded(command: &mut Command, limit: Duration) -> Result<(bool, String), String> {
    let log = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    let file = || log.reopen().map(Stdio::from).map_err(|e| e.to_string());
    let mut child =
        command.stdin(Stdio::null()).stdout(file()?).stderr(file()?).spawn().map_err(|e| e.to_string())?;
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break status.success(),
            None if Instant::now() > end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no end within {limit:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    Ok((status, std::fs::read_to_string(log.path()).unwrap_or_default()))
}

/// A Python with the client: `OPENAI_PYTHON`, or an environment kept in the target folder.
fn python() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("OPENAI_PYTHON") {
        return Ok(path.into());
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openai-client");
    let python = folder.join("bin/python");
    let has_client = || bounded(Command::new(&python).args(["-c", "import openai"]), Duration::from_secs(20));
    if has_client().is_ok_and(|r| r.0) {
        return Ok(python);
    }
    let made = bounded(Command::new("python3").args(["-m", "venv"]).arg(&folder), Duration::from_secs(60))?;
    if !made.0 {
        return Err(made.1);
    }
    let pip = bounded(
        Command::new(&python).args([
            "-m",
            "pip",
            "install",
            "-q",
            "--retries",
            "0",
            "--timeout",
            "10",
            CLIENT,
        ]),
        Duration::from_secs(120),
    )?;
    if pip.0 { Ok(python) } else { Err(pip.1) }
}

#[test]
fn openai_python_client() {
    let python = match python() {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("SKIPPED openai_python_client: the openai package cannot be had here: {reason}");
            return;
        }
    };
    let server = start(Behaviour { script: Box::new(|_| vec![HELLO, WORLD]), ..Behaviour::default() });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/openai_client.py");
    let mut command = Command::new(python);
    command.arg(script).arg(format!("http://{}/v1", server.address)).env("NO_PROXY", "127.0.0.1");
    let (passed, output) = bounded(&mut command, Duration::from_secs(60)).unwrap();
    assert!(passed && output.contains("all passed"), "{output}");
}
