//! What the machine did meanwhile: processor time that the hypervisor or other programs took.

/// Processor time since boot, in ticks of all processors.
#[derive(Clone, Copy, Debug)]
pub struct ProcessorTime {
    steal: u64,
    total: u64,
    /// Neither idle nor stolen.
    busy: u64,
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
        let total: u64 = fields.iter().take(8).sum();
        let steal = *fields.get(7)?;
        let idle = fields.get(3)? + fields.get(4)?;
        Some(Self { steal, total, busy: total - idle - steal })
    }

    /// Share of all processor time since `earlier` that went to others than us, who used `own` ticks; `None` within
    /// less than 20 ticks.
    pub fn foreign_since(&self, earlier: &Self, own: u64) -> Option<f64> {
        let total = self.total.saturating_sub(earlier.total);
        let busy = self.busy.saturating_sub(earlier.busy);
        // A tick of each process may have been counted for another.
        (total >= 20).then(|| busy.saturating_sub(own + 2) as f64 / total as f64)
    }

    /// Share of processor time that was stolen since `earlier`; `None` within less than 20 ticks.
    pub fn stolen_since(&self, earlier: &Self) -> Option<f64> {
        let total = self.total.saturating_sub(earlier.total);
        (total >= 20).then(|| self.steal.saturating_sub(earlier.steal) as f64 / total as f64)
    }
}

/// The processors' time at a moment, and the part of it that this process and some others used.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    processors: ProcessorTime,
    own: u64,
}

impl Watch {
    /// Reads both, `others` being process ids; `None` where the system does not tell.
    pub fn start(others: &[u32]) -> Option<Self> {
        let others: Option<u64> = others.iter().map(|pid| used_by(*pid)).sum();
        Some(Self { processors: ProcessorTime::now()?, own: others? + used_by(std::process::id())? })
    }

    /// Share of processor time that was stolen since `earlier`.
    pub fn stolen_since(&self, earlier: &Self) -> Option<f64> {
        self.processors.stolen_since(&earlier.processors)
    }

    /// Share of processor time that other programs took since `earlier`.
    pub fn foreign_since(&self, earlier: &Self) -> Option<f64> {
        self.processors.foreign_since(&earlier.processors, self.own.saturating_sub(earlier.own))
    }
}

/// Share of the processors' time that neither this process nor `others` (process ids) had while `work` ran, and the
/// result of `work`; the share is `None` where the system does not tell, or too little time passed.
pub fn while_running<T>(others: &[u32], work: impl FnOnce() -> T) -> (T, Option<f64>) {
    let before = Watch::start(others);
    let result = work();
    let share = before
        .zip(Watch::start(others))
        .and_then(|(before, after)| Some(after.stolen_since(&before)? + after.foreign_since(&before)?));
    (result, share)
}

/// Ticks that a process (all its threads) has used; `None` if it is gone.
pub fn used_by(pid: u32) -> Option<u64> {
    ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// User and system time from a stat line (proc(5)): fields 14 and 15, the name in brackets may hold spaces.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
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
        assert_eq!(b.foreign_since(&a, 20), Some(0.28));
        assert_eq!(b.foreign_since(&a, 60), Some(0.0));
        assert_eq!(ticks("1 (a b) c) S 1 1 1 0 -1 0 0 0 0 0 7 8 0 0"), Some(15));
        assert!(used_by(std::process::id()).is_some());
    }
}
