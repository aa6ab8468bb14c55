//! `evidence.jsonl`: ledger entries as JSON lines, with the digests that bind them.

use anyhow::{Context, Result, anyhow, bail};
use evidence::{Content, Digest, Entry};
use ledger::{Fold, Position, Record};
use serde_json::Value;

/// The entries of a file, and how far their digests hold.
#[derive(Clone, Debug, Default)]
pub struct Records {
    pub records: Vec<Record>,
    /// Entries whose chain digest was computed again from the entry before.
    pub linked: usize,
    /// Entries without their predecessor in the file, so that the chain cannot be followed there.
    pub unlinked: usize,
    /// The first thing that is wrong, in words; what follows it was not read.
    pub damage: Option<String>,
}

impl Records {
    /// Reads JSON lines. Damage ends the reading and is told, so that what stands before it can still be shown.
    pub fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            if let Err(error) = all.push(line) {
                all.damage = Some(format!("line {}: {error:#}", n + 1));
                break;
            }
        }
        all
    }

    fn push(&mut self, line: &str) -> Result<()> {
        let mut object: serde_json::Map<String, Value> =
            serde_json::from_str(line).context("it is no JSON object")?;
        let position =
            object.remove("position").and_then(|v| v.as_u64()).ok_or_else(|| missing("position"))?;
        let recorded_ms = object.remove("recorded_ms").and_then(|v| v.as_u64()).unwrap_or(0);
        let content = digest(&mut object, "content")?.ok_or_else(|| missing("content"))?;
        let chain = digest(&mut object, "chain")?;
        let entry: Entry = serde_json::from_value(Value::Object(object)).context("it is no ledger entry")?;
        if entry.content() != content {
            bail!("the content digest {} does not belong to the entry", content.short());
        }
        let last = self.records.last();
        if last.is_some_and(|r| r.position.0 >= position) {
            bail!("position {position} does not follow the one before");
        }
        let previous = match (position, last) {
            (1, _) => Some(Digest::ZERO),
            (_, Some(r)) if r.position.0 + 1 == position && r.chain != Digest::ZERO => Some(r.chain),
            _ => None,
        };
        match (previous, chain) {
            (Some(previous), Some(chain)) if link(previous, &entry) == chain => self.linked += 1,
            (Some(_), Some(chain)) => {
                bail!("the chain digest {} does not follow the entry before", chain.short())
            }
            _ => self.unlinked += 1,
        }
        self.records.push(Record {
            position: Position(position),
            recorded_ms,
            previous: previous.unwrap_or(Digest::ZERO),
            chain: chain.unwrap_or(Digest::ZERO),
            content,
            entry,
        });
        Ok(())
    }

    /// The state after all entries.
    pub fn fold(&self) -> Fold {
        let mut fold = Fold::default();
        self.records.iter().for_each(|r| fold.apply(r));
        fold
    }

    /// Chain digest at a position, where the file has it.
    pub fn chain_at(&self, position: u64) -> Option<Digest> {
        let at = self.records.binary_search_by_key(&position, |r| r.position.0).ok()?;
        Some(self.records[at].chain).filter(|c| *c != Digest::ZERO)
    }
}

/// The ledger's chain: `BLAKE3(previous chain digest || canonical bytes of the entry)`.
fn link(previous: Digest, entry: &Entry) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&previous.0);
    hasher.update(&entry.canonical());
    Digest(*hasher.finalize().as_bytes())
}

fn digest(object: &mut serde_json::Map<String, Value>, name: &str) -> Result<Option<Digest>> {
    let Some(value) = object.remove(name) else { return Ok(None) };
    let text = value.as_str().ok_or_else(|| anyhow!("field '{name}' is no text"))?;
    Ok(Some(text.parse().with_context(|| format!("field '{name}'"))?))
}

fn missing(name: &str) -> anyhow::Error {
    anyhow!("field '{name}' is missing")
}

#[cfg(test)]
mod tests {
    use super::*;
    use evidence::{Contract, Direction, Metric, Task, Workloads};
    use serde_json::json;

    fn posed(target: &str) -> Entry {
        Entry::Posed(Task {
            contract: Contract::Engine { model: "m".into(), goal: "g".into(), quality: Default::default() },
            target: target.into(),
            metric: Metric {
                name: "speed".into(),
                unit: "tokens/s".into(),
                direction: Direction::Maximise,
                least_effect_permille: 5,
            },
            screen: Workloads { cases: vec!["1/128/128".into()] },
            confirm: Digest::ZERO,
        })
    }

    fn line(position: u64, entry: &Entry, chain: Digest) -> String {
        let mut value = serde_json::to_value(entry).unwrap();
        for (k, v) in
            [("position", json!(position)), ("content", json!(entry.content())), ("chain", json!(chain))]
        {
            value[k] = v;
        }
        value.to_string()
    }

    #[test]
    fn the_chain_is_computed_again_where_it_can_be() {
        let entries = [posed("a/t1"), posed("b/t1"), posed("c/t1")];
        let one = link(Digest::ZERO, &entries[0]);
        let two = link(one, &entries[1]);
        let good =
            [line(1, &entries[0], one), line(2, &entries[1], two), line(9, &entries[2], one)].join("\n");
        let read = Records::parse(&good);
        assert_eq!((read.damage.as_deref(), read.linked, read.unlinked), (None, 2, 1));
        assert_eq!(read.chain_at(2), Some(two));
        assert_eq!(read.fold().tasks.len(), 3);
        for bad in [
            good.replace("b/t1", "x/t1"),
            [line(1, &entries[0], two)].join("\n"),
            [line(2, &entries[1], two), line(1, &entries[0], one)].join("\n"),
            "{}".to_owned(),
            "no json".to_owned(),
        ] {
            assert!(Records::parse(&bad).damage.is_some(), "{bad}");
        }
    }
}
