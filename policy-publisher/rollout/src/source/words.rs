//! Values that people write as one word or as one word with fields.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use leasehold_protocol::bundle::{FailMode, Fallback, Limit};
use leasehold_protocol::{IdError, RuleId, Tokens};
use serde::de::{self, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap as _, Serializer};
use serde::{Deserialize, Serialize};

use super::Bucket;

/// Reads an identifier, so that a fault is found at its own place and shows the value.
struct IdVisitor<T>(PhantomData<T>);

impl<T: FromStr<Err = IdError>> Visitor<'_> for IdVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an identifier")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(|e| {
            let shown: String = text.chars().take(100).collect();
            de::Error::custom(format_args!("{shown:?} {e}"))
        })
    }
}

pub(super) fn id<'de, T: FromStr<Err = IdError>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    from.deserialize_str(IdVisitor(PhantomData))
}

pub(super) fn rule_ids<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<RuleId>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct One {
        #[serde(deserialize_with = "id")]
        id: RuleId,
    }
    Ok(Vec::<One>::deserialize(from)?.into_iter().map(|one| one.id).collect())
}

/// `word`, or `keyed: <fields>`.
enum Choice<T> {
    Word(String),
    Keyed(T),
}

/// Reads a [`Choice`] whose one key is `key`.
struct ChoiceVisitor<T> {
    key: &'static str,
    expected: &'static str,
    value: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> Visitor<'de> for ChoiceVisitor<T> {
    type Value = Choice<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Self::Value, E> {
        Ok(Choice::Word(word.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let odd =
            |key: &str| de::Error::custom(format_args!("unknown choice {key:?}; expected {}", self.expected));
        match map.next_key::<String>()? {
            Some(key) if key == self.key => {}
            Some(key) => return Err(odd(&key)),
            None => return Err(odd("")),
        }
        let value = map.next_value::<T>()?;
        match map.next_key::<String>()? {
            None => Ok(Choice::Keyed(value)),
            Some(key) => Err(odd(&key)),
        }
    }
}

fn choice<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    from: D,
    key: &'static str,
    expected: &'static str,
) -> Result<Choice<T>, D::Error> {
    from.deserialize_any(ChoiceVisitor { key, expected, value: PhantomData })
}

fn keyed<S: Serializer, T: Serialize>(to: S, key: &str, value: &T) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(1))?;
    map.serialize_entry(key, value)?;
    map.end()
}

/// `1000`, `unlimited` or `blocked`.
pub(super) mod limit {
    use super::{Deserializer, Limit, Serializer, Tokens, Visitor, de, fmt};

    struct LimitVisitor;

    impl Visitor<'_> for LimitVisitor {
        type Value = Limit;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number, `unlimited` or `blocked`")
        }

        fn visit_u64<E: de::Error>(self, tokens: u64) -> Result<Limit, E> {
            Ok(Limit::Limited { tokens: Tokens(tokens) })
        }

        fn visit_str<E: de::Error>(self, word: &str) -> Result<Limit, E> {
            match word {
                "unlimited" => Ok(Limit::Unlimited),
                "blocked" => Ok(Limit::Blocked),
                _ => Err(de::Error::invalid_value(de::Unexpected::Str(word), &self)),
            }
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Limit, D::Error> {
        from.deserialize_any(LimitVisitor)
    }

    pub(in super::super) fn serialize<S: Serializer>(limit: &Limit, to: S) -> Result<S::Ok, S::Error> {
        match limit {
            Limit::Limited { tokens } => to.serialize_u64(tokens.0),
            Limit::Unlimited => to.serialize_str("unlimited"),
            Limit::Blocked => to.serialize_str("blocked"),
        }
    }
}

/// `refuse`, or `bucket: { capacity, refill_tokens, refill_ms }`.
pub(super) mod fallback {
    use super::{Bucket, Choice, Deserializer, Fallback, Serializer, choice, de, keyed};

    const EXPECTED: &str = "`refuse` or `bucket: { capacity, refill_tokens, refill_ms }`";

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Fallback, D::Error> {
        match choice::<Bucket, D>(from, "bucket", EXPECTED)? {
            Choice::Word(word) if word == "refuse" => Ok(Fallback::Refuse),
            Choice::Word(word) => Err(de::Error::invalid_value(de::Unexpected::Str(&word), &EXPECTED)),
            Choice::Keyed(Bucket { capacity, refill_tokens, refill_ms }) => {
                Ok(Fallback::Bucket { capacity, refill_tokens, refill_ms })
            }
        }
    }

    pub(in super::super) fn serialize<S: Serializer>(fallback: &Fallback, to: S) -> Result<S::Ok, S::Error> {
        match *fallback {
            Fallback::Refuse => to.serialize_str("refuse"),
            Fallback::Bucket { capacity, refill_tokens, refill_ms } => {
                keyed(to, "bucket", &Bucket { capacity, refill_tokens, refill_ms })
            }
        }
    }
}

/// Why a route fails open.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Open {
    reason: String,
}

/// `closed`, `bounded`, or `open: { reason }`.
pub(super) mod fail_mode {
    use super::{Choice, Deserializer, FailMode, Open, Serializer, choice, de, keyed};

    const EXPECTED: &str = "`closed`, `bounded` or `open: { reason }`";

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<FailMode, D::Error> {
        match choice::<Open, D>(from, "open", EXPECTED)? {
            Choice::Word(word) if word == "closed" => Ok(FailMode::Closed),
            Choice::Word(word) if word == "bounded" => Ok(FailMode::Bounded),
            Choice::Word(word) => Err(de::Error::invalid_value(de::Unexpected::Str(&word), &EXPECTED)),
            Choice::Keyed(Open { reason }) => Ok(FailMode::Open { reason }),
        }
    }

    pub(in super::super) fn serialize<S: Serializer>(mode: &FailMode, to: S) -> Result<S::Ok, S::Error> {
        match mode {
            FailMode::Closed => to.serialize_str("closed"),
            FailMode::Bounded => to.serialize_str("bounded"),
            FailMode::Open { reason } => keyed(to, "open", &Open { reason: reason.clone() }),
        }
    }
}
