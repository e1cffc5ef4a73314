//! Resources of a server after its clients have come and gone. The process measures itself, so these tests have a
//! process of their own, and run one after the other.

mod cancel;
#[path = "../api/cases.rs"]
mod cases;
#[path = "../api/client.rs"]
#[expect(dead_code, reason = "the suite beside this one uses the rest")]
mod client;
mod footprint;
#[path = "../api/routes.rs"]
#[expect(dead_code, reason = "the suite beside this one uses the rest")]
mod routes;
#[path = "../api/solo.rs"]
#[expect(dead_code, reason = "the suite beside this one uses the rest")]
mod solo;
mod storm;
#[path = "../api/world.rs"]
#[expect(dead_code, reason = "the suite beside this one uses the rest")]
mod world;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use storm::{Report, Storm};

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn among_clients_that_come_and_go_every_answer_is_exact_and_nothing_is_left_behind() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let storm = Storm { clients: 32, slots: 6, cases: 24, duration: Duration::from_secs(8), enough: (21, 6), seed: 5 };
    let Report { answers, disconnects, turned_away, wrong, before, after, resident_kib, totals } = storm.run();
    assert_eq!(wrong, [""; 0]);
    assert!(answers > 20 && disconnects > 5, "{answers} answers, {disconnects} disconnects");
    // What the server saw of a client that left at once, or found the queue full, is its own affair.
    let ended = answers + 24..=answers + 24 + disconnects;
    assert!(ended.contains(&totals.ended), "{totals:?}, {turned_away} turned away");
    assert!(resident_kib.iter().all(|kib| *kib > 0));
    assert_eq!(after.held(), before.held(), "{after:?} after {before:?}");
    assert_eq!(after.kv_live_bytes, after.kv_kept_bytes, "pages are held that nobody can reuse");
    // What may be kept for reuse, and as much again for all else.
    let grown = after.resident_kib.saturating_sub(before.resident_kib);
    assert!(grown < 2 * 64 * 1024, "{grown} KiB more");
}
