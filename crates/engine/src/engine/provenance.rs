//! Trust in pages from elsewhere, asked where they become visible: when a request is queued with them, when it starts from
//! them, and when it would leave them to others.
//!
//! A machine whose pages were found to be wrong is taken back ([`Engine::take_back`]): kept pages that depend on it are gone,
//! requests under way that began with such pages compute them here, and what was begun before and is submitted later is
//! not used. Orders are numbered, so that what a machine sends after it was readmitted counts again.

use std::sync::Arc;

use muser_kv::{Maker, Makers, Provenance, SequenceCache, Untrusted};

use super::Engine;
use super::install::Installed;
use crate::prefix::PrefixIndex;

impl Engine {
    /// Checks that an installation's pages may become visible now. [`Engine::submit`] makes the same check.
    ///
    /// # Errors
    /// [`Untrusted`].
    pub fn trusts(&self, installed: &Installed) -> Result<(), Untrusted> {
        self.trusts_cache(installed.cache(), installed.provenance())
    }

    pub(super) fn trusts_cache(&self, cache: &SequenceCache, provenance: &Provenance) -> Result<(), Untrusted> {
        self.taken_back.admits(cache.makers(), provenance)
    }

    /// Takes back every page that depends on `maker`, wherever it is: kept ones are gone, requests that began with such
    /// pages compute them here and leave nothing to others, and what was begun before is not used when it is submitted.
    pub fn take_back(&mut self, maker: Maker) {
        self.taken_back.order(Some(maker));
        self.prefixes.take_back(&maker);
        self.recompute(|makers| makers.contain(&maker));
    }

    /// Forgets every page that is kept for reuse, takes back all that came from elsewhere, and sees to it that no request
    /// under way leaves any.
    pub fn forget_prefixes(&mut self) {
        self.taken_back.order(None);
        self.prefixes = PrefixIndex::new(Arc::clone(&self.spec), self.settings.prefix_bytes_max);
        self.recompute(|makers| !makers.is_empty());
        let running = self.running.iter_mut().map(|running| &mut running.sequence);
        running.chain(&mut self.waiting).for_each(|sequence| sequence.origin.isolate());
    }

    /// Has requests that began with such pages compute everything here. Their tokens stand.
    fn recompute(&mut self, depends: impl Fn(&Makers) -> bool) {
        for running in &mut self.running {
            // An audit leaves nothing, and is about pages that may be wrong.
            if !running.sequence.is_audit() && depends(running.cache.makers()) {
                running.cache = SequenceCache::new(Arc::clone(&self.spec), self.pool.clone());
                (running.shared_pages, running.landmark) = (0, None);
                running.sequence.distrust();
            }
        }
        for sequence in &mut self.waiting {
            let parked = sequence.parked.as_ref().filter(|_| !sequence.is_audit());
            if sequence.origin.installed().is_some_and(|installed| depends(installed.cache().makers()))
                || parked.is_some_and(|parked| depends(parked.cache.makers()))
            {
                sequence.distrust();
            }
        }
    }
}
