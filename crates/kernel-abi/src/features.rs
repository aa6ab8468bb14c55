//! What the processor and the operating system offer to kernels.

use plan::Feature;
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// The architecture's name in [`plan::Target`].
pub fn architecture() -> &'static str {
    std::env::consts::ARCH
}

/// The features of this machine. Asks for AMX permission (see [`request_amx`]) to know whether tiles may be used.
pub fn detect() -> BTreeSet<Feature> {
    let mut found = BTreeSet::new();
    #[cfg(target_arch = "x86_64")]
    {
        use std::is_x86_feature_detected as has;
        if has!("avx2") && has!("fma") && has!("f16c") {
            found.insert(Feature::Avx2);
        }
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq");
        if avx512 && found.contains(&Feature::Avx2) {
            found.insert(Feature::Avx512);
            if has!("avx512vnni") {
                found.insert(Feature::Avx512Vnni);
            }
            if has!("avx512bf16") {
                found.insert(Feature::Avx512Bf16);
            }
        }
        let amx = amx_bits();
        if amx.tile && request_amx() {
            if amx.int8 {
                found.insert(Feature::AmxInt8);
            }
            if amx.bf16 {
                found.insert(Feature::AmxBf16);
            }
        }
    }
    found
}

#[cfg(target_arch = "x86_64")]
struct AmxBits {
    tile: bool,
    int8: bool,
    bf16: bool,
}

/// CPUID leaf 7, EDX: bit 22 AMX-BF16, 24 AMX-TILE, 25 AMX-INT8 (Intel SDM volume 2, CPUID).
#[cfg(target_arch = "x86_64")]
fn amx_bits() -> AmxBits {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let highest = __cpuid(0).eax;
    let edx = if highest >= 7 { __cpuid_count(7, 0).edx } else { 0 };
    AmxBits { tile: edx >> 24 & 1 == 1, int8: edx >> 25 & 1 == 1, bf16: edx >> 22 & 1 == 1 }
}

/// Asks the operating system, once per process, for permission to use AMX tile data, and tells whether it was given.
/// Call it before threads start: threads that exist already keep signal stacks of the old size.
pub fn request_amx() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(ask_for_tiles)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn ask_for_tiles() -> bool {
    /// `arch_prctl` codes and the state component of tile data (Linux, Documentation/arch/x86/xstate.rst).
    const ARCH_GET_XCOMP_PERM: libc::c_long = 0x1022;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    if !amx_bits().tile {
        return false;
    }
    // SAFETY: this call takes two integers and touches no memory of ours.
    let rc = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
    if rc != 0 {
        return false;
    }
    let mut mask: u64 = 0;
    // SAFETY: the kernel writes one u64 through the pointer.
    let rc = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &raw mut mask) };
    rc == 0 && mask >> XFEATURE_XTILEDATA & 1 == 1
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn ask_for_tiles() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// /proc/cpuinfo is an independent witness.
    #[test]
    fn agrees_with_the_kernel() {
        let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") else {
            eprintln!("SKIPPED: no /proc/cpuinfo to compare with");
            return;
        };
        let flags: BTreeSet<&str> = text
            .lines()
            .find(|l| l.starts_with("flags"))
            .map(|l| l.split_whitespace().collect())
            .unwrap_or_default();
        let found = detect();
        let expect = |feature, names: &[&str]| {
            let listed = names.iter().all(|n| flags.contains(n));
            assert_eq!(found.contains(&feature), listed, "{feature:?}");
        };
        expect(Feature::Avx2, &["avx2", "fma", "f16c"]);
        expect(Feature::Avx512, &["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"]);
        expect(Feature::Avx512Vnni, &["avx512f", "avx512_vnni"]);
        expect(Feature::Avx512Bf16, &["avx512f", "avx512_bf16"]);
        assert!(!found.contains(&Feature::AmxInt8) || flags.contains("amx_int8"));
        assert!(!found.contains(&Feature::AmxBf16) || flags.contains("amx_bf16"));
        eprintln!("features: {:?}", found.iter().map(|f| f.name()).collect::<Vec<_>>());
    }
}
