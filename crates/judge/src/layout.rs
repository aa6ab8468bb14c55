//! Where the tensors of a call lie in shared memory: read-only inputs, written tensors between red zones.

use plan::abi::TENSOR_SLOTS;
use plan::operation::slot;
use plan::{Epilogue, Launch, Operation};
use sandbox::{Call, Place, SharedMemory};

/// Regions of every worker, by index.
pub const STOCK: usize = 0;
pub const INPUTS: usize = 1;
pub const ARENA: usize = 2;

/// What outputs hold before a call: a NaN that no arithmetic makes.
pub const POISON: u32 = 0x7fa5_c3e1;
/// What red zones hold.
pub const RED: u32 = 0x7fb6_d4f2;
/// What scratch holds before a check.
pub const SCRATCH: u32 = 0x7fc7_e503;
/// Bytes of a red zone.
pub const ZONE: usize = 1024;

/// Slots that a kernel writes.
pub fn written(operation: &Operation) -> &'static [usize] {
    match operation {
        Operation::Linear { epilogue: Epilogue::QkvRope(_), .. } | Operation::RopeKv(_) => {
            &[slot::OUT, slot::K_CACHE, slot::V_CACHE]
        }
        _ => &[slot::OUT],
    }
}

/// Whether `OUT` is an input too (the residual).
pub fn accumulates(operation: &Operation) -> bool {
    matches!(operation, Operation::Linear { epilogue: Epilogue::Add, .. })
}

/// Hands out places in a region, one after another, each at a multiple of 64.
#[derive(Debug, Default)]
pub struct Cursor {
    region: usize,
    at: usize,
}

impl Cursor {
    /// From the start of a region.
    pub fn new(region: usize, at: usize) -> Self {
        Self { region, at: at.next_multiple_of(64) }
    }

    /// The next `bytes` bytes.
    pub fn take(&mut self, bytes: usize) -> Place {
        let place = Place::new(self.region, self.at, bytes);
        self.at = (self.at + bytes).next_multiple_of(64);
        place
    }

    /// The next `bytes` bytes with a red zone on either side; returns the zones too.
    pub fn fenced(&mut self, bytes: usize) -> Fenced {
        let before = self.take(ZONE);
        let place = self.take(bytes);
        let end = place.offset as usize + bytes;
        // From the first byte behind the tensor, padding included, so that one byte too many is seen.
        let padding = end.next_multiple_of(4);
        let after = self.take(ZONE);
        let after_end = (after.offset + after.bytes) as usize;
        Fenced { place, before: (before.offset as usize, ZONE), after: (padding, after_end - padding) }
    }

    /// Bytes handed out so far.
    pub fn used(&self) -> usize {
        self.at
    }
}

/// A place between red zones, as (offset, bytes).
#[derive(Clone, Copy, Debug)]
pub struct Fenced {
    pub place: Place,
    pub before: (usize, usize),
    pub after: (usize, usize),
}

impl Fenced {
    /// Writes both zones.
    pub fn fence(&self, memory: &SharedMemory) {
        for (offset, bytes) in [self.before, self.after] {
            memory.fill(offset, bytes, RED);
        }
    }

    /// Where a zone was written to: bytes before the start (negative) or behind the end.
    pub fn breach(&self, memory: &SharedMemory) -> Option<i64> {
        let (start, end) = (self.place.offset as i64, (self.place.offset + self.place.bytes) as i64);
        if let Some(at) = memory.differs(self.before.0, self.before.1, RED) {
            return Some(self.before.0 as i64 + at as i64 - start);
        }
        memory.differs(self.after.0, self.after.1, RED).map(|at| self.after.0 as i64 + at as i64 - end)
    }
}

/// The written parts of one call.
#[derive(Clone, Debug)]
pub struct Written {
    /// By slot.
    pub tensors: Vec<(usize, Fenced)>,
    pub scratch: Fenced,
    pub shared: Fenced,
}

/// Scratch of one call: bytes of each thread, bytes shared.
pub fn scratch_bytes(launch: &Launch, rows: u32) -> (usize, usize) {
    let each = (launch.scratch_bytes as usize).next_multiple_of(64).max(64);
    let shared =
        launch.shared_bytes.saturating_add(launch.shared_bytes_per_row.saturating_mul(u64::from(rows)));
    (each, (shared as usize).next_multiple_of(64).max(64))
}

impl Written {
    /// Lays out `tensors` (slot, bytes) and scratch.
    pub fn place(
        cursor: &mut Cursor,
        tensors: &[(usize, usize)],
        launch: &Launch,
        rows: u32,
        threads: u32,
    ) -> Self {
        let tensors = tensors.iter().map(|(slot, bytes)| (*slot, cursor.fenced(*bytes))).collect();
        let (each, shared) = scratch_bytes(launch, rows);
        Self { tensors, scratch: cursor.fenced(each * threads as usize), shared: cursor.fenced(shared) }
    }

    /// All fenced places with their names.
    pub fn fences(&self) -> impl Iterator<Item = (&'static str, &Fenced)> {
        self.tensors
            .iter()
            .map(|(slot, f)| (kernels::inputs::name_of(*slot), f))
            .chain([("scratch", &self.scratch), ("shared scratch", &self.shared)])
    }

    /// Puts the places into a call.
    pub fn bind(&self, call: &mut Call, threads: u32) {
        for (slot, fenced) in &self.tensors {
            debug_assert!(*slot < TENSOR_SLOTS);
            call.tensors[*slot] = fenced.place;
        }
        call.scratch = self.scratch.place;
        call.scratch.bytes /= u64::from(threads);
        call.shared = self.shared.place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_see_one_byte_on_either_side() {
        let memory = SharedMemory::new(16384).unwrap();
        let fenced = Cursor::new(ARENA, 4096).fenced(100);
        fenced.fence(&memory);
        assert_eq!(fenced.breach(&memory), None);
        memory.write(fenced.place.offset as usize, &[1; 100]);
        assert_eq!(fenced.breach(&memory), None);
        memory.write(fenced.place.offset as usize + 100, &[1]);
        assert_eq!(fenced.breach(&memory), Some(0));
        fenced.fence(&memory);
        memory.write(fenced.place.offset as usize - 1, &[1]);
        assert_eq!(fenced.breach(&memory), Some(-4));
    }
}
