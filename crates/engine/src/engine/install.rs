//! Installation of keys and values from another machine: missing pages are collected aside and become a sequence's cache in
//! one step.
//!
//! An [`Installation`] is not part of the engine. It is filled by the task that receives and checks the pages, and nothing
//! of it is visible before [`Installation::finish`] has found it complete and a [`Job`](super::Job) begins with it.
//! Dropped before that, it leaves nothing behind.

use std::ops::Range;
use std::sync::Arc;

use muser_kv::{
    CacheSpec, DetachedCache, ExportError, ExportedPage, InstallError, Maker, Makers, PAGE_ROWS, PageName, PagePool,
    PageSet, Provenance, Realm, SequenceCache, Voucher,
};

use super::Engine;
use super::beginning::Beginning;
use super::scope::PrefixReuse;

/// The keys and values of a prompt without its last token, while they arrive.
#[derive(Debug)]
pub struct Installation {
    detached: DetachedCache,
    spec: Arc<CacheSpec>,
    tokens: Vec<u32>,
    held_pages: usize,
    held_name: Option<PageName>,
    reuse: PrefixReuse,
    /// Pages that came.
    arrived: usize,
    /// Pool from which the sequence takes its later pages.
    pool: PagePool,
    provenance: Provenance,
}

/// All keys and values of a prompt without its last token: the token that gives the first logits is always computed here.
#[derive(Debug)]
pub struct Installed {
    cache: SequenceCache,
    tokens: Vec<u32>,
    held_pages: usize,
    reuse: PrefixReuse,
    provenance: Provenance,
}

/// Error of [`Engine::begin_installation`] and [`Engine::begin_base`]. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotInstallable {
    /// There is no token before the last one.
    #[error("a prompt of {tokens} tokens has nothing to bring: the last token is computed here")]
    TooShort {
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// The prompt does not fit.
    #[error("the prompt has {tokens} tokens, the context holds {context}")]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of the engine's sequences.
        context: usize,
    },
    /// The missing pages do not fit the budget for installations, beside those that are in use or arriving.
    #[error("{wanted_bytes} bytes of pages are missing, and {free_bytes} are free for installations")]
    NoRoom {
        /// Bytes that are missing.
        wanted_bytes: usize,
        /// Bytes that could be had.
        free_bytes: usize,
    },
}

impl Installation {
    /// Full pages from the beginning that are held here already.
    pub fn held_pages(&self) -> usize {
        self.held_pages
    }

    /// Name of the last of them by model and tokens alone, without the realm: it stands for everything before it. A peer
    /// that knows the tokens can compute it, and cannot look up a realm's pages by it.
    pub fn held_name(&self) -> Option<PageName> {
        self.held_name
    }

    /// The realm that it was begun for, if any.
    pub fn realm(&self) -> Option<Realm> {
        self.reuse.realm()
    }

    /// True until the first page arrives.
    pub fn is_untouched(&self) -> bool {
        self.arrived == 0
    }

    /// The tokens whose keys and values are wanted.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The pages of `layer` that have to come, by absolute index.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn missing_pages(&self, layer: usize) -> Range<usize> {
        self.spec.pages_to_ship(layer, self.tokens.len(), self.held_pages * PAGE_ROWS)
    }

    /// The shape of the cache.
    pub fn spec(&self) -> &CacheSpec {
        &self.spec
    }

    /// Sets the maker of the pages that arrive from now on, and the voucher that is asked when they are to become visible.
    /// Pages that arrive before are attributed to [`Maker::UNNAMED`].
    pub fn comes_from(&mut self, maker: Maker, voucher: Voucher) {
        self.detached.set_makers(maker.into());
        self.provenance.vouched_for_by(voucher);
    }

    /// Copies a page in canonical form into place.
    ///
    /// # Errors
    /// Any [`InstallError`] that a page can cause; the page then changes nothing.
    pub fn install(&mut self, layer: usize, page: usize, bytes: &[u8]) -> Result<(), InstallError> {
        self.detached.install_page(layer, page, bytes)?;
        self.arrived += 1;
        Ok(())
    }

    /// The cache of all pages, if every missing one has arrived; otherwise the arrived ones are dropped.
    ///
    /// # Errors
    /// [`InstallError::Missing`].
    pub fn finish(self) -> Result<Installed, InstallError> {
        let Self { detached, tokens, held_pages, reuse, pool, provenance, .. } = self;
        Ok(Installed { cache: detached.finish_into(pool)?, tokens, held_pages, reuse, provenance })
    }
}

impl Installed {
    /// The tokens whose keys and values these are.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(super) fn reuse(&self) -> PrefixReuse {
        self.reuse
    }

    /// Has what starts from it leave nothing to others.
    pub(super) fn isolate(&mut self) {
        self.reuse = PrefixReuse::Isolate;
    }

    /// Full pages from the beginning that were held here before.
    pub fn held_pages(&self) -> usize {
        self.held_pages
    }

    /// Reads again what decides if these pages may be used; see [`Voucher::renew`].
    pub async fn renew_trust(&self) {
        if let Some(voucher) = self.provenance.voucher() {
            voucher.renew().await;
        }
    }

    /// The other machines that a page depends on; none if the page is not held.
    pub fn makers(&self, layer: usize, page: usize) -> Makers {
        self.cache.pages(layer).makers(page).cloned().unwrap_or_default()
    }

    pub(super) fn cache(&self) -> &SequenceCache {
        &self.cache
    }

    pub(super) fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// The cache that a sequence starts from, and its provenance.
    pub(super) fn into_parts(self) -> (SequenceCache, Provenance) {
        (self.cache, self.provenance)
    }

    /// An installed page in canonical form, for comparison before a request starts from it.
    ///
    /// # Errors
    /// [`ExportError::NotHeld`].
    pub fn page(&self, layer: usize, page: usize) -> Result<ExportedPage<'_>, ExportError> {
        self.cache.export_page(layer, page)
    }
}

impl Engine {
    /// Begins to bring the keys and values of `prompt`, all but those of its last token. Pages that are held here are in
    /// place already, if `reuse` says so.
    ///
    /// # Errors
    /// [`NotInstallable`].
    pub fn begin_installation(&mut self, prompt: &[u32], reuse: PrefixReuse) -> Result<Installation, NotInstallable> {
        let context = self.settings.context;
        let rows = match prompt.len() {
            tokens @ 0..=1 => return Err(NotInstallable::TooShort { tokens }),
            tokens if tokens >= context => return Err(NotInstallable::TooLong { tokens, context }),
            tokens => tokens - 1,
        };
        let tokens = prompt[..rows].to_vec();
        let identity = &self.settings.identity;
        let names: Vec<PageName> = muser_kv::names_of(&reuse.identity(identity), &tokens).collect();
        let held_pages = match reuse {
            PrefixReuse::Share | PrefixReuse::Within(_) => self.prefixes.longest(&names).resumable,
            PrefixReuse::Isolate => 0,
        };
        let held_name = muser_kv::names_of(identity, &tokens[..held_pages * PAGE_ROWS]).last();
        let refused = "the rows fit the context, and the pages of a resumable cut are kept";
        let (spec, pool) = (Arc::clone(&self.spec), self.installs.clone());
        let mut detached = DetachedCache::new(spec, pool, rows, PageSet::Window).expect(refused);
        detached.set_makers(Maker::UNNAMED.into());
        // Held pages first: then giving up other prefixes cannot take them away.
        for layer in 0..self.spec.layers().len() {
            for page in detached.expected_pages(layer).filter(|page| *page < held_pages) {
                let kept = self.prefixes.kept_page(layer, &names[page]).expect(refused);
                detached.install_shared(layer, page, kept).expect(refused);
            }
        }
        self.make_room_for_installation(rows, held_pages)?;
        let spec = Arc::clone(&self.spec);
        let (pool, provenance) = (self.pool.clone(), self.taken_back.begin());
        Ok(Installation { detached, spec, tokens, held_pages, held_name, reuse, arrived: 0, pool, provenance })
    }

    /// Begins to bring what going on from `beginning` needs and it lacks: the window's pages of local layers. Pages of
    /// global layers that lie within that window come again with them.
    ///
    /// # Errors
    /// [`NotInstallable::NoRoom`].
    pub fn begin_base(&mut self, beginning: &Beginning) -> Result<Installation, NotInstallable> {
        let (spec, tokens) = (Arc::clone(beginning.spec()), beginning.tokens().to_vec());
        let held_pages = beginning.pages_held();
        let fits = "the beginning is of rows that fit the context";
        let mut detached =
            DetachedCache::new(Arc::clone(&spec), self.installs.clone(), tokens.len(), PageSet::Window).expect(fits);
        detached.set_makers(Maker::UNNAMED.into());
        beginning.share_into(&mut detached, |page| page < held_pages);
        self.make_room_for_installation(tokens.len(), held_pages)?;
        let held_name = muser_kv::names_of(&self.settings.identity, &tokens[..held_pages * PAGE_ROWS]).last();
        let (pool, provenance, reuse) = (self.pool.clone(), self.taken_back.begin(), beginning.reuse());
        Ok(Installation { detached, spec, tokens, held_pages, held_name, reuse, arrived: 0, pool, provenance })
    }

    /// Gives up kept prefixes until the pages fit that `rows` rows lack behind those that are held.
    fn make_room_for_installation(&mut self, rows: usize, held_pages: usize) -> Result<(), NotInstallable> {
        let wanted = self.spec.page_payload_bytes(rows, held_pages * PAGE_ROWS);
        let wanted_bytes = usize::try_from(wanted).unwrap_or(usize::MAX);
        while wanted_bytes > self.free_for_installations() {
            // Giving up prefixes is in vain if there would never be room.
            if wanted_bytes > self.settings.installed_bytes_max || !self.prefixes.evict_one() {
                return Err(NotInstallable::NoRoom { wanted_bytes, free_bytes: self.free_for_installations() });
            }
        }
        Ok(())
    }

    /// Bytes of pages that installations can take now.
    fn free_for_installations(&self) -> usize {
        let held = self.installs.usage();
        held.budget_bytes - held.live_bytes
    }
}
