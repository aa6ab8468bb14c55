//! The commands, one file each.

pub mod bench;
pub mod doctor;
pub mod explain;
pub mod ledger;
pub mod lessons;
pub mod pull;
pub mod redteam;
pub mod report;
pub mod serve;
pub mod verify;
