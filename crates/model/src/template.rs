//! Chat templates: Jinja as Hugging Face's `apply_chat_template` runs it.

use crate::error::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value as JinjaValue};
use minijinja::{Environment, ErrorKind, State};
use serde::Serialize;
use serde_json::{Map, Value};
use std::time::{SystemTime, UNIX_EPOCH};

const NAME: &str = "chat_template";
/// The context variable that carries the time to `strftime_now`.
const NOW: &str = "__now_unix_seconds";

/// A parsed chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos_token: String,
    eos_token: String,
}

/// What goes into a rendering besides the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Tool definitions as the OpenAI API gives them: an array of objects.
    pub tools: Option<Value>,
    /// Further variables (`enable_thinking`, `documents`, ...).
    pub extra: Map<String, Value>,
    /// The time that `strftime_now` reports, in UTC; the present if not given.
    pub now: Option<SystemTime>,
}

impl ChatTemplate {
    /// Parses a template. `bos_token` and `eos_token` are the texts of those tokens.
    ///
    /// # Errors
    /// [`Error::Template`] with the line, if it does not parse.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax =
            SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(template_error)?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        environment.set_recursion_limit(200);
        environment.add_template_owned(NAME, neutralise_generation(source)).map_err(template_error)?;
        Ok(ChatTemplate {
            environment,
            source: source.to_owned(),
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
        })
    }

    /// The template's own text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders `messages`, an array of objects with `role` and `content`, to the prompt's text; encode it with
    /// [`crate::EncodeOptions::TEMPLATE`].
    ///
    /// # Errors
    /// [`Error::Template`] if the template raises an exception or uses what is not there.
    pub fn render(&self, messages: &Value, options: &RenderOptions) -> Result<String> {
        let mut context = options.extra.clone();
        context.insert("messages".into(), messages.clone());
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        context.insert("bos_token".into(), self.bos_token.clone().into());
        context.insert("eos_token".into(), self.eos_token.clone().into());
        context.insert("tools".into(), options.tools.clone().unwrap_or(Value::Null));
        context.entry("documents").or_insert(Value::Null);
        let now = options.now.unwrap_or_else(SystemTime::now);
        context.insert(NOW.into(), now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()).into());
        let template = self.environment.get_template(NAME).map_err(template_error)?;
        template.render(JinjaValue::from(Serde(&context))).map_err(template_error)
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ChatTemplate({} bytes)", self.source.len())
    }
}

fn template_error(e: minijinja::Error) -> Error {
    // The alternate form adds the line and the source around it only in debug mode; `Display` has kind, detail and line.
    let mut reason = e.to_string();
    let mut source = std::error::Error::source(&e);
    while let Some(inner) = source {
        reason = format!("{reason}: {inner}");
        source = inner.source();
    }
    Error::Template { reason }
}

/// Turns the training-only `{% generation %} ... {% endgeneration %}` into a block that always renders, keeping whitespace
/// control as it is.
fn neutralise_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + len];
        out.push_str(&rest[..start]);
        match tag[2..].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = &rest[start + len..];
    }
    out.push_str(rest);
    out
}

fn raise_exception(message: String) -> Result<JinjaValue, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

/// `tojson` as transformers defines it: Python's `json.dumps` with `ensure_ascii=False`.
fn to_json(value: JinjaValue, kwargs: Kwargs) -> Result<JinjaValue, minijinja::Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    let sort: Option<bool> = kwargs.get("sort_keys")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    let failed = |e: String| minijinja::Error::new(ErrorKind::BadSerialization, e);
    let mut json = serde_json::to_value(&value).map_err(|e| failed(e.to_string()))?;
    if sort == Some(true) {
        json.sort_all_objects();
    }
    let mut out = Vec::new();
    let result = match indent {
        Some(width) => {
            let width = " ".repeat(width.min(16));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(width.as_bytes());
            json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter))
        }
        None => {
            let (item, key) = match separators.as_deref() {
                Some([item, key]) => (item.as_str(), key.as_str()),
                _ => (", ", ": "),
            };
            json.serialize(&mut serde_json::Serializer::with_formatter(
                &mut out,
                PythonFormatter { item, key },
            ))
        }
    };
    result.map_err(|e| failed(e.to_string()))?;
    let text = String::from_utf8(out).map_err(|e| failed(e.to_string()))?;
    Ok(JinjaValue::from_safe_string(text))
}

/// `json.dumps` puts a space after commas and colons.
struct PythonFormatter<'a> {
    item: &'a str,
    key: &'a str,
}

impl serde_json::ser::Formatter for PythonFormatter<'_> {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(self.item.as_bytes()) }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(self.item.as_bytes()) }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }
}

fn strftime_now(state: &State, format: String) -> String {
    let seconds = state.lookup(NOW).and_then(|v| i64::try_from(v).ok()).unwrap_or(0);
    strftime(&format, seconds)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// The conversions of C's `strftime` that chat templates use, in UTC; others are copied as they stand.
fn strftime(format: &str, unix_seconds: i64) -> String {
    let days = unix_seconds.div_euclid(86_400);
    let second_of_day = unix_seconds.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let bare = chars.next_if(|&c| c == '-').is_some();
        let number =
            |value: i64, width: usize| if bare { value.to_string() } else { format!("{value:0width$}") };
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&number(year.rem_euclid(100), 2)),
            Some('m') => out.push_str(&number(month, 2)),
            Some('d') => out.push_str(&number(day, 2)),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('H') => out.push_str(&number(hour, 2)),
            Some('I') => out.push_str(&number((hour + 11) % 12 + 1, 2)),
            Some('M') => out.push_str(&number(minute, 2)),
            Some('S') => out.push_str(&number(second, 2)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('j') => out.push_str(&number(days - days_of(year) + 1, 3)),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of a day counted from 1970-01-01 (Howard Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

/// The day, counted from 1970-01-01, on which `year` begins.
fn days_of(year: i64) -> i64 {
    let y = year - 1;
    365 * (year - 1970) + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) - 477
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str, messages: Value, options: &RenderOptions) -> Result<String> {
        ChatTemplate::new(source, "<s>", "</s>")?.render(&messages, options)
    }

    #[test]
    fn json_is_pythons() {
        let options = RenderOptions {
            tools: Some(json!([{"name": "f", "x": [1, 2.5, null], "t": "é<&'"}])),
            ..Default::default()
        };
        let text = render("{{ tools | tojson }}", json!([]), &options).unwrap();
        assert_eq!(text, r#"[{"name": "f", "x": [1, 2.5, null], "t": "é<&'"}]"#);
        let text = render("{{ tools[0].x | tojson(indent=2) }}", json!([]), &options).unwrap();
        assert_eq!(text, "[\n  1,\n  2.5,\n  null\n]");
    }

    #[test]
    fn generation_blocks_render_their_contents() {
        let source = "a\n{%- generation -%} b {%- endgeneration %}c";
        assert_eq!(render(source, json!([]), &RenderOptions::default()).unwrap(), "abc");
    }

    #[test]
    fn exceptions_and_syntax_errors_are_errors() {
        let e = render("{{ raise_exception('roles must alternate') }}", json!([]), &RenderOptions::default())
            .unwrap_err();
        assert!(e.to_string().contains("roles must alternate"), "{e}");
        assert!(ChatTemplate::new("{% if %}", "", "").is_err());
    }

    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "Thursday 01 January 1970 001"),
            (951_782_400, "Tuesday 29 February 2000 060"),
            (1_735_689_599, "Tuesday 31 December 2024 366"),
            (4_102_444_800, "Friday 01 January 2100 001"),
        ] {
            assert_eq!(strftime("%A %d %B %Y %j", seconds), expected);
        }
        let now = Some(UNIX_EPOCH + std::time::Duration::from_secs(951_782_400));
        let options = RenderOptions { now, ..Default::default() };
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}", json!([]), &options).unwrap(), "29 Feb 2000");
    }

    #[test]
    fn python_methods_and_namespaces() {
        let source = "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ m['content'].strip().upper() }}{% endfor %}{{ ns.n }}{{ bos_token }}";
        let messages = json!([{"role": "user", "content": " a "}, {"role": "user", "content": "b"}]);
        assert_eq!(render(source, messages, &RenderOptions::default()).unwrap(), "AB2<s>");
    }
}
