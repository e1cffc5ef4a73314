//! One handoff attempt with one producer: the pages staged aside, the faults that may excuse a failure, and the
//! outcome.

use std::collections::{BTreeMap, BTreeSet};

use muser_handoff::{HandoffError, PendingEntry};
use muser_kv::Realm;
use muser_wire::{CancelReason, Failure, HandoffPlan, RefuseCode, Request, RequestError};

use crate::context::Context;
use crate::coverage::{Mark, mark_of_failure, mark_of_refusal};
use crate::turn::Origin;
use crate::violation::Violation;

/// A prompt that a client waits for.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: u32,
    pub(crate) tokens: Vec<u32>,
    /// Producers already asked.
    pub(crate) tried: BTreeSet<usize>,
    /// The only producer to ask, repeatedly until an attempt completes; `None` for any.
    pub(crate) only: Option<usize>,
    /// Time at which the client leaves; `None` if it stays.
    pub(crate) gone_at_ms: Option<u64>,
    /// Realm of the job: its number and its secret.
    pub(crate) realm: (u32, Realm),
}

/// State of one handoff on the decoder's side, above its core.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) job: Job,
    /// The request; `None` until the lane is ready.
    pub(crate) asked: Option<Asked>,
    pub(crate) excuses: BTreeSet<Excuse>,
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) plan: HandoffPlan,
    /// Deadline of the handoff.
    pub(crate) due_ms: u64,
    /// Entry of the accepted handoff, and the time at which the ledger's disk takes it.
    pub(crate) accepted: Option<(PendingEntry, u64)>,
    pub(crate) recorded: bool,
    pub(crate) pages: BTreeMap<(u16, u32), Vec<u8>>,
    /// Key of a handoff whose pages all arrived; the trust check is still pending.
    pub(crate) complete: Option<u32>,
    /// Origin of the pages; set only in worlds where trust changes.
    pub(crate) origin: Option<Origin>,
}

/// Fault that excuses a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Excuse {
    /// A flipped bit or an excessive length, which the checks of a frame detect.
    Detected,
    /// Bytes were lost, changed, delayed or inserted.
    Network,
    /// An end was killed, restarted or frozen.
    Process,
    /// The decoder's ledger or its disk failed.
    Ledger,
    /// Keys changed, or one side does not know them yet.
    Keys,
    /// The producer is at its limit of concurrent handoffs.
    Busy,
    /// The decoder claimed to hold pages of other tokens.
    Claim,
    /// The models differ.
    Identity,
    /// The keys have the same ids and other bytes.
    KeyBytes,
    /// The expiry of the request was very short.
    Expiry,
    /// The client left.
    Client,
    /// The producer's engine gave up.
    Engine,
    /// The pages could not be installed.
    Install,
    /// The nonce was drawn before.
    Nonce,
    /// A recording of a session takes the sender's place.
    Recording,
    /// The producer lost its trust.
    Trust,
}

/// Outcome of an attempt.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Complete,
    /// The core's failure.
    HandoffError(HandoffError),
    /// The decoder gave the handoff up.
    GaveUp(CancelReason),
    /// The ledger refused the entry.
    Ledger(LedgerRefusal),
    /// The producer, or the key, is not trusted.
    Untrusted,
    /// No process listens at the producer's address.
    Unreachable,
    /// The decoder closed the lane or ended.
    Dropped,
}

/// Reason for which the ledger refused an entry.
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

    /// True while the accepted handoff waits for its ledger entry to be written.
    pub(crate) fn awaits_ledger(&self) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.accepted.is_some() && !asked.recorded)
    }

    /// Stages a page of the plan; a page before the ledger entry or outside the plan is a violation.
    pub(crate) fn take_page(&mut self, (layer, page): (u16, u32), bytes: &[u8]) -> Result<(), Violation> {
        let Some(asked) = &mut self.asked else { return Err(Violation::PageNotDue { layer, page }) };
        if !asked.recorded {
            return Err(Violation::NotOnRecord);
        }
        let is_planned = asked.plan.layers().get(usize::from(layer)).is_some_and(|range| range.contains(&page));
        if !is_planned || asked.pages.insert((layer, page), bytes.to_vec()).is_some() {
            return Err(Violation::PageNotDue { layer, page });
        }
        Ok(())
    }

    /// Checks that exactly the planned pages are staged, with the right bytes, or with the wrong ones if the producer
    /// `lies`.
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
            Self::HandoffError(error) => mark_of_error(error),
            Self::GaveUp(_) => Some(Mark::CancelledByReceiver),
            Self::Untrusted => Some(Mark::Untrusted),
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

    /// True if the outcome puts the producer into back-off.
    pub(crate) fn blames_the_producer(&self) -> bool {
        match self {
            Self::HandoffError(HandoffError::Cancelled(_)) => false,
            // Unless the producer accepted another request, it was never asked.
            Self::HandoffError(HandoffError::Request(error)) => matches!(error, RequestError::Plan(_)),
            _ => matches!(self, Self::HandoffError(_) | Self::Unreachable | Self::Untrusted),
        }
    }

    /// Checks that an attempt with these excuses may have this outcome. A single excuse determines the kind of outcome.
    pub(crate) fn check(&self, excuses: &BTreeSet<Excuse>) -> Result<(), &'static str> {
        // A recording is bound to another lane, so that even a repeated nonce does not make it valid.
        let never_completes = [Excuse::Identity, Excuse::KeyBytes, Excuse::Claim, Excuse::Install, Excuse::Recording];
        if matches!(self, Self::Complete) {
            let broken = never_completes.iter().any(|excuse| excuses.contains(excuse));
            return if broken { Err("it completed") } else { Ok(()) };
        }
        let mut only = excuses.iter();
        let (Some(excuse), None) = (only.next(), only.next()) else { return Ok(()) };
        let error = if let Self::HandoffError(error) = self { Some(error) } else { None };
        let failure = if let Some(HandoffError::Failed(failure)) = error { Some(failure) } else { None };
        let refused =
            |codes: &[RefuseCode]| matches!(error, Some(HandoffError::Refused(refuse)) if codes.contains(&refuse.code));
        let told = |wanted| matches!(failure, Some(Failure::RefusedByPeer(refuse)) if refuse.code == wanted);
        let is_right = match excuse {
            // The end that reads the frame refuses it; the other end sees the refusal if its direction still works.
            Excuse::Detected => {
                matches!(failure, Some(Failure::Frame(_) | Failure::Ended(_)))
                    || refused(&[RefuseCode::Protocol])
                    || told(RefuseCode::Protocol)
                    // A length that grew, of a request that was asked for or of one that was not.
                    || refused(&[RefuseCode::TooLong])
                    || told(RefuseCode::TooLong)
            }
            Excuse::Busy => refused(&[RefuseCode::Busy]),
            Excuse::Claim => refused(&[RefuseCode::StaleClaim]),
            Excuse::Identity => matches!(failure, Some(Failure::Identity(_))) || told(RefuseCode::Identity),
            Excuse::KeyBytes => matches!(failure, Some(Failure::Mac(_))),
            Excuse::Ledger => matches!(self, Self::Ledger(_)),
            Excuse::Keys => {
                refused(&[RefuseCode::UnknownKey, RefuseCode::RevokedKey])
                    || matches!(error, Some(HandoffError::Request(RequestError::Key(_))))
                    || matches!(self, Self::Untrusted)
            }
            Excuse::Engine => {
                refused(&[RefuseCode::Internal])
                    || matches!(
                        error,
                        Some(HandoffError::Cancelled(CancelReason::Internal | CancelReason::ShuttingDown))
                    )
            }
            Excuse::Install => matches!(self, Self::GaveUp(CancelReason::NotInstalled)),
            Excuse::Client => matches!(self, Self::Dropped | Self::GaveUp(CancelReason::ClientGone)),
            Excuse::Expiry => {
                refused(&[RefuseCode::Expired, RefuseCode::Internal])
                    || matches!(failure, Some(Failure::Expired { .. }))
                    || matches!(self, Self::Ledger(LedgerRefusal::Expired))
                    || told(RefuseCode::Expired)
            }
            Excuse::Trust => matches!(self, Self::Untrusted),
            Excuse::Network | Excuse::Process | Excuse::Nonce | Excuse::Recording => true,
        };
        if is_right { Ok(()) } else { Err("the reason is another") }
    }
}

fn mark_of_error(error: &HandoffError) -> Option<Mark> {
    match error {
        HandoffError::Refused(refuse) => mark_of_refusal(refuse.code),
        HandoffError::Cancelled(_) => Some(Mark::CancelledBySender),
        HandoffError::Failed(failure) | HandoffError::Request(RequestError::Plan(failure)) => mark_of_failure(failure),
        HandoffError::Request(_) | HandoffError::OtherPages { .. } => None,
    }
}
