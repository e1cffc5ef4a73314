//! What a decoder can see: pages, and the prompts that they make whole.

use std::collections::BTreeMap;

use crate::shape::{PageName, Shape};
use crate::violation::Violation;

/// Pages by layer and name, and the prompts to which they belong.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pages: BTreeMap<(u16, PageName), Vec<u8>>,
    prompts: Vec<Vec<u32>>,
}

impl Store {
    /// The most full pages of `tokens` with which one can go on from here.
    pub(crate) fn held_pages(&self, shape: &Shape, tokens: &[u32]) -> u32 {
        let (names, rows) = (shape.names(tokens), rows_of(tokens));
        let has = |held: u32| {
            (0..shape.layers()).all(|layer| {
                let needed = shape.needed(layer, rows);
                (needed.start..needed.end.min(held)).all(|page| self.pages.contains_key(&(layer, names[page as usize])))
            })
        };
        (0..=rows / shape.page_rows).rev().find(|held| has(*held)).unwrap_or(0)
    }

    /// Makes a prompt visible, with the pages that it lacked.
    pub(crate) fn publish(
        &mut self,
        shape: &Shape,
        tokens: &[u32],
        pages: impl IntoIterator<Item = ((u16, u32), Vec<u8>)>,
    ) {
        let names = shape.names(tokens);
        self.pages.extend(pages.into_iter().map(|((layer, page), bytes)| ((layer, names[page as usize]), bytes)));
        self.prompts.push(tokens.to_vec());
    }

    /// Computes what a prompt lacks, here.
    pub(crate) fn compute(&mut self, shape: &Shape, tokens: &[u32]) {
        let names = shape.names(tokens);
        let pages = (0..shape.layers()).flat_map(|layer| {
            let names = &names;
            shape
                .needed(layer, rows_of(tokens))
                .map(move |page| ((layer, page), shape.page(layer, &names[page as usize])))
        });
        self.publish(shape, tokens, pages.collect::<Vec<_>>());
    }

    /// Whether every page that the token behind `tokens` looks at is there, and right.
    pub(crate) fn answers(&self, shape: &Shape, tokens: &[u32]) -> bool {
        let names = shape.names(tokens);
        (0..shape.layers()).all(|layer| {
            shape.needed(layer, rows_of(tokens)).all(|page| {
                let name = &names[page as usize];
                self.pages.get(&(layer, *name)).is_some_and(|bytes| *bytes == shape.page(layer, name))
            })
        })
    }

    /// Checks that no page of `pages` can be seen but as part of a whole prompt.
    pub(crate) fn check_hidden(
        &self,
        shape: &Shape,
        tokens: &[u32],
        pages: impl Iterator<Item = (u16, u32)>,
    ) -> Result<(), Violation> {
        let names = shape.names(tokens);
        for (layer, page) in pages {
            let name = names[page as usize];
            let is_visible = self.pages.contains_key(&(layer, name));
            if is_visible && !self.prompts.iter().any(|prompt| shape.names(prompt).contains(&name)) {
                return Err(Violation::PartlyVisible { layer, page });
            }
        }
        Ok(())
    }

    /// Whether every prompt is whole.
    pub(crate) fn is_whole(&self, shape: &Shape) -> bool {
        self.prompts.iter().all(|prompt| self.answers(shape, prompt))
    }
}

/// Rows of a prompt; those of a world are short.
pub(crate) fn rows_of(tokens: &[u32]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}
