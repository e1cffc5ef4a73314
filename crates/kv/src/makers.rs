//! Provenance of pages: the other machines that a page's bytes depend on.
//!
//! A page that was computed here depends on every page before it; one that arrived depends on the machine that sent it,
//! whatever that one started from. A cache hands its makers to each page that it adds, so they spread exactly as far as a
//! wrong bit would.

use std::sync::Arc;

/// Id of a machine whose pages are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Maker(pub [u8; 32]);

/// The other machines that bytes depend on; none if they were computed here from the first row on. Cloning allocates nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Makers(
    /// In ascending order, and never empty.
    Option<Arc<[Maker]>>,
);

impl Maker {
    /// Another machine that was not named.
    pub const UNNAMED: Self = Self([0; 32]);
}

impl Makers {
    /// True if everything was computed here.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// True if the bytes depend on this machine.
    pub fn contain(&self, maker: &Maker) -> bool {
        self.iter().any(|known| known == maker)
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &Maker> {
        self.0.iter().flat_map(|makers| makers.iter())
    }

    /// The only machine, if there is exactly one.
    pub fn only(&self) -> Option<Maker> {
        match self.0.as_deref() {
            Some([only]) => Some(*only),
            _ => None,
        }
    }

    /// Adds those of other bytes, on which these depend too.
    pub fn add(&mut self, others: &Self) {
        if others.iter().all(|maker| self.contain(maker)) {
            return;
        }
        let mut all: Vec<Maker> = self.iter().chain(others.iter()).copied().collect();
        all.sort_unstable();
        all.dedup();
        self.0 = Some(all.into());
    }
}

impl From<Maker> for Makers {
    fn from(maker: Maker) -> Self {
        Self(Some(Arc::new([maker])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makers_are_a_set() {
        let (one, two) = (Maker([1; 32]), Maker([2; 32]));
        let mut makers = Makers::default();
        assert!(makers.is_empty() && makers.only().is_none() && !makers.contain(&one));
        makers.add(&two.into());
        assert_eq!((makers.only(), makers.is_empty()), (Some(two), false));
        makers.add(&one.into());
        makers.add(&two.into());
        assert_eq!(makers.iter().copied().collect::<Vec<_>>(), [one, two]);
        assert!(makers.contain(&one) && makers.contain(&two) && makers.only().is_none());
    }
}
