//! Many callers, many processes, real files.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use muser_ledger::{FolderStorage, FolderStorageError, Ledger, RecordError};

use crate::disk::{Disk, entry};

#[test]
fn of_many_threads_with_one_handoff_exactly_one_is_let_in() {
    let ledger = Ledger::open(Disk::default(), 100_000).unwrap();
    let (accepted, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for seed in 0..200 {
                    match ledger.record(entry(seed)) {
                        Ok(()) => accepted.fetch_add(1, Ordering::Relaxed),
                        Err(RecordError::Replay { .. }) => refused.fetch_add(1, Ordering::Relaxed),
                        Err(error) => panic!("{error}"),
                    };
                }
            });
        }
    });
    assert_eq!((accepted.into_inner(), refused.into_inner(), ledger.len()), (200, 1400, 200));
}

#[test]
fn callers_that_come_while_one_waits_for_the_disk_share_a_sync() {
    let disk = Disk::slow(Duration::from_millis(5));
    let ledger = Ledger::open(disk.clone(), 1000).unwrap();
    let before = disk.syncs.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let ledger = &ledger;
            scope.spawn(move || (0..4).for_each(|number| ledger.record(entry(thread * 4 + number)).unwrap()));
        }
    });
    let syncs = disk.syncs.load(Ordering::Relaxed) - before;
    assert!(syncs <= 64, "256 records took {syncs} syncs");
    // What was committed in batches is read back.
    assert_eq!(Ledger::open(disk.after_crash(0), 1000).unwrap().len(), 256);
}

#[test]
fn a_ledger_in_a_folder_survives_reopening_compaction_and_a_torn_tail() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("ledger");
    let ledger = Ledger::open(FolderStorage::open(&folder).unwrap(), 100).unwrap();
    for seed in 0..8 {
        ledger.record(entry(seed)).unwrap();
    }
    assert_eq!(ledger.forget_expired(1003, 0).unwrap(), 4);
    ledger.record(entry(8)).unwrap();
    drop(ledger);

    let file = folder.join("replay.ledger");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.extend([7; 100]);
    std::fs::write(&file, &bytes).unwrap();
    let ledger = Ledger::open(FolderStorage::open(&folder).unwrap(), 100).unwrap();
    assert_eq!(ledger.len(), 5);
    assert!((4..9).all(|seed| matches!(ledger.record(entry(seed)), Err(RecordError::Replay { .. }))));
    ledger.record(entry(9)).unwrap();
    drop(ledger);
    assert_eq!(Ledger::open(FolderStorage::open(&folder).unwrap(), 100).unwrap().len(), 6);
}

#[test]
fn a_second_holder_of_the_folder_is_refused_until_the_first_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let first = FolderStorage::open(folder.path()).unwrap();
    assert!(matches!(FolderStorage::open(folder.path()), Err(FolderStorageError::Locked { .. })));
    drop(first);
    FolderStorage::open(folder.path()).unwrap();
}

#[cfg(unix)]
#[test]
fn a_ledger_that_others_may_write_or_that_is_a_pipe_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replay.ledger");
    drop(Ledger::open(FolderStorage::open(folder.path()).unwrap(), 10).unwrap());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
    let refused = FolderStorage::open(folder.path()).map(|_| ()).unwrap_err();
    assert!(
        matches!(&refused, FolderStorageError::File(_)) && refused.to_string().contains("replay.ledger"),
        "{refused}"
    );
    std::fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let refused = FolderStorage::open(folder.path()).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("not a regular file"), "{refused}");
}
