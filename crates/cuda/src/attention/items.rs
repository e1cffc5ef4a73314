//! Cutting the attention of a step into items, the work of one block for one key-value head (`kernels/attend.cuh`).

use std::ops::Range;

use muser_kernels::attention::{PAGE_ROWS, SEGMENT_PAGES};

use super::StepSequence;
use super::prefill::{PrefillItems, PrefillLimits};

/// Queries of an item: (row, head of the group) pairs of one sequence in order.
pub(crate) const TILE_QUERIES: usize = 16;
/// 32-bit words of an item and of a tile to merge on the device.
pub(super) const ITEM_WORDS: usize = 6;
/// Item counts are padded to a multiple of this with items without pages, so that the shape of a launch seldom changes.
const PADDING: usize = 8;
/// Items of a device that are few enough to be cut page by page: about two per multiprocessor and key-value head.
const PAGE_ITEMS_MAX: usize = 528;
/// Items of a sequence, over all key-value heads, that fill a device without being cut further.
const WHOLE_ITEMS_MIN: usize = 264;

/// Part of a tile's pages that an item covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All of them.
    Whole = 0,
    /// Those of one segment.
    Segment = 1,
    /// One.
    Page = 2,
}

/// Items of a step, and the tiles whose partial results are to be merged.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// [`ITEM_WORDS`] words each.
    pub words: Vec<u32>,
    /// As many words each.
    pub merge_words: Vec<u32>,
    /// Partial results of all items.
    pub partials: usize,
    /// Work of the sequences with many rows, where the device has kernels for it; the rest is in `words`.
    pub prefill: PrefillItems,
}

/// Facts that the cutting depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cutting {
    /// Query heads per key-value head.
    pub group: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Positions a query sees, its own included.
    pub window: Option<u32>,
    /// Partial results that there is room for.
    pub partials_max: usize,
    /// Items that there is room for.
    pub items_max: usize,
    /// Room for the work of sequences with many rows.
    pub prefill: PrefillLimits,
}

impl Cutting {
    /// Pages of which a query at one of `positions` sees a row.
    pub fn visible_pages(&self, positions: Range<usize>) -> Range<usize> {
        let first = self.window.map_or(0, |window| (positions.start + 1).saturating_sub(window as usize));
        first / PAGE_ROWS..(positions.end - 1) / PAGE_ROWS + 1
    }

    /// Tiles of a sequence of `rows` rows.
    pub fn tiles(&self, rows: usize) -> usize {
        (rows * self.group).div_ceil(TILE_QUERIES)
    }

    /// The pages of which one of `count` queries of `sequence` from `first` on sees a row.
    pub fn tile_pages(&self, sequence: &StepSequence, first: usize, count: usize) -> Range<usize> {
        let end = (first + count).min(sequence.rows * self.group);
        let rows = first / self.group..(end - 1) / self.group + 1;
        self.visible_pages(sequence.position + rows.start..sequence.position + rows.end)
    }
}

/// Partial results to merge: those of one tile of [`TILE_QUERIES`].
#[derive(Clone, Copy, Debug)]
pub(super) struct MergeTile {
    pub sequence: usize,
    pub first_query: usize,
    /// Index of the first partial result.
    pub partial: usize,
    pub partials: usize,
    /// First page of the first partial result.
    pub first_page: usize,
    pub kind: Kind,
}

impl Items {
    /// Cuts the work of `sequences` into items, reusing the memory of `self`.
    pub fn cut(&mut self, cutting: &Cutting, sequences: &[StepSequence]) {
        self.words.clear();
        self.merge_words.clear();
        self.partials = 0;
        self.prefill.clear();
        let mut rest = Vec::with_capacity(sequences.len());
        for (number, sequence) in sequences.iter().enumerate() {
            match self.prefill.cut(cutting, number, sequence, self.partials) {
                Some((merges, partials)) => {
                    merges.iter().for_each(|merge| self.push_merge(*merge));
                    self.partials = partials;
                }
                None => rest.push((number, sequence)),
            }
        }
        let pages: usize = rest
            .iter()
            .map(|(_, sequence)| cutting.tiles(sequence.rows) * cutting.visible_pages(sequence.positions()).len())
            .sum();
        let by_page = pages * cutting.kv_heads <= PAGE_ITEMS_MAX;
        let mut items_left = cutting.items_max - rest.iter().map(|(_, s)| cutting.tiles(s.rows)).sum::<usize>();
        for (number, sequence) in rest {
            let tiles = cutting.tiles(sequence.rows);
            let most = cutting.visible_pages(sequence.positions());
            let kind = match () {
                () if most.len() == 1 || tiles * cutting.kv_heads >= WHOLE_ITEMS_MIN => Kind::Whole,
                () if by_page => Kind::Page,
                () => Kind::Segment,
            };
            let partials = tiles * parts(kind, &most).count();
            let room = self.partials + partials <= cutting.partials_max && partials <= items_left;
            let kind = if room { kind } else { Kind::Whole };
            if kind != Kind::Whole {
                items_left -= partials;
            }
            for tile in 0..tiles {
                let pages = cutting.tile_pages(sequence, tile * TILE_QUERIES, TILE_QUERIES);
                self.cut_tile(number, tile, kind, pages);
            }
        }
        while !self.count().is_multiple_of(PADDING) && self.count() < cutting.items_max {
            self.words.extend([0; ITEM_WORDS]);
        }
    }

    fn cut_tile(&mut self, sequence: usize, tile: usize, kind: Kind, pages: Range<usize>) {
        let first_query = tile * TILE_QUERIES;
        let partial = self.partials;
        let mut partials = 0;
        for part in parts(kind, &pages) {
            let words = [sequence, first_query, part.start, part.len(), kind as usize, partial + partials];
            self.words.extend(words.map(word));
            partials += usize::from(kind != Kind::Whole);
        }
        if kind != Kind::Whole {
            self.push_merge(MergeTile { sequence, first_query, partial, partials, first_page: pages.start, kind });
        }
    }

    fn push_merge(&mut self, merge: MergeTile) {
        let MergeTile { sequence, first_query, partial, partials, first_page, kind } = merge;
        self.partials = self.partials.max(partial + partials);
        self.merge_words.extend([sequence, first_query, partial, partials, first_page, kind as usize].map(word));
    }

    /// Items, padding included.
    pub fn count(&self) -> usize {
        self.words.len() / ITEM_WORDS
    }

    /// Tiles to merge.
    pub fn merges(&self) -> usize {
        self.merge_words.len() / ITEM_WORDS
    }
}

/// The runs of pages that the items of a tile cover.
pub(super) fn parts(kind: Kind, pages: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let unit = match kind {
        Kind::Whole => usize::MAX,
        Kind::Segment => SEGMENT_PAGES,
        Kind::Page => 1,
    };
    let (mut start, end) = (pages.start, pages.end);
    std::iter::from_fn(move || {
        let from = start;
        start = (from / unit + 1).saturating_mul(unit).min(end);
        (from < end).then_some(from..start)
    })
}

pub(super) fn word(value: usize) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit a word of the plan"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUTTING: Cutting = Cutting {
        group: 16,
        kv_heads: 2,
        window: None,
        partials_max: 1000,
        items_max: 2000,
        prefill: PrefillLimits::NONE,
    };

    fn sequence(position: usize, rows: usize) -> StepSequence {
        StepSequence { first_row: 0, rows, position, first_page: 0, table: 0 }
    }

    fn cut(cutting: &Cutting, sequences: &[StepSequence]) -> Items {
        let mut items = Items::default();
        items.cut(cutting, sequences);
        items
    }

    /// `(sequence, first query, pages, kind)` of each item with work, and its partial.
    fn described(items: &Items) -> Vec<(u32, u32, Range<u32>, u32, u32)> {
        let words = items.words.as_chunks::<ITEM_WORDS>().0.iter();
        words.filter(|w| w[3] > 0).map(|w| (w[0], w[1], w[2]..w[2] + w[3], w[4], w[5])).collect()
    }

    #[test]
    fn one_row_over_few_pages_is_cut_by_page_and_over_many_by_segment() {
        let items = cut(&CUTTING, &[sequence(64 * 3 + 5, 1)]);
        assert_eq!(described(&items), (0..4).map(|page| (0, 0, page..page + 1, 2, page)).collect::<Vec<_>>());
        assert_eq!(items.merge_words, [0, 0, 0, 4, 0, 2]);
        assert_eq!(items.count(), 8, "padded");
        let items = cut(&Cutting { window: Some(2048 * 16), ..CUTTING }, &[sequence(100_000, 1)]);
        let described = described(&items);
        // Positions 67,233 to 100,000 are pages 1,050 to 1,562, of segments 65 to 97.
        assert_eq!(described[0], (0, 0, 1050..1056, 1, 0));
        assert_eq!(described[1], (0, 0, 1056..1072, 1, 1));
        assert_eq!(described[32], (0, 0, 1552..1563, 1, 32));
        assert_eq!((described.len(), items.partials), (33, 33));
        assert_eq!(items.merge_words, [0, 0, 0, 33, 1050, 1]);
    }

    #[test]
    fn many_rows_are_not_cut_and_each_tile_gets_the_pages_that_it_sees() {
        let cutting = Cutting { group: 3, kv_heads: 40, window: Some(64), ..CUTTING };
        let items = cut(&cutting, &[sequence(128, 40)]);
        // 120 queries in 8 tiles; tile 1 is queries 16 to 31, rows 5 to 10, which see positions 70 to 138.
        assert_eq!(described(&items)[1], (0, 16, 1..3, 0, 0));
        assert_eq!((items.count(), items.merges(), items.partials), (8, 0, 0));
    }

    #[test]
    fn a_sequence_whose_partial_results_do_not_fit_is_not_cut() {
        let cutting = Cutting { partials_max: 30, ..CUTTING };
        let items = cut(&cutting, &[sequence(20_000, 1), sequence(20_000, 1)]);
        let kinds: Vec<u32> = described(&items).iter().map(|item| item.3).collect();
        assert_eq!((kinds[0], kinds[19], kinds[20]), (1, 1, 0));
        assert_eq!((items.partials, items.merges(), kinds.len()), (20, 1, 21));
        let few_items = Cutting { items_max: 21, ..CUTTING };
        assert_eq!(described(&cut(&few_items, &[sequence(20_000, 1); 2])).len(), 2, "no room for more than one each");
    }

    #[test]
    fn every_visible_page_of_every_query_is_in_exactly_one_item_of_its_tile() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..300 {
            let window = rng.bool().then(|| rng.u32(1..300));
            let cutting = Cutting { group: rng.usize(1..20), kv_heads: rng.usize(1..4), window, ..CUTTING };
            let sequences: Vec<_> =
                (0..rng.usize(1..5)).map(|_| sequence(rng.usize(..4000), rng.usize(1..60))).collect();
            let items = described(&cut(&cutting, &sequences));
            for (number, sequence) in sequences.iter().enumerate() {
                for query in 0..sequence.rows * cutting.group {
                    let position = sequence.position + query / cutting.group;
                    let (tile, number) = (word(query / TILE_QUERIES * TILE_QUERIES), word(number));
                    let own = items.iter().filter(|item| (item.0, item.1) == (number, tile));
                    let covered: Vec<u32> = own.flat_map(|item| item.2.clone()).collect();
                    assert!(covered.is_sorted_by(|a, b| a + 1 == *b), "{covered:?}");
                    let visible = cutting.visible_pages(position..position + 1);
                    assert!(visible.clone().all(|page| covered.contains(&word(page))), "{visible:?} of {covered:?}");
                }
            }
        }
    }
}
