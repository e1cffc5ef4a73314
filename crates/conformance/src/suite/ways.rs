//! Ways through an executor that give the same bits, for any model: chunks, company, rewinds, drafts, forks, pages that were
//! carried here, and layers in ranges.

use muser_kv::{DetachedCache, KvLayout, PAGE_ROWS, PagePool, PageSet};
use muser_model::{Device, Executor, LogitsWanted, SequenceInput};

use super::run::{LAYOUTS, Run, compare_pages, step};
use crate::backend::{Backend, CaseError, Subject};
use crate::tally::BitTally;

/// Most rows of a step.
const ROWS_MAX: usize = 512;
/// Rows of each of three sequences in the steps of a schedule, repeated until all are used up: prefills beside decodes,
/// blocks of one row, borders of pages and of the 16 rows of an attention job at odd places.
const STEPS: [[usize; 3]; 6] = [[40, 1, 17], [1, 1, 1], [0, 64, 31], [16, 15, 0], [63, 0, 2], [1, 33, 1]];

/// Size of a comparison of one model.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Tokens of the longest prompt, as far as the context has room.
    pub tokens: usize,
    /// Repetitions with other prompts.
    pub rounds: u64,
}

/// A prompt, and what the baseline made of it.
struct Truth {
    tokens: Vec<u32>,
    run: Run,
}

/// Computes random prompts in every way, on every variant and in both layouts, and compares each with the baseline.
///
/// # Errors
/// [`CaseError`] if a way cannot be gone at all.
pub fn compare_model<B: Backend>(
    subject: &Subject<'_, B>,
    effort: Effort,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let (context, vocab) = (subject.config().context, subject.config().vocab);
    let vocab = u32::try_from(vocab).unwrap_or(u32::MAX);
    let longest = effort.tokens.min(context);
    for round in 0..effort.rounds {
        let mut random = fastrand::Rng::with_seed(round + 11);
        for layout in LAYOUTS {
            let mut truths = Vec::new();
            for number in 0..3 {
                let count = (longest - (31 * number).min(longest / 2)).max(1);
                let tokens = (0..count).map(|_| random.u32(0..vocab)).collect();
                truths.push(Truth::of(subject, layout, tokens)?);
            }
            for variant in subject.variants() {
                let mut executor = subject.executor(variant, ROWS_MAX)?;
                let what = format!("{}, {layout:?} cache", subject.describe(variant));
                chunked(&mut executor, &truths[0], &what, tally)?;
                in_company(&mut executor, &truths, &what, tally)?;
                let half = truths[0].tokens.len() / 2;
                for keep in [half, half / PAGE_ROWS * PAGE_ROWS] {
                    rewound(&mut executor, &truths[0], keep, &what, tally)?;
                }
                drafted(&mut executor, &truths[1], &what, tally)?;
                forked(&mut executor, &truths[0], &what, tally)?;
                carried_on(subject, &mut executor, &truths[0], &what, tally)?;
                staged(subject, &mut executor, &truths[2], &what, tally)?;
            }
        }
    }
    Ok(())
}

impl Truth {
    /// Computes `tokens` on the baseline.
    fn of<B: Backend>(subject: &Subject<'_, B>, layout: KvLayout, tokens: Vec<u32>) -> Result<Self, CaseError> {
        Ok(Self { run: subject.truth(layout, &tokens)?, tokens })
    }

    fn layout(&self) -> KvLayout {
        self.run.cache.spec().layout().layout()
    }

    /// The same tokens from `from` on, each replaced by its successor in the vocabulary: a continuation that is wrong
    /// everywhere.
    fn wrong_tokens(&self, from: usize, count: usize) -> Vec<u32> {
        let vocab = u32::try_from(self.run.vocab).unwrap_or(u32::MAX);
        self.tokens[from..].iter().take(count).map(|token| (token + 1) % vocab).collect()
    }
}

/// Chunks of many sizes. One by one is slow on a whole prompt, and the same at every position.
fn chunked<D: Device>(
    executor: &mut Executor<D>,
    truth: &Truth,
    what: &str,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    for chunk in [ROWS_MAX, 1, 7, 64, 65, 130, 200] {
        let count = truth.tokens.len().min(if chunk < 16 { 16 * chunk + 70 } else { usize::MAX });
        let mut run = Run::begin(executor, truth.layout())?;
        run.extend(executor, &truth.tokens[..count], chunk)?;
        run.compare(&truth.run, &format_args!("{what}, chunks of {chunk}"), tally);
    }
    Ok(())
}

/// Three sequences in common steps: prompts beside single rows, in either order.
fn in_company<D: Device>(
    executor: &mut Executor<D>,
    truths: &[Truth],
    what: &str,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let begin = |truth: &Truth| Run::begin(executor, truth.layout());
    let mut runs = truths.iter().map(begin).collect::<Result<Vec<Run>, CaseError>>()?;
    let is_going = |runs: &[Run]| runs.iter().zip(truths).any(|(run, truth)| run.cache.rows() < truth.tokens.len());
    for (number, rows) in STEPS.iter().cycle().enumerate() {
        if !is_going(&runs) {
            break;
        }
        let mut parts: Vec<(&mut Run, &[u32])> = Vec::new();
        for ((run, truth), rows) in runs.iter_mut().zip(truths).zip(rows) {
            let rest = &truth.tokens[run.cache.rows()..];
            let rows = *rows.min(&rest.len());
            if rows > 0 {
                parts.push((run, &rest[..rows]));
            }
        }
        if number % 2 == 1 {
            parts.reverse();
        }
        step(executor, &mut parts)?;
    }
    for (number, (run, truth)) in runs.iter().zip(truths).enumerate() {
        run.compare(&truth.run, &format_args!("{what}, sequence {number} in company"), tally);
    }
    Ok(())
}

/// A wrong continuation of up to a page is taken back to `keep` rows, which a cache always allows; then the right one follows.
fn rewound<D: Device>(
    executor: &mut Executor<D>,
    truth: &Truth,
    keep: usize,
    what: &str,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let mut run = Run::begin(executor, truth.layout())?;
    run.extend(executor, &truth.tokens[..keep], 48)?;
    run.extend(executor, &truth.wrong_tokens(keep, PAGE_ROWS), 48)?;
    run.truncate(keep)?;
    run.extend(executor, &truth.tokens[keep..], 150)?;
    run.compare(&truth.run, &format_args!("{what}, back to {keep}"), tally);
    Ok(())
}

/// Drafts of up to 16 tokens of which a few are right. The others are taken back, or never committed.
fn drafted<D: Device>(
    executor: &mut Executor<D>,
    truth: &Truth,
    what: &str,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let end = truth.tokens.len().min(200);
    let start = end * 3 / 5;
    let mut random = fastrand::Rng::with_seed(13);
    let mut run = Run::begin(executor, truth.layout())?;
    run.extend(executor, &truth.tokens[..start], executor.rows_max())?;
    while run.cache.rows() < end {
        let start = run.cache.rows();
        let right = random.usize(1..=4).min(end - start);
        let mut draft = truth.tokens[start..start + right].to_vec();
        draft.extend(truth.wrong_tokens(start + right, random.usize(0..12)));
        if random.bool() {
            run.extend_in_part(executor, &draft, right)?;
        } else {
            run.extend(executor, &draft, draft.len())?;
            run.truncate(start + right)?;
        }
    }
    run.compare(&truth.run, &format_args!("{what}, drafts"), tally);
    Ok(())
}

/// Two forks of one prefix go on by turns, so that each would see what the other writes into a page they share. Both come
/// back to the truth of their own prompt, one after a wrong turn.
fn forked<D: Device>(
    executor: &mut Executor<D>,
    truth: &Truth,
    what: &str,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let prefix = (truth.tokens.len() / 2).min(192) / PAGE_ROWS * PAGE_ROWS;
    let end = truth.tokens.len().min(prefix + 60);
    let mut right = Run::begin(executor, truth.layout())?;
    right.extend(executor, &truth.tokens[..prefix], 64)?;
    let fork = right.cache.fork(prefix)?;
    let mut wrong = Run { logits: right.logits.clone(), vocab: right.vocab, cache: fork };
    for from in (prefix..end).step_by(10) {
        let part = &truth.tokens[from..(from + 10).min(end)];
        let turned = truth.wrong_tokens(from, part.len());
        wrong.extend(executor, &turned, 10)?;
        right.extend(executor, part, 10)?;
    }
    right.compare(&truth.run, &format_args!("{what}, fork"), tally);
    wrong.truncate(prefix)?;
    wrong.extend(executor, &truth.tokens[prefix..end], 64)?;
    wrong.compare(&truth.run, &format_args!("{what}, fork after a wrong turn"), tally);
    Ok(())
}

/// A prefix whose pages came from the baseline's cache.
fn carried_on<B: Backend>(
    subject: &Subject<'_, B>,
    executor: &mut Executor<B::Device>,
    truth: &Truth,
    what: &str,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let rows = truth.tokens.len() / PAGE_ROWS / 2 * PAGE_ROWS;
    if rows == 0 {
        return Ok(());
    }
    let here = subject.truth(truth.layout(), &truth.tokens[..rows])?.cache;
    let spec = std::sync::Arc::clone(here.spec());
    let mut detached = DetachedCache::new(spec, PagePool::new(usize::MAX), rows, PageSet::Held)?;
    for layer in 0..here.spec().layers().len() {
        for page in detached.expected_pages(layer) {
            detached.install_page(layer, page, here.export_page(layer, page)?.bytes)?;
        }
    }
    let mut run = Run { logits: Vec::new(), vocab: truth.run.vocab, cache: detached.finish()? };
    run.extend(executor, &truth.tokens[rows..], 90)?;
    run.compare_from(rows, &truth.run, &format_args!("{what}, carried on from {rows}"), tally);
    Ok(())
}

/// Residual streams after every layer against the baseline's; the same by ranges of layers; and the logits of the last row.
fn staged<B: Backend>(
    subject: &Subject<'_, B>,
    executor: &mut Executor<B::Device>,
    truth: &Truth,
    what: &str,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let (layout, layers, hidden) = (truth.layout(), subject.config().layers.len(), subject.config().hidden);
    let tokens = &truth.tokens[..truth.tokens.len().min(150)];
    let mut base = subject.base_executor(tokens.len())?;
    let mut base_cache = subject.new_cache(layout)?;
    let mut cache = subject.new_cache(layout)?;
    let mut parts = subject.new_cache(layout)?;
    for tokens in tokens.chunks(75) {
        let want = captured(&mut base, SequenceInput::new(&mut base_cache, tokens, LogitsWanted::None))?;
        let got = captured(executor, SequenceInput::new(&mut cache, tokens, LogitsWanted::Last))?;
        for (layer, (want, got)) in want.streams.iter().zip(&got.streams).enumerate() {
            tally.compare(&format_args!("{what}: stream after layer {layer}"), hidden, want, got);
        }
        let row = cache.rows() - 1;
        let last = &truth.run.logits[row * truth.run.vocab..][..truth.run.vocab];
        tally.compare(&format_args!("{what}: last logits of {} rows", row + 1), truth.run.vocab, last, &got.logits);
        let mut stream = executor.embed(tokens)?;
        let middle = layers.div_ceil(2);
        for range in [0..middle, middle..layers] {
            let mut batch = [SequenceInput::new(&mut parts, tokens, LogitsWanted::None)];
            let end = range.end;
            executor.run_layers(&mut batch, range, &mut stream)?;
            batch[0].outcome?;
            tally.compare(&format_args!("{what}: layers 0..{end} by ranges"), hidden, &want.streams[end - 1], &stream);
        }
        if parts.commit(tokens.len()).is_err() {
            tally.failed(&format_args!("{what}: ranges of layers"), &"the rows are not pending");
        }
    }
    compare_pages(&cache, &truth.run.cache, &format_args!("{what}, captured"), tally);
    compare_pages(&parts, &cache, &format_args!("{what}, layers by ranges"), tally);
    Ok(())
}

/// Residual streams and logits of a step.
struct Captured {
    /// Residual stream after each layer.
    streams: Vec<Vec<f32>>,
    logits: Vec<f32>,
}

fn captured<D: Device>(executor: &mut Executor<D>, input: SequenceInput<'_>) -> Result<Captured, CaseError> {
    let all: Vec<usize> = (0..executor.model().config().layers.len()).collect();
    let (mut streams, mut logits) = (Vec::new(), Vec::new());
    let mut batch = [input];
    let mut keep = |_: usize, rows: &[f32]| streams.push(rows.to_vec());
    executor.forward_capturing(&mut batch, &all, &mut keep, &mut |_, z| logits.extend_from_slice(z))?;
    batch[0].outcome?;
    Ok(Captured { streams, logits })
}
