//! Cuts, flipped bits, failing operations and crashes: nothing accepted is accepted twice, nothing acknowledged is lost.

use muser_ledger::{DamageError, HEADER_BYTES, Ledger, LedgerEntry, OpenError, RECORD_BYTES, RecordError};

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
fn after_a_failed_write_or_sync_the_ledger_is_written_anew_and_what_may_be_on_the_disk_stays_refused() {
    // Operations: replace takes two, the sync of opening one, then one append and one sync for each entry.
    for failing in [3, 4] {
        for partial in [0, 1, 100, RECORD_BYTES] {
            let disk = Disk::default().failing_at(failing, partial);
            let ledger = Ledger::open(disk.clone(), 1000).unwrap();
            assert!(matches!(ledger.record(entry(0)), Err(RecordError::Io(_))));
            // Nobody knows whether it is on the disk, so it is taken for accepted.
            assert!(is_replay(ledger.record(entry(0))));
            ledger.record(entry(1)).unwrap();
            drop(ledger);
            let again = Ledger::open(disk.after_crash(0), 1000).unwrap();
            assert_eq!(again.len(), 2);
            assert!(is_replay(again.record(entry(0))) && is_replay(again.record(entry(1))));
            again.record(entry(2)).unwrap();
        }
    }
}

#[test]
fn while_the_disk_is_full_nothing_is_accepted_and_once_there_is_room_everything_is() {
    let disk = Disk::default();
    let ledger = Ledger::open(disk.clone(), 1000).unwrap();
    ledger.record(entry(0)).unwrap();
    disk.set_full(true);
    assert!(matches!(ledger.record(entry(1)), Err(RecordError::Io(_))));
    for seed in 2..5 {
        assert!(matches!(ledger.record(entry(seed)), Err(RecordError::Renewal(_))));
        assert!(ledger.forget_expired(u64::MAX, 0).is_err());
    }
    disk.set_full(false);
    (2..5).for_each(|seed| ledger.record(entry(seed)).unwrap());
    let again = Ledger::open(disk.after_crash(0), 1000).unwrap();
    for seed in [0, 2, 3, 4] {
        assert!(is_replay(ledger.record(entry(seed))) && is_replay(again.record(entry(seed))), "{seed}");
    }
}

#[test]
fn a_clock_that_was_ahead_keeps_nobody_out_and_lets_nothing_in_twice() {
    const HOUR: u64 = 3_600_000;
    const YEAR: u64 = 365 * 24 * HOUR;
    let at = |seed: u64, time_unix_ms: u64| {
        let expiry_unix_ms = time_unix_ms + HOUR;
        LedgerEntry { time_unix_ms, expiry_unix_ms, ..entry(seed) }
    };
    let disk = Disk::default();
    let ledger = Ledger::open(disk.clone(), 4).unwrap();
    // A year ahead the ledger is filled, and forgets what it has.
    let (now, mut steady) = (YEAR, 5);
    let first = at(0, ledger.time(now + YEAR, steady));
    ledger.record(first).unwrap();
    (1..4).for_each(|seed| ledger.record(at(seed, ledger.time(now + YEAR, steady))).unwrap());
    assert_eq!(ledger.forget_expired(ledger.time(now + YEAR + 2 * HOUR, steady), 0).unwrap(), 4);
    // Then the clock is set right: handoffs go on, the ledger fills again and forgets as time passes, restarted or not.
    let mut ledger = ledger;
    for round in 0..3 {
        for seed in 0..4 {
            steady += 1;
            ledger.record(at(10 + round * 4 + seed, ledger.time(now + steady, steady))).unwrap();
        }
        let refused = ledger.record(first);
        assert!(matches!(refused, Err(RecordError::Expired { .. })), "{refused:?}");
        assert!(is_replay(ledger.record(at(10 + round * 4, ledger.time(now + steady, steady)))));
        if round == 1 {
            drop(ledger);
            ledger = Ledger::open(disk.clone(), 4).unwrap();
            steady = 0;
        }
        steady += 2 * HOUR;
        assert_eq!(ledger.forget_expired(ledger.time(now + steady, steady), 0).unwrap(), 4);
    }
    // No clock makes the times run out.
    let last = at(99, ledger.time(u64::MAX, steady));
    assert!(last.expiry_unix_ms < u64::MAX / 2);
    ledger.record(last).unwrap();
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
