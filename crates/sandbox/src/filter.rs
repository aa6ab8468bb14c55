//! A first filter over candidate source: refuses what reaches for host files, the environment or the linker.
//!
//! It is a filter with a readable message, not the boundary: the compiler runs in a sandbox that sees nothing but
//! the source, and the binary is inspected.

use crate::error::SandboxError;
use evidence::Reason;

/// Most bytes of candidate source.
pub const SOURCE_LIMIT: usize = 1 << 20;

/// The trusted prelude's block, letter for letter.
const HIDDEN_RUNTIME: &str = r#"core::arch::global_asm!(
    ".hidden memcpy",
    ".hidden memmove",
    ".hidden memset",
    ".hidden memcmp",
    ".hidden bcmp"
);"#;

/// Macros that read files or the environment, assemble outside functions or hide text from this filter.
const MACROS: &[&str] = &[
    "include",
    "include_str",
    "include_bytes",
    "env",
    "option_env",
    "naked_asm",
    "concat",
    "concat_bytes",
    "stringify",
    "line",
    "column",
    "file",
    "module_path",
];
/// Attributes that have no place in device code.
const ATTRIBUTES: &[&str] = &[
    "path",
    "link",
    "link_section",
    "link_name",
    "linkage",
    "export_name",
    "used",
    "thread_local",
    "naked",
    "feature",
    "proc_macro",
    "global_allocator",
];
/// Assembler directives that read files or change sections and symbols.
const DIRECTIVES: &[&str] = &[
    ".incbin",
    ".include",
    ".section",
    ".pushsection",
    ".popsection",
    ".text",
    ".data",
    ".bss",
    ".byte",
    ".word",
    ".long",
    ".quad",
    ".octa",
    ".ascii",
    ".asciz",
    ".string",
    ".globl",
    ".global",
    ".weak",
    ".symver",
    ".set",
    ".equ",
    ".macro",
    ".rept",
    ".irp",
    ".org",
    ".fill",
    ".space",
    ".zero",
    ".value",
    ".short",
    ".int",
    ".hword",
    ".2byte",
    ".4byte",
    ".8byte",
    ".reloc",
];

/// Checks candidate source.
///
/// # Errors
/// [`Reason::Build`] with the word that was refused and its line.
pub fn check_source(source: &str) -> Result<(), SandboxError> {
    let refuse = |line: usize, what: String| {
        Err(SandboxError::rejected(Reason::Build, format!("line {line}: {what}")))
    };
    if source.len() > SOURCE_LIMIT {
        return refuse(0, format!("{} bytes of source; at most {SOURCE_LIMIT}", source.len()));
    }
    if source.contains('\0') {
        return refuse(0, "a NUL byte in the source".into());
    }
    // The one assembler block outside functions that the trusted prelude brings: it hides memory functions.
    let source = &source.replacen(HIDDEN_RUNTIME, &"\n".repeat(HIDDEN_RUNTIME.matches('\n').count()), 1);
    let tokens = tokens(source);
    let has_asm = tokens.iter().any(|t| matches!(&t.kind, Kind::Word(w) if *w == "asm" || *w == "llvm_asm"));
    let mut attribute = Attribute::default();
    for (i, token) in tokens.iter().enumerate() {
        attribute.advance(&token.kind);
        let next = |n: usize| tokens.get(i + n).map(|t| &t.kind);
        match &token.kind {
            Kind::Word("global_asm") if !only_hides(&tokens[i + 1..]) => {
                let what = "global_asm! may only say '.hidden NAME' in kernels";
                return refuse(token.line, what.into());
            }
            Kind::Word(word) => {
                let bang = next(1) == Some(&Kind::Mark('!'));
                // `use core::include as x;` would hide a macro's name.
                if MACROS.contains(word) && (bang || word.len() > 6 || imported(&tokens[..i])) {
                    return refuse(token.line, format!("{word}! is not allowed in kernels"));
                }
                if attribute.inside() && ATTRIBUTES.contains(word) {
                    return refuse(token.line, format!("attribute '{word}' is not allowed in kernels"));
                }
                if *word == "std" && next(1) == Some(&Kind::Mark(':')) {
                    return refuse(token.line, "kernels are no_std".into());
                }
                if *word == "extern" && next(1) == Some(&Kind::Word("crate")) {
                    return refuse(token.line, "extern crate is not allowed in kernels".into());
                }
                if *word == "static" && next(1) == Some(&Kind::Word("mut")) {
                    return refuse(token.line, "static mut is not allowed in kernels".into());
                }
                if *word == "mod" && next(2) == Some(&Kind::Mark(';')) {
                    return refuse(token.line, "a kernel is one file: no 'mod name;'".into());
                }
            }
            Kind::Text(text) if has_asm => {
                let lower = text.to_ascii_lowercase();
                if text.contains("\\x") || text.contains("\\u") {
                    return refuse(token.line, "escapes in strings beside asm! are not allowed".into());
                }
                if let Some(d) = DIRECTIVES.iter().find(|d| directive(&lower, d)) {
                    return refuse(token.line, format!("assembler directive {d} is not allowed"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the last statement is an import.
fn imported(before: &[Token<'_>]) -> bool {
    before.iter().rev().take_while(|t| t.kind != Kind::Mark(';')).any(|t| t.kind == Kind::Word("use"))
}

/// Whether the arguments of `global_asm` only hide symbols, as the trusted prelude does.
fn only_hides(rest: &[Token<'_>]) -> bool {
    let hides = |text: &str| {
        text.strip_prefix(".hidden ")
            .is_some_and(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
    };
    let opened = rest.first().map(|t| &t.kind) == Some(&Kind::Mark('!'))
        && rest.get(1).map(|t| &t.kind) == Some(&Kind::Mark('('));
    let arguments = rest.iter().skip(2).take_while(|t| t.kind != Kind::Mark(')'));
    opened
        && arguments.into_iter().all(|t| match t.kind {
            Kind::Text(text) => hides(text),
            Kind::Mark(mark) => mark == ',',
            Kind::Word(_) => false,
        })
}

/// Follows `#[...]` and `#![...]` through the tokens.
#[derive(Default)]
struct Attribute {
    hash: bool,
    depth: u32,
}

impl Attribute {
    fn advance(&mut self, kind: &Kind<'_>) {
        match kind {
            Kind::Mark('#') => self.hash = true,
            Kind::Mark('!') if self.hash => {}
            Kind::Mark('[') if self.hash || self.depth > 0 => {
                self.depth += 1;
                self.hash = false;
            }
            Kind::Mark(']') => {
                self.depth = self.depth.saturating_sub(1);
                self.hash = false;
            }
            _ => self.hash = false,
        }
    }

    fn inside(&self) -> bool {
        self.depth > 0
    }
}

/// Whether `text` uses the directive as a whole word.
fn directive(text: &str, name: &str) -> bool {
    text.match_indices(name)
        .any(|(at, _)| !text[at + name.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
}

#[derive(Debug, PartialEq)]
enum Kind<'a> {
    Word(&'a str),
    Text(&'a str),
    Mark(char),
}

struct Token<'a> {
    line: usize,
    kind: Kind<'a>,
}

/// Words, string contents and marks of Rust source; comments, spaces and numbers are dropped.
fn tokens(source: &str) -> Vec<Token<'_>> {
    let bytes = source.as_bytes();
    let mut out = Vec::new();
    let (mut i, mut line) = (0, 1);
    while i < bytes.len() {
        let start = i;
        let rest = &source[i..];
        let first_line = line;
        let mut push = |kind| out.push(Token { line: first_line, kind });
        if rest.starts_with("//") {
            i += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            i += comment(rest);
        } else if let Some((content, length)) = string(rest) {
            push(Kind::Text(content));
            i += length;
        } else if let Some(length) = char_literal(rest) {
            i += length;
        } else {
            let c = rest.chars().next().unwrap_or(' ');
            if c.is_alphabetic() || c == '_' {
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                let raw = &rest[..end];
                if raw == "r" && rest[end..].starts_with('#') {
                    // A raw identifier: the word follows and is seen by itself.
                    i += end + 1;
                } else {
                    push(Kind::Word(raw));
                    i += end;
                }
            } else if c.is_ascii_digit() {
                i += rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            } else {
                if !c.is_whitespace() {
                    push(Kind::Mark(c));
                }
                i += c.len_utf8();
            }
        }
        line += source[start..i].matches('\n').count();
    }
    out
}

/// Length of a nested block comment.
fn comment(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut depth, mut i) = (0usize, 0);
    while i + 1 < bytes.len() {
        match &bytes[i..i + 2] {
            b"/*" => (depth, i) = (depth + 1, i + 2),
            b"*/" => {
                (depth, i) = (depth - 1, i + 2);
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    bytes.len()
}

/// Content and length of a string literal (plain, byte, C or raw) at the start of `text`.
fn string(text: &str) -> Option<(&str, usize)> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|p| {
        text.strip_prefix(p).is_some_and(|r| {
            r.starts_with('"') || (p.ends_with('r') && r.trim_start_matches('#').starts_with('"'))
        })
    })?;
    let rest = &text[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = rest.len() - rest.trim_start_matches('#').len();
        let body = &rest[hashes + 1..];
        let end = format!("\"{}", "#".repeat(hashes));
        let at = body.find(&end).unwrap_or(body.len());
        let length = (prefix.len() + hashes + 1 + at + end.len()).min(text.len());
        return Some((&body[..at], length));
    }
    let body = &rest[1..];
    let mut escaped = false;
    for (i, c) in body.char_indices() {
        match c {
            '\\' if !escaped => escaped = true,
            '"' if !escaped => return Some((&body[..i], prefix.len() + 1 + i + 1)),
            _ => escaped = false,
        }
    }
    Some((body, text.len()))
}

/// Length of a char or byte literal; `None` for lifetimes and everything else.
fn char_literal(text: &str) -> Option<usize> {
    let body = text.strip_prefix("b'").or_else(|| text.strip_prefix('\''))?;
    let prefix = text.len() - body.len();
    let mut chars = body.char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next()?;
        let end = chars.find(|(_, c)| *c == '\'')?;
        return Some(prefix + end.0 + 1);
    }
    match chars.next() {
        Some((at, '\'')) => Some(prefix + at + 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(source: &str) -> bool {
        check_source(source).is_err()
    }

    #[test]
    fn refuses_what_reaches_for_the_host() {
        for source in [
            "const X: &[u8] = include_bytes!(\"/etc/passwd\");",
            "const X: &str = r#include_str!(\"/etc/passwd\");",
            "const X: &str = env ! (\"HOME\");",
            "extern crate std;",
            "use std::fs;",
            "#[path = \"/etc/x\"] mod x;",
            "mod x;",
            "static mut X: u32 = 0;",
            "#[unsafe(link_section = \".init_array\")] static F: fn() = f;",
            "fn f() { unsafe { core::arch::asm!(\".incbin \\\"/etc/passwd\\\"\") } }",
            "fn f() { unsafe { core::arch::asm!(\"\\x2eincbin\") } }",
            "core::arch::global_asm!(\"x:\");",
            "core::arch::global_asm!(\".hidden x; .incbin x\");",
            "use core::arch::global_asm as g;",
            "#[cfg_attr(all(), path = \"x\")] mod x {}",
            "use core::include as i;",
        ] {
            assert!(refused(source), "{source}");
        }
    }

    #[test]
    fn accepts_ordinary_kernels() {
        let source = r##"#![no_std]
            // include_bytes!("/etc/passwd") in a comment is only a comment
            /* env!("HOME") /* nested */ */
            core::arch::global_asm!(".hidden memcpy", ".hidden memset");
            fn f<'a>(x: &'a [u8]) -> u8 { let used = 1; let path = used; let _ = path; let c = '"'; let d = '\''; let _ = (c, d, b'"'); x[0] }
            const T: &str = "plain text with include! in it";
            static TABLE: [f32; 2] = [0.5, 1.5e-3];
        "##;
        check_source(source).unwrap();
    }

    #[test]
    fn survives_damaged_text() {
        for source in ["\"", "r###\"", "'", "'\\", "/*", "b\"\\", "r#", "ü'ü", "'ü'"] {
            let _ = check_source(source);
        }
    }
}
