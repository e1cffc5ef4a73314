//! `GET /metrics`: counts for Prometheus, by llama.cpp's names where it has one, and by ours for the rest.

use std::fmt::{Display, Write};
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use crate::record::{Counters, RequestKind};
use crate::remote::{AuditCounts, ProducerCounts, RemoteCounts};
use crate::settings::PageVisibility;
use muser_host::EngineStatus;

/// The counts now.
pub async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    if app.server.metrics == PageVisibility::Hidden {
        return Err(ApiError::new(ErrorKind::NotSupported, "this server was started with --no-metrics"));
    }
    let service = app.service()?;
    let status = service.host.status();
    let mut text = Exposition::default();
    llama_cpp(&mut text, &status);
    own(&mut text, &status, &app.counters);
    if let Some(counts) = service.pages.remote_counts() {
        handoffs(&mut text, &counts);
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text.0).into_response())
}

fn llama_cpp(text: &mut Exposition, status: &EngineStatus) {
    let totals = &status.totals;
    let rate = |tokens: u64, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    text.counter("llamacpp:prompt_tokens_total", "Tokens of prompts that were computed.", totals.prompt_tokens);
    text.counter("llamacpp:prompt_seconds_total", "Seconds that prompts took.", totals.prompt_seconds);
    text.counter("llamacpp:tokens_predicted_total", "Tokens generated.", totals.generated_tokens);
    text.counter("llamacpp:tokens_predicted_seconds_total", "Seconds that generation took.", totals.generated_seconds);
    let speed = rate(totals.prompt_tokens, totals.prompt_seconds);
    text.gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens per second, since the start.", speed);
    let speed = rate(totals.generated_tokens, totals.generated_seconds);
    text.gauge("llamacpp:predicted_tokens_seconds", "Generated tokens per second, since the start.", speed);
    text.gauge("llamacpp:requests_processing", "Requests that run.", status.running());
    text.gauge("llamacpp:requests_deferred", "Requests that wait.", status.waiting);
    text.counter("llamacpp:n_decode_total", "Steps of the engine.", totals.steps);
    let busy = totals.running_over_steps as f64 / totals.steps.max(1) as f64;
    text.gauge("llamacpp:n_busy_slots_per_decode", "Sequences that ran, on average over the steps.", busy);
    text.gauge("llamacpp:n_tokens_max", "The most tokens that a sequence came to have.", totals.tokens_max);
}

fn handoffs(text: &mut Exposition, counts: &RemoteCounts) {
    type Read = fn(&ProducerCounts) -> f64;
    let by_producer: [(&str, &str, Read); 11] = [
        ("muser:handoffs_total", "Prompts that came from producers.", |sums| sums.handoffs as f64),
        ("muser:handoff_failures_total", "Attempts at producers that failed.", |sums| sums.failures as f64),
        ("muser:handoff_tokens_total", "Tokens that came from producers.", |sums| sums.tokens as f64),
        ("muser:handoff_bytes_total", "Bytes of pages from producers.", |sums| sums.payload_bytes as f64),
        ("muser:handoff_wire_bytes_total", "Bytes of them as they travelled.", |sums| sums.wire_bytes as f64),
        ("muser:handoff_seconds_total", "Seconds that handoffs took.", |sums| sums.seconds),
        ("muser:handoff_queue_seconds_total", "Of these, waiting for the producer.", |sums| sums.queue_seconds),
        ("muser:handoff_compute_seconds_total", "Of these, computing.", |sums| sums.compute_seconds),
        (
            "muser:handoff_send_busy_seconds_total",
            "Of these, the producer's kernel was sending, as far as it reports that.",
            |sums| sums.send_busy_seconds,
        ),
        ("muser:handoff_send_wall_seconds_total", "Of these, from the first page to the last.", |sums| {
            sums.send_wall_seconds
        }),
        ("muser:handoff_lost_seconds_total", "Seconds spent on failed attempts.", |sums| sums.lost_seconds),
    ];
    for (name, help, read) in by_producer {
        text.head(name, help, "counter");
        for (address, sums) in &counts.producers {
            text.sample(&format!("{name}{{producer=\"{address}\"}}"), read(sums));
        }
    }
    let what = "Prompts computed here after every producer failed or was left out.";
    text.counter("muser:handoff_fallbacks_total", what, counts.fallbacks);
    let AuditCounts { done, mismatches, tokens, skipped } = counts.audits;
    text.counter("muser:audits_total", "Handoffs audited by recomputing pages.", done);
    text.counter("muser:audit_mismatches_total", "Of these, those with a wrong bit.", mismatches);
    text.counter("muser:audit_tokens_total", "Tokens recomputed by audits.", tokens);
    text.counter("muser:audits_skipped_total", "Handoffs that were to be audited and could not be.", skipped);
    text.head("muser:prefill_choices_total", "Placement choices of long prompts.", "counter");
    for ((place, reason), count) in &counts.choices {
        text.sample(&format!("muser:prefill_choices_total{{place=\"{place}\",reason=\"{reason}\"}}"), count);
    }
}

fn own(text: &mut Exposition, status: &EngineStatus, counters: &Counters) {
    let (totals, memory) = (&status.totals, &status.memory);
    text.counter(
        "muser:reused_tokens_total",
        "Tokens of prompts that were cached or received from producers.",
        totals.reused_tokens,
    );
    text.gauge("muser:kv_live_bytes", "Bytes of pages in use or kept.", memory.live_bytes);
    text.gauge("muser:kv_free_bytes", "Bytes of pages ready to be used.", memory.free_bytes);
    text.gauge("muser:kv_budget_bytes", "Bytes of all pages at most.", memory.budget_bytes);
    text.gauge("muser:prefix_bytes", "Bytes of pages in the prefix cache.", status.prefix_bytes);
    text.counter("muser:sequences_ended_total", "Sequences that ended.", totals.ended);
    text.counter("muser:sequences_cancelled_total", "Of these, cancelled.", totals.cancelled);
    text.counter("muser:preemptions_total", "Preemptions: times a sequence's pages were evicted.", totals.preemptions);
    text.gauge("muser:connections_open", "Connections that are open.", counters.connections());
    text.head("muser:requests_total", "Requests that are over.", "counter");
    for (RequestKind { route, method, status }, count) in counters.requests() {
        // Routes are ours: nothing in them needs an escape.
        let route = route.as_deref().unwrap_or("none");
        text.sample(
            &format!("muser:requests_total{{route=\"{route}\",method=\"{method}\",status=\"{status}\"}}"),
            count,
        );
    }
}

/// Text in Prometheus's format.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "counter");
        self.sample(name, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "gauge");
        self.sample(name, value);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, value: impl Display) {
        self.line(format_args!("{name} {value}"));
    }

    fn line(&mut self, line: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{line}");
    }
}
