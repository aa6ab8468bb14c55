//! Matrix product of activations and weights, both with the summed dimension contiguous.

use super::simd::{LANES, sum_lanes};

/// Rows of activations and rows of weights in one register tile.
const TILE: usize = 4;
/// Rows of weights that stay in cache while activations pass by.
const WEIGHT_BLOCK: usize = 64;

/// `out[t, n] = sum over k of x[t, k] * w[n, k]`, all row-major, `depth` the length of `k`.
///
/// Each sum runs over 16 interleaved lanes, then pairwise over the lanes: one order for every shape and thread count.
///
/// # Panics
/// If the lengths do not fit together.
pub fn matmul(x: &[f32], w: &[f32], depth: usize, out: &mut [f32], threads: usize) {
    assert!(
        depth > 0 && x.len().is_multiple_of(depth) && w.len().is_multiple_of(depth),
        "rows are not whole"
    );
    let (rows, cols) = (x.len() / depth, w.len() / depth);
    assert_eq!(out.len(), rows * cols, "output of {rows} x {cols}");
    if rows == 0 || cols == 0 {
        return;
    }
    // Less than some 100 microseconds of work does not pay for a thread.
    if threads < 2 || rows * cols * depth < 1 << 20 {
        run(x, w, depth, out);
    } else if rows == 1 {
        // One row of outputs is contiguous: threads share the weights.
        let share = cols.div_ceil(threads).next_multiple_of(TILE);
        std::thread::scope(|scope| {
            for (w, out) in w.chunks(share * depth).zip(out.chunks_mut(share)) {
                scope.spawn(move || run(x, w, depth, out));
            }
        });
    } else {
        let share = rows.div_ceil(threads);
        std::thread::scope(|scope| {
            for (x, out) in x.chunks(share * depth).zip(out.chunks_mut(share * cols)) {
                scope.spawn(move || run(x, w, depth, out));
            }
        });
    }
}

/// One thread's share, on the best instructions that this machine has.
#[allow(unsafe_code)]
fn run(x: &[f32], w: &[f32], depth: usize, out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the one duty of a `target_feature` function is that the feature exists; it was detected just now.
            return unsafe { run_avx512(x, w, depth, out) };
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: as above, for avx2 and fma.
            return unsafe { run_avx2(x, w, depth, out) };
        }
    }
    run_portable(x, w, depth, out);
}

/// The blocked product on one instruction set. A macro and not a generic function: code is inlined only into functions that
/// enable the same features, which traits and closures do not inherit.
macro_rules! blocked_product {
    ($name:ident, $lanes:ident $(, #[$features:meta])?) => {
        $(#[$features])?
        fn $name(x: &[f32], w: &[f32], depth: usize, out: &mut [f32]) {
            use super::simd::$lanes::{Vector, add_product, load, to_array, zero};

            /// Whole vectors of a row, and its padded tail if it has one.
            #[inline]
            $(#[$features])?
            fn row(of: &[f32], index: usize, depth: usize) -> &[[f32; LANES]] {
                of[index * depth..(index + 1) * depth].as_chunks().0
            }

            #[inline]
            $(#[$features])?
            fn tail(of: &[f32], index: usize, depth: usize) -> Vector {
                load(&padded(of[index * depth..(index + 1) * depth].as_chunks::<LANES>().1))
            }

            /// Four rows by four columns: sixteen sums in registers, each with a name of its own so that they stay there.
            #[inline]
            $(#[$features])?
            fn tile_4x4(x: &[f32], r: usize, w: &[f32], c: usize, depth: usize) -> [[f32; 4]; 4] {
                let n = depth / LANES;
                let (x0, x1) = (&row(x, r, depth)[..n], &row(x, r + 1, depth)[..n]);
                let (x2, x3) = (&row(x, r + 2, depth)[..n], &row(x, r + 3, depth)[..n]);
                let (w0, w1) = (&row(w, c, depth)[..n], &row(w, c + 1, depth)[..n]);
                let (w2, w3) = (&row(w, c + 2, depth)[..n], &row(w, c + 3, depth)[..n]);
                let (mut s00, mut s01, mut s02, mut s03) = (zero(), zero(), zero(), zero());
                let (mut s10, mut s11, mut s12, mut s13) = (zero(), zero(), zero(), zero());
                let (mut s20, mut s21, mut s22, mut s23) = (zero(), zero(), zero(), zero());
                let (mut s30, mut s31, mut s32, mut s33) = (zero(), zero(), zero(), zero());
                macro_rules! step {
                    ($xs:expr, $ws:expr) => {{
                        let ([a, b, c, d], [e, f, g, h]): ([Vector; 4], [Vector; 4]) = ($xs, $ws);
                        (s00, s01, s02, s03) =
                            (add_product(s00, a, e), add_product(s01, a, f), add_product(s02, a, g), add_product(s03, a, h));
                        (s10, s11, s12, s13) =
                            (add_product(s10, b, e), add_product(s11, b, f), add_product(s12, b, g), add_product(s13, b, h));
                        (s20, s21, s22, s23) =
                            (add_product(s20, c, e), add_product(s21, c, f), add_product(s22, c, g), add_product(s23, c, h));
                        (s30, s31, s32, s33) =
                            (add_product(s30, d, e), add_product(s31, d, f), add_product(s32, d, g), add_product(s33, d, h));
                    }};
                }
                for k in 0..n {
                    step!(
                        [load(&x0[k]), load(&x1[k]), load(&x2[k]), load(&x3[k])],
                        [load(&w0[k]), load(&w1[k]), load(&w2[k]), load(&w3[k])]
                    );
                }
                if n * LANES < depth {
                    step!(
                        [tail(x, r, depth), tail(x, r + 1, depth), tail(x, r + 2, depth), tail(x, r + 3, depth)],
                        [tail(w, c, depth), tail(w, c + 1, depth), tail(w, c + 2, depth), tail(w, c + 3, depth)]
                    );
                }
                [
                    [total(s00), total(s01), total(s02), total(s03)],
                    [total(s10), total(s11), total(s12), total(s13)],
                    [total(s20), total(s21), total(s22), total(s23)],
                    [total(s30), total(s31), total(s32), total(s33)],
                ]
            }

            /// One row by four columns: the same sums.
            #[inline]
            $(#[$features])?
            fn tile_1x4(x: &[f32], r: usize, w: &[f32], c: usize, depth: usize) -> [[f32; 4]; 1] {
                let n = depth / LANES;
                let x0 = &row(x, r, depth)[..n];
                let (w0, w1) = (&row(w, c, depth)[..n], &row(w, c + 1, depth)[..n]);
                let (w2, w3) = (&row(w, c + 2, depth)[..n], &row(w, c + 3, depth)[..n]);
                let (mut s0, mut s1, mut s2, mut s3) = (zero(), zero(), zero(), zero());
                for k in 0..n {
                    let x = load(&x0[k]);
                    (s0, s1) = (add_product(s0, x, load(&w0[k])), add_product(s1, x, load(&w1[k])));
                    (s2, s3) = (add_product(s2, x, load(&w2[k])), add_product(s3, x, load(&w3[k])));
                }
                if n * LANES < depth {
                    let x = tail(x, r, depth);
                    (s0, s1) = (add_product(s0, x, tail(w, c, depth)), add_product(s1, x, tail(w, c + 1, depth)));
                    (s2, s3) = (add_product(s2, x, tail(w, c + 2, depth)), add_product(s3, x, tail(w, c + 3, depth)));
                }
                [[total(s0), total(s1), total(s2), total(s3)]]
            }

            /// One sum: the same again.
            #[inline]
            $(#[$features])?
            fn tile_1x1(x: &[f32], r: usize, w: &[f32], c: usize, depth: usize) -> [[f32; 1]; 1] {
                let n = depth / LANES;
                let mut sum = zero();
                for (x, w) in row(x, r, depth).iter().zip(row(w, c, depth)) {
                    sum = add_product(sum, load(x), load(w));
                }
                if n * LANES < depth {
                    sum = add_product(sum, tail(x, r, depth), tail(w, c, depth));
                }
                [[total(sum)]]
            }

            #[inline]
            $(#[$features])?
            fn total(sum: Vector) -> f32 {
                sum_lanes(to_array(sum))
            }

            let (rows, cols) = (x.len() / depth, w.len() / depth);
            for block in (0..cols).step_by(WEIGHT_BLOCK) {
                let block_end = (block + WEIGHT_BLOCK).min(cols);
                for row in (0..rows).step_by(TILE) {
                    let row_end = (row + TILE).min(rows);
                    for col in (block..block_end).step_by(TILE) {
                        let whole_columns = col + TILE <= block_end;
                        if whole_columns && row + TILE == row_end {
                            store(tile_4x4(x, row, w, col, depth), out, row, col, cols);
                        } else if whole_columns {
                            for row in row..row_end {
                                store(tile_1x4(x, row, w, col, depth), out, row, col, cols);
                            }
                        } else {
                            for row in row..row_end {
                                for col in col..block_end {
                                    store(tile_1x1(x, row, w, col, depth), out, row, col, cols);
                                }
                            }
                        }
                    }
                }
            }
        }
    };
}

blocked_product!(run_portable, portable);
#[cfg(target_arch = "x86_64")]
blocked_product!(run_avx512, avx512, #[target_feature(enable = "avx512f")]);
#[cfg(target_arch = "x86_64")]
blocked_product!(run_avx2, avx2, #[target_feature(enable = "avx2,fma")]);

#[inline(always)]
fn store<const R: usize, const C: usize>(
    sums: [[f32; C]; R],
    out: &mut [f32],
    row: usize,
    col: usize,
    stride: usize,
) {
    for (r, sums) in sums.iter().enumerate() {
        let start = (row + r) * stride + col;
        out[start..start + C].copy_from_slice(sums);
    }
}

#[inline(always)]
fn padded(tail: &[f32]) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    out[..tail.len()].copy_from_slice(tail);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn noise(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect()
    }

    #[test]
    fn agrees_with_f64_for_all_edge_shapes() {
        for (rows, cols, depth) in
            [(1, 1, 1), (1, 5, 7), (3, 4, 16), (4, 4, 33), (5, 67, 48), (9, 130, 100), (64, 70, 513)]
        {
            let (x, w) = (noise(rows * depth, 1), noise(cols * depth, 2));
            let mut out = vec![f32::NAN; rows * cols];
            matmul(&x, &w, depth, &mut out, 2);
            for (i, &got) in out.iter().enumerate() {
                let (t, n) = (i / cols, i % cols);
                let terms = (0..depth).map(|k| f64::from(x[t * depth + k]) * f64::from(w[n * depth + k]));
                let (sum, scale) = terms.fold((0.0, 0.0), |(s, a), p| (s + p, a + p.abs()));
                assert!(
                    (f64::from(got) - sum).abs() <= 1e-6 * (scale + 1e-3),
                    "{rows}x{cols}x{depth} at {t},{n}: {got} {sum}"
                );
            }
        }
    }

    #[test]
    fn rows_do_not_depend_on_their_neighbours_or_threads() {
        let (depth, cols) = (200, 2_000);
        let (x, w) = (noise(7 * depth, 3), noise(cols * depth, 4));
        let mut together = vec![0.0; 7 * cols];
        matmul(&x, &w, depth, &mut together, 3);
        for row in 0..7 {
            let mut alone = vec![0.0; cols];
            matmul(&x[row * depth..(row + 1) * depth], &w, depth, &mut alone, 2);
            assert_eq!(alone, together[row * cols..(row + 1) * cols]);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn wide_and_narrow_vectors_agree_bit_for_bit() {
        if !std::arch::is_x86_feature_detected!("avx512f") || !std::arch::is_x86_feature_detected!("fma") {
            std::io::stderr()
                .write_all(
                    b"SKIPPED wide_and_narrow_vectors_agree_bit_for_bit: this machine has no AVX-512\n",
                )
                .unwrap();
            return;
        }
        let (x, w) = (noise(6 * 77, 5), noise(9 * 77, 6));
        let (mut wide, mut narrow) = (vec![0.0; 54], vec![0.0; 54]);
        #[allow(unsafe_code)]
        // SAFETY: both features were detected above.
        unsafe {
            run_avx512(&x, &w, 77, &mut wide);
            run_avx2(&x, &w, 77, &mut narrow);
        }
        assert_eq!(wide, narrow);
    }
}
