//! Signatures over bytes: the DSSE envelope with Ed25519 (RFC 8032), strictly verified.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::bundle::BUNDLE_BYTES_MAX;

/// The payload type of a bundle.
pub const BUNDLE_PAYLOAD_TYPE: &str = "application/vnd.leasehold.bundle+json";

/// The most signatures an envelope may carry.
pub const SIGNATURES_MAX: usize = 16;

/// The largest envelope, in bytes: the largest bundle in base64, and its signatures.
pub const ENVELOPE_BYTES_MAX: usize = BUNDLE_BYTES_MAX / 3 * 4 + 16 * 1024;

/// Bytes and detached signatures over them (Dead Simple Signing Envelope, version 1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// What the payload is.
    #[serde(rename = "payloadType")]
    pub payload_type: String,
    /// The bytes, in base64.
    pub payload: String,
    /// One or more signatures.
    pub signatures: Vec<EnvelopeSignature>,
}

/// One signature of an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvelopeSignature {
    /// The key's id ([`key_id`]).
    pub keyid: String,
    /// The signature, in base64.
    pub sig: String,
}

/// Why an envelope does not verify.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Another payload type than the one wanted.
    #[error("payload type {got:?}; expected {BUNDLE_PAYLOAD_TYPE:?}")]
    PayloadType {
        /// The type found.
        got: String,
    },
    /// More signatures than anybody needs.
    #[error("{len} signatures; at most {SIGNATURES_MAX} are allowed")]
    TooManySignatures {
        /// How many.
        len: usize,
    },
    /// Not base64.
    #[error("the payload is not base64")]
    Payload,
    /// Fewer distinct trusted keys signed than the threshold asks.
    #[error("{valid} of the trusted keys signed these bytes; {threshold} must")]
    Threshold {
        /// Distinct trusted keys with a valid signature.
        valid: usize,
        /// How many must sign.
        threshold: usize,
    },
}

/// Why a text is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not 32 bytes in base64.
    #[error("a key is 32 bytes in base64")]
    Encoding,
    /// Not a point of the curve.
    #[error("not an Ed25519 public key")]
    NotAKey,
    /// A key of small order: a signature under it verifies for many messages.
    #[error("a weak (small-order) key")]
    Weak,
    /// No key at all, or a threshold that they cannot reach.
    #[error("{keys} distinct keys cannot reach a threshold of {threshold}")]
    Threshold {
        /// Distinct keys.
        keys: usize,
        /// How many must sign.
        threshold: usize,
    },
}

/// The public keys that may sign, and how many of them must.
#[derive(Debug, Clone)]
pub struct TrustedKeys {
    keys: Vec<VerifyingKey>,
    threshold: usize,
}

/// A key's id: the SHA-256 of its 32 bytes, in hex.
pub fn key_id(key: &VerifyingKey) -> String {
    hex(&Sha256::digest(key.as_bytes()))
}

/// The SHA-256 of `bytes`, in hex: a bundle's digest.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The public key in `text` (32 bytes, base64), refused if it is weak.
pub fn parse_public_key(text: &str) -> Result<VerifyingKey, KeyError> {
    let bytes = STANDARD.decode(text.trim()).map_err(|_| KeyError::Encoding)?;
    let bytes: [u8; 32] = bytes.try_into().map_err(|_| KeyError::Encoding)?;
    let key = VerifyingKey::from_bytes(&bytes).map_err(|_| KeyError::NotAKey)?;
    if key.is_weak() { Err(KeyError::Weak) } else { Ok(key) }
}

/// A public key as text: 32 bytes in base64.
pub fn format_public_key(key: &VerifyingKey) -> String {
    STANDARD.encode(key.as_bytes())
}

impl TrustedKeys {
    /// `threshold` of `keys` must sign. The same key given twice counts once.
    pub fn new(mut keys: Vec<VerifyingKey>, threshold: usize) -> Result<Self, KeyError> {
        keys.sort_by_key(|k| *k.as_bytes());
        keys.dedup();
        if keys.iter().any(VerifyingKey::is_weak) {
            return Err(KeyError::Weak);
        }
        if threshold == 0 || keys.len() < threshold {
            return Err(KeyError::Threshold { keys: keys.len(), threshold });
        }
        Ok(Self { keys, threshold })
    }

    /// As [`TrustedKeys::new`], from texts as [`parse_public_key`] reads them.
    pub fn parse(texts: &[String], threshold: usize) -> Result<Self, KeyError> {
        let keys = texts.iter().map(|text| parse_public_key(text)).collect::<Result<Vec<_>, _>>()?;
        Self::new(keys, threshold)
    }

    /// The payload's bytes, if enough distinct trusted keys signed them.
    pub fn open(&self, envelope: &Envelope) -> Result<Vec<u8>, EnvelopeError> {
        if envelope.payload_type != BUNDLE_PAYLOAD_TYPE {
            return Err(EnvelopeError::PayloadType {
                got: envelope.payload_type.chars().take(100).collect(),
            });
        }
        if envelope.signatures.len() > SIGNATURES_MAX {
            return Err(EnvelopeError::TooManySignatures { len: envelope.signatures.len() });
        }
        let payload = envelope.payload_bytes()?;
        let message = pre_authentication(&envelope.payload_type, &payload);
        let signed = |key: &VerifyingKey| {
            let id = key_id(key);
            envelope.signatures.iter().filter(|s| s.keyid == id).any(|s| {
                STANDARD
                    .decode(&s.sig)
                    .ok()
                    .and_then(|bytes| Signature::from_slice(&bytes).ok())
                    .is_some_and(|sig| key.verify_strict(&message, &sig).is_ok())
            })
        };
        let valid = self.keys.iter().filter(|key| signed(key)).count();
        if valid < self.threshold {
            return Err(EnvelopeError::Threshold { valid, threshold: self.threshold });
        }
        Ok(payload)
    }
}

impl Envelope {
    /// The payload's bytes with nothing verified: for showing, never for enforcing.
    pub fn payload_bytes(&self) -> Result<Vec<u8>, EnvelopeError> {
        STANDARD.decode(&self.payload).map_err(|_| EnvelopeError::Payload)
    }

    /// `payload` signed by each of `keys`.
    pub fn sign(payload: &[u8], keys: &[&SigningKey]) -> Self {
        let message = pre_authentication(BUNDLE_PAYLOAD_TYPE, payload);
        let signatures = keys
            .iter()
            .map(|key| EnvelopeSignature {
                keyid: key_id(&key.verifying_key()),
                sig: STANDARD.encode(key.sign(&message).to_bytes()),
            })
            .collect();
        Self { payload_type: BUNDLE_PAYLOAD_TYPE.to_owned(), payload: STANDARD.encode(payload), signatures }
    }
}

/// DSSE's pre-authentication encoding: what is really signed.
fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut message = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    #[test]
    fn what_was_signed_opens_and_anything_else_does_not() {
        let keys = TrustedKeys::new(vec![key(1).verifying_key()], 1).unwrap();
        let good = Envelope::sign(b"{}", &[&key(1)]);
        assert_eq!(keys.open(&good).unwrap(), b"{}");
        let mut other = good.clone();
        other.payload = STANDARD.encode(b"{ }");
        assert_eq!(keys.open(&other), Err(EnvelopeError::Threshold { valid: 0, threshold: 1 }));
        let stranger = Envelope::sign(b"{}", &[&key(2)]);
        assert_eq!(keys.open(&stranger), Err(EnvelopeError::Threshold { valid: 0, threshold: 1 }));
    }

    #[test]
    fn a_threshold_counts_distinct_keys_and_not_signatures() {
        let keys = TrustedKeys::new(vec![key(1).verifying_key(), key(2).verifying_key()], 2).unwrap();
        let twice = Envelope::sign(b"{}", &[&key(1), &key(1)]);
        assert_eq!(keys.open(&twice), Err(EnvelopeError::Threshold { valid: 1, threshold: 2 }));
        assert!(keys.open(&Envelope::sign(b"{}", &[&key(1), &key(2)])).is_ok());
        let same = vec![key(1).verifying_key(), key(1).verifying_key()];
        assert_eq!(TrustedKeys::new(same, 2).err(), Some(KeyError::Threshold { keys: 1, threshold: 2 }));
    }

    #[test]
    fn small_order_keys_are_refused() {
        let mut identity = [0_u8; 32];
        identity[0] = 1;
        assert_eq!(parse_public_key(&STANDARD.encode(identity)), Err(KeyError::Weak));
        assert_eq!(parse_public_key("AAAA"), Err(KeyError::Encoding));
    }
}
