//! Templates come with model files, from strangers: whatever one says, it is refused or filled within bounds of work,
//! memory and stack, and leaves nothing behind.

use crate::chat_support::chat_tokenizer;
use crate::corpus::{self, Corpus};
use crate::random;
use muser_text::{ChatError, ChatMessage, ChatOptions, ChatTemplate, Deadline, LocalTime, Tokenizer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Stack of the thread that reads, fills and drops: half of what threads have by default.
const STACK_BYTES: usize = 1 << 20;

/// Most memory that a filling of a short conversation may hold at once.
const PEAK_BYTES: u64 = 256 << 20;

/// Most looks at the deadline in the fillings of one conversation, which are one for so much work.
const LOOKS_MAX: u64 = 4 * 70;

/// Outcome of one template.
#[derive(Debug)]
struct Outcome {
    filled: Result<String, ChatError>,
    peak_bytes: u64,
    bytes_left: i64,
    looks: u64,
}

/// Reads `source` and fills it with a short conversation, in a thread of its own.
fn try_out(tokenizer: &Tokenizer, source: &str) -> Outcome {
    let looks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&looks);
    let looked = move || {
        counted.fetch_add(1, Relaxed);
        false
    };
    let options = ChatOptions {
        now: Some(LocalTime::from_seconds(0)),
        deadline: Some(Deadline::new(looked)),
        ..ChatOptions::default()
    };
    let fill = || {
        let mut filled = None;
        let allocated = allocation_counter::measure(|| {
            let template = ChatTemplate::new(source);
            let rendered =
                template.and_then(|template| template.render(tokenizer, &[ChatMessage::new("user", "hi")], &options));
            filled = Some(rendered.map(|rendered| rendered.text().len()));
        });
        (filled, allocated)
    };
    let (filled, allocated) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, fill);
        thread.expect("a thread").join().expect("no panic")
    });
    let filled = filled.expect("it ran").map(|bytes| format!("{bytes} bytes"));
    let held = filled.as_ref().err().map_or(0, |error| error.to_string().len());
    assert!(held < 10_000, "an error of {held} bytes");
    Outcome {
        filled,
        peak_bytes: allocated.bytes_max,
        bytes_left: allocated.bytes_current - i64::try_from(held).expect("a length"),
        looks: looks.load(Relaxed),
    }
}

/// Fills all of `sources` and checks the bounds; the outcomes by source.
fn within_bounds(sources: Vec<String>) -> Vec<(String, Outcome)> {
    let tokenizer = chat_tokenizer(random::bytes_only("gpt-2"));
    let shown = |source: &str| source.chars().take(200).collect::<String>();
    let outcomes = sources.into_iter().map(|source| (shown(&source), try_out(&tokenizer, &source)));
    let outcomes: Vec<_> = outcomes.collect();
    for (source, outcome) in &outcomes {
        assert!(outcome.peak_bytes < PEAK_BYTES, "{source}: {outcome:?}");
        assert!(outcome.looks <= LOOKS_MAX, "{source}: {outcome:?}");
        // An error's text may have room to spare; nothing else may stay.
        assert!(outcome.bytes_left.abs() < 4096, "{source}: {outcome:?}");
    }
    outcomes
}

/// Checks that each template has the outcome of its part of the corpus, within the bounds.
fn hold(corpus: Corpus) {
    for (source, outcome) in within_bounds(corpus.refused) {
        assert!(outcome.filled.is_err(), "{source}: {outcome:?}");
    }
    for (source, outcome) in within_bounds(corpus.filled) {
        assert!(outcome.filled.is_ok(), "{source}: {outcome:?}");
    }
}

#[test]
fn values_cannot_be_nested_deeply_by_any_means() {
    hold(corpus::deep_values());
}

#[test]
fn namespaces_cannot_hold_themselves() {
    hold(corpus::namespaces_in_themselves());
}

#[test]
fn values_that_share_their_parts_cost_what_they_would_cost_written_out() {
    hold(corpus::shared_values());
}

#[test]
fn no_width_count_or_separator_makes_more_than_the_budget() {
    hold(corpus::widths_counts_and_separators());
}

#[test]
fn whatever_a_template_repeats_ends_soon() {
    hold(corpus::repetitions());
}

#[test]
fn long_and_deep_sources_are_refused_when_they_are_read() {
    hold(corpus::long_and_deep_sources());
}

#[test]
fn the_deepest_templates_that_are_read_fit_into_the_stack() {
    hold(corpus::deepest_sources());
}

#[test]
fn a_bound_that_is_broken_names_its_line() {
    let tokenizer = chat_tokenizer(random::bytes_only("gpt-2"));
    let failure = |source: &str, options: &ChatOptions| {
        let template = ChatTemplate::new(source).expect("a good template");
        template.render(&tokenizer, &[ChatMessage::new("user", "hi")], options).expect_err("a text")
    };
    let options = ChatOptions::default();
    let endless =
        "\n{% for a in range(9999) %}{% for b in range(9999) %}\n{% if b %}{% endif %}{% endfor %}{% endfor %}";
    let worked = failure(endless, &options);
    assert!(matches!(worked, ChatError::TooMuchWork { line: 2 | 3, .. }), "{worked}");
    let made = failure("\n\n{{ 'a' * 99999999 }}", &options);
    assert!(matches!(made, ChatError::TooMuchMemory { line: 3, .. }), "{made}");
    let long = failure("{# a line #}\n{{ 'a' * 2000000 }}", &options);
    assert!(matches!(long, ChatError::TooLong { line: 2, bytes: 2_000_000, .. }), "{long}");
    let late = ChatOptions { deadline: Some(Deadline::new(|| true)), ..ChatOptions::default() };
    let late = failure("{{ 1 }}", &late);
    assert!(matches!(late, ChatError::Deadline { .. }), "{late}");
}

#[test]
fn messages_are_traced_past_many_constants_that_look_alike() {
    let tokenizer = chat_tokenizer(random::bytes_only("gpt-2"));
    let constants: String =
        (1..300).map(|length| format!("{{% if m == '{}' %}}{{% endif %}}", "a".repeat(length))).collect();
    let template = ChatTemplate::new(&format!("{constants}{{{{ messages[0].content }}}}<s>")).expect("a good template");
    // One by one, each character is compared with 45,000 others: this would not end.
    let said = "a".repeat(1 << 20);
    let rendered =
        template.render(&tokenizer, &[ChatMessage::new("user", &said)], &ChatOptions::default()).expect("a text");
    assert_eq!(rendered.text().len(), said.len() + 3);
    assert_eq!(rendered.encode(&tokenizer).last(), Some(&256));
}
