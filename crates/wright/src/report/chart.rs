//! Charts as SVG text. Colours come from the page's style sheet, so that light and dark both work.

use super::html::escape;
use std::fmt::Write;

/// A mapping from values to pixels.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    /// Values `low..=high` on pixels `from..=to`.
    pub fn linear(low: f64, high: f64, from: f64, to: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self { low, high, from, to, log: false }
    }

    /// The same, by logarithm; values must be positive.
    pub fn log(low: f64, high: f64, from: f64, to: f64) -> Self {
        let low = low.max(f64::MIN_POSITIVE);
        let high = if high > low { high } else { low * 2.0 };
        Self { low, high, from, to, log: true }
    }

    /// Pixel of a value; values outside stay at the ends.
    pub fn at(&self, x: f64) -> f64 {
        let share = if self.log {
            (x.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (x - self.low) / (self.high - self.low)
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round values to mark, about `wanted` of them.
    pub fn ticks(&self, wanted: usize) -> Vec<f64> {
        if self.log { self.log_ticks(wanted) } else { self.linear_ticks(wanted) }
    }

    fn linear_ticks(&self, wanted: usize) -> Vec<f64> {
        let rough = (self.high - self.low) / wanted.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..first + 50).map(|i| i as f64 * step).take_while(|t| *t <= self.high * (1.0 + 1e-9)).collect()
    }

    fn log_ticks(&self, wanted: usize) -> Vec<f64> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let within = |marks: &[f64]| -> Vec<f64> {
            (first..=last)
                .flat_map(|d| marks.iter().map(move |m| m * 10f64.powi(d)))
                .filter(|t| (self.low * 0.999..=self.high * 1.001).contains(t))
                .collect()
        };
        let options = [&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0][..], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
        let all: Vec<Vec<f64>> = options.into_iter().map(within).collect();
        let fitting = all.iter().find(|t| t.len() <= wanted).or(all.last());
        fitting.cloned().unwrap_or_default()
    }
}

/// Attribute that shows a tooltip.
pub fn tip(text: &str) -> String {
    format!(" data-tip=\"{}\"", escape(text))
}

/// An SVG element of this size.
pub fn svg(width: f64, height: f64, label: &str, body: &str) -> String {
    format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">{body}</svg>",
        escape(label)
    )
}

/// Text at a place; `class` also sets the anchor (`start`, `middle`, `end` among its words).
pub fn text(x: f64, y: f64, class: &str, content: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escape(content))
}

fn path_of_steps(points: &[(f64, f64)], x: &Scale, y: &Scale, end: f64) -> String {
    let mut d = String::new();
    for (n, (px, py)) in points.iter().enumerate() {
        let _ = match n {
            0 => write!(d, "M{:.1} {:.1}", x.at(*px), y.at(*py)),
            _ => write!(d, "H{:.1}V{:.1}", x.at(*px), y.at(*py)),
        };
    }
    let _ = write!(d, "H{:.1}", x.at(end));
    d
}

/// Champion over time: steps on a log axis of speed-ups. Points are (x, speed-up, tooltip), starting at 1.
pub fn progress(points: &[(f64, f64, String)], end: f64, unit: &str) -> String {
    let (w, h) = (1060.0, 300.0);
    let (left, right, top, bottom) = (56.0, 90.0, 16.0, 40.0);
    let most = points.iter().map(|p| p.1).fold(1.0, f64::max);
    let least = points.iter().map(|p| p.1).fold(1.0, f64::min);
    let x = Scale::linear(0.0, end.max(1e-9), left, w - right);
    let y = if most > 4.0 {
        Scale::log(least, most * 1.15, h - bottom, top)
    } else {
        Scale::linear(least.min(1.0), 1.0 + (most - 1.0) * 1.15, h - bottom, top)
    };
    let mut body = String::new();
    for t in y.ticks(7) {
        let _ = write!(
            body,
            "<line class=\"grid\" x1=\"{left}\" x2=\"{}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>",
            w - right,
            y.at(t)
        );
        body += &text(left - 8.0, y.at(t) + 4.0, "tick end", &format!("{}×", trim(t)));
    }
    for t in x.ticks(8) {
        body += &text(x.at(t), h - bottom + 18.0, "tick middle", &trim(t));
    }
    body += &text((left + w - right) / 2.0, h - 4.0, "tick middle", unit);
    let line: Vec<(f64, f64)> = points.iter().map(|p| (p.0, p.1)).collect();
    let d = path_of_steps(&line, &x, &y, end);
    let (first, floor) = (x.at(line.first().map_or(0.0, |p| p.0)), h - bottom);
    let _ = write!(
        body,
        "<path class=\"area\" d=\"{d}V{floor}H{first:.1}Z\"/><path class=\"line champion\" d=\"{d}\"/>"
    );
    for (px, py, words) in points.iter().skip(1) {
        let _ = write!(
            body,
            "<circle class=\"dot champion\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"{}/>",
            x.at(*px),
            y.at(*py),
            tip(words)
        );
    }
    if let Some((_, last, _)) = points.last() {
        body += &text(x.at(end) + 8.0, y.at(*last) + 6.0, "end-label", &super::html::times(*last));
    }
    svg(w, h, "overall speed-up of the champion", &body)
}

/// A small step line without axes, log scale from 1 to `most`.
pub fn spark(points: &[(f64, f64)], end: f64, most: f64) -> String {
    let (w, h) = (118.0, 30.0);
    let x = Scale::linear(0.0, end.max(1e-9), 2.0, w - 4.0);
    let y = Scale::log(0.9, most.max(1.2), h - 3.0, 3.0);
    let d = path_of_steps(points, &x, &y, end);
    let last = points.last().map_or(1.0, |p| p.1);
    let body = format!(
        "<line class=\"grid\" x1=\"2\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\"/><path class=\"line champion thin\" d=\"{d}\"/>\
         <circle class=\"dot champion\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"/>",
        w - 4.0,
        y.at(1.0),
        y.at(1.0),
        x.at(end),
        y.at(last)
    );
    svg(w, h, "speed-up over the search", &body)
}

/// One step of a staircase.
pub struct Stair {
    /// Time of a call, nanoseconds.
    pub ns: f64,
    /// Interval of that time.
    pub interval: Option<(f64, f64)>,
    /// Gain of this step, as text.
    pub gain: String,
    pub tooltip: String,
}

/// Time of a call falling from change to change.
pub fn staircase(steps: &[Stair]) -> String {
    let step = (1000.0 / steps.len().max(1) as f64).clamp(34.0, 110.0);
    let (left, top, bottom, h) = (64.0, 22.0, 26.0, 210.0);
    let w = left + step * steps.len() as f64 + 10.0;
    let most = steps.iter().map(|s| s.ns).fold(0.0, f64::max);
    let y = Scale::linear(0.0, most * 1.05, h - bottom, top);
    let mut body = String::new();
    for t in y.ticks(4) {
        let _ = write!(
            body,
            "<line class=\"grid\" x1=\"{left}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>",
            w - 6.0,
            y.at(t)
        );
        body += &text(left - 8.0, y.at(t) + 4.0, "tick end", &super::html::time(t));
    }
    for (n, s) in steps.iter().enumerate() {
        let at = left + n as f64 * step;
        let class = if n == 0 { "portable" } else { "champion" };
        let _ = write!(
            body,
            "<rect class=\"bar {class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\"{}/>",
            at + 4.0,
            y.at(s.ns),
            step - 8.0,
            (h - bottom - y.at(s.ns)).max(1.0),
            tip(&s.tooltip)
        );
        if let Some((low, high)) = s.interval {
            let middle = at + step / 2.0;
            let _ = write!(
                body,
                "<line class=\"whisker\" x1=\"{middle:.1}\" x2=\"{middle:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                y.at(low),
                y.at(high)
            );
        }
        if let Some(before) = n.checked_sub(1).map(|b| &steps[b]) {
            let _ = write!(
                body,
                "<line class=\"tread\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{2:.1}\" y2=\"{2:.1}\"/>",
                at - 4.0,
                at + step - 4.0,
                y.at(before.ns)
            );
        }
        body += &text(
            at + step / 2.0,
            y.at(s.interval.map_or(s.ns, |i| i.1.max(s.ns))) - 5.0,
            "value middle",
            &s.gain,
        );
        body += &text(at + step / 2.0, h - 8.0, "tick middle", &n.to_string());
    }
    svg(w, h, "time of a call after each accepted change", &body)
}

/// One row of the roofline chart; times in nanoseconds.
pub struct Distance {
    pub label: String,
    pub rows: String,
    pub baseline: Option<f64>,
    pub now: f64,
    pub floor: Option<f64>,
    pub tooltip: String,
}

/// Times on a log axis: portable, champion and the measured floor.
pub fn roofline(list: &[Distance]) -> String {
    let (w, row, top, left, right) = (1060.0, 24.0, 34.0, 190.0, 210.0);
    let h = top + row * list.len() as f64 + 14.0;
    let values =
        || list.iter().flat_map(|d| [d.baseline, Some(d.now), d.floor]).flatten().filter(|v| *v > 0.0);
    let x = Scale::log(
        values().fold(f64::INFINITY, f64::min) * 0.8,
        values().fold(0.0, f64::max) * 1.2,
        left,
        w - right,
    );
    let mut body = String::new();
    for t in x.ticks(9) {
        let _ = write!(
            body,
            "<line class=\"grid\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1}\" y2=\"{2}\"/>",
            x.at(t),
            top - 6.0,
            h - 8.0
        );
        body += &text(x.at(t), top - 14.0, "tick middle", &super::html::time(t));
    }
    body += &text(w - 84.0, top - 14.0, "tick end", "of roofline");
    body += &text(w - 4.0, top - 14.0, "tick end", "vs portable");
    let mut last = "";
    for (n, d) in list.iter().enumerate() {
        let y = top + row * n as f64 + row / 2.0;
        if d.label != last {
            if n > 0 {
                let _ = write!(
                    body,
                    "<line class=\"rule\" x1=\"0\" x2=\"{w}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>",
                    y - row / 2.0
                );
            }
            body += &text(0.0, y + 4.0, "label", &short(&d.label, 20));
            last = &d.label;
        }
        body += &text(left - 14.0, y + 4.0, "tick end", &d.rows);
        let _ = write!(
            body,
            "<g{}><rect class=\"hit\" x=\"0\" y=\"{:.1}\" width=\"{w}\" height=\"{row}\"/>",
            tip(&d.tooltip),
            y - row / 2.0
        );
        if let Some(base) = d.baseline {
            let _ = write!(
                body,
                "<line class=\"gain\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
                x.at(d.now),
                x.at(base)
            );
            let _ = write!(
                body,
                "<circle class=\"dot portable\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\"/>",
                x.at(base)
            );
            body += &text(w - 4.0, y + 4.0, "value end", &super::html::times(base / d.now));
        }
        if let Some(floor) = d.floor {
            let _ = write!(
                body,
                "<line class=\"left-over\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>",
                x.at(floor),
                x.at(d.now)
            );
            let _ = write!(
                body,
                "<rect class=\"floor\" x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"16\"/>",
                x.at(floor) - 1.5,
                y - 8.0
            );
            body += &text(w - 84.0, y + 4.0, "value end", &format!("{:.0} %", 100.0 * floor / d.now));
        }
        let _ = write!(
            body,
            "<circle class=\"dot champion\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\"/></g>",
            x.at(d.now)
        );
    }
    svg(w, h, "operations against the measured roofline", &body)
}

/// Empirical distribution functions on a log axis of milliseconds. Series are (colour class, name, samples).
pub fn ecdf(series: &[(&str, &str, &[f64])], label: &str) -> Option<String> {
    let (w, h, left, right, top, bottom) = (340.0, 200.0, 40.0, 14.0, 12.0, 34.0);
    let values = || series.iter().flat_map(|s| s.2.iter().copied()).filter(|v| *v > 0.0 && v.is_finite());
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if high <= 0.0 {
        return None;
    }
    let x = Scale::log(low * 0.9, high * 1.1, left, w - right);
    let y = Scale::linear(0.0, 1.0, h - bottom, top);
    let mut body = String::new();
    for t in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let _ = write!(
            body,
            "<line class=\"grid\" x1=\"{left}\" x2=\"{}\" y1=\"{1:.1}\" y2=\"{1:.1}\"/>",
            w - right,
            y.at(t)
        );
        body += &text(left - 6.0, y.at(t) + 4.0, "tick end", &format!("{:.0}%", t * 100.0));
    }
    for t in x.ticks(5) {
        body += &text(x.at(t), h - bottom + 16.0, "tick middle", &trim(t));
    }
    body += &text((left + w - right) / 2.0, h - 3.0, "tick middle", "ms");
    for (class, name, samples) in series {
        let mut sorted: Vec<f64> = samples.iter().copied().filter(|v| *v > 0.0 && v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        if sorted.is_empty() {
            continue;
        }
        let n = sorted.len();
        // A few hundred points draw the same picture as thousands.
        let stride = n.div_ceil(300);
        let mut points = vec![(sorted[0], 0.0)];
        points.extend(
            (0..n).filter(|i| i % stride == 0 || *i == n - 1).map(|i| (sorted[i], (i + 1) as f64 / n as f64)),
        );
        let d = path_of_steps(&points, &x, &y, sorted[n - 1]);
        let median = sorted[n / 2];
        let words = format!(
            "{name}: {n} samples, median {} ms, worst {} ms",
            super::html::number(median),
            super::html::number(sorted[n - 1])
        );
        let _ = write!(
            body,
            "<path class=\"line {class}\" d=\"{d}\"{0}/><path class=\"hit-line\" d=\"{d}\"{0}/>",
            tip(&words)
        );
        let _ = write!(
            body,
            "<circle class=\"dot {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"{}/>",
            x.at(median),
            y.at(0.5),
            tip(&words)
        );
    }
    Some(svg(w, h, label, &body))
}

/// A part of a bar: style class, count, and what is counted.
pub type Part = (&'static str, u64, &'static str);

/// Horizontal bars in parts, each with its label.
pub fn stacked(rows: &[(String, Vec<Part>)]) -> String {
    let (w, row, left, right) = (1060.0, 30.0, 150.0, 60.0);
    let most = rows.iter().map(|r| r.1.iter().map(|p| p.1).sum::<u64>()).max().unwrap_or(0).max(1);
    let x = Scale::linear(0.0, most as f64, 0.0, w - left - right);
    let mut body = String::new();
    for (n, (label, parts)) in rows.iter().enumerate() {
        let y = n as f64 * row + 4.0;
        body += &text(left - 10.0, y + 15.0, "label end", &short(label, 20));
        let (mut at, total) = (left, parts.iter().map(|p| p.1).sum::<u64>());
        for (class, count, name) in parts.iter().filter(|p| p.1 > 0) {
            let width = x.at(*count as f64);
            let _ = write!(
                body,
                "<rect class=\"bar {class}\" x=\"{at:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"20\"{}/>",
                (width - 1.0).max(0.8),
                tip(&format!("{label}: {count} {name}"))
            );
            if width > 28.0 {
                body += &text(at + width / 2.0, y + 14.5, "on-bar middle", &count.to_string());
            }
            at += width;
        }
        body += &text(at + 8.0, y + 15.0, "tick", &total.to_string());
    }
    svg(w, rows.len() as f64 * row + 6.0, "counts", &body)
}

/// A value against a bound, on a bar that ends a little beyond both.
pub fn bullet(value: f64, bound: Option<f64>, class: &str, words: &str) -> String {
    let (w, h) = (300.0, 34.0);
    let x = Scale::linear(0.0, value.max(bound.unwrap_or(0.0)) * 1.15, 0.0, w);
    let mut body = format!(
        "<rect class=\"track\" x=\"0\" y=\"10\" width=\"{w}\" height=\"14\" rx=\"3\"/>\
         <rect class=\"bar {class}\" x=\"0\" y=\"10\" width=\"{:.1}\" height=\"14\" rx=\"3\"{}/>",
        x.at(value).max(2.0),
        tip(words)
    );
    if let Some(bound) = bound {
        let _ = write!(
            body,
            "<rect class=\"floor\" x=\"{:.1}\" y=\"3\" width=\"3\" height=\"28\"{}/>",
            x.at(bound) - 1.5,
            tip(&format!("bound {bound}"))
        );
    }
    svg(w, h, words, &body)
}

/// A tick without needless zeros.
fn trim(x: f64) -> String {
    if x.abs() >= 1000.0 && x % 100.0 == 0.0 {
        return format!("{}k", x / 1000.0);
    }
    format!("{}", (x * 1e6).round() / 1e6)
}

fn short(label: &str, most: usize) -> String {
    match label.chars().count() > most {
        true => label.chars().take(most - 1).chain(['…']).collect(),
        false => label.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_and_ticks() {
        let linear = Scale::linear(0.0, 100.0, 0.0, 10.0);
        assert_eq!((linear.at(50.0), linear.at(-5.0), linear.at(1e9)), (5.0, 0.0, 10.0));
        assert_eq!(linear.ticks(5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let log = Scale::log(1.0, 100.0, 0.0, 2.0);
        assert!((log.at(10.0) - 1.0).abs() < 1e-12);
        assert_eq!(log.ticks(7), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn odd_data_gives_no_nan() {
        for svg in [
            progress(&[(0.0, 1.0, String::new())], 0.0, "s"),
            spark(&[], 0.0, 1.0),
            ecdf(&[("champion", "c", &[5.0])], "one").unwrap(),
            staircase(&[]),
            roofline(&[Distance {
                label: "x".into(),
                rows: "1".into(),
                baseline: None,
                now: 5.0,
                floor: None,
                tooltip: String::new(),
            }]),
            stacked(&[("none".into(), vec![])]),
            bullet(0.0, None, "good", "w"),
        ] {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert!(ecdf(&[("champion", "c", &[f64::NAN])], "none").is_none());
    }
}
