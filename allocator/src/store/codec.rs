//! Keys and values. A value is cut into chunks small enough that sled keeps them inside its log: larger ones become
//! blob files that it never syncs.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest value, in bytes. sled 0.34 makes blobs of values above about 8 KB.
pub(crate) const VALUE_LEN_MAX: usize = 4_096;
/// Before the first chunk's content: its whole length and its checksum (CRC-32), 4 bytes each, big-endian.
const HEADER_LEN: usize = 8;

/// The vote's key.
pub(crate) const VOTE: &[u8] = b"m/vote";
/// The key of the last committed place, as far as it was noted.
pub(crate) const COMMITTED: &[u8] = b"m/committed";
/// The key of the last purged place.
pub(crate) const PURGED: &[u8] = b"m/purged";
/// The key of the snapshot's record.
pub(crate) const SNAPSHOT: &[u8] = b"m/snapshot";
/// What an entry's keys begin with.
pub(crate) const LOG: u8 = b'l';
/// What a snapshot's chunks begin with.
pub(crate) const CHUNKS: u8 = b's';

/// The key of a record with a name of its own.
pub(crate) fn record_key(name: &str) -> Vec<u8> {
    format!("m/record/{name}").into_bytes()
}

fn numbered(kind: u8, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(13);
    key.push(kind);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// What the keys of entry `index` begin with.
pub(crate) fn log_prefix(index: u64) -> Vec<u8> {
    numbered(LOG, index)
}

/// What the keys of a snapshot's chunks begin with.
pub(crate) fn snapshot_prefix(generation: u64) -> Vec<u8> {
    numbered(CHUNKS, generation)
}

/// The index in an entry's key.
pub(crate) fn index_of(key: &[u8]) -> Option<u64> {
    let bytes: [u8; 8] = key.get(1..9)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}

/// The bytes of a value. Fields carry their names, so that a later version can add some.
pub(crate) fn encode(value: &(impl Serialize + ?Sized)) -> io::Result<Vec<u8>> {
    rmp_serde::to_vec_named(value).map_err(io::Error::other)
}

/// The value in `bytes`.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    rmp_serde::from_slice(bytes).map_err(|e| damaged(&e.to_string()))
}

/// An error that says that what is stored is not what was written.
pub(crate) fn damaged(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Cuts `content` into chunks under `prefix`.
pub(crate) fn chunks<'a>(
    prefix: &'a [u8],
    content: &'a [u8],
) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + 'a {
    let len = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let first_len = content.len().min(VALUE_LEN_MAX - HEADER_LEN);
    let (first, rest) = content.split_at(first_len);
    let mut head = Vec::with_capacity(HEADER_LEN + first_len);
    head.extend_from_slice(&len.to_be_bytes());
    head.extend_from_slice(&crc32fast::hash(content).to_be_bytes());
    head.extend_from_slice(first);
    let values = std::iter::once(head).chain(rest.chunks(VALUE_LEN_MAX).map(<[u8]>::to_vec));
    values.zip(0_u32..).map(move |(value, number)| {
        let mut key = prefix.to_vec();
        key.extend_from_slice(&number.to_be_bytes());
        (key, value)
    })
}

/// Puts the chunks under `prefix` together; `None` if there are none, an error if they are not whole.
pub(crate) fn read_chunks(tree: &sled::Tree, prefix: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    let mut header: Option<(usize, u32)> = None;
    for (found, number) in tree.scan_prefix(prefix).zip(0_u32..) {
        let (key, value) = found?;
        if key.get(prefix.len()..) != Some(number.to_be_bytes().as_slice()) {
            return Err(damaged("a chunk is missing"));
        }
        if number == 0 {
            let (len, rest) =
                value.split_first_chunk::<4>().ok_or_else(|| damaged("a chunk has no header"))?;
            let (sum, rest) =
                rest.split_first_chunk::<4>().ok_or_else(|| damaged("a chunk has no header"))?;
            let len = usize::try_from(u32::from_be_bytes(*len)).map_err(io::Error::other)?;
            header = Some((len, u32::from_be_bytes(*sum)));
            content.extend_from_slice(rest);
        } else {
            content.extend_from_slice(&value);
        }
    }
    match header {
        None => Ok(None),
        Some((len, _)) if len != content.len() => {
            Err(damaged(&format!("{} bytes of {len} are there", content.len())))
        }
        Some((_, sum)) if sum != crc32fast::hash(&content) => Err(damaged("the checksum does not match")),
        Some(_) => Ok(Some(content)),
    }
}

/// Reads a small value: one chunk with a header.
pub(crate) fn read<T: DeserializeOwned>(tree: &sled::Tree, key: &[u8]) -> io::Result<Option<T>> {
    match read_chunks(tree, key)? {
        None => Ok(None),
        Some(bytes) => decode(&bytes).map(Some),
    }
}
