//! One try to bring a prompt's pages from one producer: what is collected aside, what went wrong on the way, and how it ended.

use std::collections::{BTreeMap, BTreeSet};

use muser_kv::Realm;
use muser_wire::{
    Accept, Cancel, CancelReason, Failure, HandoffPlan, Refuse, RefuseCode, Request, RequestError, Stats,
};

use crate::context::Context;
use crate::coverage::{Mark, mark_of_failure, mark_of_refusal};
use crate::turn::Origin;
use crate::violation::Violation;

/// A prompt that somebody waits for.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: u32,
    pub(crate) tokens: Vec<u32>,
    /// Producers that were asked.
    pub(crate) tried: BTreeSet<usize>,
    /// The only producer to ask, as often as it takes.
    pub(crate) only: Option<usize>,
    /// When the client leaves, if it does.
    pub(crate) gone_at_ms: Option<u64>,
    /// Its number, and its secret.
    pub(crate) realm: (u32, Realm),
}

/// A handoff as its receiver's caller sees it.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) job: Job,
    /// Once the lane is ready.
    pub(crate) asked: Option<Asked>,
    pub(crate) excuses: BTreeSet<Excuse>,
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) plan: HandoffPlan,
    /// By the decoder's ledger.
    pub(crate) asked_unix_ms: u64,
    /// When it is over at the latest.
    pub(crate) due_ms: u64,
    /// What was accepted, and when the ledger's disk is done with it.
    pub(crate) accepted: Option<(Accept, u64)>,
    pub(crate) recorded: bool,
    pub(crate) cancelled: bool,
    pub(crate) pages: BTreeMap<(u16, u32), Vec<u8>>,
    /// Everything came, and trust is to be asked.
    pub(crate) complete: Option<Stats>,
    /// Where trust changes.
    pub(crate) origin: Option<Origin>,
}

/// Why an attempt may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Excuse {
    /// A bit flipped, or a length is too large: the checks of a frame tell.
    Detected,
    /// Bytes were lost, changed, late or put in.
    Network,
    /// An end was killed, restarted or frozen.
    Process,
    /// The decoder's ledger or its disk.
    Ledger,
    /// Keys changed, or one side does not know them yet.
    Keys,
    /// The producer has as much to do as it may.
    Busy,
    /// The decoder named other pages as held.
    Claim,
    /// The models differ.
    Identity,
    /// The keys have the same ids and other bytes.
    KeyBytes,
    /// The time for it was very short.
    Expiry,
    /// The client left.
    Client,
    /// The producer's engine gave up.
    Engine,
    /// The pages could not be installed.
    Install,
    /// The nonce was drawn before.
    Nonce,
    /// There is no sender but a recording of one.
    Recording,
    /// The producer lost its trust.
    Trust,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Complete,
    Refused(Refuse),
    Cancelled(Cancel),
    Failed(Failure),
    /// The ledger did not let it in.
    Ledger(LedgerRefusal),
    /// The producer, or the key, is not trusted.
    Untrusted,
    /// It could not be requested.
    NotAsked(RequestError),
    /// The producer would send other pages.
    OtherPages,
    /// Nobody listens.
    Unreachable,
    /// The decoder let go of the lane, or ended.
    Dropped,
}

/// Why the ledger did not let a handoff in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedgerRefusal {
    Absent,
    Replay,
    Expired,
    Full,
    Io,
    Poisoned,
}

impl Attempt {
    pub(crate) fn new(job: Job) -> Self {
        Self { job, asked: None, excuses: BTreeSet::new() }
    }

    /// Whether the ledger's disk is waited for.
    pub(crate) fn awaits_ledger(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.accepted.is_some() && !asked.recorded)
    }

    /// Takes a page aside.
    pub(crate) fn take_page(&mut self, (layer, page): (u16, u32), bytes: &[u8]) -> Result<(), Violation> {
        let Some(asked) = &mut self.asked else { return Err(Violation::PageNotDue { layer, page }) };
        if !asked.recorded {
            return Err(Violation::NotOnRecord);
        }
        let is_planned = asked.plan.layers().get(usize::from(layer)).is_some_and(|range| range.contains(&page));
        if !is_planned || asked.cancelled || asked.pages.insert((layer, page), bytes.to_vec()).is_some() {
            return Err(Violation::PageNotDue { layer, page });
        }
        Ok(())
    }

    /// Checks that the pages aside are all that were planned, and what the producer sent: right, unless it `lies`.
    pub(crate) fn check_whole(&self, lies: bool, context: &Context) -> Result<(), Violation> {
        let Some(asked) = &self.asked else { return Err(Violation::PageCount { got: 0, want: 0 }) };
        let (got, want) = (asked.pages.len() as u64, asked.plan.page_count());
        if got != want {
            return Err(Violation::PageCount { got, want });
        }
        let names = context.shape.names(&self.job.tokens);
        for ((layer, page), bytes) in &asked.pages {
            let (shape, name) = (&context.shape, &names[*page as usize]);
            if *bytes != if lies { shape.wrong_page(*layer, name) } else { shape.page(*layer, name) } {
                return Err(Violation::WrongPage { layer: *layer, page: *page });
            }
        }
        Ok(())
    }
}

impl End {
    pub(crate) fn mark(&self, context: &mut Context) {
        let mark = match self {
            Self::Complete => Some(Mark::Completed),
            Self::Refused(refuse) => mark_of_refusal(refuse.code),
            // Told apart by who cancelled, where that is known.
            Self::Cancelled(_) | Self::NotAsked(_) | Self::OtherPages => None,
            Self::Untrusted => Some(Mark::Untrusted),
            Self::Failed(failure) => mark_of_failure(failure),
            Self::Ledger(refusal) => match refusal {
                LedgerRefusal::Absent => None,
                LedgerRefusal::Replay => Some(Mark::LedgerReplay),
                LedgerRefusal::Expired => Some(Mark::LedgerExpired),
                LedgerRefusal::Full => Some(Mark::LedgerFull),
                LedgerRefusal::Io => Some(Mark::LedgerIo),
                LedgerRefusal::Poisoned => Some(Mark::LedgerPoisoned),
            },
            Self::Unreachable => Some(Mark::ConnectionRefused),
            Self::Dropped => Some(Mark::Dropped),
        };
        mark.into_iter().for_each(|mark| context.mark(mark));
    }

    /// Whether the producer is left alone for a while.
    pub(crate) fn blames_the_producer(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Failed(_) | Self::Unreachable | Self::OtherPages | Self::Untrusted)
    }

    /// Whether this is how an attempt with these excuses may end. With a single excuse there is one right name for it.
    pub(crate) fn check(&self, excuses: &BTreeSet<Excuse>) -> Result<(), &'static str> {
        // A recording is of another lane, even for whoever draws the same numbers again.
        let never_completes = [Excuse::Identity, Excuse::KeyBytes, Excuse::Claim, Excuse::Install, Excuse::Recording];
        if matches!(self, Self::Complete) {
            let broken = never_completes.iter().any(|excuse| excuses.contains(excuse));
            return if broken { Err("it completed") } else { Ok(()) };
        }
        let mut only = excuses.iter();
        let (Some(excuse), None) = (only.next(), only.next()) else { return Ok(()) };
        let refused = |codes: &[RefuseCode]| matches!(self, Self::Refused(refuse) if codes.contains(&refuse.code));
        let told = |wanted| matches!(self, Self::Failed(Failure::RefusedByPeer(refuse)) if refuse.code == wanted);
        let is_right = match excuse {
            // Whichever end reads it says so, if the other one still hears.
            Excuse::Detected => {
                matches!(self, Self::Failed(Failure::Frame(_) | Failure::Ended(_)))
                    || refused(&[RefuseCode::Protocol])
                    || told(RefuseCode::Protocol)
                    // A length that grew, of a request that was asked for or of one that was not.
                    || refused(&[RefuseCode::TooLong])
                    || told(RefuseCode::TooLong)
            }
            Excuse::Busy => refused(&[RefuseCode::Busy]),
            Excuse::Claim => refused(&[RefuseCode::StaleClaim]),
            Excuse::Identity => matches!(self, Self::Failed(Failure::Identity(_))) || told(RefuseCode::Identity),
            Excuse::KeyBytes => matches!(self, Self::Failed(Failure::Mac(_))),
            Excuse::Ledger => matches!(self, Self::Ledger(_)),
            Excuse::Keys => {
                refused(&[RefuseCode::UnknownKey, RefuseCode::RevokedKey])
                    || matches!(
                        self,
                        Self::NotAsked(RequestError::Key(_)) | Self::Failed(Failure::Key(_)) | Self::Untrusted
                    )
            }
            Excuse::Engine => {
                refused(&[RefuseCode::Internal])
                    || matches!(self, Self::Cancelled(cancel)
                        if matches!(cancel.reason, CancelReason::Internal | CancelReason::ShuttingDown))
            }
            Excuse::Install => {
                matches!(self, Self::Cancelled(cancel) if cancel.reason == CancelReason::NotInstalled)
            }
            Excuse::Client => matches!(self, Self::Dropped | Self::Cancelled(_)),
            Excuse::Expiry => {
                refused(&[RefuseCode::Expired, RefuseCode::Internal])
                    || matches!(self, Self::Failed(Failure::Expired { .. }) | Self::Ledger(LedgerRefusal::Expired))
                    || told(RefuseCode::Expired)
            }
            Excuse::Trust => matches!(self, Self::Untrusted),
            Excuse::Network | Excuse::Process | Excuse::Nonce | Excuse::Recording => true,
        };
        if is_right { Ok(()) } else { Err("the reason is another") }
    }
}
