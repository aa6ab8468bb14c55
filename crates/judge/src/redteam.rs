//! The exploit suite.
