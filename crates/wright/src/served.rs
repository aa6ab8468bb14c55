//! A server of ours in a child process, for measurements over HTTP.

use anyhow::{Context, Result, anyhow, bail};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running `wright serve`. Dropping it ends the server.
pub struct Served {
    child: Child,
    pub url: String,
    pub model: String,
}

impl Served {
    /// Serves a bundle on a free port of this machine.
    pub fn start(bundle: &Path, extra: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg(bundle)
            .args(["--port", "0", "--end-with-input"])
            .args(extra)
            // Its other end closes when this process ends, also by SIGKILL.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("starting the server")?;
        let stdout = child.stdout.take().ok_or_else(|| anyhow!("the server has no output pipe"))?;
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        reader.read_line(&mut line).context("reading the server's first line")?;
        let started: serde_json::Value = serde_json::from_str(&line).map_err(|_| {
            anyhow!("the server of {} did not start (its reason stands above)", bundle.display())
        })?;
        let text = |key: &str| started.get(key).and_then(|v| v.as_str()).map(str::to_owned);
        let (Some(url), Some(model)) = (text("url"), text("model")) else {
            let _ = child.kill();
            bail!("the server's first line lacks url or model: {line}");
        };
        // Keep the pipe drained, so that the server never blocks on it.
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        Ok(Self { child, url, model })
    }

    /// Peak resident memory, bytes; `None` where the system does not say.
    pub fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
        Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Bounded by nature: a killed process is reaped at once.
        let _ = self.child.wait();
        std::thread::sleep(Duration::from_millis(20));
    }
}
