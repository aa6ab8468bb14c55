//! The barrier and the pool under load: no round is lost or doubled, nobody waits for ever.

use kernel_abi::{Barrier, Broken, KernelAbiError, Pool, allowed_processors, pin_current_thread};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Each member adds to its own cell in one round and sums all cells in the next: any member that ran ahead or
/// behind shows in the sum.
fn rounds(threads: u32, spin: u32, rounds: u64) {
    let barrier = Barrier::new(threads, spin);
    let cells: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (barrier, cells) = (&barrier, &cells);
            scope.spawn(move || {
                for round in 1..=rounds {
                    // Relaxed on purpose: the barrier alone must publish it.
                    cells[thread as usize].store(round, Ordering::Relaxed);
                    barrier.wait().expect("not broken");
                    for cell in cells {
                        assert_eq!(cell.load(Ordering::Relaxed), round);
                    }
                    barrier.wait().expect("not broken");
                }
            });
        }
    });
}

#[test]
fn a_million_rounds() {
    rounds(2, 300, 500_000);
}

#[test]
fn always_parking() {
    rounds(2, 0, 3_000);
    rounds(3, 1, 2_000);
}

#[test]
fn more_threads_than_processors() {
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) as u32;
    rounds(4 * processors, 50, 300);
}

#[test]
fn jobs_run_once_on_every_member() -> Result<(), KernelAbiError> {
    let mut pool = Pool::new(3, 200, &[])?;
    let counts: Vec<AtomicU32> = (0..3).map(|_| AtomicU32::new(0)).collect();
    for round in 1..=5_000 {
        pool.run(&|member| {
            assert_eq!(member.threads, 3);
            counts[member.thread as usize].fetch_add(1, Ordering::Relaxed);
            member.barrier()?;
            let sum: u32 = counts.iter().map(|c| c.load(Ordering::Relaxed)).sum();
            assert_eq!(sum, 3 * round);
            member.barrier()
        })?;
    }
    Ok(())
}

#[test]
fn one_thread_needs_no_other() -> Result<(), KernelAbiError> {
    let mut pool = Pool::new(1, 0, &[])?;
    let sum = AtomicU32::new(0);
    for _ in 0..10 {
        pool.run(&|member| {
            sum.fetch_add(1, Ordering::Relaxed);
            member.barrier()
        })?;
    }
    assert_eq!(sum.into_inner(), 10);
    Ok(())
}

/// Whichever member panics, wherever the others wait, the run ends with its message, and so do later ones.
#[test]
fn a_panic_frees_the_others() -> Result<(), KernelAbiError> {
    for culprit in 0..3 {
        for spin in [0, 1_000_000] {
            let mut pool = Pool::new(3, spin, &[])?;
            let error = pool
                .run(&|member| {
                    member.barrier()?;
                    assert_ne!(member.thread, culprit, "on purpose");
                    member.barrier()?;
                    panic!("nobody may pass the barrier that the culprit never reached");
                })
                .unwrap_err();
            assert!(error.to_string().contains("on purpose"), "{error}");
            assert!(pool.run(&|_| Ok::<(), Broken>(())).is_err());
        }
    }
    Ok(())
}

#[test]
fn members_are_pinned() -> Result<(), KernelAbiError> {
    // On a thread of its own, since the owner of the pool is pinned too.
    std::thread::spawn(|| {
        let all = allowed_processors()?;
        assert!(!all.is_empty());
        let two = [all[0], all[all.len() - 1]];
        let mut pool = Pool::new(2, 100, &two)?;
        let seen = [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)];
        pool.run(&|member| {
            let mine = allowed_processors().expect("readable");
            assert_eq!(mine.len(), 1);
            seen[member.thread as usize].store(mine[0] as u64, Ordering::Relaxed);
            Ok(())
        })?;
        for (cell, processor) in seen.iter().zip(two) {
            assert_eq!(cell.load(Ordering::Relaxed), processor as u64);
        }
        assert!(pin_current_thread(100_000).is_err());
        Ok(())
    })
    .join()
    .expect("no panic")
}
