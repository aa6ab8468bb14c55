//! Inspection of kernel binaries: the form of the file, then every instruction.
//!
//! A filter, not the boundary (a `ret` to a computed address passes it): the boundary is the worker process.

use crate::elf::{Access, Image};
use crate::error::SandboxError;
use evidence::Reason;
use iced_x86::{CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use plan::{Feature, Target};
use std::collections::HashSet;

/// What an accepted binary looks like.
#[derive(Clone, Debug)]
pub struct Inspection {
    pub image: Image,
    pub instructions: u32,
    pub code_bytes: u64,
}

fn refuse<T>(detail: impl Into<String>) -> Result<T, SandboxError> {
    Err(SandboxError::rejected(Reason::Inspection, detail))
}

/// Inspects a kernel's shared object for `target`.
///
/// # Errors
/// [`Reason::Inspection`] with what was refused and where; [`Reason::Unsupported`] for targets other than
/// `x86_64`, whose binaries cannot be inspected yet.
pub fn inspect(file: &[u8], target: &Target) -> Result<Inspection, SandboxError> {
    if target.arch != "x86_64" {
        return Err(SandboxError::rejected(
            Reason::Unsupported,
            format!("binaries for {} cannot be inspected yet", target.arch),
        ));
    }
    let image = Image::parse(file)?;
    let allowed = allowed_features(target);
    let (mut starts, mut branches) = (HashSet::new(), Vec::new());
    let mut code_bytes = 0;
    for segment in image.segments.iter().filter(|s| s.access == Access::Execute) {
        let code = image.file_bytes(file, segment);
        code_bytes += code.len() as u64;
        let mut decoder = Decoder::with_ip(64, code, segment.address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            starts.insert(instruction.ip());
            check_instruction(&instruction, &allowed)?;
            if let Some(branch) = branch_target(&instruction) {
                branches.push((instruction.ip(), branch));
            }
        }
    }
    for (ip, target) in &branches {
        if !starts.contains(target) {
            return refuse(format!("the branch at {ip:#x} goes into the middle of an instruction"));
        }
    }
    if let Some(entry) = std::iter::once(&image.kernel).chain(&image.helpers).find(|e| !starts.contains(e)) {
        return refuse(format!("the entry point {entry:#x} is not at an instruction"));
    }
    Ok(Inspection { instructions: starts.len() as u32, code_bytes, image })
}

fn branch_target(i: &Instruction) -> Option<u64> {
    let near = (0..i.op_count())
        .any(|o| matches!(i.op_kind(o), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64));
    near.then(|| i.near_branch_target())
}

fn check_instruction(i: &Instruction, allowed: &HashSet<CpuidFeature>) -> Result<(), SandboxError> {
    let at = |what: &str| refuse(format!("{what} at {:#x} ({:?})", i.ip(), i.code()));
    if i.is_invalid() {
        return at("bytes that are no instruction");
    }
    match i.flow_control() {
        FlowControl::Next => {}
        FlowControl::ConditionalBranch => {}
        FlowControl::UnconditionalBranch if i.mnemonic() == Mnemonic::Jmp && branch_target(i).is_some() => {}
        FlowControl::Call if i.mnemonic() == Mnemonic::Call && branch_target(i).is_some() => {}
        FlowControl::Return if i.mnemonic() == Mnemonic::Ret => {}
        FlowControl::Exception if i.mnemonic() == Mnemonic::Ud2 => {}
        // Padding between functions; it ends the worker if it is ever run.
        FlowControl::Interrupt if i.mnemonic() == Mnemonic::Int3 => {}
        FlowControl::IndirectBranch | FlowControl::IndirectCall => {
            return at("a jump or call through a pointer");
        }
        FlowControl::Call => return at("a system call"),
        _ => return at("a change of control flow that kernels may not use"),
    }
    if FORBIDDEN.contains(&i.mnemonic()) || i.is_privileged() {
        return at("a forbidden instruction");
    }
    if matches!(i.segment_prefix(), Register::FS | Register::GS) {
        return at("an access to the thread's control block");
    }
    let segment_register =
        (0..i.op_count()).any(|o| i.op_kind(o) == OpKind::Register && i.op_register(o).is_segment_register());
    if segment_register {
        return at("a use of a segment register");
    }
    if let Some(feature) = i.cpuid_features().iter().find(|f| !allowed.contains(f)) {
        return at(&format!("an instruction outside the target ({feature:?})"));
    }
    Ok(())
}

/// Instructions of allowed features that kernels may not use all the same.
const FORBIDDEN: &[Mnemonic] = &[
    Mnemonic::Ldmxcsr,
    Mnemonic::Vldmxcsr,
    Mnemonic::In,
    Mnemonic::Out,
    Mnemonic::Insb,
    Mnemonic::Insd,
    Mnemonic::Insw,
    Mnemonic::Outsb,
    Mnemonic::Outsd,
    Mnemonic::Outsw,
    Mnemonic::Std,
    Mnemonic::Popf,
    Mnemonic::Popfd,
    Mnemonic::Popfq,
    Mnemonic::Pushfq,
    Mnemonic::Cpuid,
    Mnemonic::Sldt,
    Mnemonic::Sgdt,
    Mnemonic::Sidt,
    Mnemonic::Str,
    Mnemonic::Smsw,
    Mnemonic::Lsl,
    Mnemonic::Lar,
    Mnemonic::Verr,
    Mnemonic::Verw,
];

/// Features that code for `target` may use: the x86-64 baseline plus those of the target.
fn allowed_features(target: &Target) -> HashSet<CpuidFeature> {
    use CpuidFeature as C;
    let mut set = HashSet::from([
        C::INTEL8086,
        C::INTEL186,
        C::INTEL286,
        C::INTEL386,
        C::INTEL486,
        C::X64,
        C::CMOV,
        C::SSE,
        C::SSE2,
        C::CLFSH,
        C::PAUSE,
        C::MULTIBYTENOP,
        C::CET_IBT,
        C::PREFETCHW,
        C::CX8,
    ]);
    for feature in &target.features {
        let more: &[C] = match feature {
            Feature::Avx2 => {
                &[C::SSE3, C::SSSE3, C::SSE4_1, C::SSE4_2, C::POPCNT, C::AVX, C::AVX2, C::FMA, C::F16C]
            }
            Feature::Avx512 => &[C::AVX512F, C::AVX512BW, C::AVX512VL, C::AVX512DQ],
            Feature::Avx512Vnni => &[C::AVX512_VNNI],
            Feature::Avx512Bf16 => &[C::AVX512_BF16],
            Feature::AmxInt8 => &[C::AMX_TILE, C::AMX_INT8],
            Feature::AmxBf16 => &[C::AMX_TILE, C::AMX_BF16],
        };
        set.extend(more);
    }
    if target.features.contains(&Feature::Avx512) {
        set.extend([C::SSE3, C::SSSE3, C::SSE4_1, C::SSE4_2, C::POPCNT, C::AVX, C::AVX2, C::FMA, C::F16C]);
    }
    set
}
