//! Why a candidate should win, in words, written before anybody measured it.

use crate::task::Bound;
use search::{AxisChange, Operator, Suggestion};

/// A hypothesis for a suggestion.
pub(crate) fn hypothesis(suggestion: &Suggestion, bound: Bound, speedup: f64) -> String {
    let what = match suggestion.changes.as_slice() {
        [] => suggestion.point.to_string(),
        few @ ([_] | [_, _] | [_, _, _]) => few.iter().map(change).collect::<Vec<_>>().join("; "),
        many => {
            let axes: Vec<&str> = many.iter().map(|c| c.axis.as_str()).collect();
            format!("another {}", axes.join(", "))
        }
    };
    let why = match suggestion.operator {
        Operator::Transfer => "a neighbouring task's best does this, and the shapes are alike".to_owned(),
        Operator::LocalSearch => format!("one step from the champion ({speedup:.2}x so far)"),
        Operator::Surrogate => {
            "the effects measured so far add up to more here than anywhere untried".to_owned()
        }
        Operator::Mutate => "a good point may be near a better one".to_owned(),
        Operator::Crossover => "two good points may owe it to different axes".to_owned(),
        Operator::Random => "nothing nearby is left to learn from".to_owned(),
        Operator::Restart => "the search stands still; this part of the space is unknown".to_owned(),
    };
    let reasons: Vec<&str> = suggestion.changes.iter().take(2).filter_map(|c| reason(c, bound)).collect();
    let reason = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
    format!("{what}: {why}{reason}")
}

fn change(c: &AxisChange) -> String {
    match (c.from.parse::<f64>(), c.to.parse::<f64>()) {
        (Ok(from), Ok(to)) if to > from => format!("{} up from {} to {}", c.axis, c.from, c.to),
        (Ok(_), Ok(_)) => format!("{} down from {} to {}", c.axis, c.from, c.to),
        _ => format!("{} {} instead of {}", c.axis, c.to, c.from),
    }
}

/// What a change of an axis does to a machine; by the names that generators use.
fn reason(c: &AxisChange, bound: Bound) -> Option<&'static str> {
    let more = match (c.from.parse::<f64>(), c.to.parse::<f64>()) {
        (Ok(from), Ok(to)) => to > from,
        _ => true,
    };
    let has = |word: &str| c.axis.contains(word);
    let text = if has("prefetch") || has("ahead") {
        match (bound, more) {
            (Bound::Memory, true) => {
                "the operation is memory-bound, and lines asked for earlier hide latency"
            }
            (_, true) => "lines asked for earlier hide latency",
            (_, false) => "lines asked for too early are evicted before use",
        }
    } else if has("unroll") || has("tile") || has("register") {
        if more {
            "more independent sums hide the latency of multiply-adds and reuse what is loaded"
        } else {
            "fewer live registers avoid spills"
        }
    } else if has("columns") || has("block") {
        if more { "an activation that is loaded serves more columns" } else { "less state for each thread" }
    } else if has("chunk") {
        if more { "fewer passes over the same rows" } else { "a chunk that stays in the nearest cache" }
    } else if has("split") || has("share") {
        "the threads' work becomes more even"
    } else if has("unpack") || has("stage") {
        "work moves between the load ports and the arithmetic"
    } else if has("prologue") {
        "a barrier against work done twice"
    } else {
        return None;
    };
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evidence::Point;

    #[test]
    fn words() {
        let change = |axis: &str, from: &str, to: &str| AxisChange {
            axis: axis.into(),
            from: from.into(),
            to: to.into(),
        };
        let suggestion = Suggestion {
            operator: Operator::LocalSearch,
            point: Point::default(),
            parents: vec![],
            changes: vec![change("prefetch", "0", "2048")],
        };
        assert_eq!(
            hypothesis(&suggestion, Bound::Memory, 1.5),
            "prefetch up from 0 to 2048: one step from the champion (1.50x so far) (the operation is memory-bound, \
             and lines asked for earlier hide latency)"
        );
    }
}
