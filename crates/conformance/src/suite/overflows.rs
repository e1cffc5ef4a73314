//! A value that is not finite concerns its own sequence alone, and is reported with its place.

use std::ops::Range;

use muser_kv::KvLayout;
use muser_model::{ForwardError, LogitsWanted, Place, SequenceInput};
use muser_synthetic::small::LlamaOptions;
use muser_weights::gguf::Gguf;

use super::run::{LAYOUTS, Run, Snapshot, Way};
use crate::backend::{Backend, CaseError, Comparison, Subject};
use crate::models::{FLOATS, generated, llama_spec, tokens};
use crate::tally::BitTally;

const BIASED: LlamaOptions = LlamaOptions { tied_output: false, rope_factors: false, qkv_biases: true };
/// The only token with anything in the first element of its embedding, in files of [`with_a_bad_token`].
const BAD: u32 = 300;

/// One element of a tensor of f32, and its new value.
struct Element {
    index: usize,
    value: f32,
}

/// Sets elements of a tensor of f32 in a generated file.
fn set(file: &mut [u8], tensor: &str, elements: impl IntoIterator<Item = Element>) {
    let range = bytes_of(file, tensor);
    for Element { index, value } in elements {
        file[range.start + 4 * index..][..4].copy_from_slice(&value.to_le_bytes());
    }
}

/// Place of a tensor's bytes in a generated file, which has it.
fn bytes_of(file: &[u8], tensor: &str) -> Range<usize> {
    let parsed = Gguf::parse(file).expect("a generated file");
    let found = parsed.tensors().find(|found| found.name() == tensor).expect("a tensor of every llama");
    let bytes = found.bytes().expect("bytes of a generated file");
    let start = bytes.as_ptr().addr() - file.as_ptr().addr();
    start..start + bytes.len()
}

/// A model in which the factor `f32::MAX` of `norm` meets zero for every token but [`BAD`], whose element overflows there.
fn with_a_bad_token(norm: &str) -> Vec<u8> {
    let mut file = generated(&llama_spec(&FLOATS, BIASED, 3, 256), &FLOATS);
    let element = |index, value| Element { index, value };
    // Widths of `FLOATS`: 64 of the model, 4 heads of 32, 96 of the feed-forward network.
    let first = |token| element(64 * token, if token == BAD as usize { 9.0 } else { 0.0 });
    set(&mut file, "token_embd.weight", (0..301).map(first));
    for layer in 0..3 {
        // The first row of these makes the first element of the residual stream: nothing is added to it.
        set(&mut file, &format!("blk.{layer}.attn_output.weight"), (0..128).map(|column| element(column, 0.0)));
        set(&mut file, &format!("blk.{layer}.ffn_down.weight"), (0..96).map(|column| element(column, 0.0)));
    }
    set(&mut file, norm, [element(0, f32::MAX)]);
    file
}

/// A model whose layer `layer` has a key of 1e6.
fn with_a_large_key(layer: usize) -> Vec<u8> {
    let mut file = generated(&llama_spec(&FLOATS, BIASED, 2, 256), &FLOATS);
    set(&mut file, &format!("blk.{layer}.attn_k.bias"), [Element { index: 3, value: 1e6 }]);
    file
}

/// `count` tokens below `BAD`.
fn good(count: usize, seed: u64) -> Vec<u32> {
    tokens(count, seed).into_iter().map(|token| token % BAD).collect()
}

pub(super) fn an_overflow_fails_its_own_sequence_and_names_layer_and_position<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    for (norm, layer) in [("blk.0.attn_norm.weight", 0), ("blk.1.ffn_norm.weight", 1), ("blk.2.attn_norm.weight", 2)] {
        let subject = on.load_bytes(format!("overflow in {norm}"), with_a_bad_token(norm))?;
        neighbours(&subject, Place::Layer(layer), tally)?;
    }
    Ok(())
}

pub(super) fn an_overflow_in_the_head_fails_from_its_row_on<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let subject = on.load_bytes("overflow in the head", with_a_bad_token("output_norm.weight"))?;
    neighbours(&subject, Place::Head, tally)
}

fn neighbours<B: Backend>(subject: &Subject<'_, B>, place: Place, tally: &mut BitTally) -> Result<(), CaseError> {
    for layout in LAYOUTS {
        for variant in subject.variants() {
            check_neighbours(subject, layout, Way { variant, chunk: 128 }, place, tally)?;
        }
    }
    Ok(())
}

/// A step of three sequences of which the second meets the bad token at position 37, and then goes on as if it had never tried.
fn check_neighbours<B: Backend>(
    subject: &Subject<'_, B>,
    layout: KvLayout,
    way: Way,
    place: Place,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let what = format!("{}, {layout:?} cache", subject.describe(way.variant));
    let mut prompts = [good(50, 40), good(60, 41), good(44, 42)];
    prompts[1][37] = BAD;
    let mut executor = subject.executor(way.variant, way.chunk)?;
    let mut runs = Vec::new();
    for prompt in &prompts {
        let mut run = Run::begin(&executor, layout)?;
        run.extend(&mut executor, &prompt[..20], way.chunk)?;
        runs.push(run);
    }
    let before = Snapshot::of(&runs[1].cache);
    let (mut batch, mut logits) = (Vec::new(), Vec::new());
    for (run, prompt) in runs.iter_mut().zip(&prompts) {
        batch.push(SequenceInput::new(&mut run.cache, &prompt[20..], LogitsWanted::All));
        logits.push(&mut run.logits);
    }
    executor.forward(&mut batch, &mut |row, z| logits[row.sequence].extend_from_slice(z))?;
    let outcomes: Vec<_> = batch.iter().map(|input| input.outcome).collect();
    let failed = Err(ForwardError { position: 37, place });
    tally.equal(&format_args!("{what}: outcomes"), &vec![Ok(()), failed, Ok(())], &outcomes);
    // A sequence that failed in a layer has no logits; one that fails in the head has those of the rows before.
    let rows = if place == Place::Head { 37 } else { 20 };
    tally.equal(&format_args!("{what}: logits of the failed sequence"), &rows, &(runs[1].logits.len() / runs[1].vocab));
    let unchanged = Snapshot::of(&runs[1].cache) == before;
    tally.equal(&format_args!("{what}: the failed sequence's cache is as before"), &true, &unchanged);

    runs[1].truncate(20)?;
    prompts[1][37] = 7;
    runs[1].extend(&mut executor, &prompts[1][20..], way.chunk)?;
    for (number, (run, prompt)) in runs.iter().zip(&prompts).enumerate() {
        let want = subject.truth(layout, prompt)?;
        run.compare(&want, &format_args!("{what}, sequence {number}"), tally);
        tally.equal(&format_args!("{what}, sequence {number}: logits"), &want.logits.len(), &run.logits.len());
    }
    Ok(())
}

pub(super) fn logits_that_nobody_wants_fail_nothing<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let subject = on.load_bytes("an unwanted overflow", with_a_bad_token("output_norm.weight"))?;
    let mut prompt = good(40, 43);
    prompt[30] = BAD;
    for variant in subject.variants() {
        let mut cache = subject.new_cache(KvLayout::Q8)?;
        let mut batch = [SequenceInput::new(&mut cache, &prompt, LogitsWanted::Last)];
        let mut rows = 0;
        subject.executor(variant, 64)?.forward(&mut batch, &mut |_, _| rows += 1)?;
        tally.equal(&subject.describe(variant), &(Ok(()), 1), &(batch[0].outcome, rows));
    }
    Ok(())
}

pub(super) fn a_key_beyond_f16_fails_where_pages_are_f16_and_only_there<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let subject = on.load_bytes("a large key", with_a_large_key(1))?;
    let prompt = tokens(20, 44);
    for variant in subject.variants() {
        let what = subject.describe(variant);
        let run = subject.run(KvLayout::Q8, Way { variant, chunk: 20 }, &prompt)?;
        run.compare(&subject.truth(KvLayout::Q8, &prompt)?, &what, tally);
        let mut cache = subject.new_cache(KvLayout::F16)?;
        let mut batch = [SequenceInput::new(&mut cache, &prompt, LogitsWanted::All)];
        let mut rows = 0;
        subject.executor(variant, 20)?.forward(&mut batch, &mut |_, _| rows += 1)?;
        let failed = Err(ForwardError { position: 0, place: Place::Layer(1) });
        tally.equal(&what, &(failed, 0), &(batch[0].outcome, rows));
        tally.equal(&what, &[0; 3], &[cache.rows(), cache.pending_rows(), cache.bytes()]);
    }
    Ok(())
}

pub(super) fn an_error_of_an_earlier_range_of_layers_stands<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let subject = on.load_bytes("an early large key", with_a_large_key(0))?;
    let prompt = tokens(8, 45);
    for variant in subject.variants() {
        let mut executor = subject.executor(variant, 8)?;
        let mut cache = subject.new_cache(KvLayout::F16)?;
        let mut hidden = executor.embed(&prompt)?;
        let mut batch = [SequenceInput::new(&mut cache, &prompt, LogitsWanted::None)];
        executor.run_layers(&mut batch, 0..1, &mut hidden)?;
        executor.run_layers(&mut batch, 1..2, &mut hidden)?;
        let failed = Err(ForwardError { position: 0, place: Place::Layer(0) });
        tally.equal(&subject.describe(variant), &failed, &batch[0].outcome);
    }
    Ok(())
}
