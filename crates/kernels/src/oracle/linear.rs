//! Linear operations: direct sums over the packed weights with running error bounds, then the epilogue.

use super::activation::{ActivationRow, activations};
use super::rope::{Heads, qkv_epilogue};
use super::weights::{group_at, quants_of, weights_for, wide_low, wide_of};
use super::{CaseOutputs, Rounding, Selection, floored};
use crate::error::KernelError;
use crate::inputs::CaseInputs;
use crate::parallel::for_each_chunk;
use crate::tolerance::{self, Bounded, U, UNDERFLOW};
use plan::operation::slot;
use plan::{Activation, Epilogue, Operation, WeightFormat, WeightLayout, Zero};

/// Columns that are summed side by side.
const TILE: usize = 16;
/// Roundings of one group's term besides the sum: its scale `d` (maximum, quotient), the integer sum as f32, the product
/// with `d`, the product with the weight scale.
const GROUP_ROUNDINGS: f64 = 6.0;

pub(super) fn linear(
    operation: &Operation,
    inputs: &CaseInputs,
    at: Selection<'_>,
    rounding: Rounding,
) -> Result<CaseOutputs, KernelError> {
    let Operation::Linear { n, epilogue, weight, .. } = operation else {
        return Ok(at.outputs(vec![], vec![]));
    };
    let rows = activations(operation, inputs, at.rows, rounding)?;
    match epilogue {
        Epilogue::Store => Ok(at.outputs(project(operation, inputs, &rows, at.columns)?, vec![])),
        Epilogue::Add => {
            let before = inputs.f32(slot::OUT, inputs.rows as usize * *n as usize)?;
            let mut out = project(operation, inputs, &rows, at.columns)?;
            for (i, y) in out.iter_mut().enumerate() {
                let (row, column) = (at.rows[i / at.columns.len()], at.columns[i % at.columns.len()]);
                *y = y.plus(Bounded::exact(before[row as usize * *n as usize + column as usize] as f64));
            }
            Ok(at.outputs(out, vec![]))
        }
        Epilogue::SiluGate => {
            let packed =
                |c: u32, up: u32| (2 * (c / weight.n_block) + up) * weight.n_block + c % weight.n_block;
            let columns: Vec<u32> = at.columns.iter().flat_map(|c| [packed(*c, 0), packed(*c, 1)]).collect();
            let both = project(operation, inputs, &rows, &columns)?;
            let out = both.chunks_exact(2).map(|y| floored(tolerance::silu(y[0]).times(y[1]))).collect();
            Ok(at.outputs(out, vec![]))
        }
        Epilogue::QkvRope(qkv) => {
            let heads = Heads::of(qkv, at.columns);
            let y = project(operation, inputs, &rows, &heads.columns(qkv))?;
            qkv_epilogue(qkv, inputs, at, &heads, y)
        }
    }
}

/// `x W^T` for the given activations and columns, `[rows][columns]`.
fn project(
    operation: &Operation,
    inputs: &CaseInputs,
    rows: &[ActivationRow],
    columns: &[u32],
) -> Result<Vec<Bounded>, KernelError> {
    let Operation::Linear { k, weight, activation, .. } = operation else { return Ok(vec![]) };
    let bytes = inputs.weights(operation)?;
    let matrix = Matrix { layout: *weight, k: *k as usize, bytes, activation: *activation };
    let (m, n) = (rows.len(), columns.len());
    // Column-major tiles, so that threads write apart.
    let mut tiles = vec![Bounded::default(); m * n];
    for_each_chunk(&mut tiles, TILE * m, m * n * matrix.k, |tile, out| {
        let columns = &columns[tile * TILE..(tile * TILE + TILE).min(n)];
        let weights = matrix.tile(columns);
        for (r, row) in rows.iter().enumerate() {
            for (c, y) in matrix.sums(&weights, row).into_iter().take(columns.len()).enumerate() {
                out[c * m + r] = y;
            }
        }
    });
    Ok((0..m * n).map(|i| tiles[i % n * m + i / n]).collect())
}

struct Matrix<'a> {
    layout: WeightLayout,
    k: usize,
    bytes: &'a [u8],
    activation: Activation,
}

/// Weights of up to [`TILE`] columns in f64. Unused columns are zero.
struct Tile {
    /// `[k]`: weights (`F32`, `Bf16`), or quants less the midpoint or not (`I8`, `I16`).
    factors: Vec<[f64; TILE]>,
    /// `[k / group]`, integer classes only.
    scales: Vec<[f64; TILE]>,
    minima: Vec<[f64; TILE]>,
    /// `Row16` only: `[k]` what low bytes stand for, and units.
    lows: Vec<[f64; TILE]>,
    units: [f64; TILE],
}

impl Matrix<'_> {
    fn integer(&self) -> bool {
        matches!(self.activation, Activation::I8 | Activation::I16)
    }

    fn tile(&self, columns: &[u32]) -> Tile {
        let mut tile = Tile {
            factors: vec![[0.0; TILE]; self.k],
            scales: vec![],
            minima: vec![],
            lows: vec![],
            units: [0.0; TILE],
        };
        if self.activation == Activation::Row16 {
            tile.lows = vec![[0.0; TILE]; self.k];
            for (c, n) in columns.iter().enumerate() {
                let (unit, whole) = wide_of(&self.layout, self.k, self.bytes, *n as usize);
                tile.units[c] = unit;
                for ((factor, low), w) in tile.factors.iter_mut().zip(&mut tile.lows).zip(whole) {
                    factor[c] = unit * f64::from(w);
                    low[c] = unit * wide_low(w);
                }
            }
            return tile;
        }
        if self.integer() {
            let groups = self.k / self.layout.group(self.k);
            tile.scales = vec![[0.0; TILE]; groups];
            tile.minima = vec![[0.0; TILE]; groups];
        }
        for (c, n) in columns.iter().map(|n| *n as usize).enumerate() {
            if self.integer() {
                let quants = quants_of(&self.layout, self.k, self.bytes, n);
                tile.factors.iter_mut().zip(quants).for_each(|(f, q)| f[c] = f64::from(q));
            } else {
                let weights = weights_for(&self.layout, self.activation, self.k, self.bytes, n);
                tile.factors.iter_mut().zip(weights).for_each(|(f, w)| f[c] = w);
            }
            for g in 0..tile.scales.len() {
                (tile.scales[g][c], tile.minima[g][c]) = group_at(&self.layout, self.k, self.bytes, n, g);
            }
        }
        tile
    }

    fn sums(&self, tile: &Tile, row: &ActivationRow) -> [Bounded; TILE] {
        let mut y = if self.activation == Activation::Row16 {
            self.wide_sums(tile, row)
        } else if self.integer() {
            self.grouped_sums(tile, row)
        } else {
            self.plain_sums(tile, row)
        };
        for y in &mut y {
            y.error += row.common * y.value.abs() + self.k as f64 * UNDERFLOW;
        }
        y
    }

    /// One rounded multiply-add for each k.
    fn plain_sums(&self, tile: &Tile, row: &ActivationRow) -> [Bounded; TILE] {
        // Weights as bf16 are exact in every kernel: the sum of scale and minimum is rounded to f32 first, as here.
        let rounded_weights = self.activation != Activation::Bf16
            && matches!(self.layout.format, WeightFormat::Affine { zero: Zero::Stored, .. });
        let own = if rounded_weights { 2.0 * U } else { U };
        let (mut sum, mut error) = ([0.0f64; TILE], [0.0f64; TILE]);
        for ((w, x), doubt) in tile.factors.iter().zip(&row.value).zip(&row.doubt) {
            let doubt = doubt + own * x.abs();
            for c in 0..TILE {
                sum[c] += x * w[c];
                error[c] += doubt * w[c].abs() + U * sum[c].abs();
            }
        }
        bounded(sum, error)
    }

    /// Exact sums over all of k, less the products of low bytes; a handful of roundings at the end.
    fn wide_sums(&self, tile: &Tile, row: &ActivationRow) -> [Bounded; TILE] {
        let (mut sum, mut error, mut size) = ([0.0f64; TILE], [0.0f64; TILE], [0.0f64; TILE]);
        for (i, (w, low)) in tile.factors.iter().zip(&tile.lows).enumerate() {
            let (x, doubt, x_low) = (row.value[i], row.doubt[i], row.low[i]);
            for c in 0..TILE {
                sum[c] += x * w[c] - x_low * low[c];
                size[c] += (x * w[c]).abs();
                // One step of an activation may carry into its high byte: its low byte moves by up to 127.
                error[c] +=
                    if doubt > 0.0 { doubt * (w[c].abs() + 127.0 * 128.0 * tile.units[c]) } else { 0.0 };
            }
        }
        for c in 0..TILE {
            // The high sum may be as large as all terms together; scales and products round six times.
            error[c] += U * (3.0 * size[c] + 6.0 * sum[c].abs()) + f64::EPSILON * self.k as f64 * size[c];
        }
        bounded(sum, error)
    }

    /// Exact sums within a group; each group adds one term, or two with stored minima.
    fn grouped_sums(&self, tile: &Tile, row: &ActivationRow) -> [Bounded; TILE] {
        let WeightFormat::Affine { bits, group, zero } = self.layout.format else {
            return [Bounded::default(); TILE];
        };
        let group = group as usize;
        let offset = match zero {
            Zero::Stored => 0.0,
            Zero::Midpoint => f64::from(1u32 << (bits - 1)),
        };
        let (mut sum, mut error) = ([0.0f64; TILE], [0.0f64; TILE]);
        let mut add = |term: [f64; TILE]| {
            for c in 0..TILE {
                sum[c] += term[c];
                error[c] += U * (GROUP_ROUNDINGS * term[c].abs() + sum[c].abs());
            }
        };
        let mut doubts = [0.0f64; TILE];
        for (g, (q, x)) in tile.factors.chunks(group).zip(row.value.chunks(group)).enumerate() {
            let (scale, min) = (&tile.scales[g], &tile.minima[g]);
            let mut products = [0.0f64; TILE];
            for (q, x) in q.iter().zip(x) {
                for c in 0..TILE {
                    products[c] += (q[c] - offset) * x;
                }
            }
            add(std::array::from_fn(|c| products[c] * scale[c]));
            if zero == Zero::Stored {
                let total: f64 = x.iter().sum();
                add(std::array::from_fn(|c| total * min[c]));
            }
            // The kernel's sum of a group is an integer; ours of the same terms is rounded, which shows where they cancel.
            let ours = f64::EPSILON * group as f64 * x.iter().map(|x| x.abs()).sum::<f64>();
            let most = f64::from(1u32 << bits);
            for c in 0..TILE {
                doubts[c] += ours * (most * scale[c].abs() + min[c].abs());
            }
            for (q, doubt) in q.iter().zip(&row.doubt[g * group..]).filter(|(_, d)| **d != 0.0) {
                for c in 0..TILE {
                    doubts[c] += doubt * (scale[c] * q[c] + min[c]).abs();
                }
            }
        }
        for c in 0..TILE {
            error[c] += doubts[c];
        }
        bounded(sum, error)
    }
}

fn bounded(sum: [f64; TILE], error: [f64; TILE]) -> [Bounded; TILE] {
    std::array::from_fn(|c| Bounded { value: sum[c], error: error[c] })
}
