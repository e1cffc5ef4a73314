//! Computing a prompt in one of many ways, and comparing what came of it bit by bit.

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_kernels::attention::AttentionKernels;
use muser_kernels::cpu::Kernels;
use muser_kernels::rows::RowKernels;
use muser_kv::{KvLayout, PAGE_ROWS, PagePool, SequenceCache};
use muser_model::{Executor, LogitsWanted, Model, SequenceInput};

/// Both forms of the cache.
pub const LAYOUTS: [KvLayout; 2] = [KvLayout::Q8, KvLayout::F16];

/// How a prompt is computed.
#[derive(Clone, Copy)]
pub struct Way {
    /// Which implementation.
    pub kernels: Kernels,
    /// How many threads.
    pub threads: usize,
    /// Most rows of a step.
    pub chunk: usize,
}

/// What came of a prompt.
pub struct Run {
    /// `[tokens, vocab]`.
    pub logits: Vec<f32>,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// The cache afterwards.
    pub cache: SequenceCache,
}

impl Way {
    /// The base line: portable code, one thread, everything at once.
    pub fn plain(rows: usize) -> Self {
        Self { kernels: Kernels::scalar(), threads: 1, chunk: rows }
    }

    /// An executor that computes in this way.
    pub fn executor(&self, model: &Arc<Model>) -> Executor {
        let (threads, rows) = (NonZeroUsize::new(self.threads).unwrap(), NonZeroUsize::new(self.chunk).unwrap());
        Executor::new(Arc::clone(model), self.kernels, threads, rows).unwrap()
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} kernels, {} threads, chunks of {}", self.kernels.name, self.threads, self.chunk)
    }
}

/// Every implementation that this machine can run, the portable one first. Twins of single operations whose instruction set
/// has no matrix products yet are put beside portable products.
pub fn kernels() -> Vec<Kernels> {
    let mut all = Kernels::available();
    for attention in AttentionKernels::available().into_iter().skip(1) {
        if all.iter().all(|kernels| kernels.attention.name != attention.name) {
            all.push(Kernels { name: attention.name, attention, ..Kernels::scalar() });
        }
    }
    for rows in RowKernels::available().into_iter().skip(1) {
        if all.iter().all(|kernels| kernels.rows.name != rows.name) {
            all.push(Kernels { name: rows.name, rows, ..Kernels::scalar() });
        }
    }
    if all.len() == 1 {
        eprintln!("only portable kernels run on this machine: nothing else was compared with them");
    }
    all
}

/// The fastest of [`kernels`].
pub fn fastest() -> Kernels {
    kernels().pop().unwrap()
}

/// An empty cache of its own pool.
pub fn new_cache(model: &Model, layout: KvLayout) -> SequenceCache {
    SequenceCache::new(model.cache_spec(layout, model.config().context).unwrap(), PagePool::new(usize::MAX))
}

/// Computes `tokens` from an empty cache.
pub fn run(model: &Arc<Model>, layout: KvLayout, way: &Way, tokens: &[u32]) -> Run {
    let mut run = Run { logits: Vec::new(), vocab: model.config().vocab, cache: new_cache(model, layout) };
    extend(&mut way.executor(model), &mut run, tokens, way.chunk);
    run
}

/// Appends `tokens` to a run, `chunk` at a time. Every step must give its rows in order, and the cache must then hold as
/// many bytes as its specification predicts.
pub fn extend(executor: &mut Executor, run: &mut Run, tokens: &[u32], chunk: usize) {
    for tokens in tokens.chunks(chunk) {
        let mut next = run.cache.rows();
        assert_eq!(run.logits.len(), next * run.vocab);
        let mut batch = [SequenceInput::new(&mut run.cache, tokens, LogitsWanted::All)];
        let logits = &mut run.logits;
        let step = executor.forward(&mut batch, &mut |row, z| {
            assert_eq!((row.sequence, row.position as usize), (0, next));
            next += 1;
            logits.extend_from_slice(z);
        });
        step.unwrap();
        batch[0].outcome.unwrap();
        assert_eq!(next, run.cache.rows());
        assert_eq!(run.cache.bytes(), run.cache.spec().predicted_bytes(run.cache.rows()), "after {next} rows");
    }
}

impl Run {
    /// Fails unless the logits of all positions have the bits of those that `base` has for them, and the caches' pages too.
    pub fn assert_same_as(&self, base: &Run, what: &dyn std::fmt::Display) {
        assert_same_logits(&self.logits, &base.logits[..self.logits.len().min(base.logits.len())], self.vocab, what);
        assert_same_pages(&self.cache, &base.cache, what);
    }

    /// Takes rows back, and their logits with them.
    pub fn truncate(&mut self, rows: usize) {
        self.cache.truncate(rows).unwrap();
        self.logits.truncate(rows * self.vocab);
    }
}

/// Fails at the first position whose logits differ in a bit. Both `[positions, vocab]`.
pub fn assert_same_logits(got: &[f32], want: &[f32], vocab: usize, what: &dyn std::fmt::Display) {
    assert_eq!(got.len(), want.len(), "{what}: number of logits");
    let differs = |(got, want): (&[f32], &[f32])| got.iter().zip(want).position(|(a, b)| a.to_bits() != b.to_bits());
    let rows = || got.chunks_exact(vocab).zip(want.chunks_exact(vocab));
    if let Some((position, token)) = rows().enumerate().find_map(|(row, pair)| Some((row, differs(pair)?))) {
        let count = rows().filter(|pair| differs(*pair).is_some()).count();
        let at = position * vocab + token;
        panic!(
            "{what}: position {position}, token {token}: {:e} instead of {:e}; {count} of {} positions differ",
            got[at],
            want[at],
            got.len() / vocab
        );
    }
}

/// Fails if a page that both caches hold, and whose rows both have, differs in a byte.
pub fn assert_same_pages(got: &SequenceCache, want: &SequenceCache, what: &dyn std::fmt::Display) {
    let rows = got.rows().min(want.rows());
    // A page that is not full holds the same only after the same number of rows.
    let end = if got.rows() == want.rows() { rows.div_ceil(PAGE_ROWS) } else { rows / PAGE_ROWS };
    for layer in 0..got.spec().layers().len() {
        let (got, want) = (got.pages(layer), want.pages(layer));
        let start = got.first_page().max(want.first_page());
        for page in start..end {
            let same = got.get(page).unwrap() == want.get(page).unwrap();
            assert!(same, "{what}: layer {layer}, page {page} of the cache differs");
        }
    }
}

/// All that a cache holds, for telling whether something changed it.
#[derive(PartialEq)]
pub struct Snapshot {
    rows: usize,
    pending_rows: usize,
    /// Per layer, the first page's index and the pages' bytes.
    layers: Vec<(usize, Vec<Vec<u8>>)>,
}

/// What `cache` holds now.
pub fn snapshot(cache: &SequenceCache) -> Snapshot {
    let pages = (0..cache.spec().layers().len()).map(|layer| cache.pages(layer));
    let layers = pages.map(|pages| (pages.first_page(), pages.iter().map(<[u8]>::to_vec).collect())).collect();
    Snapshot { rows: cache.rows(), pending_rows: cache.pending_rows(), layers }
}
