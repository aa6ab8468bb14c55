//! Lessons: what a decision teaches, with scope, effect and support.

use crate::library::Memory;
use crate::task::TaskSpec;
use evidence::{Candidate, Change, Decision, Effect, Id, Lesson, Point, Verdict};

/// Axes that may differ for a comparison to say something about them.
const MOST_CHANGES: usize = 2;

/// The lesson of a decision, if it has one: the effect of one or two axis values between two recipes of a generator
/// whose interval excludes "no effect", or what a refused point did.
pub(crate) fn distil(spec: &TaskSpec<'_>, memory: &Memory, decision: &Decision) -> Option<Lesson> {
    let (generator, point) = recipe(memory, decision.challenger)?;
    let scope = format!("{} rows {} {} {generator}", spec.operation.kind(), spec.rows, spec.target);
    match &decision.verdict {
        Verdict::Promote(Some(effect)) | Verdict::Keep(effect) if effect.low > 1.0 || effect.high < 1.0 => {
            let (other, from) = recipe(memory, decision.champion?)?;
            if other != generator {
                return None;
            }
            let changes = differing(from, point);
            if changes.is_empty() || changes.len() > MOST_CHANGES {
                return None;
            }
            let support = 1 + agreeing(memory, generator, &changes, effect.ratio > 1.0);
            Some(Lesson { statement: statement(&changes, effect), scope, effect: Some(*effect), support })
        }
        Verdict::Refuse => {
            let rejection = memory.tried.get(&decision.challenger)?.rejection.as_ref()?;
            let statement =
                format!("{point} is refused: {:?}: {}", rejection.reason, first_line(&rejection.detail));
            Some(Lesson { statement, scope, effect: None, support: 1 })
        }
        _ => None,
    }
}

fn recipe(memory: &Memory, id: Id<Candidate>) -> Option<(&str, &Point)> {
    match &memory.tried.get(&id)?.candidate.change {
        Change::Recipe { generator, point, .. } => Some((generator, point)),
        _ => None,
    }
}

type AxisStep<'a> = (&'a str, &'a str, &'a str);

fn differing<'a>(from: &'a Point, to: &'a Point) -> Vec<AxisStep<'a>> {
    to.0.iter()
        .filter_map(|(axis, value)| {
            let old = from.get(axis)?;
            (old != value).then_some((axis.as_str(), old, value.as_str()))
        })
        .collect()
}

/// Earlier pairs of points of this task that differ in just these steps and moved the same way.
fn agreeing(memory: &Memory, generator: &str, steps: &[AxisStep<'_>], up: bool) -> u32 {
    let known: Vec<(&Point, f64)> = memory
        .tried
        .iter()
        .filter_map(|(id, t)| Some((recipe(memory, *id)?, t.gain?)))
        .filter(|((g, _), _)| *g == generator)
        .map(|((_, p), gain)| (p, gain))
        .collect();
    let mut count = 0;
    for (a, gain_a) in &known {
        let moved = steps.iter().fold((*a).clone(), |p, (axis, _, to)| p.with(axis, *to));
        let starts_there = steps.iter().all(|(axis, from, _)| a.get(axis) == Some(from));
        let partner = known.iter().find(|(b, _)| starts_there && **b == moved);
        count += u32::from(partner.is_some_and(|(_, gain_b)| (gain_b > gain_a) == up));
    }
    count
}

fn statement(changes: &[AxisStep<'_>], effect: &Effect) -> String {
    let what: Vec<String> =
        changes.iter().map(|(axis, from, to)| format!("{axis}={to} rather than {axis}={from}")).collect();
    let percent = |r: f64| 100.0 * (r - 1.0);
    let (word, sign) = if effect.ratio > 1.0 { ("faster", 1.0) } else { ("slower", -1.0) };
    let (a, b) = (sign * percent(effect.low), sign * percent(effect.high));
    format!(
        "{}: {:.1} % {word} ({:.1} to {:.1} %, {} pairs)",
        what.join(" and "),
        sign * percent(effect.ratio),
        a.min(b),
        a.max(b),
        effect.pairs
    )
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("").chars().take(160).collect()
}
