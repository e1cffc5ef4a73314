//! Random schedules of every cache operation against a model that keeps every row and finds everything by search.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

use muser_kv::{
    AppendError, CacheSpec, KvLayout, LayerSpec, PAGE_ROWS, PageLayout, PagePool, RewindError, SequenceCache,
};

const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 4;
const CONTEXT: usize = 2000;
const WINDOWS: [Option<u32>; 7] = [Some(32), Some(64), None, Some(100), Some(256), Some(1), Some(65)];

/// K vector, V vector, K scale, V scale of each head of one row, as bytes.
type Row = Vec<[Vec<u8>; 4]>;

/// Everything ever computed for one sequence, and which pages should be held.
#[derive(Clone)]
struct Model {
    kind: KvLayout,
    windows: Vec<Option<u32>>,
    extra: usize,
    /// `[layer][position]`, pending rows included.
    rows: Vec<Vec<Row>>,
    held: Vec<BTreeSet<usize>>,
    committed: usize,
    /// True as long as the history is appends only, so that the pure predictions apply.
    appends_only: bool,
}

impl Model {
    fn new(kind: KvLayout, windows: &[Option<u32>], extra: usize) -> Self {
        let layers = windows.len();
        Self {
            kind,
            windows: windows.to_vec(),
            extra,
            rows: vec![Vec::new(); layers],
            held: vec![BTreeSet::new(); layers],
            committed: 0,
            appends_only: true,
        }
    }

    fn visible(&self, layer: usize, query: usize) -> Range<usize> {
        let mut oldest = 0;
        while self.windows[layer].is_some_and(|window| query - oldest >= window as usize) {
            oldest += 1;
        }
        oldest..query + 1
    }

    /// Keeps `count` rows and the pages that hold any of them.
    fn keep_rows(&mut self, count: usize) {
        for (rows, held) in self.rows.iter_mut().zip(&mut self.held) {
            rows.truncate(count);
            held.retain(|page| page * PAGE_ROWS < count);
        }
    }

    fn append(&mut self, layer: usize, row: Row) {
        let position = self.rows[layer].len();
        self.held[layer].insert(position / PAGE_ROWS);
        self.rows[layer].push(row);
    }

    fn commit(&mut self, accepted: usize) {
        self.keep_rows(self.committed + accepted);
        self.committed += accepted;
        for layer in 0..self.windows.len() {
            let oldest_page = self.visible(layer, self.committed).start / PAGE_ROWS;
            let extra = self.extra;
            self.held[layer].retain(|page| page + extra >= oldest_page);
        }
    }

    /// The first layer that lacks a page which a query at `wanted` sees.
    fn lacking(&self, wanted: usize) -> Option<usize> {
        (0..self.windows.len()).find(|&layer| {
            let mut seen = self.visible(layer, wanted).filter(|&position| position < self.committed);
            !seen.all(|position| self.held[layer].contains(&(position / PAGE_ROWS)))
        })
    }

    /// The page as the byte table has it, from the rows alone.
    fn page(&self, layer: usize, page: usize) -> Vec<u8> {
        let (vector, scale) = sizes(self.kind);
        let rows = self.rows[layer].iter().skip(page * PAGE_ROWS).take(PAGE_ROWS);
        let rows: Vec<&Row> = rows.collect();
        let mut bytes = Vec::new();
        for head in 0..KV_HEADS {
            for (field, size) in [vector, vector, scale, scale].into_iter().enumerate() {
                rows.iter().for_each(|row| bytes.extend_from_slice(&row[head][field]));
                bytes.resize(bytes.len() + (PAGE_ROWS - rows.len()) * size, 0);
            }
        }
        bytes
    }

    fn check(&self, cache: &SequenceCache) {
        assert_eq!(cache.rows(), self.committed);
        let mut bytes = 0;
        for (layer, held) in self.held.iter().enumerate() {
            let pages = cache.pages(layer);
            let got: Vec<usize> = (pages.first_page()..).take(pages.as_slice().len()).collect();
            assert_eq!(got, held.iter().copied().collect::<Vec<_>>(), "pages of layer {layer}");
            for &page in held {
                let expected = self.page(layer, page);
                assert_eq!(pages.get(page), Some(&expected[..]), "page {page} of layer {layer}");
                bytes += expected.len();
            }
        }
        assert_eq!(cache.bytes(), bytes);
        if self.appends_only {
            assert_eq!(bytes, cache.spec().peak_bytes(cache.rows(), cache.pending_rows()));
            if cache.pending_rows() == 0 {
                assert_eq!(bytes, cache.spec().predicted_bytes(cache.rows()));
            }
        }
    }
}

/// Bytes of a vector and of a scale.
fn sizes(kind: KvLayout) -> (usize, usize) {
    match kind {
        KvLayout::Q8 => (HEAD_DIM, 4),
        KvLayout::F16 => (2 * HEAD_DIM, 0),
    }
}

fn random_row(random: &mut fastrand::Rng, kind: KvLayout) -> Row {
    let (vector, scale) = sizes(kind);
    let mut bytes = |count: usize| (0..count).map(|_| random.u8(1..)).collect::<Vec<u8>>();
    (0..KV_HEADS).map(|_| [bytes(vector), bytes(vector), bytes(scale), bytes(scale)]).collect()
}

fn write_row(layout: PageLayout, page: &mut [u8], row: usize, content: &Row) {
    for (head, [k, v, k_scale, v_scale]) in content.iter().enumerate() {
        page[layout.k_rows(head, row..row + 1)].copy_from_slice(k);
        page[layout.v_rows(head, row..row + 1)].copy_from_slice(v);
        page[layout.k_scales(head, row..row + 1)].copy_from_slice(k_scale);
        page[layout.v_scales(head, row..row + 1)].copy_from_slice(v_scale);
    }
}

/// Counts of each outcome, so that a schedule which never reaches one fails.
#[derive(Default, Debug)]
struct Seen {
    committed: usize,
    partly_committed: usize,
    abandoned: usize,
    truncated: usize,
    forked: usize,
    window_gone: usize,
    out_of_pages: usize,
    context_full: usize,
}

struct World {
    random: fastrand::Rng,
    pool: PagePool,
    spec: Arc<CacheSpec>,
    sequences: Vec<(SequenceCache, Model)>,
    seen: Seen,
}

impl World {
    fn new(seed: u64, kind: KvLayout, extra: usize) -> Self {
        let layout = PageLayout::new(kind, KV_HEADS, HEAD_DIM).unwrap();
        let layers = WINDOWS.map(|window| LayerSpec { window }).to_vec();
        let spec = Arc::new(CacheSpec::new(layers, layout, CONTEXT, extra).unwrap());
        let pool = PagePool::new(80 * layout.page_bytes());
        Self { random: fastrand::Rng::with_seed(seed), pool, spec, sequences: Vec::new(), seen: Seen::default() }
    }

    fn step(&mut self) {
        if self.sequences.is_empty() {
            let extra = self.spec.extra_pages();
            let model = Model::new(self.spec.layout().layout(), &WINDOWS, extra);
            self.sequences.push((SequenceCache::new(Arc::clone(&self.spec), self.pool.clone()), model));
        }
        let index = self.random.usize(..self.sequences.len());
        match self.random.u8(..20) {
            0..14 => self.append(index),
            14..17 => self.truncate(index),
            17..19 => self.fork(index),
            _ if self.random.u8(..4) == 0 || self.sequences.len() > 4 => drop(self.sequences.swap_remove(index)),
            _ => {}
        }
        self.sequences.iter().for_each(|(cache, model)| model.check(cache));
        self.check_pool();
    }

    fn append(&mut self, index: usize) {
        let (cache, model) = &mut self.sequences[index];
        let chunk = match self.random.u8(..10) {
            0..5 => 1,
            5..8 => self.random.usize(1..=20),
            8 => self.random.usize(1..=64),
            _ => self.random.usize(65..=300),
        };
        match cache.begin(chunk) {
            Ok(()) => {}
            Err(AppendError::OutOfPages(_)) => {
                self.seen.out_of_pages += 1;
                return;
            }
            Err(refused) => {
                let rows = cache.rows();
                assert_eq!(refused, AppendError::ContextFull { rows, chunk, context: CONTEXT });
                assert!(rows + chunk > CONTEXT);
                self.seen.context_full += 1;
                return;
            }
        }
        assert_eq!(cache.begin(1), Err(AppendError::AlreadyPending { pending: chunk }));
        assert!(matches!(cache.truncate(0), Err(RewindError::RowsPending { .. })));
        for layer in 0..WINDOWS.len() {
            let mut written = Vec::new();
            for position in cache.rows()..cache.rows() + chunk {
                let row = random_row(&mut self.random, model.kind);
                model.append(layer, row.clone());
                written.push((position, row));
            }
            // Rows may be written in any order.
            if self.random.bool() {
                written.reverse();
            }
            let layout = self.spec.layout();
            for (page, bytes) in cache.pending_pages_mut(layer) {
                for (position, row) in written.iter().filter(|(position, _)| position / PAGE_ROWS == page) {
                    write_row(layout, bytes, position % PAGE_ROWS, row);
                }
            }
        }
        model.check(cache);
        let refused = AppendError::CommitBeyondPending { wanted: chunk + 1, pending: chunk };
        assert_eq!(cache.commit(chunk + 1), Err(refused));
        match self.random.u8(..10) {
            0..7 => {
                cache.commit(chunk).unwrap();
                model.commit(chunk);
                self.seen.committed += 1;
            }
            7 | 8 => {
                let accepted = self.random.usize(..chunk);
                cache.commit(accepted).unwrap();
                model.commit(accepted);
                self.seen.partly_committed += 1;
            }
            _ => {
                cache.abandon();
                model.keep_rows(model.committed);
                self.seen.abandoned += 1;
            }
        }
    }

    fn truncate(&mut self, index: usize) {
        let rows = self.target(index);
        let (cache, model) = &mut self.sequences[index];
        let oldest = cache.oldest_rewind();
        match (model.lacking(rows), cache.truncate(rows)) {
            (None, Ok(())) => {
                assert!(rows >= oldest);
                model.keep_rows(rows);
                model.committed = rows;
                model.appends_only = false;
                self.seen.truncated += 1;
            }
            (None, Err(RewindError::OutOfPages(_))) => self.seen.out_of_pages += 1,
            (Some(layer), Err(refused)) => {
                assert!(rows < oldest);
                assert_eq!(refused, RewindError::WindowGone { layer, wanted_rows: rows, oldest_possible: oldest });
                assert_eq!(model.lacking(oldest), None, "the limit itself must be possible");
                self.seen.window_gone += 1;
            }
            (expected, got) => panic!("truncate({rows}): layer lacking is {expected:?}, got {got:?}"),
        }
    }

    fn fork(&mut self, index: usize) {
        let rows = self.target(index) / PAGE_ROWS * PAGE_ROWS;
        let (cache, model) = &self.sequences[index];
        match (model.lacking(rows), cache.fork(rows)) {
            (None, Ok(fork)) => {
                let mut forked = model.clone();
                forked.keep_rows(rows);
                forked.committed = 0;
                forked.commit(rows);
                forked.appends_only = false;
                self.sequences.push((fork, forked));
                self.seen.forked += 1;
            }
            (Some(layer), Err(refused)) => {
                let oldest_possible = cache.oldest_rewind();
                assert_eq!(refused, RewindError::WindowGone { layer, wanted_rows: rows, oldest_possible });
                self.seen.window_gone += 1;
            }
            (expected, got) => panic!("fork({rows}): layer lacking is {expected:?}, got {got:?}"),
        }
    }

    /// A row count to go back to: mostly near the end, sometimes anywhere.
    fn target(&mut self, index: usize) -> usize {
        let rows = self.sequences[index].0.rows();
        let back = if self.random.u8(..4) == 0 { rows } else { rows.min(130) };
        rows - self.random.usize(..=back)
    }

    /// The pool counts each page in use once, however many caches share it, and none without a holder.
    fn check_pool(&self) {
        let mut distinct = HashSet::new();
        for (cache, _) in &self.sequences {
            for layer in 0..WINDOWS.len() {
                distinct.extend(cache.pages(layer).iter().map(<[u8]>::as_ptr));
            }
        }
        let held = self.pool.usage();
        assert_eq!(held.live_pages, distinct.len());
        assert!(held.live_bytes + held.free_bytes <= held.budget_bytes);
    }
}

#[test]
fn every_schedule_leaves_exactly_the_pages_and_bytes_that_the_rows_define() {
    for (seed, kind, extra) in
        [(1, KvLayout::Q8, 1), (2, KvLayout::F16, 1), (3, KvLayout::Q8, 0), (4, KvLayout::F16, 3)]
    {
        let mut world = World::new(seed, kind, extra);
        for _ in 0..2000 {
            world.step();
        }
        let seen = &world.seen;
        let counts = [seen.committed, seen.partly_committed, seen.abandoned, seen.truncated, seen.forked];
        assert!(counts.iter().all(|&count| count > 30), "{seen:?}");
        assert!(seen.window_gone > 20 && seen.out_of_pages > 20, "{seen:?}");
        let pool = world.pool.clone();
        drop(world);
        assert_eq!(pool.usage().live_pages, 0);
    }
}

#[test]
fn appends_in_any_chunks_hold_the_predicted_pages_up_to_the_end_of_the_context() {
    for seed in 0..6 {
        let mut world = World::new(seed, KvLayout::Q8, 1);
        world.pool = PagePool::new(usize::MAX);
        let model = Model::new(KvLayout::Q8, &WINDOWS, 1);
        world.sequences.push((SequenceCache::new(Arc::clone(&world.spec), world.pool.clone()), model));
        while world.seen.context_full < 3 {
            world.append(0);
            let (cache, model) = &world.sequences[0];
            model.check(cache);
        }
    }
}
