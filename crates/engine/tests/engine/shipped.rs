//! The model that ships with muser: real weights and text, past the window of its local layers.

use std::path::PathBuf;
use std::sync::Arc;

use muser_engine::engine::{PrefixReuse, SubmitError};
use muser_engine::{ChunkRows, EngineSettings, Finish, SamplingError, SamplingSettings, load_tokenizer};
use muser_kernels::cpu::Kernels;
use muser_kv::{KvIdentity, KvLayout};
use muser_model::{Executor, Model};
use muser_text::{ControlTokens, Specials, Tokenizer};
use muser_weights::gguf::ModelFiles;

use crate::world::{LAYOUTS, Request, Story, World, greedy, non_zero};

fn files() -> Arc<ModelFiles> {
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "../../models/glimmer-mini/glimmer-mini-Q4_K_M.gguf"].iter().collect();
    Arc::new(ModelFiles::open(&path).unwrap())
}

fn model() -> Arc<Model> {
    Arc::new(Model::load(files(), non_zero(2)).unwrap())
}

fn tokenizer(model: &Model) -> Tokenizer {
    load_tokenizer(&files().metadata(), model.config().vocab).unwrap()
}

/// An engine for one request at a time, with steps of up to `chunk` rows.
fn world(model: &Arc<Model>, kv: KvLayout, kernels: Kernels, threads: usize, chunk: usize) -> World {
    let (threads, rows) = (non_zero(threads), non_zero(chunk));
    let settings = EngineSettings {
        context: 512,
        kv,
        identity: KvIdentity::PROCESS_LOCAL,
        budget_bytes: 1 << 30,
        prefix_bytes_max: 0,
        installed_bytes_max: 0,
        running_max: non_zero(1),
        waiting_max: 1,
        chunk: ChunkRows { alone: rows, while_decoding: rows },
    };
    let executor = Executor::new(Arc::clone(model), kernels, threads, rows).unwrap();
    World::of(executor, settings)
}

fn fast(model: &Arc<Model>) -> World {
    world(model, KvLayout::Q8, Kernels::detected(), 2, 128)
}

fn alone(prompt: &[u32], tokens: usize) -> Request {
    Request { context: 512, reuse: PrefixReuse::Isolate, ..greedy(prompt, tokens) }
}

/// English, token by token, long enough to pass the window of 256.
fn prose(model: &Model, count: usize) -> Vec<u32> {
    let text = "It was a bright morning in the spring of that year, and the ships lay at anchor in the bay. The captain \
                came on deck, looked at the sky and at the sea, and said nothing. ";
    let ids = tokenizer(model).encode(&text.repeat(count / 20 + 1), Specials::AsText);
    ids[..count].to_vec()
}

fn same(story: &Story, expected: &Story, what: &str) {
    assert_eq!((&story.tokens, &story.outcome), (&expected.tokens, &expected.outcome), "{what}: tokens");
    assert!(story.logits == expected.logits, "{what}: logits");
}

#[test]
fn text_and_logits_do_not_depend_on_chunks_threads_or_kernels() {
    let model = model();
    let long = prose(&model, 300);
    let sampled = SamplingSettings { temperature: 0.9, seed: 7, ..SamplingSettings::default() };
    for kv in LAYOUTS {
        for request in [alone(&long, 24), Request { sampling: sampled.clone(), ..alone(&long[..60], 24) }] {
            let expected = world(&model, kv, Kernels::detected(), 2, 128).run(request.clone());
            assert_eq!(expected.tokens.len(), 24);
            // The portable kernels are slow, and have a test of their own.
            for (index, kernels) in Kernels::available().into_iter().skip(1).enumerate() {
                for chunk in [5, 17, 64, 300] {
                    let threads = (index + chunk) % 3 + 1;
                    let story = world(&model, kv, kernels, threads, chunk).run(request.clone());
                    same(
                        &story,
                        &expected,
                        &format!("{}, {threads} threads, chunks of {chunk}, {kv:?}", kernels.name()),
                    );
                }
            }
        }
    }
}

#[test]
fn portable_kernels_write_the_same_text() {
    let model = model();
    let request = alone(&prose(&model, 40), 8);
    let story = world(&model, KvLayout::Q8, Kernels::scalar(), 2, 33).run(request.clone());
    same(&story, &fast(&model).run(request), "portable kernels");
}

#[test]
fn a_seed_gives_one_text_and_another_seed_another() {
    let model = model();
    let prompt = prose(&model, 60);
    let mut world = fast(&model);
    let mut sampled = |temperature, seed| {
        let sampling = SamplingSettings { temperature, seed, ..SamplingSettings::default() };
        world.run(Request { sampling, ..alone(&prompt, 30) }).tokens
    };
    let text = sampled(0.9, 7);
    assert_eq!(text, sampled(0.9, 7));
    assert_ne!(text, sampled(0.9, 8));
    assert_ne!(text, sampled(0.0, 7));
}

#[test]
fn the_model_continues_its_known_sentence() {
    let model = model();
    let tokenizer = tokenizer(&model);
    let prompt = tokenizer.encode("Once upon a time there was a", Specials::AsText);
    let tokens = fast(&model).run(alone(&prompt, 8)).tokens;
    let text = String::from_utf8(tokenizer.decode(&tokens, ControlTokens::Hide).unwrap()).unwrap();
    // What the unquantised model says, in any engine.
    assert!(text.starts_with(" great deal of talk"), "{text:?}");
}

#[test]
fn a_request_that_resumes_another_goes_on_with_its_text() {
    let model = model();
    let prompt = prose(&model, 250);
    let mut world = fast(&model);
    let text = world.run(alone(&prompt, 20)).tokens;
    let resumed = [&prompt[..], &text[..9]].concat();
    assert_eq!(world.run(alone(&resumed, 11)).tokens, text[9..]);
}

#[test]
fn the_last_token_s_keys_and_values_are_not_computed_and_every_page_is_given_back() {
    let model = model();
    let prompt = prose(&model, 127);
    let mut world = fast(&model);
    let bytes = |rows| model.cache_spec(KvLayout::Q8, 512).unwrap().predicted_bytes(rows);
    for (length, limit, finish) in [(30, 0, Finish::Limit), (30, 9, Finish::Limit), (100, 60, Finish::ContextFull)] {
        let context = if finish == Finish::ContextFull { 128 } else { 512 };
        let outcome = world.run(Request { context, ..alone(&prompt[..length], limit) }).outcome.unwrap();
        assert_eq!(outcome.finish, finish);
        assert_eq!(outcome.kv_bytes, bytes(length + outcome.generated.saturating_sub(1)), "{length} {limit}");
        assert_eq!(world.engine.memory().live_pages, 0);
    }
}

#[test]
fn a_refusal_says_what_would_fit() {
    let model = model();
    let mut world = fast(&model);
    let mut refused = |request: Request| world.engine.submit(request.job()).unwrap_err();
    let long = refused(Request { context: 128, ..alone(&prose(&model, 129), 1) }).to_string();
    assert!(long.contains("129") && long.contains("128") && long.contains("at most 127 fit"), "{long}");
    let nothing = refused(Request { context: 0, ..alone(&[5], 1) }).to_string();
    assert!(nothing.contains("the context holds 0"), "{nothing}");
    let hot = SamplingSettings { temperature: f32::NAN, ..SamplingSettings::default() };
    let hot = refused(Request { sampling: hot, ..alone(&[5], 1) });
    assert!(matches!(hot, SubmitError::Sampling(SamplingError::OutOfRange { setting: "temperature", .. })), "{hot:?}");
}
