use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_ledger::Entry;
use leasehold_protocol::{LedgerTime, NodeId};
use leasehold_transport::takeover::take_over;
use openraft::EntryPayload;
use openraft::entry::RaftEntry as _;
use openraft::storage::{IOFlushed, RaftLogReader as _, RaftLogStorage as _};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt as _;

use super::*;
use crate::machine::Machine;
use crate::metrics::AllocatorMetrics;
use crate::pushes::Pushes;
use crate::types::{LogEntry, Proposal, StoredMembership, TypeConfig};

fn identity() -> Identity {
    Identity::new("test", NodeId(1))
}

fn open(dir: &Path) -> Store {
    Store::open(dir, &identity()).unwrap()
}

fn log_id(index: u64) -> LogId {
    let leader = openraft::impls::leader_id_std::LeaderId { term: 1, voted_for: 1 };
    LogId { leader_id: openraft::vote::RaftLeaderId::to_committed(&leader), index }
}

fn entry(index: u64) -> LogEntry {
    let proposal = Proposal(Entry { stamp: LedgerTime(index), commands: Vec::new() });
    LogEntry::new(log_id(index), EntryPayload::Normal(proposal))
}

/// An entry that takes several chunks: its membership names many nodes.
fn large_entry(index: u64) -> LogEntry {
    let nodes: std::collections::BTreeMap<u64, openraft::impls::BasicNode> = (0..400)
        .map(|n| (n, openraft::impls::BasicNode { addr: format!("http://replica-{n}.example:7401") }))
        .collect();
    let voters = nodes.keys().copied().collect();
    LogEntry::new(
        log_id(index),
        EntryPayload::Membership(openraft::Membership::new(vec![voters], nodes).unwrap()),
    )
}

async fn append(store: &mut Store, entries: Vec<LogEntry>) -> io::Result<()> {
    let (sender, receiver) = TypeConfig::oneshot();
    store.append(entries, IOFlushed::signal(sender)).await?;
    receiver.await.unwrap()
}

/// Opens the directory again, once the writer is gone.
async fn reopen(store: Store, dir: &Path) -> Store {
    drop(store);
    reopened(dir).await.unwrap()
}

async fn reopened(dir: &Path) -> Result<Store, StoreError> {
    take_over(|| Store::open(dir, &identity()), |e| matches!(e, StoreError::InUse { .. })).await
}

struct Builder;

impl StoreBuilder<TypeConfig, Store, Machine, tempfile::TempDir> for Builder {
    async fn build(&self) -> Result<(tempfile::TempDir, Store, Machine), openraft::StorageError<TypeConfig>> {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        store.tail().starts_anywhere = true;
        let pushes = Arc::new(Pushes::new(AllocatorMetrics::default()));
        Ok((folder, store.clone(), Machine::new(store, pushes)))
    }
}

#[test]
fn the_store_passes_the_librarys_own_suite() {
    TypeConfig::run(async { Suite::test_all(Builder).await }).unwrap();
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_restart_in_chunks_that_sled_keeps_in_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path());
    append(&mut store, vec![entry(0), large_entry(1), entry(2)]).await.unwrap();
    let vote = Vote::new(7, 2);
    store.save_vote(&vote).await.unwrap();
    for found in store.shared.db.iter() {
        let (key, value) = found.unwrap();
        assert!(value.len() <= codec::VALUE_LEN_MAX, "{key:?} has {} bytes", value.len());
    }
    let large = store.shared.db.scan_prefix(codec::log_prefix(1)).count();
    assert!(large > 3, "the large entry has {large} chunks");
    assert_eq!(std::fs::read_dir(folder.path().join("raft/blobs")).map_or(0, Iterator::count), 0);

    let mut store = reopen(store, folder.path()).await;
    assert_eq!(store.vote(), Some(vote));
    assert_eq!(store.try_get_log_entries(..).await.unwrap(), vec![entry(0), large_entry(1), entry(2)]);
}

#[tokio::test]
async fn nothing_is_acknowledged_before_the_file_was_synced_after_the_write() {
    let folder = tempfile::tempdir().unwrap();
    identity::admit(folder.path(), &identity()).unwrap();
    let db = sled::Config::new().path(folder.path().join("raft")).flush_every_ms(None).open().unwrap();
    let (syncs, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (count, at_sync, watched) = (Arc::clone(&syncs), Arc::clone(&seen), db.clone());
    let sync = move || {
        // What this sync covers is what is in the tree by now.
        at_sync.store(watched.scan_prefix(codec::log_prefix(3)).count() as u64, Ordering::SeqCst);
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let mut store = Store::with_sync(folder.path(), db, Box::new(sync)).unwrap();
    append(&mut store, vec![entry(0), entry(1), entry(2)]).await.unwrap();
    assert_eq!((syncs.load(Ordering::SeqCst), seen.load(Ordering::SeqCst)), (1, 0));
    append(&mut store, vec![entry(3)]).await.unwrap();
    assert_eq!((syncs.load(Ordering::SeqCst), seen.load(Ordering::SeqCst)), (2, 1));
    store.save_vote(&Vote::new(2, 1)).await.unwrap();
    assert_eq!(syncs.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_acknowledged_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let db = sled::Config::new().path(folder.path().join("raft")).flush_every_ms(None).open().unwrap();
    let mut left = 1;
    let sync = move || {
        left -= 1;
        if left < 0 { Err(io::Error::other("no space left on device")) } else { Ok(()) }
    };
    let mut store = Store::with_sync(folder.path(), db, Box::new(sync)).unwrap();
    append(&mut store, vec![entry(0)]).await.unwrap();
    let failed = append(&mut store, vec![entry(1)]).await.unwrap_err();
    assert!(failed.to_string().contains("no space"), "{failed}");
    let later = append(&mut store, vec![entry(2)]).await.unwrap_err();
    assert!(later.to_string().contains("earlier write failed"), "{later}");
    assert!(store.save_vote(&Vote::new(2, 1)).await.is_err());
}

#[tokio::test]
async fn a_gap_is_refused_and_truncation_and_purge_keep_the_log_in_one_piece() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path());
    append(&mut store, (0..10).map(entry).collect()).await.unwrap();
    assert!(append(&mut store, vec![entry(11)]).await.is_err());
    assert!(append(&mut store, vec![entry(9)]).await.is_err());
    store.truncate_after(Some(log_id(6))).await.unwrap();
    append(&mut store, vec![entry(7)]).await.unwrap();
    store.purge(log_id(3)).await.unwrap();
    let wanted: Vec<LogEntry> = (4..8).map(entry).collect();
    assert_eq!(store.try_get_log_entries(..).await.unwrap(), wanted);
    let mut store = reopen(store, folder.path()).await;
    assert_eq!(store.try_get_log_entries(..).await.unwrap(), wanted);
    let state = store.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(log_id(3)), Some(log_id(7))));
    store.purge(log_id(7)).await.unwrap();
    let mut store = reopen(store, folder.path()).await;
    let state = store.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(log_id(7)), Some(log_id(7))));
    append(&mut store, vec![entry(8)]).await.unwrap();
}

#[tokio::test]
async fn a_purge_that_a_crash_cut_short_leaves_no_entry_that_is_known_to_be_purged() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path());
    append(&mut store, (0..6).map(entry).collect()).await.unwrap();
    // As if the process had died between the record and the removal.
    let record = codec::encode(&log_id(3)).unwrap();
    store.shared.db.apply_batch(writer::small_batch(codec::PURGED, &record)).unwrap();
    let mut store = reopen(store, folder.path()).await;
    assert_eq!(store.try_get_log_entries(..).await.unwrap(), vec![entry(4), entry(5)]);
    assert_eq!(store.shared.db.scan_prefix(codec::log_prefix(2)).count(), 0);
}

#[tokio::test]
async fn a_torn_last_entry_is_dropped_and_any_other_damage_is_an_error_that_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path());
    append(&mut store, vec![entry(0), entry(1), large_entry(2)]).await.unwrap();
    let last = store.shared.db.scan_prefix(codec::log_prefix(2)).keys().last().unwrap().unwrap();
    store.shared.db.remove(last).unwrap();
    let mut store = reopen(store, folder.path()).await;
    assert_eq!(store.try_get_log_entries(..).await.unwrap(), vec![entry(0), entry(1)]);

    append(&mut store, vec![entry(2), entry(3)]).await.unwrap();
    let first_of = |index: u64| [codec::log_prefix(index), vec![0; 4]].concat();
    for index in [2, 3] {
        let mut value = store.shared.db.get(first_of(index)).unwrap().unwrap().to_vec();
        *value.last_mut().unwrap() ^= 1;
        store.shared.db.insert(first_of(index), value).unwrap();
    }
    store.shared.db.flush().unwrap();
    drop(store);
    let error = reopened(folder.path()).await.unwrap_err();
    assert!(error.to_string().contains("entry 2") && error.to_string().contains("checksum"), "{error}");
}

#[test]
fn a_directory_of_another_replica_cluster_or_newer_version_is_refused_and_stays_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let listing = || {
        let mut names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        names.sort();
        names
    };
    std::fs::write(folder.path().join("diary.txt"), "not ours").unwrap();
    let error = Store::open(folder.path(), &identity()).unwrap_err();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
    assert_eq!(listing(), ["diary.txt"]);
    std::fs::remove_file(folder.path().join("diary.txt")).unwrap();

    drop(open(folder.path()));
    for (other, word) in [
        (Identity::new("test", NodeId(2)), "replica 1"),
        (Identity::new("prod", NodeId(1)), "cluster \"test\""),
    ] {
        let error = Store::open(folder.path(), &other).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let newer = r#"{"format":9,"shape":"unknown"}"#;
    std::fs::write(folder.path().join("identity.json"), newer).unwrap();
    let before = listing();
    let error = Store::open(folder.path(), &identity()).unwrap_err().to_string();
    assert!(error.contains("format is 9"), "{error}");
    assert_eq!(listing(), before);
    assert_eq!(std::fs::read_to_string(folder.path().join("identity.json")).unwrap(), newer);
}

#[tokio::test]
async fn a_directory_in_use_is_said_to_be_and_is_free_once_its_user_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path());
    append(&mut store, vec![entry(0)]).await.unwrap();
    let error = Store::open(folder.path(), &identity()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    let end = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        drop(store);
    };
    let (again, ()) = tokio::join!(reopened(folder.path()), end);
    assert_eq!(again.unwrap().last_log_id(), Some(log_id(0)));
}

#[tokio::test]
async fn a_snapshot_replaces_the_one_before_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    assert!(store.snapshot().unwrap().is_none());
    for len in [10_usize, 100_000, 5_000] {
        let meta = SnapshotMeta {
            last_log_id: Some(log_id(len as u64)),
            last_membership: StoredMembership::default(),
        };
        let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
        store.put_snapshot(StoredSnapshot { meta: meta.clone(), bytes: bytes.clone() }).await.unwrap();
        let found = store.snapshot().unwrap().unwrap();
        assert_eq!((found.meta, found.bytes), (meta, bytes));
    }
    let store = reopen(store, folder.path()).await;
    assert_eq!(store.snapshot().unwrap().unwrap().bytes.len(), 5_000);
    let chunks = store.shared.db.scan_prefix([codec::CHUNKS]).count();
    assert!(chunks <= 2, "{chunks} chunks are left of older snapshots");
}
