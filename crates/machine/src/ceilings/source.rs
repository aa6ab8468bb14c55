//! Sources of the probes, one set for each level of instruction set.

use kernels::generators::prelude;
use plan::Feature;
use std::collections::BTreeSet;

/// A probe: a kernel and how much work one call of it is.
pub struct Probe {
    /// Name of the ceiling without the thread count.
    pub name: &'static str,
    pub source: String,
    pub features: BTreeSet<Feature>,
    pub work: Work,
}

/// Work of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Reads the weights slot once: `bytes`.
    Bytes { bytes: usize },
    /// Each thread does `per_iteration` operations in each of `ints[0]` iterations.
    Operations { per_iteration: u64 },
    /// Nothing: the time itself is the ceiling.
    Empty,
}

/// Bytes that no last-level cache share of a small machine holds.
const LARGE: usize = 128 << 20;
/// Bytes that a last-level cache holds and an L2 does not.
const CACHED: usize = 16 << 20;

const HEAD: &str = r#"
use core::arch::x86_64::*;
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel(args: *const ArgsV1, _phase: u32, thread: u32, threads: u32) {
    let a = &*args;
    let out = a.tensors[2].data.add(thread as usize * 64);
"#;

/// Share of the weights slot of a thread, in steps of 512 bytes.
const SHARE: &str = r#"
    // A zero divisor would bring in the panic machinery.
    let threads = if threads == 0 { 1 } else { threads };
    let steps = a.tensors[1].bytes / 512;
    let mut p = a.tensors[1].data.add((steps * thread as u64 / threads as u64 * 512) as usize);
    let end = a.tensors[1].data.add((steps * (thread as u64 + 1) / threads as u64 * 512) as usize);
"#;

/// The reading loop for vectors of `width` bytes: named accumulators and no indexing, so that no bounds check (and no
/// panic machinery) remains.
fn stream(width: usize, zero: &str, add: &str, load: &str, xor: &str, store: &str) -> String {
    let mut body = SHARE.to_owned();
    for i in 0..8 {
        body += &format!("    let mut s{i} = {zero};\n");
    }
    body += "    while p < end {\n";
    for at in (0..512).step_by(width) {
        let s = (at / width) % 8;
        if at % 64 == 0 {
            body += &format!(
                "        _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add({}) as *const i8);\n",
                4096 + at
            );
        }
        body += &format!("        s{s} = {add}(s{s}, {load}(p.add({at}) as *const _));\n");
    }
    body += "        p = p.add(512);\n    }\n";
    for i in 1..8 {
        body += &format!("    s0 = {xor}(s0, s{i});\n");
    }
    body + &format!("    {store}(out as *mut _, s0);\n}}\n")
}

/// Twelve independent accumulators hide the latency of any of these instructions.
fn registers(zero: &str, value: &str, step: &str, combine: &str, store: &str) -> String {
    let mut body = String::new();
    for i in 0..12 {
        body += &format!("    let mut s{i} = {zero};\n");
    }
    body += &format!("    let x = {value};\n    let mut n = a.ints[0];\n    while n > 0 {{\n");
    for i in 0..12 {
        body += &format!("        s{i} = {};\n", step.replace("{s}", &format!("s{i}")));
    }
    // The barrier keeps the loop: its values are opaque, so nothing is folded into a closed form.
    body += "        core::hint::black_box(());\n        n -= 1;\n    }\n";
    for i in 1..12 {
        body += &format!("    s0 = {};\n", combine.replace("{s}", &format!("s{i}")));
    }
    body + &format!("    {store};\n}}\n")
}

const AMX_INT8: &str = r#"
    #[repr(C, align(64))]
    struct Config([u8; 64]);
    let mut c = Config([0; 64]);
    c.0[0] = 1;
    let mut t = 0;
    while t < 6 { c.0[16 + 2 * t] = 64; c.0[48 + t] = 16; t += 1; }
    let x = a.tensors[1].data;
    core::arch::asm!("ldtilecfg [{0}]", in(reg) &c, options(nostack));
    core::arch::asm!(
        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
        "tileloadd tmm4, [{x} + {s}]", "tileloadd tmm5, [{x} + {s}]",
        "2:",
        "tdpbusd tmm0, tmm4, tmm5", "tdpbusd tmm1, tmm4, tmm5",
        "tdpbusd tmm2, tmm4, tmm5", "tdpbusd tmm3, tmm4, tmm5",
        "dec {n}", "jnz 2b",
        "tilerelease",
        x = in(reg) x, s = in(reg) 64usize, n = inout(reg) a.ints[0] => _,
        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
        options(nostack));
    *(out as *mut u64) = 0;
}
"#;

fn probe(name: &'static str, features: &[Feature], work: Work, body: &str) -> Probe {
    let source = format!("{}{HEAD}{body}", prelude::begin(&format!("ceiling: {name}")));
    Probe { name, source, features: features.iter().copied().collect(), work }
}

/// The probes that fit the features of the host.
pub fn probes(available: &BTreeSet<Feature>) -> Vec<Probe> {
    use Feature::{AmxInt8, Avx2, Avx512, Avx512Vnni};
    let has = |f: Feature| available.contains(&f);
    let mut all = Vec::new();
    let (isa, stream): (&[Feature], String) = if has(Avx512) {
        let zero = "_mm512_setzero_si512()";
        let rest = ["_mm512_add_epi32", "_mm512_load_si512", "_mm512_xor_si512", "_mm512_store_si512"];
        (&[Avx2, Avx512], stream(64, zero, rest[0], rest[1], rest[2], rest[3]))
    } else if has(Avx2) {
        let zero = "_mm256_setzero_si256()";
        let rest = ["_mm256_add_epi32", "_mm256_load_si256", "_mm256_xor_si256", "_mm256_store_si256"];
        (&[Avx2], stream(32, zero, rest[0], rest[1], rest[2], rest[3]))
    } else {
        let zero = "_mm_setzero_si128()";
        let rest = ["_mm_add_epi32", "_mm_load_si128", "_mm_xor_si128", "_mm_store_si128"];
        (&[], stream(16, zero, rest[0], rest[1], rest[2], rest[3]))
    };
    all.push(probe("stream_bytes_per_s", isa, Work::Bytes { bytes: LARGE }, &stream));
    all.push(probe("stream_cached_bytes_per_s", isa, Work::Bytes { bytes: CACHED }, &stream));
    let fma = if has(Avx512) {
        registers(
            "_mm512_set1_ps(1.0)",
            "_mm512_set1_ps(core::hint::black_box(0.5))",
            "_mm512_fmadd_ps({s}, x, x)",
            "_mm512_add_ps(s0, {s})",
            "_mm512_storeu_ps(out as *mut f32, s0)",
        )
    } else if has(Avx2) {
        registers(
            "_mm256_set1_ps(1.0)",
            "_mm256_set1_ps(core::hint::black_box(0.5))",
            "_mm256_fmadd_ps({s}, x, x)",
            "_mm256_add_ps(s0, {s})",
            "_mm256_storeu_ps(out as *mut f32, s0)",
        )
    } else {
        registers(
            "_mm_set1_ps(1.0)",
            "_mm_set1_ps(core::hint::black_box(0.5))",
            "_mm_add_ps(_mm_mul_ps({s}, x), x)",
            "_mm_add_ps(s0, {s})",
            "_mm_storeu_ps(out as *mut f32, s0)",
        )
    };
    let lanes = if has(Avx512) {
        16
    } else if has(Avx2) {
        8
    } else {
        4
    };
    let flops = Work::Operations { per_iteration: 12 * lanes * 2 };
    all.push(probe("f32_flops_per_s", isa, flops, &fma));
    let (int8_isa, int8, macs): (&[Feature], String, u64) = if has(Avx512Vnni) {
        let body = registers(
            "_mm512_setzero_si512()",
            "_mm512_set1_epi8(core::hint::black_box(3))",
            "_mm512_dpbusd_epi32({s}, x, x)",
            "_mm512_add_epi32(s0, {s})",
            "_mm512_storeu_si512(out as *mut _, s0)",
        );
        (&[Avx2, Avx512, Avx512Vnni], body, 64)
    } else if has(Avx2) {
        let body = registers(
            "_mm256_setzero_si256()",
            "_mm256_set1_epi16(core::hint::black_box(3))",
            "_mm256_add_epi32({s}, _mm256_madd_epi16(_mm256_xor_si256({s}, x), x))",
            "_mm256_add_epi32(s0, {s})",
            "_mm256_storeu_si256(out as *mut _, s0)",
        );
        (&[Avx2], body, 16)
    } else {
        let body = registers(
            "_mm_setzero_si128()",
            "_mm_set1_epi16(core::hint::black_box(3))",
            "_mm_add_epi32({s}, _mm_madd_epi16(_mm_xor_si128({s}, x), x))",
            "_mm_add_epi32(s0, {s})",
            "_mm_storeu_si128(out as *mut _, s0)",
        );
        (&[], body, 8)
    };
    let work = Work::Operations { per_iteration: 12 * macs };
    all.push(probe("int8_macs_per_s", int8_isa, work, &int8));
    if has(AmxInt8) {
        let work = Work::Operations { per_iteration: 4 * 16 * 16 * 64 };
        all.push(probe("amx_int8_macs_per_s", &[Avx2, Avx512, AmxInt8], work, AMX_INT8));
    }
    all.push(probe("barrier_ns", &[], Work::Empty, "    let _ = out;\n}\n"));
    all
}
