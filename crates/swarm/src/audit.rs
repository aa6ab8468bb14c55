//! Leave-one-out audit of a composed engine: each accepted part is taken out and the engine measured again; what no
//! longer pays is dropped.

use crate::error::EvaluatorError;
use evidence::Effect;

/// What the engine with a part is worth against the engine without it.
#[derive(Clone, Debug, PartialEq)]
pub enum Pays {
    /// Better with the part.
    Yes(Effect),
    /// Not worse without it: drop it, the simpler engine is as good.
    No(Effect),
    /// Noise decides nothing: the part stays.
    Unclear(Effect),
    /// Without it the engine is refused (wrong, or below the quality bound).
    Needed(String),
}

/// One line of the audit.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditLine<P> {
    pub part: P,
    pub pays: Pays,
}

impl<P> AuditLine<P> {
    pub fn is_dropped(&self) -> bool {
        matches!(self.pays, Pays::No(_))
    }
}

/// Result of an audit.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit<P> {
    /// Parts that stay, in their order.
    pub kept: Vec<P>,
    /// One line for each audited part, in the order of the audit.
    pub lines: Vec<AuditLine<P>>,
    /// Parts that were not audited because the caller's time ran out; they stay.
    pub unaudited: Vec<P>,
}

/// Compares the engine of the kept parts with the same engine without one of them; `None`: no budget is left.
pub type Without<'a, P> = &'a mut dyn FnMut(&[P], &P) -> Result<Option<Pays>, EvaluatorError>;

/// Takes out each of `parts` in turn. `without(kept, left_out)` compares the engine of `kept` (which holds `left_out`)
/// with the same engine without `left_out`; `None` stops the audit (no budget left). A part that does not pay is gone
/// for the parts after it, so order them from the most doubtful to the surest.
pub fn leave_one_out<P: Clone + PartialEq>(
    parts: &[P],
    without: Without<'_, P>,
) -> Result<Audit<P>, EvaluatorError> {
    let mut audit = Audit { kept: parts.to_vec(), lines: Vec::new(), unaudited: Vec::new() };
    for (i, part) in parts.iter().enumerate() {
        let Some(pays) = without(&audit.kept, part)? else {
            audit.unaudited = parts[i..].to_vec();
            break;
        };
        let line = AuditLine { part: part.clone(), pays };
        if line.is_dropped() {
            audit.kept.retain(|p| p != part);
        }
        audit.lines.push(line);
    }
    Ok(audit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(ratio: f64) -> Effect {
        Effect { ratio, low: ratio, high: ratio, pairs: 9 }
    }

    #[test]
    fn redundant_parts_go_one_at_a_time() {
        // Either of a and b is enough; c pays; d is needed.
        let worth = |kept: &[&str]| {
            1.0 + f64::from(u8::from(kept.contains(&"a") || kept.contains(&"b")))
                + f64::from(u8::from(kept.contains(&"c")))
        };
        let mut without = |kept: &[&str], out: &&str| {
            if *out == "d" {
                return Ok(Some(Pays::Needed("wrong without it".into())));
            }
            let rest: Vec<&str> = kept.iter().copied().filter(|p| p != out).collect();
            let e = effect(worth(kept) / worth(&rest));
            Ok(Some(if e.ratio > 1.01 { Pays::Yes(e) } else { Pays::No(e) }))
        };
        let audit = leave_one_out(&["a", "b", "c", "d"], &mut without).unwrap();
        assert_eq!(audit.kept, ["b", "c", "d"]);
        assert_eq!(audit.lines.iter().filter(|l| l.is_dropped()).count(), 1);
    }

    #[test]
    fn an_audit_that_runs_out_keeps_the_rest() {
        let mut calls = 0;
        let mut without = |_: &[u8], _: &u8| {
            calls += 1;
            Ok((calls == 1).then(|| Pays::No(effect(1.0))))
        };
        let audit = leave_one_out(&[1, 2, 3], &mut without).unwrap();
        assert_eq!((audit.kept, audit.unaudited), (vec![2, 3], vec![2, 3]));
    }
}
