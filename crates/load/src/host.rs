//! What the client itself cost and what the host took away. Linux `/proc`; elsewhere the figures are absent.

use serde::{Deserialize, Serialize};

/// Shares over one run, 0 to 1 (the client's may not exceed 1: it has one thread).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct HostUse {
    /// CPU time of the client thread / wall time
    pub client_cpu_share: Option<f64>,
    /// Stolen by the hypervisor / all CPU time of the host
    pub steal_share: Option<f64>,
    /// Idle / all CPU time of the host
    pub idle_share: Option<f64>,
}

/// Counters at one moment.
#[derive(Debug, Clone)]
pub(crate) struct HostMark {
    thread_ns: Option<u64>,
    cpu: Option<[u64; 8]>,
}

impl HostMark {
    /// Must be called on the client's thread: the first counter is the calling thread's.
    pub(crate) fn now() -> Self {
        let thread_ns =
            std::fs::read_to_string("/proc/thread-self/schedstat").ok().and_then(|s| schedstat(&s));
        let cpu = std::fs::read_to_string("/proc/stat").ok().and_then(|s| cpu_line(&s));
        Self { thread_ns, cpu }
    }

    pub(crate) fn until_now(&self, wall_ns: u64) -> HostUse {
        let end = Self::now();
        let client_cpu_share = match (self.thread_ns, end.thread_ns) {
            (Some(a), Some(b)) if wall_ns > 0 => Some(b.saturating_sub(a) as f64 / wall_ns as f64),
            _ => None,
        };
        let (mut steal_share, mut idle_share) = (None, None);
        if let (Some(a), Some(b)) = (self.cpu, end.cpu) {
            let delta: Vec<u64> = a.iter().zip(&b).map(|(x, y)| y.saturating_sub(*x)).collect();
            let total: u64 = delta.iter().sum();
            if total > 0 {
                steal_share = Some(delta[7] as f64 / total as f64);
                idle_share = Some((delta[3] + delta[4]) as f64 / total as f64);
            }
        }
        HostUse { client_cpu_share, steal_share, idle_share }
    }
}

/// First field: ns on a CPU.
fn schedstat(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// user nice system idle iowait irq softirq steal, in ticks.
fn cpu_line(text: &str) -> Option<[u64; 8]> {
    let line = text.lines().find(|l| l.starts_with("cpu "))?;
    let mut fields = line.split_whitespace().skip(1).map(str::parse);
    let mut out = [0; 8];
    for slot in &mut out {
        *slot = fields.next()?.ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_parse() {
        assert_eq!(cpu_line("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1\n"), Some([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(cpu_line("cpu  1 2\n"), None);
        assert_eq!(schedstat("123 4 5\n"), Some(123));
    }
}
