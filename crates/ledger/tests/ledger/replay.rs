//! The same history gives the same ledger and the same reports, however often it is played or opened.

use std::fmt::Write;

use muser_ledger::Ledger;

use crate::disk::{Disk, entry};

/// Plays a random history on a disk of which one operation fails, and crashes. Says everything that was reported, and what
/// the crash leaves.
fn history(seed: u64) -> (String, Vec<u8>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let disk = Disk::default().failing_at(random.usize(0..60), random.usize(0..400));
    let mut told = String::new();
    let opened = Ledger::open(disk.clone(), 12);
    match &opened {
        Err(error) => writeln!(told, "{error}").unwrap(),
        Ok(ledger) => {
            for _ in 0..random.usize(0..40) {
                if random.u8(0..6) == 0 {
                    let forgotten = ledger.forget_expired(1000 + random.u64(0..40), 0);
                    writeln!(told, "{forgotten:?}").unwrap();
                }
                let recorded = ledger.record(entry(random.u64(0..40)));
                writeln!(told, "{recorded:?} {}", ledger.len()).unwrap();
            }
        }
    }
    drop(opened);
    (told, disk.after_crash(random.usize(0..400)).bytes())
}

/// Opens a ledger with these bytes, asks it everything, and says everything that was reported.
fn asked(bytes: &[u8]) -> (blake3::Hash, usize) {
    let disk = Disk::holding(bytes);
    let (mut told, mut known) = (String::new(), 0);
    match Ledger::open(disk.clone(), 12) {
        Err(error) => writeln!(told, "{error}").unwrap(),
        Ok(ledger) => {
            known = ledger.len();
            writeln!(told, "{known} {:?}", disk.bytes()).unwrap();
            for round in 0..3u64 {
                (0..45).for_each(|seed| writeln!(told, "{:?}", ledger.record(entry(seed))).unwrap());
                writeln!(told, "{:?}", ledger.forget_expired(1005 + 10 * round, 0)).unwrap();
            }
            writeln!(told, "{} {:?}", ledger.len(), disk.bytes()).unwrap();
        }
    }
    (blake3::hash(told.as_bytes()), known)
}

#[test]
fn a_ledger_that_is_played_or_opened_five_times_reports_the_same_five_times() {
    let (mut kept, mut with_entries) = (0, 0);
    for seed in 0..300 {
        let (told, bytes) = history(seed);
        let (reports, known) = asked(&bytes);
        for time in 1..5 {
            assert_eq!(history(seed), (told.clone(), bytes.clone()), "seed {seed}, played for the {time}th time again");
            assert_eq!(asked(&bytes), (reports, known), "seed {seed}, opened for the {time}th time again");
        }
        // Opening mends the tail; after that it changes nothing.
        let disk = Disk::holding(&bytes);
        let mended: Vec<_> = (0..5)
            .map(|_| {
                (
                    Ledger::open(disk.clone(), 12).map(|ledger| ledger.len()).map_err(|error| error.to_string()),
                    disk.bytes(),
                )
            })
            .collect();
        assert!(mended.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: {mended:?}");
        kept += usize::from(mended[0].1 == bytes);
        with_entries += usize::from(known > 0);
    }
    assert!(with_entries > 150 && (1..300).contains(&kept), "{with_entries} with entries, {kept} without a torn tail");
}
