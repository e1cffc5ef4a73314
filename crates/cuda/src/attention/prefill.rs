//! Cutting the attention of sequences with many rows for Hopper's matrix instructions (`kernels/attend_prefill.cu`).

use std::cmp::Reverse;

use super::StepSequence;
use super::items::{Cutting, Kind, MergeTile, TILE_QUERIES, parts, word};

/// Queries of a tile.
pub(crate) const PREFILL_QUERIES: usize = 128;
/// 32-bit words of an item on the device.
pub(super) const PREFILL_WORDS: usize = 10;
/// 32-bit words of a page or a tile to expand.
pub(super) const EXPANSION_WORDS: usize = 2;
/// Sequences with fewer queries per key-value head go to the general kernels: expanding their pages costs more than it saves.
pub(super) const PREFILL_QUERIES_MIN: usize = 256;
/// Items, over all key-value heads, that keep a device busy without being cut into segments.
const WHOLE_ITEMS_MIN: usize = 66;

/// Room for the work of sequences with many rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefillLimits {
    /// Expanded pages, each of all key-value heads; zero where the device has no such kernels.
    pub pages_max: usize,
    /// Tiles of expanded queries.
    pub tiles_max: usize,
    /// Items.
    pub items_max: usize,
}

impl PrefillLimits {
    /// No such work.
    pub const NONE: Self = Self { pages_max: 0, tiles_max: 0, items_max: 0 };
}

/// Items of all such sequences of a step, and what they need expanded.
#[derive(Debug, Default)]
pub(super) struct PrefillItems {
    /// [`PREFILL_WORDS`] words each, those with most pages first.
    pub items: Vec<[u32; PREFILL_WORDS]>,
    /// Sequence and absolute index of each page.
    pub pages: Vec<[u32; EXPANSION_WORDS]>,
    /// Sequence and first query of each tile.
    pub tiles: Vec<[u32; EXPANSION_WORDS]>,
}

impl PrefillItems {
    /// No work.
    pub fn clear(&mut self) {
        self.items.clear();
        self.pages.clear();
        self.tiles.clear();
    }

    /// Cuts the work of `sequence`, number `number` of the step, if it has enough rows and there is room: then the partial
    /// results to merge, the first of which has index `first_partial`, and the first index after all that are written.
    pub fn cut(
        &mut self,
        cutting: &Cutting,
        number: usize,
        sequence: &StepSequence,
        first_partial: usize,
    ) -> Option<(Vec<MergeTile>, usize)> {
        let queries = sequence.rows * cutting.group;
        let tiles = queries.div_ceil(PREFILL_QUERIES);
        let visible = cutting.visible_pages(sequence.positions());
        let PrefillLimits { pages_max, tiles_max, items_max } = cutting.prefill;
        let room = self.pages.len() + visible.len() <= pages_max && self.tiles.len() + tiles <= tiles_max;
        if queries < PREFILL_QUERIES_MIN || !room {
            return None;
        }
        let segments = parts(Kind::Segment, &visible).count();
        let whole = tiles * cutting.kv_heads >= WHOLE_ITEMS_MIN || segments == 1;
        let partials = queries.div_ceil(TILE_QUERIES).next_multiple_of(PREFILL_QUERIES / TILE_QUERIES) * segments;
        let fits = first_partial + partials <= cutting.partials_max && self.items.len() + tiles * segments <= items_max;
        let kind = match (whole, fits) {
            (true, _) => Kind::Whole,
            (false, true) => Kind::Segment,
            (false, false) => return None,
        };
        let expanded = self.pages.len();
        self.pages.extend(visible.clone().map(|page| [word(number), word(page)]));
        let (mut merges, mut partial) = (Vec::new(), first_partial);
        for first_query in (0..queries).step_by(PREFILL_QUERIES) {
            let pages = cutting.tile_pages(sequence, first_query, PREFILL_QUERIES);
            let (tile, partials) = (self.tiles.len(), parts(Kind::Segment, &pages).count());
            self.tiles.push([word(number), word(first_query)]);
            for part in parts(kind, &pages) {
                let (first_page, first_segment) = (part.start, pages.start / muser_kernels::attention::SEGMENT_PAGES);
                let place = [expanded + first_page - visible.start, tile, kind as usize];
                let results = [partial, partials, first_segment];
                let [a, b, c] = place.map(word);
                let [d, e, f] = results.map(word);
                self.items.push([
                    word(number),
                    word(first_query),
                    word(first_page),
                    word(part.len()),
                    a,
                    b,
                    c,
                    d,
                    e,
                    f,
                ]);
            }
            if kind == Kind::Segment {
                for first in (first_query..queries.min(first_query + PREFILL_QUERIES)).step_by(TILE_QUERIES) {
                    let at = partial + (first - first_query) / TILE_QUERIES * partials;
                    merges.push(MergeTile {
                        sequence: number,
                        first_query: first,
                        partial: at,
                        partials,
                        first_page: pages.start,
                        kind,
                    });
                }
                partial += PREFILL_QUERIES / TILE_QUERIES * partials;
            }
        }
        self.items.sort_by_key(|item| Reverse(item[3]));
        Some((merges, partial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUTTING: Cutting = Cutting {
        group: 16,
        kv_heads: 2,
        window: None,
        partials_max: 10_000,
        items_max: 100,
        prefill: PrefillLimits { pages_max: 3000, tiles_max: 300, items_max: 3000 },
    };

    fn sequence(position: usize, rows: usize) -> StepSequence {
        StepSequence { first_row: 0, rows, position, first_page: 0, table: 0 }
    }

    #[test]
    fn a_long_chunk_is_cut_into_tiles_with_the_longest_first() {
        let mut items = PrefillItems::default();
        let (merges, end) = items.cut(&CUTTING, 3, &sequence(1000, 512), 0).unwrap();
        // 8,192 queries are 64 tiles of 8 rows; positions 1,000 to 1,511 see pages 0 to 23.
        assert_eq!((merges.len(), end), (0, 0));
        assert_eq!((items.tiles.len(), items.pages.len(), items.items.len()), (64, 24, 64));
        assert_eq!(items.items[0], [3, 59 * 128, 0, 24, 0, 59, 0, 0, 2, 0]);
        assert_eq!(items.items[63][..4], [3, 2 * 128, 0, 16]);
    }

    #[test]
    fn a_short_chunk_over_a_long_context_is_cut_into_segments_whose_results_do_not_overlap() {
        let mut items = PrefillItems::default();
        let cutting = Cutting { window: Some(4000), ..CUTTING };
        let (merges, end) = items.cut(&cutting, 0, &sequence(10_000, 17), 7).unwrap();
        // 272 queries in 3 tiles; pages 93 to 156 are of segments 5 to 9.
        assert_eq!((items.tiles.len(), items.pages.len(), items.items.len()), (3, 64, 15));
        // Every tile writes the results of 8 times 16 queries, also of those that do not exist.
        assert_eq!((merges.len(), end), (17, 7 + 3 * 8 * 5));
        let mut taken: Vec<usize> = merges.iter().flat_map(|m| m.partial..m.partial + m.partials).collect();
        taken.sort_unstable();
        assert!(taken.is_sorted_by(|a, b| a < b) && taken[0] == 7, "{taken:?}");
        for merge in &merges {
            let tile = (0..3).find(|tile| items.tiles[*tile][1] as usize == merge.first_query / 128 * 128).unwrap();
            let own: Vec<_> = items.items.iter().filter(|item| item[5] as usize == tile).collect();
            assert_eq!(own.len(), merge.partials);
            for item in own {
                let segment = item[2] / 16 - item[9];
                let partial = item[7] as usize + merge.first_query % 128 / 16 * item[8] as usize + segment as usize;
                assert!((merge.partial..merge.partial + merge.partials).contains(&partial));
            }
        }
    }

    #[test]
    fn few_rows_and_what_has_no_room_are_left_to_the_general_kernels() {
        let cut = |cutting: &Cutting, sequence| PrefillItems::default().cut(cutting, 0, &sequence, 0).is_some();
        assert!(cut(&CUTTING, sequence(0, 16)) && !cut(&CUTTING, sequence(0, 15)));
        let prefill = PrefillLimits { pages_max: 9, ..CUTTING.prefill };
        assert!(
            cut(&Cutting { prefill, ..CUTTING }, sequence(64, 512))
                && !cut(&Cutting { prefill, ..CUTTING }, sequence(65, 512))
        );
        let prefill = PrefillLimits { tiles_max: 63, ..CUTTING.prefill };
        assert!(!cut(&Cutting { prefill, ..CUTTING }, sequence(0, 512)));
        assert!(!cut(&Cutting { partials_max: 31, ..CUTTING }, sequence(2000, 16)));
    }
}
