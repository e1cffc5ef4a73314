//! Cuts, flipped bits, failing operations and crashes: nothing accepted is accepted twice, nothing acknowledged is lost.

use muser_cluster::ledger::{DamageError, HEADER_BYTES, Ledger, OpenError, RECORD_BYTES, RecordError};

use crate::disk::{Disk, entry, ledger_of};

fn is_replay(result: Result<(), RecordError>) -> bool {
    matches!(result, Err(RecordError::Replay { key_id: 1 }))
}

#[test]
fn a_file_cut_at_any_byte_opens_with_the_whole_records_before_the_cut() {
    let bytes = ledger_of(5);
    for len in 1..bytes.len() {
        let opened = Ledger::open(Disk::holding(&bytes[..len]), 1000);
        if len < HEADER_BYTES {
            assert!(matches!(opened, Err(OpenError::Damaged(DamageError::NoHeader { bytes })) if bytes == len));
            continue;
        }
        let whole = (len - HEADER_BYTES) / RECORD_BYTES;
        let ledger = opened.unwrap_or_else(|error| panic!("cut at {len}: {error}"));
        assert_eq!(ledger.len(), whole, "cut at {len}");
        for seed in 0..5 {
            assert_eq!(is_replay(ledger.record(entry(seed))), seed < whole as u64, "cut at {len}, entry {seed}");
        }
    }
}

#[test]
fn every_flipped_bit_is_named_by_the_place_of_its_record() {
    let bytes = ledger_of(4);
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let opened = Ledger::open(Disk::holding(&damaged), 1000).map(|_| ());
        let Some(at) = (bit / 8).checked_sub(HEADER_BYTES) else {
            assert!(matches!(opened, Err(OpenError::Damaged(DamageError::Header(_)))), "bit {bit}: {opened:?}");
            continue;
        };
        let record = HEADER_BYTES + at / RECORD_BYTES * RECORD_BYTES;
        let named = matches!(opened, Err(OpenError::Damaged(DamageError::Record { offset })) if offset == record);
        assert!(named, "bit {bit}: {opened:?}");
    }
}

#[test]
fn records_that_were_exchanged_taken_out_or_spliced_in_are_noticed() {
    let bytes = ledger_of(4);
    let record = |index: usize| HEADER_BYTES + index * RECORD_BYTES..HEADER_BYTES + (index + 1) * RECORD_BYTES;
    let mut exchanged = bytes.clone();
    exchanged.copy_within(record(2), record(1).start);
    exchanged[record(2)].copy_from_slice(&bytes[record(1)]);
    let mut without = bytes.clone();
    without.drain(record(1));
    let mut twice = bytes.clone();
    twice.extend_from_slice(&bytes[record(3)]);
    // The same place in another history: checksum, index and batch are right, and only the chain tells.
    let other = Disk::default();
    let ledger = Ledger::open(other.clone(), 1000).unwrap();
    (10..14).for_each(|seed| ledger.record(entry(seed)).unwrap());
    let mut spliced = bytes.clone();
    spliced[record(1)].copy_from_slice(&other.bytes()[record(1)]);
    for (damaged, place) in [(exchanged, 1), (without, 1), (twice, 4), (spliced, 1)] {
        let opened = Ledger::open(Disk::holding(&damaged), 1000).map(|_| ());
        let expected = record(place).start;
        let named = matches!(opened, Err(OpenError::Damaged(DamageError::Record { offset })) if offset == expected);
        assert!(named, "{opened:?}, expected {expected}");
    }
}

#[test]
fn a_sector_of_the_last_batch_that_was_never_written_is_cut_off_and_an_earlier_one_is_damage() {
    let bytes = ledger_of(9);
    for sector in 1..bytes.len() / 512 {
        let mut torn = bytes.clone();
        torn[sector * 512..(sector + 1) * 512].fill(0);
        let opened = Ledger::open(Disk::holding(&torn), 1000).map(|ledger| ledger.len());
        // Each record was a batch of its own, so one whole record after the hole proves that the hole was durable.
        let first_bad = (sector * 512 - HEADER_BYTES) / RECORD_BYTES;
        let whole_after = ((sector + 1) * 512 - HEADER_BYTES).div_ceil(RECORD_BYTES) < 9;
        match opened {
            Ok(len) => assert!(!whole_after && len == first_bad, "sector {sector}: {len}"),
            Err(OpenError::Damaged(DamageError::Record { offset })) => {
                assert!(whole_after && offset == HEADER_BYTES + first_bad * RECORD_BYTES, "sector {sector}");
            }
            Err(error) => panic!("sector {sector}: {error}"),
        }
    }
}

/// Runs a random history on a disk whose n-th operation fails, crashes, and compares with what was acknowledged.
#[test]
fn whatever_operation_fails_and_wherever_the_crash_comes_no_acknowledged_entry_is_accepted_again() {
    for seed in 0..4000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let disk = Disk::default().failing_at(random.usize(0..30), random.usize(0..400));
        let Ok(ledger) = Ledger::open(disk.clone(), 1000) else { continue };
        let (mut acknowledged, mut floor) = (Vec::new(), 0);
        for number in 0..12 {
            if random.u8(0..6) == 0 {
                let now = 1000 + random.u64(0..12);
                // A failed compaction may still be what a later run reads.
                floor = floor.max(now);
                let _ = ledger.forget_expired(now, 0);
            }
            if ledger.record(entry(number)).is_ok() {
                acknowledged.push(number);
            }
        }
        let survivor = disk.after_crash(random.usize(0..400));
        let again = Ledger::open(survivor, 1000).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for number in acknowledged {
            let late = entry(number);
            // Nothing that has not expired by the floor may come in again; below it, the age refuses.
            let refused = again.record(late).is_err();
            assert!(refused, "seed {seed}: entry {number}, floor {floor}");
        }
    }
}

#[test]
fn a_failed_sync_poisons_the_ledger_and_is_not_tried_again() {
    // Operations: replace takes two, the sync of opening one, then one append and one sync for each entry.
    let disk = Disk::default().failing_at(4, 0);
    let ledger = Ledger::open(disk.clone(), 1000).unwrap();
    assert!(matches!(ledger.record(entry(0)), Err(RecordError::Io(_))));
    let operations = disk.operations();
    assert!(matches!(ledger.record(entry(0)), Err(RecordError::Poisoned)));
    assert!(matches!(ledger.record(entry(1)), Err(RecordError::Poisoned)));
    assert!(ledger.forget_expired(u64::MAX, 0).is_err());
    assert_eq!((disk.operations(), ledger.len()), (operations, 0));
}

#[test]
fn what_was_forgotten_is_refused_by_its_age_even_if_the_clock_goes_back() {
    let disk = Disk::default();
    let ledger = Ledger::open(disk.clone(), 10).unwrap();
    for seed in 0..10 {
        ledger.record(entry(seed)).unwrap();
    }
    assert!(matches!(ledger.record(entry(10)), Err(RecordError::Full { entries_max: 10 })));
    assert_eq!(ledger.forget_expired(1105, 100).unwrap(), 6);
    assert_eq!(ledger.forget_expired(1105, 100).unwrap(), 0);
    drop(ledger);
    let ledger = Ledger::open(disk, 10).unwrap();
    assert_eq!(ledger.len(), 4);
    for seed in 0..6 {
        let result = ledger.record(entry(seed));
        assert!(matches!(result, Err(RecordError::Expired { floor_unix_ms: 1005, .. })), "{result:?}");
    }
    assert!((6..10).all(|seed| is_replay(ledger.record(entry(seed)))));
    ledger.record(entry(10)).unwrap();
}
