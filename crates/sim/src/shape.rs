//! Model of a simulated world: the pages of a prompt, their names and their bytes.

use std::ops::Range;

use muser_wire::{HandoffPlan, PlanError, layer_groups};

/// Name of a page: a digest of all tokens up to its end.
pub(crate) type PageName = [u8; 32];

/// Shape of the KV cache. The bytes of a page are a function of tokens, layer and page index alone.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Rows of a page.
    pub(crate) page_rows: u32,
    pub(crate) page_bytes: u32,
    /// Attention window of each layer, in rows; `None` for all rows.
    windows: Vec<Option<u32>>,
    /// Bits that are set in no byte of a page, so that pages pack well or badly.
    mask: u8,
}

impl Shape {
    pub(crate) fn random(random: &mut fastrand::Rng) -> Self {
        let layers = random.usize(1..7);
        Self {
            page_rows: random.u32(2..9),
            page_bytes: random.u32(24..260),
            windows: (0..layers).map(|_| random.bool().then(|| random.u32(1..30))).collect(),
            mask: [0x01, 0x03, 0x13, 0xFF][random.usize(0..4)],
        }
    }

    /// Layers of the model.
    pub(crate) fn layers(&self) -> u16 {
        u16::try_from(self.windows.len()).unwrap_or(u16::MAX)
    }

    /// The names of the pages of `tokens`, the last of which may not be full.
    pub(crate) fn names(&self, tokens: &[u32]) -> Vec<PageName> {
        let mut name = [0; 32];
        let pages = tokens.chunks(self.page_rows as usize);
        pages
            .map(|page| {
                let mut hasher = blake3::Hasher::new();
                hasher.update(&name);
                page.iter().for_each(|token| {
                    hasher.update(&token.to_le_bytes());
                });
                name = *hasher.finalize().as_bytes();
                name
            })
            .collect()
    }

    /// The bytes of a page.
    pub(crate) fn page(&self, layer: u16, name: &PageName) -> Vec<u8> {
        let mut bytes = vec![0; self.page_bytes as usize];
        blake3::Hasher::new_keyed(name).update(&layer.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes.iter_mut().for_each(|byte| *byte &= self.mask);
        bytes
    }

    /// Wrong bytes of the page, as a lying producer sends them.
    pub(crate) fn wrong_page(&self, layer: u16, name: &PageName) -> Vec<u8> {
        let mut bytes = self.page(layer, name);
        // A bit that every mask has.
        bytes.iter_mut().take(1).for_each(|byte| *byte ^= 1);
        bytes
    }

    /// Pages of `rows` rows.
    pub(crate) fn page_count(&self, rows: u32) -> u32 {
        rows.div_ceil(self.page_rows)
    }

    /// The pages of a layer that the token behind `rows` rows looks at.
    pub(crate) fn needed(&self, layer: u16, rows: u32) -> Range<u32> {
        let oldest = self.windows[usize::from(layer)].map_or(0, |window| (rows + 1).saturating_sub(window));
        let end = self.page_count(rows);
        (oldest / self.page_rows).min(end)..end
    }

    /// Plan of a handoff of `rows` rows to a decoder that holds the first `held_pages` pages.
    ///
    /// # Errors
    /// None: the shape is sound.
    pub(crate) fn plan(&self, rows: u32, held_pages: u32) -> Result<HandoffPlan, PlanError> {
        let is_local: Vec<bool> = self.windows.iter().map(Option::is_some).collect();
        let layers = (0..self.layers()).map(|layer| {
            let needed = self.needed(layer, rows);
            needed.start.max(held_pages).min(needed.end)..needed.end
        });
        HandoffPlan::new(layer_groups(&is_local), layers.collect(), self.page_bytes)
    }
}
