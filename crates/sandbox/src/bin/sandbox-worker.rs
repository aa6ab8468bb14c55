//! The sandbox's child as a program of its own, for tests and for programs without a hidden subcommand.

fn main() {
    sandbox::worker_main(std::env::args_os().skip(1))
}
