//! Why numbers are no sample.

use thiserror::Error;

/// Errors of this crate. All are about the input: a computation on a valid sample cannot fail.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum StatisticsError {
    #[error("no samples")]
    Empty,
    #[error("sample {index} is {value}: a positive, finite number is expected")]
    NotPositive { index: usize, value: f64 },
    #[error("sample {index} is {value}: a finite number is expected")]
    NotFinite { index: usize, value: f64 },
    #[error("{champion} samples of the champion and {challenger} of the challenger do not pair up")]
    Unpaired { champion: usize, challenger: usize },
    #[error("{have} samples are too few for {what}: {need} are needed")]
    TooFew { what: &'static str, have: usize, need: usize },
}
