//! What the machine did meanwhile: processor time that the hypervisor took.

/// Processor time since boot, in ticks of all processors.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorTime {
    steal: u64,
    total: u64,
}

impl ProcessorTime {
    /// Reads it; `None` where the system does not tell.
    pub fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let fields: Vec<u64> = line.split_whitespace().filter_map(|f| f.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; guest times are part of user.
        Some(Self { steal: *fields.get(7)?, total: fields.iter().take(8).sum() })
    }

    /// Share of processor time that was stolen since `earlier`; `None` within less than 20 ticks.
    pub fn stolen_since(&self, earlier: &Self) -> Option<f64> {
        let total = self.total.saturating_sub(earlier.total);
        (total >= 20).then(|| self.steal.saturating_sub(earlier.steal) as f64 / total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_eighth_field() {
        let a = ProcessorTime::parse("cpu  100 0 50 800 5 0 5 40 0 0\ncpu0 1").unwrap();
        let b = ProcessorTime::parse("cpu  150 0 50 840 5 0 5 50 0 0\n").unwrap();
        assert_eq!(b.stolen_since(&a), Some(0.1));
        assert_eq!(a.stolen_since(&a), None);
        assert!(ProcessorTime::parse("intr 1").is_none());
    }
}
