//! What the publisher answers about sources and keys.

use serde::{Deserialize, Serialize};

use crate::ids::BundleVersion;

/// What came of a source (`POST /v1/bundles`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// The version in force now.
    pub version: BundleVersion,
    /// Its digest, hex.
    pub digest: String,
    /// True if the source says what the active bundle says: no version was minted.
    pub unchanged: bool,
    /// The version before; equal to `version` if unchanged.
    pub previous_version: BundleVersion,
    /// What it changes, in words.
    pub changes: Vec<String>,
    /// What may be a mistake, in words.
    pub warnings: Vec<String>,
}

/// What would come of a source (`POST /v1/bundles:validate`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validated {
    /// True; a source that does not compile is answered as a problem.
    pub valid: bool,
    /// The version that it was compared with; 0 if none is released.
    pub compared_with: BundleVersion,
    /// True if it says what that version says.
    pub unchanged: bool,
    /// What it would change, in words.
    pub changes: Vec<String>,
    /// What may be a mistake, in words.
    pub warnings: Vec<String>,
}

/// The keys that sign here (`GET /v1/keys`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningKeys {
    /// The keys.
    pub keys: Vec<PublicKey>,
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicKey {
    /// Its id, hex.
    pub key_id: String,
    /// The key, 32 bytes in base64.
    pub public_key: String,
}
