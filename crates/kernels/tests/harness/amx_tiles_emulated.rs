// AMX tiles in plain Rust, in place of `source/amx_tiles.rs`, so that the walk of AMX kernels can be tested anywhere. One
// thread at a time: the state is static.

#[repr(C, align(64))]
struct Shapes([u8; 64]);

static mut SHAPE: [u8; 64] = [0; 64];
static mut TILES: [u8; 8192] = [0xEE; 8192];

/// A byte of a tile, unchecked: a check would pull in a panic, and a panic what `no_std` lacks.
unsafe fn byte(t: u32, at: usize) -> *mut u8 {
    (&raw mut TILES as *mut u8).add(t as usize * 1024 + at)
}

unsafe fn field(at: usize) -> *mut u8 {
    (&raw mut SHAPE as *mut u8).add(at)
}

unsafe fn configure(shapes: &Shapes) {
    for i in 0..64 {
        *field(i) = shapes.0[i];
    }
}

unsafe fn release() {
    for i in 0..64 {
        *field(i) = 0;
    }
}

unsafe fn shape(t: u32) -> (usize, usize) {
    let t = t as usize;
    (*field(48 + t) as usize, *field(16 + 2 * t) as usize + 256 * *field(17 + 2 * t) as usize)
}

unsafe fn zero_tile<const T: u32>() {
    for i in 0..1024 {
        *byte(T, i) = 0;
    }
}

unsafe fn load_tile<const T: u32>(p: *const u8, stride: usize) {
    let (rows, bytes) = shape(T);
    zero_tile::<T>();
    for r in 0..rows {
        for b in 0..bytes {
            *byte(T, r * 64 + b) = *p.add(r * stride + b);
        }
    }
}

unsafe fn store_tile<const T: u32>(p: *mut u8, stride: usize) {
    let (rows, bytes) = shape(T);
    for r in 0..rows {
        for b in 0..bytes {
            *p.add(r * stride + b) = *byte(T, r * 64 + b);
        }
    }
}

unsafe fn word(t: u32, at: usize) -> [u8; 4] {
    [*byte(t, at), *byte(t, at + 1), *byte(t, at + 2), *byte(t, at + 3)]
}

unsafe fn put_word(t: u32, at: usize, v: [u8; 4]) {
    for i in 0..4 {
        *byte(t, at + i) = v[i];
    }
}

unsafe fn dot_int8<const C: u32, const A: u32, const B: u32>() {
    let (rows, bytes) = shape(A);
    for m in 0..rows {
        for n in 0..16 {
            let mut sum = i32::from_le_bytes(word(C, m * 64 + n * 4));
            for k in 0..bytes / 4 {
                let (a, b) = (word(A, m * 64 + k * 4), word(B, k * 64 + n * 4));
                for i in 0..4 {
                    sum += a[i] as i8 as i32 * b[i] as i32;
                }
            }
            put_word(C, m * 64 + n * 4, sum.to_le_bytes());
        }
    }
}

/// One rounding. Its own, since what stands around has another `fma`.
unsafe fn fused(a: f32, b: f32, c: f32) -> f32 {
    use core::arch::x86_64::{_mm_cvtss_f32, _mm_fmadd_ss, _mm_set_ss};
    _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)))
}

/// Even and odd inputs summed apart over the tile, then added to it.
unsafe fn dot_bf16<const C: u32, const A: u32, const B: u32>() {
    let (rows, bytes) = shape(A);
    let wide = |l: u8, h: u8| f32::from_bits((l as u32) << 16 | (h as u32) << 24);
    for m in 0..rows {
        for n in 0..16 {
            let (mut even, mut odd) = (0.0f32, 0.0f32);
            for k in 0..bytes / 4 {
                let (a, b) = (word(A, m * 64 + k * 4), word(B, k * 64 + n * 4));
                even = fused(wide(a[0], a[1]), wide(b[0], b[1]), even);
                odd = fused(wide(a[2], a[3]), wide(b[2], b[3]), odd);
            }
            let sum = f32::from_le_bytes(word(C, m * 64 + n * 4)) + (even + odd);
            put_word(C, m * 64 + n * 4, sum.to_le_bytes());
        }
    }
}
