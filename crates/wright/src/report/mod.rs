//! What `report` and `verify` read and write: ledger entries beside a bundle, the build's summary, the page.

pub mod records;
pub mod summary;
