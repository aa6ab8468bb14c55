//! A family of kernels that is never built: its cost is a formula.

use evidence::{Point, Space};
use kernels::{Generated, Generator, KernelError};
use plan::{Launch, Operation, RowBucket, Target};
use std::collections::BTreeSet;

/// A family whose best point moves slowly with rows and width.
pub struct Toy {
    pub name: &'static str,
    /// Cost of its best point.
    pub best: f64,
}

impl Toy {
    fn optimum(width: u32, rows: u32) -> [usize; 5] {
        let r = rows.ilog2() as usize;
        let w = width.ilog2() as usize;
        [(1 + r / 2).min(5), (w / 3).min(4), (4 + r / 3).min(5), (w / 4) % 3, (r / 3) % 3]
    }

    pub fn toy_space() -> Space {
        Space::default()
            .numbers("tile", &[1, 2, 4, 6, 8, 12])
            .numbers("unroll", &[1, 2, 4, 8, 16])
            .numbers("prefetch", &[0, 256, 512, 1024, 2048, 4096])
            .choices("order", &["rows", "columns", "zigzag"])
            .choices("split", &["query", "row", "both"])
    }

    /// Nanoseconds of a call; `None`: the kernel is wrong.
    pub fn ns(&self, width: u32, rows: u32, point: &Point) -> Option<f64> {
        let space = Self::toy_space();
        let at: Vec<usize> = space
            .axes
            .iter()
            .map(|a| a.values.iter().position(|v| Some(v.as_str()) == point.get(&a.name)).unwrap())
            .collect();
        let best = Self::optimum(width, rows);
        let slopes = [0.10, 0.07, 0.05, 0.08, 0.12];
        let mut cost = 0.0;
        for (i, axis) in space.axes.iter().enumerate() {
            let away = at[i].abs_diff(best[i]);
            cost += slopes[i] * if axis.ordered { away as f64 } else { 2.0 * (away.min(1) as f64) };
        }
        if at[0] != best[0] && at[1] != best[1] {
            cost += 0.06;
        }
        if at[0] == 5 && at[3] == 2 && best[0] != 5 {
            return None;
        }
        Some(f64::from(width) * f64::from(rows) * self.best * cost.exp())
    }
}

impl Generator for Toy {
    fn name(&self) -> &'static str {
        self.name
    }
    fn space(&self, _: &Operation, _: RowBucket, _: &Target) -> Option<Space> {
        Some(Self::toy_space())
    }
    fn start(&self, _: &Operation, _: RowBucket, _: &Target) -> Option<Point> {
        Some(Self::toy_space().nth(0))
    }
    fn generate(
        &self,
        operation: &Operation,
        _: RowBucket,
        _: &Target,
        point: &Point,
        max_rows: u32,
    ) -> Result<Generated, KernelError> {
        let refuse = point.number("unroll") == Some(16) && point.number("tile") > Some(8);
        if refuse {
            let (generator, what) = (self.name.to_owned(), "too many registers".to_owned());
            return Err(KernelError::Point { generator, point: point.to_string(), what });
        }
        // Prefetching nothing is the same code in either order.
        let mut seen = point.clone();
        if point.number("prefetch") == Some(0) && point.get("order") == Some("zigzag") {
            seen = seen.with("order", "rows");
        }
        let launch = Launch {
            phases: 1,
            scratch_bytes: 0,
            shared_bytes: 0,
            shared_bytes_per_row: 0,
            max_rows,
            max_threads: 2,
        };
        Ok(Generated {
            source: format!("{} {operation} {seen}", self.name),
            launch,
            features: BTreeSet::new(),
        })
    }
    fn numeric_class(&self, _: &Operation) -> String {
        "toy".to_owned()
    }
}

pub static FAST: Toy = Toy { name: "toy-fast", best: 1.0 };
pub static SLOW: Toy = Toy { name: "toy-slow", best: 2.5 };
pub static PORTABLE: Toy = Toy { name: "toy-portable", best: 3.5 };

pub fn toy(name: &str) -> &'static Toy {
    [&FAST, &SLOW, &PORTABLE].into_iter().find(|t| t.name == name).unwrap()
}
