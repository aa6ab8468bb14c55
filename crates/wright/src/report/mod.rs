//! What `report` and `verify` read and write: ledger entries beside a bundle, the build's summary, the page.

mod chart;
mod html;
pub mod page;
pub mod records;
mod sections;
pub mod source;
mod story;

#[cfg(test)]
mod tests;
