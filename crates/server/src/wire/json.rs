//! JSON written by hand into a byte buffer: the per-token path builds no value trees.

/// Bytes as they stand.
pub(crate) fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

/// A JSON string with its quotes.
pub(crate) fn string(out: &mut Vec<u8>, value: &str) {
    out.push(b'"');
    escape(out, value);
    out.push(b'"');
}

/// The inside of a JSON string.
pub(crate) fn escape(out: &mut Vec<u8>, value: &str) {
    let bytes = value.as_bytes();
    let mut done = 0;
    for (i, &b) in bytes.iter().enumerate() {
        let short = match b {
            b'"' => b'"',
            b'\\' => b'\\',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0..=0x1f => b'u',
            _ => continue,
        };
        out.extend_from_slice(&bytes[done..i]);
        done = i + 1;
        out.extend_from_slice(&[b'\\', short]);
        if short == b'u' {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            out.extend_from_slice(&[b'0', b'0', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
        }
    }
    out.extend_from_slice(&bytes[done..]);
}

/// A number.
pub(crate) fn number(out: &mut Vec<u8>, value: impl Into<u64>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest: u64 = value.into();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A log probability; JSON has no infinity, and -9999 is what OpenAI writes for it.
pub(crate) fn logprob(out: &mut Vec<u8>, value: f32) {
    let value = if value.is_finite() { value.max(-9999.0) } else { -9999.0 };
    // `-0` would be valid, `0` reads better.
    text(out, &format!("{}", value + 0.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_read_back() {
        let all: String =
            (0..=0x24fu32).chain([0x2028, 0xfffd, 0x1f600]).filter_map(char::from_u32).collect();
        let mut out = Vec::new();
        string(&mut out, &all);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), all);
    }

    #[test]
    fn numbers_read_back() {
        for n in [0u64, 7, 10, 12_345, u64::MAX] {
            let mut out = Vec::new();
            number(&mut out, n);
            assert_eq!(String::from_utf8(out).unwrap(), n.to_string());
        }
        for (value, want) in [(-0.5, "-0.5"), (f32::NEG_INFINITY, "-9999"), (f32::NAN, "-9999"), (-0.0, "0")]
        {
            let mut out = Vec::new();
            logprob(&mut out, value);
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }
}
