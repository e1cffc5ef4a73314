//! Pages that are visible in a decoder, and the prompts that they complete.

use std::collections::{BTreeMap, BTreeSet};

use muser_kv::{Maker, Makers};
use muser_trust::identity::NodeId;

use crate::shape::{PageName, Shape};
use crate::trust::Arrival;
use crate::violation::Violation;

/// A page and the origins of its bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) bytes: Vec<u8>,
    pub(crate) depends: Depends,
}

/// Origins of a page's bytes: other machines, as the engine tracks them; handoffs and realms of prompts, as the world
/// does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Depends {
    pub(crate) makers: Makers,
    pub(crate) arrivals: BTreeSet<Arrival>,
    pub(crate) realms: BTreeSet<u32>,
}

impl Depends {
    /// Origins of the pages of one handoff.
    pub(crate) fn of(arrival: Arrival, node: NodeId, realm: u32) -> Self {
        Self { makers: Maker(node.0).into(), arrivals: [arrival].into(), realms: [realm].into() }
    }

    pub(crate) fn add(&mut self, others: &Self) {
        self.makers.add(&others.makers);
        self.arrivals.extend(&others.arrivals);
        self.realms.extend(&others.realms);
    }
}

/// Pages by layer and name, and the prompts to which they belong.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pages: BTreeMap<(u16, PageName), Page>,
    prompts: Vec<Vec<u32>>,
}

impl Store {
    /// Most full pages of `tokens` from which a computation can resume with the pages held here.
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

    /// Makes a prompt visible with its missing pages; pages that exist are kept.
    pub(crate) fn publish(
        &mut self,
        shape: &Shape,
        tokens: &[u32],
        pages: impl IntoIterator<Item = ((u16, u32), Page)>,
    ) {
        let names = shape.names(tokens);
        for ((layer, page), content) in pages {
            self.pages.entry((layer, names[page as usize])).or_insert(content);
        }
        self.prompts.push(tokens.to_vec());
    }

    /// Computes the missing pages of a prompt locally; if it attends to a wrong page, all of them are wrong.
    pub(crate) fn compute(&mut self, shape: &Shape, tokens: &[u32], realm: u32) {
        let names = shape.names(tokens);
        let mut depends = self.depends(shape, tokens, u32::MAX);
        depends.realms.insert(realm);
        let is_wrong = !depends.arrivals.is_empty()
            && (0..shape.layers()).any(|layer| {
                let mut needed = shape.needed(layer, rows_of(tokens)).map(|page| &names[page as usize]);
                needed.any(|name| self.page(layer, name).is_some_and(|page| page.bytes != shape.page(layer, name)))
            });
        let mut lacking = Vec::new();
        for layer in 0..shape.layers() {
            for page in shape.needed(layer, rows_of(tokens)) {
                let name = &names[page as usize];
                if !self.pages.contains_key(&(layer, *name)) {
                    let bytes = if is_wrong { shape.wrong_page(layer, name) } else { shape.page(layer, name) };
                    lacking.push(((layer, page), Page { bytes, depends: depends.clone() }));
                }
            }
        }
        self.publish(shape, tokens, lacking);
    }

    /// Origins of those of the first `held` pages that the token behind `tokens` attends to.
    pub(crate) fn depends(&self, shape: &Shape, tokens: &[u32], held: u32) -> Depends {
        let names = shape.names(tokens);
        let mut depends = Depends::default();
        for layer in 0..shape.layers() {
            let needed = shape.needed(layer, rows_of(tokens));
            let pages = (needed.start..needed.end.min(held)).map(|page| names[page as usize]);
            pages.filter_map(|name| self.page(layer, &name)).for_each(|page| depends.add(&page.depends));
        }
        depends
    }

    pub(crate) fn page(&self, layer: u16, name: &PageName) -> Option<&Page> {
        self.pages.get(&(layer, *name))
    }

    /// Drops the pages that depend on a node, and the prompts that this leaves incomplete.
    pub(crate) fn take_back(&mut self, shape: &Shape, node: NodeId) {
        let before = self.pages.len();
        self.pages.retain(|_, page| !page.depends.makers.contain(&Maker(node.0)));
        if self.pages.len() == before {
            return;
        }
        let pages = &self.pages;
        self.prompts.retain(|tokens| {
            let names = shape.names(tokens);
            let has = |layer, page: u32| pages.contains_key(&(layer, names[page as usize]));
            (0..shape.layers()).all(|layer| shape.needed(layer, rows_of(tokens)).all(|page| has(layer, page)))
        });
        let names: BTreeSet<PageName> = self.prompts.iter().flat_map(|tokens| shape.names(tokens)).collect();
        self.pages.retain(|(_, name), _| names.contains(name));
    }

    /// True if every page that the token behind `tokens` attends to is present, and right unless it depends on a
    /// `lying` handoff.
    pub(crate) fn answers(&self, shape: &Shape, tokens: &[u32], lying: &BTreeSet<Arrival>) -> bool {
        let names = shape.names(tokens);
        (0..shape.layers()).all(|layer| {
            shape.needed(layer, rows_of(tokens)).all(|page| {
                let name = &names[page as usize];
                let is_right = |page: &Page| page.bytes == shape.page(layer, name);
                self.page(layer, name).is_some_and(|page| is_right(page) || !page.depends.arrivals.is_disjoint(lying))
            })
        })
    }

    /// Checks that no page of `pages` is visible except as part of a complete prompt.
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

    /// True if every prompt has all its pages.
    pub(crate) fn is_whole(&self, shape: &Shape, lying: &BTreeSet<Arrival>) -> bool {
        self.prompts.iter().all(|prompt| self.answers(shape, prompt, lying))
    }
}

/// Rows of a prompt; those of a world are short.
pub(crate) fn rows_of(tokens: &[u32]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}
