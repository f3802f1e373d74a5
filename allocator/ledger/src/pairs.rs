//! Maps with keys that are no strings, stored as lists of pairs in the map's order.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes the map as a list of pairs.
pub(crate) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
    map: &BTreeMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map)
}

/// Reads a list of pairs; a key that occurs twice is an error.
pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let pairs = Vec::<(K, V)>::deserialize(deserializer)?;
    let len = pairs.len();
    let map: BTreeMap<K, V> = pairs.into_iter().collect();
    if map.len() == len { Ok(map) } else { Err(serde::de::Error::custom("a key occurs twice")) }
}
