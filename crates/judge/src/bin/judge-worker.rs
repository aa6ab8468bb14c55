//! The sandbox's child for this crate's tests and red team.

fn main() {
    sandbox::worker_main(std::env::args_os().skip(1))
}
