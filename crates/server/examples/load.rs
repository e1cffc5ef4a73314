//! Many clients for a long time: `load SECONDS [SEED]` prints what came of it as JSON, and fails if an answer was wrong.

#[path = "../tests/api/cases.rs"]
mod cases;
#[path = "../tests/api/client.rs"]
#[expect(dead_code, reason = "the test suites use the rest")]
mod client;
#[path = "../tests/load/footprint.rs"]
mod footprint;
#[path = "../tests/api/solo.rs"]
#[expect(dead_code, reason = "the test suites use the rest")]
mod solo;
#[path = "../tests/load/storm.rs"]
mod storm;
#[path = "../tests/api/world.rs"]
#[expect(dead_code, reason = "the test suites use the rest")]
mod world;

use std::process::ExitCode;
use std::time::Duration;

use footprint::Footprint;
use serde_json::{Value, json};
use storm::{Report, Storm};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (Some(Ok(seconds)), Ok(seed), None) = (arguments.next(), arguments.next().unwrap_or(Ok(5)), arguments.next())
    else {
        eprintln!("usage: load SECONDS [SEED]");
        return ExitCode::from(2);
    };
    let duration = Duration::from_secs(seconds);
    let storm = Storm { clients: 32, slots: 6, cases: 120, duration, enough: (1, 1), seed };
    let report = storm.run();
    println!("{:#}", json(&storm, &report));
    let clean = report.wrong.is_empty()
        && report.after.held() == report.before.held()
        && report.after.kv_live_bytes == report.after.kv_kept_bytes;
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn json(storm: &Storm, report: &Report) -> Value {
    json!({
        "seconds": storm.duration.as_secs(),
        "seed": storm.seed,
        "clients": storm.clients,
        "slots": storm.slots,
        "different_requests": storm.cases,
        "answers": report.answers,
        "wrong_answers": report.wrong,
        "disconnects": report.disconnects,
        "turned_away": report.turned_away,
        "requests_ended": report.totals.ended,
        "requests_cancelled": report.totals.cancelled,
        "tokens_generated": report.totals.generated_tokens,
        "prompt_tokens_computed": report.totals.prompt_tokens,
        "prompt_tokens_reused": report.totals.reused_tokens,
        "engine_steps": report.totals.steps,
        "before": footprint_json(&report.before),
        "after": footprint_json(&report.after),
        "resident_kib_per_tenth": report.resident_kib,
    })
}

fn footprint_json(footprint: &Footprint) -> Value {
    json!({
        "file_descriptors": footprint.descriptors,
        "resident_kib": footprint.resident_kib,
        "busy_slots": footprint.busy_slots,
        "waiting_requests": footprint.waiting,
        "kv_live_bytes": footprint.kv_live_bytes,
        "kv_kept_bytes": footprint.kv_kept_bytes,
    })
}
