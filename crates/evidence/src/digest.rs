//! Content addresses. A value's id is the BLAKE3 digest of its kind and its canonical encoding, so that ids of
//! different kinds never meet.
//!
//! Canonical encoding: JSON as `serde_json` writes it, struct fields in declared order, maps sorted (`BTreeMap`).

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// A BLAKE3 digest, written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// All zeros: the predecessor of the first ledger entry.
    pub const ZERO: Digest = Digest([0; 32]);

    /// Digest of raw bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// First 12 hex digits, for people.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is no digest.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is not a digest: 64 hex digits are expected")]
pub struct DigestError(pub String);

impl FromStr for Digest {
    type Err = DigestError;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || DigestError(s.to_owned());
        if s.len() != 64 || !s.is_ascii() {
            return Err(bad());
        }
        let mut out = [0u8; 32];
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&s[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(out))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let s = String::deserialize(d)?;
        s.parse().map_err(serde::de::Error::custom)
    }
}

/// A value with a content address.
pub trait Content: Serialize {
    /// Name of the kind, with a version.
    const KIND: &'static str;

    /// The canonical encoding.
    fn canonical(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data always encodes")
    }

    /// The content address.
    fn id(&self) -> Id<Self>
    where
        Self: Sized,
    {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"enginewright\0");
        hasher.update(Self::KIND.as_bytes());
        hasher.update(b"\0");
        hasher.update(&self.canonical());
        Id::from_digest(Digest(*hasher.finalize().as_bytes()))
    }
}

/// A typed content address.
pub struct Id<T> {
    digest: Digest,
    kind: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// An id from a digest, for readers of stored data.
    pub fn from_digest(digest: Digest) -> Self {
        Self { digest, kind: PhantomData }
    }

    /// The digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// First 12 hex digits, for people.
    pub fn short(&self) -> String {
        self.digest.short()
    }
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Id<T> {}
impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}
impl<T> Eq for Id<T> {}
impl<T> PartialOrd for Id<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Id<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.digest.cmp(&other.digest)
    }
}
impl<T> std::hash::Hash for Id<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}
impl<T> fmt::Display for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest.fmt(f)
    }
}
impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.digest, f)
    }
}
impl<T> Serialize for Id<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.digest.serialize(s)
    }
}
impl<'de, T> Deserialize<'de> for Id<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Digest::deserialize(d).map(Self::from_digest)
    }
}
