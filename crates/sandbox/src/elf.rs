//! A small checked ELF64 parser: it accepts the shared objects that our flags produce and refuses everything else.

use crate::error::SandboxError;
use evidence::Reason;

/// Most bytes of a kernel binary, and of its image in memory.
pub const BINARY_LIMIT: u64 = 16 << 20;
const PAGE: u64 = 4096;

/// A loadable segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address relative to the image's base.
    pub address: u64,
    /// Bytes in the file at `offset`; the rest up to `memory_bytes` is zero.
    pub offset: u64,
    pub file_bytes: u64,
    pub memory_bytes: u64,
    pub access: Access,
}

impl Segment {
    fn contains(&self, address: u64, bytes: u64) -> bool {
        address >= self.address
            && address.checked_add(bytes).is_some_and(|end| end <= self.address + self.memory_bytes)
    }
}

/// What a segment's memory allows once the image is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Execute,
    /// Written by the loader (relocations), read-only afterwards.
    Relocated,
}

/// `*(base + at) = base + addend` (R_X86_64_RELATIVE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    pub at: u64,
    pub addend: u64,
}

/// A kernel's binary as the loader needs it.
#[derive(Clone, Debug)]
pub struct Image {
    pub segments: Vec<Segment>,
    pub relocations: Vec<Relocation>,
    /// Address of `kernel` relative to the base.
    pub kernel: u64,
    /// Addresses of the exported memory functions.
    pub helpers: Vec<u64>,
    /// Bytes of address space, a multiple of the page size.
    pub span: u64,
}

/// Exports that the trusted prelude may define beside `kernel`.
const HELPERS: &[&str] = &["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen", "rust_eh_personality"];

fn refuse<T>(detail: impl Into<String>) -> Result<T, SandboxError> {
    Err(SandboxError::rejected(Reason::Inspection, detail))
}

/// Little-endian reads with bounds.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn slice(&self, at: u64, bytes: u64) -> Result<&'a [u8], SandboxError> {
        let end = at.checked_add(bytes).filter(|end| *end <= self.0.len() as u64);
        match end {
            Some(end) => Ok(&self.0[at as usize..end as usize]),
            None => refuse(format!("the file is too short for {bytes} bytes at {at:#x}")),
        }
    }
    fn u16(&self, at: u64) -> Result<u16, SandboxError> {
        self.slice(at, 2).map(|b| u16::from_le_bytes([b[0], b[1]]))
    }
    fn u32(&self, at: u64) -> Result<u32, SandboxError> {
        self.slice(at, 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
    fn u64(&self, at: u64) -> Result<u64, SandboxError> {
        self.slice(at, 8).map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
    }
}

mod constant {
    pub const ET_DYN: u16 = 3;
    pub const EM_X86_64: u16 = 62;
    pub const PT_LOAD: u32 = 1;
    pub const PT_DYNAMIC: u32 = 2;
    pub const PT_INTERP: u32 = 3;
    pub const PT_NOTE: u32 = 4;
    pub const PT_PHDR: u32 = 6;
    pub const PT_TLS: u32 = 7;
    pub const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
    pub const PT_GNU_STACK: u32 = 0x6474_e551;
    pub const PT_GNU_RELRO: u32 = 0x6474_e552;
    pub const PT_GNU_PROPERTY: u32 = 0x6474_e553;
    pub const PF_X: u32 = 1;
    pub const PF_W: u32 = 2;
    pub const R_RELATIVE: u64 = 8;
    pub const STT_NOTYPE: u8 = 0;
    pub const STT_FUNC: u8 = 2;
}
use constant::*;

/// Tables that the dynamic section points to, as addresses.
#[derive(Default)]
struct Dynamic {
    symbols: Option<u64>,
    strings: Option<u64>,
    strings_bytes: u64,
    hash: Option<u64>,
    rela: Option<u64>,
    rela_bytes: u64,
}

impl Image {
    /// Reads a shared object and checks its form: one function `kernel`, no imports, no needed libraries, no
    /// constructors, no thread-locals, no writable data, no segment both writable and executable, and no
    /// relocations but relative ones into data that is read-only afterwards.
    ///
    /// # Errors
    /// [`Reason::Inspection`] with what was refused.
    pub fn parse(file: &[u8]) -> Result<Self, SandboxError> {
        let bytes = Bytes(file);
        if file.len() as u64 > BINARY_LIMIT {
            return refuse(format!("{} bytes of binary; at most {BINARY_LIMIT}", file.len()));
        }
        if bytes.slice(0, 7)? != [0x7f, b'E', b'L', b'F', 2, 1, 1] {
            return refuse("not a little-endian ELF64 file");
        }
        if bytes.u16(16)? != ET_DYN || bytes.u16(18)? != EM_X86_64 {
            return refuse("not a shared object for x86-64");
        }
        let (headers, size, count) = (bytes.u64(32)?, bytes.u16(54)?, bytes.u16(56)?);
        if size != 56 || count > 32 {
            return refuse(format!("{count} program headers of {size} bytes"));
        }
        let (mut segments, mut relro, mut dynamic) = (Vec::new(), Vec::new(), None);
        for i in 0..u64::from(count) {
            let Some(at) = headers.checked_add(i * 56) else {
                return refuse("program headers lie outside the file");
            };
            let (kind, flags) = (bytes.u32(at)?, bytes.u32(at + 4)?);
            let segment = Segment {
                offset: bytes.u64(at + 8)?,
                address: bytes.u64(at + 16)?,
                file_bytes: bytes.u64(at + 32)?,
                memory_bytes: bytes.u64(at + 40)?,
                access: access(flags)?,
            };
            match kind {
                PT_LOAD => segments.push(checked_segment(&bytes, segment, bytes.u64(at + 48)?)?),
                PT_DYNAMIC if dynamic.is_none() => dynamic = Some(segment),
                PT_DYNAMIC => return refuse("two dynamic sections"),
                PT_GNU_RELRO => relro.push(segment),
                PT_INTERP => return refuse("it names an interpreter"),
                PT_TLS => return refuse("thread-local variables"),
                PT_GNU_STACK if flags & PF_X != 0 => return refuse("an executable stack"),
                PT_NOTE | PT_PHDR | PT_GNU_EH_FRAME | PT_GNU_STACK | PT_GNU_PROPERTY | 0 => {}
                other => return refuse(format!("an unknown program header {other:#x}")),
            }
        }
        let span = check_segments(&segments, &relro)?;
        let Some(dynamic) = dynamic else { return refuse("no dynamic section") };
        let map = Map { bytes, segments: &segments };
        let dynamic = read_dynamic(&map, &dynamic)?;
        let (kernel, helpers) = exports(&map, &dynamic)?;
        let relocations = relocations(&map, &dynamic)?;
        Ok(Self { relocations, kernel, helpers, span, segments })
    }

    /// File bytes of a segment (empty if it lies outside `file`, which [`Image::parse`] excludes).
    pub fn file_bytes<'a>(&self, file: &'a [u8], segment: &Segment) -> &'a [u8] {
        file.get(segment.offset as usize..(segment.offset + segment.file_bytes) as usize).unwrap_or(&[])
    }
}

fn access(flags: u32) -> Result<Access, SandboxError> {
    match (flags & PF_W != 0, flags & PF_X != 0) {
        (true, true) => refuse("a segment is both writable and executable"),
        (true, false) => Ok(Access::Relocated),
        (false, true) => Ok(Access::Execute),
        (false, false) => Ok(Access::Read),
    }
}

fn checked_segment(bytes: &Bytes<'_>, s: Segment, align: u64) -> Result<Segment, SandboxError> {
    bytes.slice(s.offset, s.file_bytes)?;
    if s.memory_bytes < s.file_bytes || s.memory_bytes > BINARY_LIMIT || s.address > BINARY_LIMIT {
        return refuse(format!("a segment of {} bytes at {:#x}", s.memory_bytes, s.address));
    }
    if !align.is_power_of_two() || align > PAGE {
        return refuse(format!("a segment is aligned to {align}; at most a page is expected"));
    }
    if s.access == Access::Execute && s.memory_bytes != s.file_bytes {
        return refuse("executable memory that is not in the file");
    }
    Ok(s)
}

/// No two segments on one page, writable ones covered by RELRO. Returns the span in memory.
fn check_segments(segments: &[Segment], relro: &[Segment]) -> Result<u64, SandboxError> {
    let mut free = 0;
    for s in segments {
        if s.address / PAGE * PAGE < free {
            return refuse("segments overlap or share a page");
        }
        free = (s.address + s.memory_bytes).next_multiple_of(PAGE);
        if s.access == Access::Relocated {
            // The linker pads RELRO to the page's end; data behind it would stay writable.
            let covered = relro.iter().any(|r| {
                r.address <= s.address
                    && r.address.saturating_add(r.memory_bytes) >= s.address + s.memory_bytes
            });
            if !covered {
                return refuse(format!(
                    "writable data: {} bytes at {:#x} (kernels have no writable statics)",
                    s.memory_bytes, s.address
                ));
            }
        }
    }
    match segments.iter().any(|s| s.access == Access::Execute) {
        true => Ok(free),
        false => refuse("no executable segment"),
    }
}

/// The file as the loader lays it out.
struct Map<'a> {
    bytes: Bytes<'a>,
    segments: &'a [Segment],
}

impl Map<'_> {
    /// File offset of `bytes` bytes at an address.
    fn offset(&self, address: u64, bytes: u64) -> Result<u64, SandboxError> {
        let found = self.segments.iter().find(|s| {
            address >= s.address
                && address.checked_add(bytes).is_some_and(|end| end <= s.address + s.file_bytes)
        });
        match found {
            Some(s) => Ok(s.offset + (address - s.address)),
            None => refuse(format!("a table at {address:#x} lies outside the segments")),
        }
    }
}

fn read_dynamic(map: &Map<'_>, segment: &Segment) -> Result<Dynamic, SandboxError> {
    let mut out = Dynamic::default();
    let at = map.offset(segment.address, segment.file_bytes)?;
    for i in 0..segment.file_bytes / 16 {
        let (tag, value) = (map.bytes.u64(at + i * 16)?, map.bytes.u64(at + i * 16 + 8)?);
        match tag {
            0 => break,
            1 => return refuse("it needs another library"),
            4 => out.hash = Some(value),
            5 => out.strings = Some(value),
            6 => out.symbols = Some(value),
            7 => out.rela = Some(value),
            8 => out.rela_bytes = value,
            9 if value == 24 => {}
            10 => out.strings_bytes = value,
            11 if value == 24 => {}
            12 | 13 | 25 | 26 | 27 | 28 | 32 | 33 => return refuse("constructors or destructors"),
            14 => {} // SONAME
            16 => {} // SYMBOLIC
            22 => return refuse("relocations in code"),
            2 | 3 | 20 | 23 => return refuse("imports (a procedure linkage table)"),
            30 if value & !0b1010 == 0 => {}     // FLAGS: BIND_NOW, SYMBOLIC
            0x6fff_fffb if value & !1 == 0 => {} // FLAGS_1: NOW
            0x6fff_fef5 => {}                    // GNU_HASH: symbols are read through HASH
            0x6fff_fff9 => {}                    // RELACOUNT
            other => return refuse(format!("dynamic entry {other:#x} = {value:#x}")),
        }
    }
    Ok(out)
}

/// Addresses of `kernel` and of the memory functions.
fn exports(map: &Map<'_>, dynamic: &Dynamic) -> Result<(u64, Vec<u64>), SandboxError> {
    let (Some(symbols), Some(strings), Some(hash)) = (dynamic.symbols, dynamic.strings, dynamic.hash) else {
        return refuse("no symbol table");
    };
    let count = u64::from(map.bytes.u32(map.offset(hash, 8)? + 4)?);
    if count > 64 {
        return refuse(format!("{count} dynamic symbols; `kernel` is the only export"));
    }
    let table = map.offset(symbols, count * 24)?;
    let names = map.bytes.slice(map.offset(strings, dynamic.strings_bytes)?, dynamic.strings_bytes)?;
    let (mut kernel, mut helpers) = (None, Vec::new());
    for i in 1..count {
        let at = table + i * 24;
        let start = map.bytes.u32(at)? as usize;
        let info = map.bytes.slice(at + 4, 1)?[0];
        let (section, value) = (map.bytes.u16(at + 6)?, map.bytes.u64(at + 8)?);
        let name = names
            .get(start..)
            .and_then(|rest| rest.split(|b| *b == 0).next())
            .and_then(|name| std::str::from_utf8(name).ok());
        let Some(name) = name else { return refuse("a symbol's name is not text") };
        let kind = info & 15;
        if section == 0 {
            return refuse(format!("it imports '{name}'"));
        }
        if kind != STT_FUNC && !(kind == STT_NOTYPE && HELPERS.contains(&name)) {
            return refuse(format!("it exports '{name}', which is no function"));
        }
        let in_code = map.segments.iter().any(|s| s.access == Access::Execute && s.contains(value, 1));
        if !in_code {
            return refuse(format!("'{name}' lies outside the code"));
        }
        match name {
            "kernel" if kernel.replace(value).is_some() => return refuse("two functions `kernel`"),
            "kernel" => {}
            name if HELPERS.contains(&name) => helpers.push(value),
            name => return refuse(format!("it exports '{name}'; `kernel` is the only export")),
        }
    }
    match kernel {
        Some(kernel) => Ok((kernel, helpers)),
        None => refuse("it does not export `kernel`"),
    }
}

fn relocations(map: &Map<'_>, dynamic: &Dynamic) -> Result<Vec<Relocation>, SandboxError> {
    let Some(table) = dynamic.rela else { return Ok(Vec::new()) };
    let at = map.offset(table, dynamic.rela_bytes)?;
    let mut out = Vec::new();
    for i in 0..dynamic.rela_bytes / 24 {
        let entry = at + i * 24;
        let (place, info, addend) =
            (map.bytes.u64(entry)?, map.bytes.u64(entry + 8)?, map.bytes.u64(entry + 16)?);
        if info != R_RELATIVE {
            return refuse(format!("relocation of type {:#x}; only relative ones are allowed", info));
        }
        let writable = map.segments.iter().any(|s| s.access == Access::Relocated && s.contains(place, 8));
        if !writable || !map.segments.iter().any(|s| s.contains(addend, 0)) {
            return refuse(format!("a relocation at {place:#x} points outside the image"));
        }
        out.push(Relocation { at: place, addend });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_damaged_files() {
        for file in [&b""[..], b"\x7fELF", &[0u8; 64]] {
            assert!(matches!(
                Image::parse(file),
                Err(SandboxError::Rejected { reason: Reason::Inspection, .. })
            ));
        }
    }
}
