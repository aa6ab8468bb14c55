//! Engine trials: a whole engine in a sandboxed worker, judged from outside.

pub mod driver;
pub mod protocol;
pub mod quality;
pub mod worker;
