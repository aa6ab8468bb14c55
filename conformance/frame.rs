// What the conformance kernels share: accessors and an honest dot product of the tasks in `tasks.json`.
// Put behind the trusted prelude and in front of each candidate by the red team.

/// Outputs and inputs of the linear tasks; width of the norm task.
const N: usize = 80;
const K: usize = 64;

fn x(a: &ArgsV1) -> *const f32 {
    a.tensors[0].data as *const f32
}
fn w(a: &ArgsV1) -> *const f32 {
    a.tensors[1].data as *const f32
}
fn out(a: &ArgsV1) -> *mut f32 {
    a.tensors[2].data as *mut f32
}
fn norm(a: &ArgsV1) -> *const f32 {
    a.tensors[3].data as *const f32
}

/// Weight of column `n` and input `k`, blocks of 16 columns.
unsafe fn weight(a: &ArgsV1, n: usize, k: usize) -> f32 {
    unsafe { *w(a).add((n / 16) * 16 * K + k * 16 + n % 16) }
}

/// The sum of the class: products rounded, then added in order of k.
unsafe fn dot(a: &ArgsV1, row: usize, n: usize) -> f32 {
    let mut sum = 0.0f32;
    let mut k = 0;
    while k < K {
        sum += unsafe { *x(a).add(row * K + k) * weight(a, n, k) };
        k += 1;
    }
    sum
}

/// The same, backwards: as exact, but of another class.
unsafe fn dot_backwards(a: &ArgsV1, row: usize, n: usize) -> f32 {
    let mut sum = 0.0f32;
    let mut k = K;
    while k > 0 {
        k -= 1;
        sum += unsafe { *x(a).add(row * K + k) * weight(a, n, k) };
    }
    sum
}

/// Calls `f(row, column)` for this thread's share of the outputs.
#[inline(always)]
unsafe fn share(a: &ArgsV1, thread: u32, threads: u32, mut f: impl FnMut(usize, usize)) {
    let mut n = thread as usize;
    while n < N {
        let mut row = 0;
        while row < a.rows as usize {
            f(row, n);
            row += 1;
        }
        n += threads as usize;
    }
}
