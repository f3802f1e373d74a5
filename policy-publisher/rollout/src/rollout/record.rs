//! What survives a crash: which drafts became releases.

use std::collections::VecDeque;

use leasehold_protocol::BundleVersion;
use serde::{Deserialize, Serialize};

/// How many releases are kept; the newest is always among them.
pub const HISTORY_MAX: usize = 50;

/// One bundle by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Its version.
    pub version: BundleVersion,
    /// The digest of its bytes, hex.
    pub digest: String,
}

/// What must survive a crash, one by one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A bundle may be offered to the register.
    Drafted(Release),
    /// The register holds the draft.
    Registered(BundleVersion),
    /// The draft may be handed out.
    Released(BundleVersion),
    /// The draft never will be.
    Withdrawn(BundleVersion),
    /// The oldest release is no longer kept.
    Forgotten(BundleVersion),
}

/// A draft on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// What.
    pub release: Release,
    /// True if the register holds it.
    pub is_registered: bool,
}

/// The state that the entries add up to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The draft on its way, if any.
    pub pending: Option<Pending>,
    /// Releases that are kept, the newest last.
    history: VecDeque<Release>,
}

/// An entry that does not follow from those before it: the record is damaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {number}, {entry:?}, does not follow from those before it")]
pub struct ReplayError {
    /// Which, from 1.
    pub number: usize,
    /// What it says.
    pub entry: Entry,
}

impl Record {
    /// The record that `entries` add up to.
    pub fn replay(entries: impl IntoIterator<Item = Entry>) -> Result<Self, ReplayError> {
        let mut record = Self::default();
        for (i, entry) in entries.into_iter().enumerate() {
            record.apply(&entry).map_err(|OutOfOrder| ReplayError { number: i.saturating_add(1), entry })?;
        }
        Ok(record)
    }

    /// The shortest entries that add up to this record.
    pub fn entries(&self) -> Vec<Entry> {
        let released = self.history.iter().flat_map(|r| {
            [Entry::Drafted(r.clone()), Entry::Registered(r.version), Entry::Released(r.version)]
        });
        let pending = self.pending.iter().flat_map(|p| {
            let registered = p.is_registered.then_some(Entry::Registered(p.release.version));
            std::iter::once(Entry::Drafted(p.release.clone())).chain(registered)
        });
        released.chain(pending).collect()
    }

    /// The newest release.
    pub fn released(&self) -> Option<&Release> {
        self.history.back()
    }

    /// Its version, 0 if there is none.
    pub fn released_version(&self) -> BundleVersion {
        self.released().map_or(BundleVersion(0), |r| r.version)
    }

    /// The releases that are kept, the newest last.
    pub fn kept(&self) -> impl DoubleEndedIterator<Item = &Release> {
        self.history.iter()
    }

    /// The kept release of this version.
    pub fn kept_version(&self, version: BundleVersion) -> Option<&Release> {
        self.history.iter().rev().find(|r| r.version == version)
    }

    /// The release to forget next, while more are kept than should be.
    pub(super) fn oldest_beyond_history(&self) -> Option<BundleVersion> {
        self.history.front().filter(|_| self.history.len() > HISTORY_MAX).map(|r| r.version)
    }

    pub(super) fn apply(&mut self, entry: &Entry) -> Result<(), OutOfOrder> {
        match entry {
            Entry::Drafted(release) => {
                if self.pending.is_some() || release.version <= self.released_version() {
                    return Err(OutOfOrder);
                }
                self.pending = Some(Pending { release: release.clone(), is_registered: false });
            }
            Entry::Registered(version) => {
                let pending = self.pending.as_mut().filter(|p| p.release.version == *version);
                pending.ok_or(OutOfOrder)?.is_registered = true;
            }
            Entry::Released(version) => {
                let registered = self.pending.take_if(|p| p.is_registered && p.release.version == *version);
                self.history.push_back(registered.ok_or(OutOfOrder)?.release);
            }
            Entry::Withdrawn(version) => {
                let pending = self.pending.take_if(|p| !p.is_registered && p.release.version == *version);
                pending.ok_or(OutOfOrder)?;
            }
            Entry::Forgotten(version) => {
                if self.history.len() < 2 || self.history.front().is_none_or(|r| r.version != *version) {
                    return Err(OutOfOrder);
                }
                self.history.pop_front();
            }
        }
        Ok(())
    }
}

/// See [`ReplayError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutOfOrder;
