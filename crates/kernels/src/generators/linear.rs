//! What all generators of linear kernels share: the shape as constants of the source, the frame, the launch.

use super::prelude;
use crate::error::KernelError;
use crate::numerics::Arith;
use evidence::{Point, Space};
use plan::operation::QkvRope;
use plan::{
    Activation, Epilogue, KvDtype, Launch, Operation, Prologue, RowBucket, WeightFormat, WeightLayout, Zero,
};
use std::fmt::Write;

const FRAME: &str = include_str!("source/linear_frame.rs");
const WALK: &str = include_str!("source/linear_walk.rs");
const FLOAT: &str = include_str!("source/float.rs");
const SEPARATE: &str = include_str!("source/float_separate.rs");
const FUSED: &str = include_str!("source/float_fused.rs");

/// Threads that a kernel may be run with; shares are computed, so the bound is nominal.
pub(super) const MAX_THREADS: u32 = 1024;

/// The `ahead` axis: how far ahead weights are prefetched: bytes, or the same place of the next tile (or next but one).
pub(super) const AHEAD: [&str; 6] = ["0", "1024", "2048", "4096", "tile", "two-tiles"];

/// A linear operation, taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    pub n: usize,
    pub k: usize,
    pub prologue: Prologue,
    pub epilogue: Epilogue,
    pub weight: WeightLayout,
    pub activation: Activation,
}

/// Affine weights, taken apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine {
    pub bits: u8,
    pub group: usize,
    pub zero: Zero,
}

/// How a kernel walks: what the point of a space decides for every generator.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    /// Heights of the row tiles, largest first; the last one is 1.
    pub heights: Vec<usize>,
    /// Columns of a unit for `Store` and `Add`, a multiple of 16.
    pub columns: usize,
    /// Rows that are prepared at once by a thread that prepares all of them itself.
    pub chunk: usize,
    pub prologue: PrologueWork,
    /// Bytes of a prepared row.
    pub row_bytes: usize,
    /// Whether the tile's text walks over units and rows itself, in whole sixteens of rows.
    pub own: bool,
    /// Whether prepared rows lie in tiles of sixteen rows by 64 bytes.
    pub tiled: bool,
    /// Extra scratch of each thread after the raw results, bytes.
    pub unit_scratch: usize,
}

/// Who prepares (normalises, quantises) the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrologueWork {
    /// Nobody: the input is used as it is.
    Direct,
    /// Every thread prepares all rows; one phase.
    Redundant,
    /// Threads share the rows, then meet; two phases. Then each has its share of the columns.
    Split,
    /// The same, but columns are dealt out in this many pieces for each thread, to whoever is free: threads that a neighbour
    /// slows down do less, and the others do not wait for them.
    Dealt(u32),
}

impl Linear {
    /// The linear operation, or `None` for another kind and for shapes that no generator here handles (see
    /// [`Linear::refuse`]).
    pub fn of(operation: &Operation) -> Option<Self> {
        Self::any(operation).filter(|l| l.activation != Activation::Row16)
    }

    /// A linear operation with `Row16` activations, whose kernels are made apart ([`super::linear_wide`]), and whole tiles
    /// of 32 inputs.
    pub fn wide(operation: &Operation) -> Option<Self> {
        Self::any(operation).filter(|l| {
            l.activation == Activation::Row16
                && l.k <= 32_768
                && l.affine().is_some_and(|a| a.group.is_multiple_of(32))
        })
    }

    fn any(operation: &Operation) -> Option<Self> {
        let Operation::Linear { n, k, prologue, epilogue, weight, activation } = *operation else {
            return None;
        };
        let linear = Self { n: n as usize, k: k as usize, prologue, epilogue, weight, activation };
        linear.refuse().is_none().then_some(linear)
    }

    /// The same with the reason.
    pub fn require(operation: &Operation) -> Result<Self, KernelError> {
        Self::of(operation).ok_or_else(|| KernelError::Unsupported {
            operation: operation.to_string(),
            what: match *operation {
                Operation::Linear { n, k, prologue, epilogue, weight, activation } => {
                    Self { n: n as usize, k: k as usize, prologue, epilogue, weight, activation }
                        .refuse()
                        .unwrap_or_default()
                }
                _ => "this generator makes linear kernels only".to_owned(),
            },
        })
    }

    fn refuse(&self) -> Option<String> {
        if let Some(why) = self.weight.refuse(self.k) {
            return Some(why);
        }
        if self.n == 0 || self.k == 0 {
            return Some("an empty matrix".to_owned());
        }
        let block = self.weight.n_block as usize;
        match (self.activation, self.weight.format) {
            (Activation::I8, WeightFormat::Affine { group, .. }) if group > 32768 => {
                return Some(format!("integer sums over groups of {group} may overflow"));
            }
            (Activation::I16, WeightFormat::Affine { group, .. }) if group > 512 => {
                return Some(format!("two-pass integer sums over groups of {group} may overflow"));
            }
            (Activation::I8 | Activation::I16 | Activation::Row16, WeightFormat::Affine { .. })
            | (Activation::F32, _)
            | (Activation::Bf16, WeightFormat::Bf16 | WeightFormat::Affine { .. }) => {}
            (activation, format) => {
                return Some(format!("{activation:?} activations do not go with {format:?} weights"));
            }
        }
        match self.epilogue {
            Epilogue::SiluGate if !self.n.is_multiple_of(2 * block) => {
                Some(format!("gate and up of n = {} are not whole blocks of {block}", self.n))
            }
            Epilogue::QkvRope(q) => refuse_heads(self.n, &q),
            _ => None,
        }
    }

    /// The parts of affine weights.
    pub fn affine(&self) -> Option<Affine> {
        match self.weight.format {
            WeightFormat::Affine { bits, group, zero } => Some(Affine { bits, group: group as usize, zero }),
            _ => None,
        }
    }

    /// Whether rows need preparation before the products.
    pub fn is_direct(&self) -> bool {
        self.activation == Activation::F32 && self.prologue == Prologue::None
    }

    /// Columns of the smallest piece that one thread finishes alone.
    pub fn unit(&self, columns: usize) -> usize {
        match self.epilogue {
            Epilogue::Store | Epilogue::Add => columns,
            Epilogue::SiluGate => 2 * self.weight.n_block as usize,
            Epilogue::QkvRope(q) => q.head_dim as usize,
        }
    }

    /// Bytes that the `ahead` axis stands for, with tiles of `blocks` sub-blocks.
    pub fn ahead(&self, blocks: usize, point: &Point) -> usize {
        let sub_block = self.weight.block_bytes(self.k) / (self.weight.n_block as usize / 16);
        match point.get("ahead") {
            Some("tile") => blocks * sub_block,
            Some("two-tiles") => 2 * blocks * sub_block,
            Some(bytes) => bytes.parse().unwrap_or(0),
            None => 0,
        }
    }

    /// Numeric class: activations, arithmetic, and how the prologue rounds. Group and zero stand in the operation.
    pub fn numeric_class(&self, arith: Arith) -> String {
        let activation = match self.activation {
            Activation::F32 => "f32",
            Activation::I8 => "i8",
            Activation::I16 => "i16",
            Activation::Bf16 => "bf16",
            Activation::Row16 => "r16",
        };
        format!("linear-{activation}/{}", arith.name())
    }

    /// Everything of a source but the tile itself: prelude, constants, arithmetic, frame, row tiles. `tile` stands for
    /// `prepare` and `tile` (or `chunk`); `constants` are those of the generator.
    pub fn source(&self, title: &str, arith: Arith, walk: &Walk, constants: &str, tile: &str) -> String {
        let mut text = prelude::begin(title);
        text.push_str(&self.constants(walk));
        text.push_str(constants);
        text.push_str(match arith {
            Arith::Fused | Arith::Tiles => FUSED,
            Arith::Separate => SEPARATE,
        });
        let parts: &[&str] = if walk.own { &[FLOAT, FRAME, tile] } else { &[FLOAT, FRAME, WALK, tile] };
        for part in parts {
            text.push('\n');
            text.push_str(part);
        }
        if !walk.own {
            text.push_str(&unit_rows(&walk.heights));
        }
        text
    }

    fn constants(&self, walk: &Walk) -> String {
        let mut t = String::from("\n");
        let mut number = |name: &str, value: usize| {
            // Writing to a string cannot fail.
            let _ = writeln!(t, "const {name}: usize = {value};");
        };
        let affine = self.affine().unwrap_or(Affine { bits: 8, group: self.k, zero: Zero::Midpoint });
        number("N", self.n);
        number("K", self.k);
        number("NB", self.weight.n_block as usize);
        number("GROUP", affine.group);
        number("GROUPS", self.k / affine.group);
        number("RECORD", self.weight.record_bytes());
        number("BLOCK", self.weight.block_bytes(self.k));
        number("UNIT", self.unit(walk.columns));
        number("TILE", walk.heights.first().copied().unwrap_or(1));
        number("CHUNK", walk.chunk);
        number("ROW", walk.row_bytes);
        number("UNIT_SCRATCH", walk.unit_scratch);
        let q = match self.epilogue {
            Epilogue::QkvRope(q) => q,
            _ => NO_HEADS,
        };
        number("HEADS", q.heads as usize);
        number("KV_HEADS", q.kv_heads as usize);
        number("HEAD_DIM", q.head_dim as usize);
        number("BLOCK_TOKENS", q.kv.block_tokens as usize);
        let bits = |name: &str, bits: u32| format!("const {name}: f32 = f32::from_bits({bits:#010x});\n");
        let truth = |name: &str, value: bool| format!("const {name}: bool = {value};\n");
        let choice = |name: &str, value: u32| format!("const {name}: u32 = {value};\n");
        t += &choice("BITS", affine.bits.into());
        t += &truth("STORED", affine.zero == Zero::Stored);
        t += &choice(
            "FORMAT",
            match self.weight.format {
                WeightFormat::Affine { .. } => 0,
                WeightFormat::Bf16 => 1,
                WeightFormat::F32 => 2,
            },
        );
        t += &choice(
            "ACTIVATION",
            match self.activation {
                Activation::F32 => 0,
                Activation::I8 => 1,
                Activation::I16 => 2,
                Activation::Bf16 => 3,
                Activation::Row16 => 4,
            },
        );
        let eps = match self.prologue {
            Prologue::None => 0,
            Prologue::RmsNorm { eps_bits } => eps_bits,
        };
        t += &truth("NORM", self.prologue != Prologue::None);
        t += &bits("EPS", eps);
        t += &choice(
            "EPILOGUE",
            match self.epilogue {
                Epilogue::Store => 0,
                Epilogue::Add => 1,
                Epilogue::SiluGate => 2,
                Epilogue::QkvRope(_) => 3,
            },
        );
        t += &truth("BIAS", q.bias);
        t += &truth("QK_NORM", q.qk_norm_eps_bits.is_some());
        t += &bits("QK_EPS", q.qk_norm_eps_bits.unwrap_or(0));
        t += &choice(
            "KV_DTYPE",
            match q.kv.dtype {
                KvDtype::F32 => 0,
                KvDtype::F16 => 1,
                KvDtype::Bf16 => 2,
            },
        );
        let pieces = match walk.prologue {
            PrologueWork::Dealt(pieces) => pieces,
            _ => 0,
        };
        t += &truth("SPLIT", walk.prologue == PrologueWork::Split || pieces > 0);
        t += &choice("PIECES", pieces);
        t += &truth("TILED", walk.tiled);
        t
    }

    /// The launch of a walk over at most `max_rows` rows.
    pub fn launch(&self, walk: &Walk, max_rows: u32) -> Launch {
        let tile = walk.heights.first().copied().unwrap_or(1);
        let results = tile * self.unit(walk.columns) * 4 + walk.unit_scratch;
        // Tiles are whole, also where rows end within one.
        let ragged = if walk.own { 15 * walk.row_bytes } else { 0 };
        let rows = walk.chunk.min(max_rows as usize);
        let (phases, own, shared) = match walk.prologue {
            PrologueWork::Direct => (1, 0, 0),
            PrologueWork::Redundant => (1, rows * walk.row_bytes + ragged, 0),
            PrologueWork::Split | PrologueWork::Dealt(_) => (2, 0, walk.row_bytes),
        };
        // The counter of pieces stands before the rows.
        let counter = if matches!(walk.prologue, PrologueWork::Dealt(_)) { 64 } else { 0 };
        Launch {
            phases,
            scratch_bytes: (results + own).next_multiple_of(64) as u64,
            shared_bytes: if shared > 0 { ragged as u64 + counter } else { 0 },
            shared_bytes_per_row: shared as u64,
            max_rows,
            max_threads: MAX_THREADS,
        }
    }
}

const NO_HEADS: QkvRope = QkvRope {
    heads: 0,
    kv_heads: 0,
    head_dim: 16,
    bias: false,
    qk_norm_eps_bits: None,
    kv: plan::KvLayout { dtype: KvDtype::F32, block_tokens: 16 },
};

fn refuse_heads(n: usize, q: &QkvRope) -> Option<String> {
    let heads = (q.heads + 2 * q.kv_heads) as usize;
    if q.head_dim == 0 || !q.head_dim.is_multiple_of(16) {
        Some(format!("head_dim {} is not a multiple of 16", q.head_dim))
    } else if n != heads * q.head_dim as usize {
        Some(format!("n = {n} is not {heads} heads of {}", q.head_dim))
    } else {
        None
    }
}

/// The walk over the rows of a unit, tallest tiles first. Comparisons rather than a `match`: no jump table.
fn unit_rows(heights: &[usize]) -> String {
    let mut text = String::from(
        "\n/// All rows of one unit, in tiles.\n#[inline(always)]\nunsafe fn unit_rows(a: &ArgsV1, first: usize, count: usize, acts: *const u8, scratch: *mut u8, sub: usize, subs: usize) {\n    let mut r = 0;\n",
    );
    for (i, h) in heights.iter().enumerate() {
        // Below a tile of twice the height at most one fits, so a loop is needed only after a bigger step.
        let word = if i == 0 || heights[i - 1] > 2 * h { "while" } else { "if" };
        let _ = write!(
            text,
            "    {word} count - r >= {h} {{\n        rows_tile::<{h}>(a, first + r, place_row(acts as *mut u8, r), scratch, sub, subs);\n        r += {h};\n    }}\n"
        );
    }
    text.push_str("}\n");
    text
}

/// Tile heights from `tallest` down by halves to 1.
pub(super) fn halving(tallest: usize) -> Vec<usize> {
    let mut heights = vec![tallest.max(1)];
    while let Some(&h) = heights.last().filter(|h| **h > 1) {
        heights.push(h / 2);
    }
    heights
}

/// Values of a tile-height axis that make sense for a bucket: up to its highest row count.
pub(super) fn tile_heights(rows: RowBucket, candidates: &[u32]) -> Vec<u32> {
    let fit: Vec<u32> = candidates.iter().copied().filter(|h| *h <= rows.high).collect();
    if fit.is_empty() { vec![1] } else { fit }
}

/// Values of an axis that counts 16-column sub-blocks of a tile: those that divide a unit.
pub(super) fn column_blocks(linear: &Linear, candidates: &[u32]) -> Vec<u32> {
    let divides = |c: &u32| linear.unit(16 * *c as usize).is_multiple_of(16 * *c as usize);
    candidates.iter().copied().filter(divides).collect()
}

/// Bytes of a row rounded up to an odd number of cache lines, so that rows do not fall into one cache set.
pub(super) fn odd_lines(bytes: usize) -> usize {
    (bytes.div_ceil(64) | 1) * 64
}

/// The number of an axis, or an error that names the point.
pub(super) fn number(generator: &str, point: &Point, axis: &str) -> Result<usize, KernelError> {
    point.number(axis).map(|v| v as usize).ok_or_else(|| KernelError::Point {
        generator: generator.to_owned(),
        point: point.to_string(),
        what: format!("axis '{axis}' has no number"),
    })
}

/// Refuses points outside a space.
pub(super) fn require_point(
    generator: &str,
    space: Option<Space>,
    operation: &Operation,
    point: &Point,
) -> Result<(), KernelError> {
    let space = space.ok_or_else(|| KernelError::Unsupported {
        operation: operation.to_string(),
        what: format!("generator {generator} does not apply here"),
    })?;
    if space.contains(point) {
        return Ok(());
    }
    Err(KernelError::Point {
        generator: generator.to_owned(),
        point: point.to_string(),
        what: "axes or values differ from the space".to_owned(),
    })
}

/// A point from pairs.
pub(super) fn point(pairs: &[(&str, &str)]) -> Point {
    Point(pairs.iter().map(|(a, v)| ((*a).to_owned(), (*v).to_owned())).collect())
}

/// The `prologue` axis: who prepares the rows, and how columns are shared then; only where there is something to prepare and
/// several rows.
pub(super) fn with_prologue(space: Space, linear: &Linear, rows: RowBucket) -> Space {
    if linear.is_direct() || rows.high == 1 {
        space
    } else {
        space.choices("prologue", &["redundant", "split", "dealt-2", "dealt-4", "dealt-8"])
    }
}

/// Where the search begins on the `prologue` axis.
pub(super) fn first_prologue(rows: RowBucket) -> &'static str {
    if rows.low >= 9 || rows.high >= 32 { "dealt-4" } else { "redundant" }
}

/// The value of the `prologue` axis.
pub(super) fn prologue_work(linear: &Linear, point: &Point) -> PrologueWork {
    match point.get("prologue") {
        _ if linear.is_direct() => PrologueWork::Direct,
        Some("split") => PrologueWork::Split,
        Some("dealt-2") => PrologueWork::Dealt(2),
        Some("dealt-4") => PrologueWork::Dealt(4),
        Some("dealt-8") => PrologueWork::Dealt(8),
        _ => PrologueWork::Redundant,
    }
}
