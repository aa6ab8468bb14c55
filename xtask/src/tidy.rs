//! What can be checked of the house rules: the map is true, links lead somewhere, files keep to a size, nothing is
//! ignored or left open.

use crate::layers;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Longest source file, lines. One subject per file.
const MOST_LINES: usize = 700;

/// Module names that say nothing.
const EMPTY_NAMES: &[&str] = &["core", "common", "util", "utils", "misc", "manager", "helpers"];

/// Runs all checks on the workspace at `root`.
pub fn run(root: &Path) -> Result<()> {
    layers::check(root)?;
    let map = std::fs::read_to_string(root.join("ARCHITECTURE.md")).context("ARCHITECTURE.md")?;
    let mut faults = map_faults(&map, |path| root.join(path).exists());
    for path in tracked(root, "*.rs")? {
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        faults.extend(source_faults(&path, &text));
    }
    for path in tracked(root, "*.md")? {
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
        let folder = root.join(&path).parent().map(Path::to_owned).unwrap_or_default();
        faults.extend(link_faults(&path, &text, |link| folder.join(link).exists()));
    }
    if !faults.is_empty() {
        bail!("tidy:\n  {}", faults.join("\n  "));
    }
    println!("tidy: layers, map, links and sources are in order");
    Ok(())
}

/// Files of the workspace that git knows, by pattern.
fn tracked(root: &Path, pattern: &str) -> Result<Vec<PathBuf>> {
    let listed = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", pattern])
        .output()
        .context("git ls-files")?;
    if !listed.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr).trim());
    }
    let text = String::from_utf8(listed.stdout)?;
    Ok(text.split('\0').filter(|p| !p.is_empty()).map(PathBuf::from).collect())
}

/// Every crate stands in the map's row of its layer, and every path that the map names exists.
fn map_faults(map: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, (layer, _)) in layers::LAYERS {
        let quoted = format!("`{name}`");
        let row = map.lines().find(|l| l.starts_with('|') && l.contains(&format!("{quoted}:")));
        let listed = row.or_else(|| map.lines().find(|l| l.starts_with('|') && l.contains(&quoted)));
        match listed {
            Some(row) if row.starts_with(&format!("| {layer} |")) => {}
            Some(row) => faults.push(format!("ARCHITECTURE.md: `{name}` is of layer {layer}, not in: {row}")),
            None if map.contains(&quoted) && *name == "xtask" => {}
            None => faults.push(format!("ARCHITECTURE.md has no row with `{name}`")),
        }
    }
    for word in map.split(|c: char| c.is_whitespace() || "()`,;|".contains(c)) {
        let path = word.trim_end_matches(['.', ':']);
        let looks =
            ["crates/", "docs/", "kernels/", "conformance/", "goals/"].iter().any(|p| path.starts_with(p));
        if looks && !exists(path) {
            faults.push(format!("ARCHITECTURE.md names {path}, which does not exist"));
        }
    }
    faults
}

fn source_faults(path: &Path, text: &str) -> Vec<String> {
    let (path, mut faults) = (path.display(), Vec::new());
    let lines = text.lines().count();
    if lines > MOST_LINES {
        faults.push(format!("{path}: {lines} lines, more than {MOST_LINES}"));
    }
    let name = path.to_string();
    let stem = Path::new(&name).file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    if EMPTY_NAMES.contains(&stem) {
        faults.push(format!("{path}: the name '{stem}' says nothing"));
    }
    // Split, so that this file does not find itself.
    for word in
        [concat!("#[ig", "nore"), concat!("to", "do!("), concat!("unimple", "mented!("), concat!("db", "g!(")]
    {
        if text.contains(word) {
            faults.push(format!("{path}: contains {word}"));
        }
    }
    faults
}

/// Relative links of a Markdown page that lead nowhere. Code blocks are left out.
fn link_faults(path: &Path, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    let mut code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        if code {
            continue;
        }
        for after in line.split("](").skip(1) {
            let link = after.split([')', '#', ' ']).next().unwrap_or_default();
            if !link.is_empty() && !link.contains("://") && !exists(link) {
                faults.push(format!("{}: the link {link} leads nowhere", path.display()));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        run(&crate::root()).unwrap();
    }

    #[test]
    fn a_false_map_is_found() {
        let map = std::fs::read_to_string(crate::root().join("ARCHITECTURE.md")).unwrap();
        assert_eq!(map_faults(&map, |_| true), Vec::<String>::new());
        let faults = map_faults(&map.replace("`judge`", "`jury`"), |_| true);
        assert!(faults.iter().any(|f| f.contains("`judge`")), "{faults:?}");
        let faults = map_faults(&map.replace("| 4 |", "| 3 |"), |_| true);
        assert!(faults.iter().any(|f| f.contains("`emit` is of layer 4")), "{faults:?}");
        assert!(!map_faults(&map, |path| !path.starts_with("docs/")).is_empty());
    }

    #[test]
    fn untidy_sources_are_found() {
        let long = "\n".repeat(MOST_LINES + 1);
        let open = format!("fn later() {{ {} }}", concat!("to", "do!()"));
        for (path, text) in [("src/lib.rs", long.as_str()), ("src/util.rs", ""), ("src/lib.rs", &open)] {
            assert_eq!(source_faults(Path::new(path), text).len(), 1, "{path}");
        }
        assert!(source_faults(Path::new("src/pages.rs"), "fn page() {}\n").is_empty());
    }

    #[test]
    fn dead_links_are_found() {
        let page = "[a](there.md) [b](gone.md#part)\n```\n[c](gone.md)\n```\n[d](https://example.org/x)\n";
        let faults = link_faults(Path::new("README.md"), page, |link| link == "there.md");
        assert_eq!(faults, ["README.md: the link gone.md leads nowhere"]);
    }
}
