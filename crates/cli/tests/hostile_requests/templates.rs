//! Templates made to break whoever fills them, each in a model file that a server is started with.
//!
//! The server has its memory limited by the system, and `/health` is asked all the time. The binary is that of the tests'
//! profile, which checks every operation on integers for overflow: one would be a panic, and end the test.

#[path = "../../../text/tests/support/hostile_corpus.rs"]
mod corpus;

use std::time::{Duration, Instant};

use muser_kernels::formats::WeightType;
use muser_weights::gguf::Value;

use crate::common::{Folder, float_model, llama_spec, with_keys};
use crate::{Case, Target, ask, watched};
use corpus::Corpus;

/// Data that the server may have: its own, twice what a template may hold, and what is freed in pieces.
const DATA_KIB: u64 = 768 << 10;
/// Resident memory that the two fillings of a template may add.
const PEAK_KIB: u64 = 512 << 10;
/// Time of an answer: the server gives up a filling after 20 s.
const ANSWER_MAX: Duration = Duration::from_secs(40);

const CONVERSATION: &str = r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}"#;
const MESSAGES: &str = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;

/// Starts a server for each template and asks it to fill that.
fn hold(corpus: Corpus) {
    let plain = float_model(&llama_spec(64), WeightType::F16);
    let folder = Folder::new();
    let refused = corpus.refused.into_iter().map(|source| (source, &[400, 501][..]));
    let filled = corpus.filled.into_iter().map(|source| (source, &[200][..]));
    for (source, expected) in refused.chain(filled) {
        let template = Some(Value::String(source.as_bytes()));
        let path = folder.write("model.gguf", with_keys(&plain, &[("tokenizer.chat_template", template)]));
        let name: String = source.chars().take(200).collect();
        let target = Target::start_with(DATA_KIB, &["-m", &path]);
        let before = target.memory("VmRSS");
        watched(&target.address, || {
            let apply = Case::post(&name, "/apply-template", MESSAGES, expected);
            // A text that was made may be longer than the context.
            let chat = Case::post(&name, "/v1/chat/completions", CONVERSATION, &[200, 400, 501]);
            for case in [apply, chat] {
                let (began, status) = (Instant::now(), ask(&target.address, &case));
                assert!(case.expected.contains(&status), "{} {name}: {status}", case.path);
                assert!(began.elapsed() < ANSWER_MAX, "{} {name}: {:?}", case.path, began.elapsed());
            }
        });
        let peak = target.memory("VmHWM");
        assert!(peak < before + PEAK_KIB, "{name}: {before} KiB became {peak}");
        target.signal("TERM");
        let (code, said) = target.ended();
        assert_eq!(code, Some(0), "{name}: {said}");
    }
}

#[test]
fn values_in_values_of_a_template_harm_no_server() {
    hold(corpus::deep_values());
    hold(corpus::namespaces_in_themselves());
    hold(corpus::shared_values());
}

#[test]
fn widths_and_counts_of_a_template_harm_no_server() {
    hold(corpus::widths_counts_and_separators());
}

#[test]
fn repetitions_of_a_template_harm_no_server() {
    hold(corpus::repetitions());
}

#[test]
fn long_and_deep_templates_harm_no_server() {
    hold(corpus::long_and_deep_sources());
    hold(corpus::deepest_sources());
}
