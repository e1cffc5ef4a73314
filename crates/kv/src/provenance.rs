//! Trust in pages from elsewhere: the orders to take back what a machine made, and the voucher that is asked before such
//! pages become visible.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::makers::{Maker, Makers};

/// Predicate that pages from elsewhere may be used at this moment, with the reason if not. Called within an engine step, so
/// it must not wait: what has to be read for it is read beforehand, by [`Voucher::renew`].
#[derive(Clone)]
pub struct Voucher {
    ask: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    renew: Option<Arc<dyn Fn() -> Renewal + Send + Sync>>,
}

/// Future that reads again the lists by which a voucher answers.
pub type Renewal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Error of using received pages: they are computed here instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Untrusted {
    /// A machine that made some of them was found to send wrong ones since they were begun.
    #[error("pages that these depend on were found to be wrong, and taken back")]
    TakenBack,
    /// The voucher of the pages does not admit them any more.
    #[error("{reason}")]
    NotVouchedFor {
        /// The voucher's reason.
        reason: String,
    },
}

/// Order number at which an installation began, and the voucher for its pages.
#[derive(Clone, Debug, Default)]
pub struct Provenance {
    /// Number of the last take-back order before it began.
    epoch: u64,
    voucher: Option<Voucher>,
}

/// The orders to take pages back, numbered from 1, and the judgement by them. It holds no page, so that a simulated world
/// can ask what the engine asks.
#[derive(Debug, Default)]
pub struct TakenBack {
    epoch: u64,
    /// The last order over all machines, or 0.
    all: u64,
    /// The last order over each.
    makers: BTreeMap<Maker, u64>,
}

impl Voucher {
    /// One that asks `vouch`.
    pub fn new(vouch: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { ask: Arc::new(vouch), renew: None }
    }

    /// The same, which has `renew` read what it answers by.
    #[must_use]
    pub fn renewed_by(self, renew: impl Fn() -> Renewal + Send + Sync + 'static) -> Self {
        Self { renew: Some(Arc::new(renew)), ..self }
    }

    /// Reads again what it answers by. To be called shortly before pages are handed to the engine, by a task that may wait.
    pub async fn renew(&self) {
        if let Some(renew) = &self.renew {
            renew().await;
        }
    }

    /// The answer now.
    ///
    /// # Errors
    /// Why not.
    pub fn ask(&self) -> Result<(), String> {
        (self.ask)()
    }
}

impl Provenance {
    /// Sets the voucher that is asked when the pages are to become visible.
    pub fn vouched_for_by(&mut self, voucher: Voucher) {
        self.voucher = Some(voucher);
    }

    /// The voucher that is asked, if there is one.
    pub fn voucher(&self) -> Option<&Voucher> {
        self.voucher.as_ref()
    }

    /// True unless the voucher says otherwise.
    pub fn is_vouched_for(&self) -> bool {
        self.voucher.as_ref().is_none_or(|voucher| voucher.ask().is_ok())
    }
}

impl TakenBack {
    /// Provenance of an installation that begins now.
    pub fn begin(&self) -> Provenance {
        Provenance { epoch: self.epoch, voucher: None }
    }

    /// Orders to take back what one machine made, or what any other machine did.
    pub fn order(&mut self, maker: Option<Maker>) {
        self.epoch += 1;
        match maker {
            Some(maker) => drop(self.makers.insert(maker, self.epoch)),
            None => self.all = self.epoch,
        }
    }

    /// Checks that pages that depend on `makers` may become visible now: no order since they were begun is over them, and
    /// their voucher admits them.
    ///
    /// # Errors
    /// [`Untrusted`].
    pub fn admits(&self, makers: &Makers, provenance: &Provenance) -> Result<(), Untrusted> {
        let later = |order: u64| order > provenance.epoch;
        if later(self.all) || makers.iter().any(|maker| self.makers.get(maker).copied().is_some_and(later)) {
            return Err(Untrusted::TakenBack);
        }
        match &provenance.voucher {
            Some(voucher) => voucher.ask().map_err(|reason| Untrusted::NotVouchedFor { reason }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Voucher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Voucher")
    }
}
