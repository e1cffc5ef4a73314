//! Generation with the model that ships with muser: the same text however it is computed, and exact counts.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use muser_engine::{Finish, GenerateError, Generation, Outcome, Request, Sampling, SamplingError, load_tokenizer};
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::Kernels;
use muser_kv::PagePool;
use muser_model::{Executor, Model, StepError};
use muser_text::{ControlTokens, Specials};
use muser_weights::gguf::ModelFiles;

const GREEDY: Sampling = Sampling { temperature: 0.0, seed: 0 };

fn model() -> Arc<Model> {
    let path: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "../../models/glimmer-mini/glimmer-mini-Q4_K_M.gguf"].iter().collect();
    let two = NonZeroUsize::new(2).unwrap();
    Arc::new(Model::load(Arc::new(ModelFiles::open(&path).unwrap()), two).unwrap())
}

fn executor(model: &Arc<Model>, kernels: Kernels, threads: usize, chunk: usize) -> Executor {
    let (threads, chunk) = (NonZeroUsize::new(threads).unwrap(), NonZeroUsize::new(chunk).unwrap());
    Executor::new(Arc::clone(model), kernels, threads, chunk).unwrap()
}

fn fast(model: &Arc<Model>) -> Executor {
    executor(model, Kernels::detected(), 2, 128)
}

/// A request for `tokens` greedy tokens in a context of 512.
fn greedy(prompt: &[u32], tokens: usize) -> Request<'_> {
    Request { prompt, tokens_max: Some(tokens), context: 512, kv: KvLayout::Q8, sampling: GREEDY }
}

/// Everything that a request generates. No token ends it.
fn generate(executor: &mut Executor, request: &Request<'_>) -> Result<(Vec<u32>, Outcome), GenerateError> {
    let mut tokens = Vec::new();
    let pages = PagePool::new(usize::MAX);
    let outcome = Generation::prefill(executor, &pages, request)?.run(
        |_| false,
        |token| {
            tokens.push(token);
            ControlFlow::Continue(())
        },
    )?;
    // Every page is back.
    assert_eq!(pages.usage().live_pages, 0);
    Ok((tokens, outcome))
}

/// English, token by token, long enough to pass the window of 256.
fn prose(model: &Model, count: usize) -> Vec<u32> {
    let text = "It was a bright morning in the spring of that year, and the ships lay at anchor in the bay. The captain \
                came on deck, looked at the sky and at the sea, and said nothing. ";
    let tokenizer = load_tokenizer(&model.files().metadata(), model.config().vocab).unwrap();
    let ids = tokenizer.encode(&text.repeat(count / 20 + 1), Specials::AsText);
    ids[..count].to_vec()
}

#[test]
fn greedy_text_does_not_depend_on_chunks_threads_or_kernels() {
    let model = model();
    let prompt = prose(&model, 300);
    if Kernels::available().len() == 1 {
        eprintln!("only portable kernels run on this machine: chunks and threads were not compared on others");
    }
    for kv in [KvLayout::Q8, KvLayout::F16] {
        let request = Request { kv, ..greedy(&prompt, 24) };
        let (text, _) = generate(&mut fast(&model), &request).unwrap();
        assert_eq!(text.len(), 24);
        for (index, kernels) in Kernels::available().into_iter().skip(1).enumerate() {
            for chunk in [5, 17, 64, 300] {
                let threads = (index + chunk) % 3 + 1;
                let (again, _) = generate(&mut executor(&model, kernels, threads, chunk), &request).unwrap();
                assert_eq!(again, text, "{} kernels, {threads} threads, chunks of {chunk}, {kv:?}", kernels.name);
            }
        }
    }
}

#[test]
fn portable_kernels_write_the_same_text() {
    let model = model();
    let prompt = prose(&model, 40);
    let request = greedy(&prompt, 8);
    let (text, _) = generate(&mut fast(&model), &request).unwrap();
    let (portable, _) = generate(&mut executor(&model, Kernels::scalar(), 2, 33), &request).unwrap();
    assert_eq!(portable, text);
}

#[test]
fn the_model_continues_its_known_sentence() {
    let model = model();
    let tokenizer = load_tokenizer(&model.files().metadata(), model.config().vocab).unwrap();
    let prompt = tokenizer.encode("Once upon a time there was a", Specials::AsText);
    let (tokens, _) = generate(&mut fast(&model), &greedy(&prompt, 8)).unwrap();
    let text = String::from_utf8(tokenizer.decode(&tokens, ControlTokens::Hide).unwrap()).unwrap();
    // What the unquantised model says, in any engine.
    assert!(text.starts_with(" great deal of talk"), "{text:?}");
}

#[test]
fn a_request_that_resumes_another_goes_on_with_its_text() {
    let model = model();
    let prompt = prose(&model, 250);
    let mut executor = fast(&model);
    let (text, _) = generate(&mut executor, &greedy(&prompt, 20)).unwrap();
    let resumed = [&prompt[..], &text[..9]].concat();
    let (rest, _) = generate(&mut executor, &greedy(&resumed, 11)).unwrap();
    assert_eq!(rest, text[9..]);
}

#[test]
fn counts_are_exact_at_the_end_of_the_context() {
    let model = model();
    let prompt = prose(&model, 129);
    let mut executor = fast(&model);
    let mut within = |prompt: &[u32], tokens_max| {
        let request = Request { prompt, tokens_max, context: 128, kv: KvLayout::Q8, sampling: GREEDY };
        generate(&mut executor, &request)
    };
    for (length, room) in [(127, 1), (126, 2), (100, 28)] {
        let (tokens, outcome) = within(&prompt[..length], None).unwrap();
        assert_eq!((tokens.len(), outcome.generated, outcome.finish), (room, room, Finish::ContextFull));
        // The last token was chosen and never computed.
        let spec = model.cache_spec(KvLayout::Q8, 128).unwrap();
        assert_eq!(outcome.kv_bytes, spec.predicted_bytes(127));
        let (more, outcome) = within(&prompt[..length], Some(room + 1)).unwrap();
        assert_eq!((more, outcome.finish), (tokens, Finish::ContextFull));
    }
    for length in [128, 129] {
        for tokens_max in [None, Some(1)] {
            match within(&prompt[..length], tokens_max) {
                Err(GenerateError::PromptTooLong { prompt, context: 128 }) => assert_eq!(prompt, length),
                other => panic!("{length} tokens: {other:?}"),
            }
        }
    }
    let message = within(&prompt[..129], None).unwrap_err().to_string();
    assert!(message.contains("129") && message.contains("128") && message.contains("127"), "{message}");
    // Nothing but the prompt's KV: then all of the context may be prompt.
    let (tokens, outcome) = within(&prompt[..128], Some(0)).unwrap();
    assert_eq!((tokens.len(), outcome.generated, outcome.finish), (0, 0, Finish::Limit));
    assert!(matches!(within(&prompt, Some(0)), Err(GenerateError::PromptTooLong { prompt: 129, context: 128 })));
    let nothing = Request { context: 0, ..greedy(&prompt[..1], 1) };
    let message = generate(&mut fast(&model), &nothing).unwrap_err().to_string();
    assert!(message.contains("the context holds 0"), "{message}");
}

#[test]
fn the_limit_is_the_number_of_tokens() {
    let model = model();
    let prompt = prose(&model, 30);
    let mut executor = fast(&model);
    let (whole, _) = generate(&mut executor, &greedy(&prompt, 10)).unwrap();
    for limit in [0, 1, 2, 9] {
        let (tokens, outcome) = generate(&mut executor, &greedy(&prompt, limit)).unwrap();
        assert_eq!((&tokens[..], outcome.generated, outcome.finish), (&whole[..limit], limit, Finish::Limit));
        // The last token's KV is not computed: nobody asks for what follows it.
        let rows = prompt.len() + limit.saturating_sub(1);
        assert_eq!(outcome.kv_bytes, model.cache_spec(KvLayout::Q8, 512).unwrap().predicted_bytes(rows));
    }
}

#[test]
fn a_request_that_makes_no_sense_is_refused() {
    let model = model();
    let mut executor = fast(&model);
    let empty = generate(&mut executor, &greedy(&[], 1));
    assert!(matches!(empty, Err(GenerateError::EmptyPrompt)), "{empty:?}");
    let long = generate(&mut executor, &Request { context: 2049, ..greedy(&[5], 1) });
    assert!(matches!(long, Err(GenerateError::ContextTooLong { wanted: 2049, trained: 2048 })), "{long:?}");
    let unknown = generate(&mut executor, &greedy(&[5, 4096], 1));
    let expected = StepError::UnknownToken { token: 4096, vocab: 4096 };
    assert!(matches!(&unknown, Err(GenerateError::Step(refused)) if *refused == expected), "{unknown:?}");
    for temperature in [-1.0, f32::NAN] {
        let hot = generate(&mut executor, &Request { sampling: Sampling { temperature, seed: 1 }, ..greedy(&[5], 1) });
        assert!(matches!(hot, Err(GenerateError::Sampling(SamplingError::Temperature(_)))), "{hot:?}");
    }
    // The executor is none the worse for it.
    assert_eq!(generate(&mut executor, &greedy(&[5], 3)).unwrap().0.len(), 3);
}

#[test]
fn a_receiver_that_has_enough_stops_the_generation_at_once() {
    let model = model();
    let prompt = prose(&model, 30);
    let mut executor = fast(&model);
    let pages = PagePool::new(usize::MAX);
    let mut seen = Vec::new();
    let generation = Generation::prefill(&mut executor, &pages, &greedy(&prompt, 100)).unwrap();
    let outcome = generation.run(
        |_| false,
        |token| {
            seen.push(token);
            if seen.len() == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        },
    );
    let outcome = outcome.unwrap();
    assert_eq!((seen.len(), outcome.generated, outcome.finish), (5, 5, Finish::Stopped));
    assert_eq!(seen, generate(&mut executor, &greedy(&prompt, 5)).unwrap().0);
    assert_eq!(pages.usage().live_pages, 0);
}

#[test]
fn a_token_that_ends_the_text_is_counted_and_not_shown() {
    let model = model();
    let prompt = prose(&model, 30);
    let mut executor = fast(&model);
    let (text, _) = generate(&mut executor, &greedy(&prompt, 12)).unwrap();
    let end = text[7];
    let first = text.iter().position(|token| *token == end).unwrap();
    let mut seen = Vec::new();
    let generation = Generation::prefill(&mut executor, &PagePool::new(usize::MAX), &greedy(&prompt, 12)).unwrap();
    let show = |token| {
        seen.push(token);
        ControlFlow::Continue(())
    };
    let outcome = generation.run(|token| token == end, show).unwrap();
    assert_eq!((outcome.generated, outcome.finish), (first + 1, Finish::EndOfGeneration));
    assert_eq!(seen, text[..first]);
}

#[test]
fn a_seed_gives_one_text_however_it_is_computed() {
    let model = model();
    let prompt = prose(&model, 60);
    let sampled = |executor: &mut Executor, seed| {
        let sampling = Sampling { temperature: 0.9, seed };
        generate(executor, &Request { sampling, ..greedy(&prompt, 30) }).unwrap().0
    };
    let text = sampled(&mut fast(&model), 7);
    assert_eq!(text, sampled(&mut fast(&model), 7));
    for kernels in Kernels::available().into_iter().skip(1) {
        assert_eq!(text, sampled(&mut executor(&model, kernels, 1, 7), 7), "{}", kernels.name);
    }
    assert_ne!(text, sampled(&mut fast(&model), 8));
    assert_ne!(text, generate(&mut fast(&model), &greedy(&prompt, 30)).unwrap().0);
}
