//! The parts of the page.

pub mod evidence;
pub mod opening;
pub mod operations;
pub mod progress;
pub mod serving;
pub mod tried;
