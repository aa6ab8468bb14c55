//! The roofline floor: what no honest kernel can beat on this machine.

use kernels::cost::{Ceilings, Cost, cost, floor_ns};
use plan::{Activation, Operation};
use std::collections::BTreeMap;

/// Measured ceilings of a machine by name, as `machine` writes them (`int8_macs_per_s_t2`, ...).
#[derive(Clone, Debug, Default)]
pub struct MeasuredCeilings(pub BTreeMap<String, f64>);

/// A measurement this much below the floor is not believed. Ceilings are the best of few samples, and clocks vary.
const MARGIN: f64 = 0.8;

impl MeasuredCeilings {
    fn rate(&self, name: &str, threads: u32) -> f64 {
        // The most that any thread count showed, scaled: a reading taken on a busy machine is too low, and a ceiling
        // that is too low would refuse honest kernels.
        (1..=threads)
            .filter_map(|t| {
                self.0.get(&format!("{name}_t{t}")).map(|v| v * f64::from(threads) / f64::from(t))
            })
            .fold(0.0, f64::max)
    }

    /// Time of one barrier of so many threads; `None` where it was not measured.
    pub fn barrier_ns(&self, threads: u32) -> Option<f64> {
        self.0.get(&format!("barrier_ns_t{threads}")).copied()
    }

    /// Ceilings for a number of threads. Weights are taken to come from the last-level cache: that bounds what a kernel
    /// can do wherever the rotating copies happen to lie.
    fn of(&self, threads: u32) -> Ceilings {
        let cached = self.rate("stream_cached_bytes_per_s", threads);
        let memory = self.rate("stream_bytes_per_s", threads);
        let vector = self.rate("int8_macs_per_s", threads);
        let tiles = self.rate("amx_int8_macs_per_s", threads);
        let int8 = vector.max(tiles);
        Ceilings {
            stream_bytes_per_s: cached.max(memory),
            near_bytes_per_s: 0.0,
            int8_macs_per_s: int8,
            // A bf16 multiply-add is at best half as frequent as an int8 one.
            bf16_macs_per_s: int8,
            f32_flops_per_s: self.rate("f32_flops_per_s", threads),
        }
    }

    /// Nanoseconds that a call cannot be faster than; 0 where the machine was not measured. `rows` rows, each seeing
    /// `context` tokens.
    pub fn floor_ns(&self, operation: &Operation, rows: u32, context: u32, threads: u32) -> f64 {
        let contexts = vec![context; rows as usize];
        let least = Cost { activation_bytes: 0.0, ..least_cost(operation, &contexts) };
        MARGIN * floor_ns(&least, &self.of(threads))
    }
}

/// The cost that no algorithm avoids. Attention rows may share what they read, so only one row's keys count.
fn least_cost(operation: &Operation, contexts: &[u32]) -> Cost {
    let full = cost(operation, contexts);
    match operation {
        Operation::Attention { .. } => {
            let one = cost(operation, &contexts[..contexts.len().min(1)]);
            Cost { kv_bytes: one.kv_bytes, ..full }
        }
        // Weights of integer classes are summed in integers, everything else is small beside it.
        Operation::Linear { activation: Activation::I8 | Activation::I16 | Activation::Row16, .. } => {
            Cost { f32_flops: 0.0, transcendentals: 0.0, ..full }
        }
        _ => full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::{Epilogue, Prologue, WeightFormat, WeightLayout, Zero};

    #[test]
    fn the_floor_follows_the_slowest_part() {
        let operation = Operation::Linear {
            n: 1024,
            k: 1024,
            prologue: Prologue::None,
            epilogue: Epilogue::Store,
            weight: WeightLayout {
                format: WeightFormat::Affine { bits: 8, group: 32, zero: Zero::Midpoint },
                n_block: 16,
            },
            activation: Activation::I8,
        };
        let ceilings = MeasuredCeilings(BTreeMap::from([
            ("stream_cached_bytes_per_s_t2".to_owned(), 1e10),
            ("int8_macs_per_s_t2".to_owned(), 1e12),
        ]));
        let one = ceilings.floor_ns(&operation, 1, 0, 2);
        assert!((80_000.0..100_000.0).contains(&one), "bytes rule at one row: {one}");
        let many = ceilings.floor_ns(&operation, 1000, 0, 2);
        assert!((800_000.0..1_000_000.0).contains(&many), "operations rule at many: {many}");
        assert_eq!(MeasuredCeilings::default().floor_ns(&operation, 1, 0, 2), 0.0);
    }
}
