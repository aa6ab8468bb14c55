//! The words that tell one host from another, read from the operating system.

use std::collections::BTreeMap;
use std::fs;

/// CPU model, stepping, microcode, caches, memory, kernel and hypervisor. What cannot be read is `unknown`.
pub fn facts() -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    for (name, key) in [
        ("cpu", "model name"),
        ("cpu_family", "cpu family"),
        ("cpu_model", "model"),
        ("stepping", "stepping"),
        ("microcode", "microcode"),
    ] {
        facts.insert(name.to_owned(), field(&cpuinfo, key).unwrap_or_else(unknown));
    }
    for index in 0..5 {
        let base = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let read = |file: &str| fs::read_to_string(format!("{base}/{file}")).ok();
        if let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size")) {
            let name = format!("cache_l{}_{}", level.trim(), kind.trim().to_lowercase());
            facts.insert(name, size.trim().to_owned());
        }
    }
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    facts.insert("memory".into(), field(&meminfo, "MemTotal").unwrap_or_else(unknown));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    facts.insert("kernel".into(), or_unknown(kernel.trim()));
    facts.insert("hypervisor".into(), if cpuinfo.contains(" hypervisor") { "yes" } else { "no" }.to_owned());
    let huge = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    facts.insert("transparent_huge_pages".into(), or_unknown(huge.unwrap_or_default().trim()));
    facts.insert("arch".into(), std::env::consts::ARCH.to_owned());
    facts
}

/// Cores that this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

fn field(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (k, v) = line.split_once(':')?;
        (k.trim() == key).then(|| v.trim().to_owned())
    })
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn or_unknown(text: &str) -> String {
    if text.is_empty() { unknown() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_has_a_value_and_repeats() {
        let first = facts();
        assert!(first.contains_key("cpu") && first.contains_key("kernel"));
        assert!(first.values().all(|v| !v.is_empty()));
        assert_eq!(first, facts());
        assert!(cores() >= 1);
    }

    #[test]
    fn fields_are_matched_whole() {
        let text = "model\t: 106\nmodel name\t: A CPU\n";
        assert_eq!(field(text, "model").as_deref(), Some("106"));
        assert_eq!(field(text, "model name").as_deref(), Some("A CPU"));
        assert_eq!(field(text, "stepping"), None);
    }
}
