//! A request body: a JSON object whose `prompt` may hold millions of token ids and is therefore not read as a value tree.

use super::error::ApiError;
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::fmt;

/// `prompt`, in its four forms, and anything else as what it was not.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    IdLists(Vec<Vec<u32>>),
    /// `[]`
    Empty,
    /// What is wrong, in words
    Wrong(String),
}

/// A body, taken apart.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub prompt: Option<Prompt>,
    pub fields: Map<String, Value>,
}

impl Body {
    /// Parses bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(bytes)
            .map_err(|e| ApiError::malformed(format!("The body is not a valid request: {e}")))
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Body;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Body, A::Error> {
                let mut body = Body::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "prompt" {
                        body.prompt = map.next_value()?;
                    } else {
                        let value = map.next_value()?;
                        body.fields.insert(key, value);
                    }
                }
                Ok(body)
            }
        }
        deserializer.deserialize_any(Object)
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Prompt;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, an array of strings, of token ids, or of arrays of token ids")
            }

            fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
                Ok(Prompt::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Prompt, E> {
                Ok(Prompt::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompt, A::Error> {
                let mut prompt = Prompt::Empty;
                while let Some(item) = seq.next_element::<Item>()? {
                    prompt = match (prompt, item) {
                        (Prompt::Empty, Item::Id(id)) => Prompt::Ids(vec![id]),
                        (Prompt::Empty, Item::Text(text)) => Prompt::Texts(vec![text]),
                        (Prompt::Empty, Item::Ids(ids)) => Prompt::IdLists(vec![ids]),
                        (Prompt::Ids(mut all), Item::Id(id)) => {
                            all.push(id);
                            Prompt::Ids(all)
                        }
                        (Prompt::Texts(mut all), Item::Text(text)) => {
                            all.push(text);
                            Prompt::Texts(all)
                        }
                        (Prompt::IdLists(mut all), Item::Ids(ids)) => {
                            all.push(ids);
                            Prompt::IdLists(all)
                        }
                        _ => {
                            while seq.next_element::<IgnoredAny>()?.is_some() {}
                            return Ok(Prompt::Wrong("its elements have different types".into()));
                        }
                    };
                }
                Ok(prompt)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Prompt, E> {
                Ok(Prompt::Wrong("it is a boolean".into()))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Prompt, E> {
                Ok(Prompt::Wrong("it is a number".into()))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Prompt, E> {
                Ok(Prompt::Wrong("it is a number".into()))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Prompt, E> {
                Ok(Prompt::Wrong("it is a number".into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Prompt, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Prompt::Wrong("it is an object".into()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// One element of an array prompt.
enum Item {
    Id(u32),
    Text(String),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Element;
        impl<'de> Visitor<'de> for Element {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id (0 to 4294967295) or an array of token ids in `prompt`")
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Item, E> {
                let wrong = |_| E::invalid_value(Unexpected::Unsigned(id), &self);
                u32::try_from(id).map(Item::Id).map_err(wrong)
            }

            fn visit_str<E>(self, text: &str) -> Result<Item, E> {
                Ok(Item::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = seq.next_element::<u32>()? {
                    ids.push(id);
                }
                if ids.is_empty() {
                    return Err(A::Error::custom("`prompt` holds an empty array"));
                }
                Ok(Item::Ids(ids))
            }
        }
        deserializer.deserialize_any(Element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_in_every_form() {
        let prompt =
            |json: &str| Body::parse(format!("{{\"prompt\":{json},\"n\":1}}").as_bytes()).map(|b| b.prompt);
        assert_eq!(prompt("\"a\"").unwrap(), Some(Prompt::Text("a".into())));
        assert_eq!(prompt("[1,2]").unwrap(), Some(Prompt::Ids(vec![1, 2])));
        assert_eq!(prompt("[\"a\",\"b\"]").unwrap(), Some(Prompt::Texts(vec!["a".into(), "b".into()])));
        assert_eq!(prompt("[[1],[2,3]]").unwrap(), Some(Prompt::IdLists(vec![vec![1], vec![2, 3]])));
        assert_eq!(prompt("[]").unwrap(), Some(Prompt::Empty));
        assert_eq!(prompt("null").unwrap(), None);
        for wrong in ["true", "1", "1.5", "{}", "[1,\"a\"]", "[\"a\",[1]]"] {
            assert!(matches!(prompt(wrong).unwrap(), Some(Prompt::Wrong(_))), "{wrong}");
        }
        for wrong in ["[-1]", "[1.5]", "[4294967296]", "[[]]", "[[\"a\"]]", "[null]", "[{}]"] {
            assert!(prompt(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_objects_are_bodies() {
        for wrong in ["", "[]", "1", "\"a\"", "null", "{\"a\":", "{} x"] {
            assert!(Body::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
