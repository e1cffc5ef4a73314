//! Decoding end of a lane: asks for the pages that a prompt lacks, and hands them out to be installed.
//!
//! The caller moves bytes ([`DecoderCore::take_bytes`], [`DecoderCore::output`]), carries out every effect of
//! [`DecoderCore::poll_effect`] in order, and answers two of them:
//!
//! - [`DecoderEffect::Record`] by [`DecoderCore::recorded`] once the entry is durable. No page is handed out before.
//! - [`DecoderEffect::AskTrust`] by [`DecoderCore::trusted`] if the peer is still trusted. Pages count only after that.
//!
//! An answer that cannot be given ends the handoff by [`DecoderCore::give_up`], or with the lane.

use muser_ledger::LedgerEntry;
use muser_wire::{
    Accept, CancelReason, Failure, HandoffPlan, MacKeys, Receiver, ReceiverEvent, ReceiverSettings, Refuse, RefuseCode,
    Request, RequestError, Stats,
};

/// Decoding end of a lane, as a state machine over `muser-wire`'s receiver.
#[derive(Debug)]
pub struct DecoderCore {
    receiver: Receiver,
    boot_id: [u8; 16],
    phase: Phase,
}

/// Request of a handoff, with what both ends must agree on.
#[derive(Clone, Debug)]
pub struct Order {
    /// The request, under a key that begins handoffs.
    pub request: Request,
    /// The pages that are missing.
    pub plan: HandoffPlan,
    /// Expiry by the ledger's clock, ms since 1970.
    pub expiry_unix_ms: u64,
}

/// Effect that the caller carries out.
#[derive(Debug)]
pub enum DecoderEffect<'a> {
    /// The peer greeted: a handoff can be requested.
    Ready,
    /// The producer accepted: write this to the ledger, then call [`DecoderCore::recorded`].
    Record(PendingEntry),
    /// Keep a page aside.
    Install {
        /// The page's layer.
        layer: u16,
        /// The page's absolute index.
        page: u32,
        /// The page, whole.
        bytes: &'a [u8],
    },
    /// Rows of the prompt that the producer has computed.
    Computed {
        /// Rows from the beginning of the prompt.
        rows: u32,
    },
    /// Every page arrived under a right manifest. Judge the peer and the key by the lists as they are now, then call
    /// [`DecoderCore::trusted`].
    AskTrust {
        /// MAC key of the handoff.
        key_id: u32,
    },
    /// The handoff failed: drop its pages.
    End(HandoffError),
    /// Nothing to do: the peer acknowledged the end of a handoff that was given up.
    Rested,
}

/// Entry of an accepted handoff for the replay ledger, without the time of its writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingEntry {
    key_id: u32,
    nonce: [u8; 32],
    prompt_digest: [u8; 32],
    boot_id: [u8; 16],
    first_page: u32,
    rows: u32,
    expiry_unix_ms: u64,
}

/// Failure of a handoff at the decoding end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoffError {
    /// The protocol does not allow the request, or the producer accepted another one.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The producer refuses the request.
    #[error("the producer refuses ({:?}): {}", .0.code, .0.detail)]
    Refused(Refuse),
    /// The producer cancelled the handoff.
    #[error("the handoff was cancelled: {0:?}")]
    Cancelled(CancelReason),
    /// The lane, or a message on it, violates the protocol.
    #[error(transparent)]
    Failed(Failure),
    /// The producer would send other pages than those that are missing.
    #[error("the producer sends pages from {got} on, those from {want} on are missing")]
    OtherPages {
        /// The first page it sends.
        got: u32,
        /// The first page that is missing.
        want: u32,
    },
}

#[derive(Debug)]
enum Phase {
    /// The peer has not greeted, or no handoff is under way.
    Resting,
    /// The producer's answer is awaited.
    Requested(Box<Order>),
    /// The ledger is awaited.
    Recording(Box<Order>, Accept),
    /// Pages arrive for a handoff under this key.
    Receiving { key_id: u32 },
    /// Every page arrived; the judgement is awaited.
    Judging(Stats),
    /// The handoff is void; what the peer says of its end is of no interest.
    Void,
    /// The lane is over, or the producer said that it is of no more use.
    Spent,
}

impl DecoderCore {
    /// The decoding end of a new connection to this node: a greeting is ready to be sent.
    pub fn connect(settings: ReceiverSettings, peer: [u8; 32], now_ms: u64) -> Self {
        let boot_id = settings.node.boot_id;
        Self { receiver: Receiver::connect(settings, now_ms).admitting(peer), boot_id, phase: Phase::Resting }
    }

    /// Asks for a handoff; `keys` are those of the moment, of a peer that is trusted by the lists as they are now.
    ///
    /// # Errors
    /// [`RequestError`]; nothing is asked for then.
    pub fn request(&mut self, order: Order, keys: MacKeys, now_ms: u64) -> Result<(), RequestError> {
        self.receiver.set_keys(keys);
        self.receiver.request(order.request.clone(), now_ms)?;
        self.phase = Phase::Requested(Box::new(order));
        Ok(())
    }

    /// Says that the entry of [`DecoderEffect::Record`] is durable: pages are handed out from now on.
    ///
    /// # Errors
    /// [`HandoffError::OtherPages`] or [`HandoffError::Request`]; the handoff is void then.
    pub fn recorded(&mut self, now_ms: u64) -> Result<(), HandoffError> {
        let (order, accept) = match std::mem::replace(&mut self.phase, Phase::Void) {
            Phase::Recording(order, accept) => (order, accept),
            phase => {
                self.phase = phase;
                return Err(RequestError::State("no ledger is awaited").into());
            }
        };
        let (got, want) = (accept.first_page, order.request.held_pages);
        if got != want {
            self.give_up(CancelReason::Internal, now_ms);
            return Err(HandoffError::OtherPages { got, want });
        }
        self.receiver.ledger_recorded(order.plan, now_ms)?;
        self.phase = Phase::Receiving { key_id: order.request.key_id };
        Ok(())
    }

    /// Says that the peer is still trusted: the handoff is complete, and acknowledged.
    ///
    /// # Errors
    /// [`RequestError::State`] before [`DecoderEffect::AskTrust`].
    pub fn trusted(&mut self) -> Result<Stats, RequestError> {
        let Phase::Judging(stats) = self.phase else {
            return Err(RequestError::State("no judgement is awaited"));
        };
        self.receiver.installed()?;
        self.phase = Phase::Resting;
        Ok(stats)
    }

    /// Gives the handoff under way up: its pages are void, and nothing more is told of it. The lane can be used again once
    /// the producer knows.
    pub fn give_up(&mut self, reason: CancelReason, now_ms: u64) {
        self.phase = Phase::Void;
        if self.receiver.cancel(reason, now_ms).is_err() {
            // It ended by itself just now, and what was to be told of that is of no interest any more.
            while self.poll_effect().is_some() {}
        }
    }

    /// The next effect, if any.
    pub fn poll_effect(&mut self) -> Option<DecoderEffect<'_>> {
        let Self { receiver, boot_id, phase } = self;
        Some(match receiver.poll_event()? {
            ReceiverEvent::Ready(_) => DecoderEffect::Ready,
            ReceiverEvent::Page { layer, page, bytes } => DecoderEffect::Install { layer, page, bytes },
            ReceiverEvent::Progress(progress) => DecoderEffect::Computed { rows: progress.rows_done },
            ReceiverEvent::Accepted(accept) => match std::mem::replace(phase, Phase::Void) {
                Phase::Requested(order) => {
                    let entry = PendingEntry::of(&order, &accept, *boot_id);
                    *phase = Phase::Recording(order, accept);
                    DecoderEffect::Record(entry)
                }
                _ => DecoderEffect::Rested,
            },
            ReceiverEvent::Complete(stats) => match phase {
                Phase::Receiving { key_id } => {
                    let key_id = *key_id;
                    *phase = Phase::Judging(stats);
                    DecoderEffect::AskTrust { key_id }
                }
                _ => DecoderEffect::Rested,
            },
            ReceiverEvent::Refused(refuse) => {
                // A producer that is in trouble, or about to end, may have a successor at the same address.
                let is_spent = matches!(refuse.code, RefuseCode::Internal | RefuseCode::ShuttingDown);
                end(phase, if is_spent { Phase::Spent } else { Phase::Resting }, HandoffError::Refused(refuse))
            }
            ReceiverEvent::Cancelled(cancel) => end(phase, Phase::Resting, HandoffError::Cancelled(cancel.reason)),
            ReceiverEvent::Failed(failure) => end(phase, Phase::Spent, HandoffError::Failed(failure)),
            ReceiverEvent::Pong(_) => DecoderEffect::Rested,
        })
    }

    /// Takes bytes from the front of `bytes` and returns how many it took: none while an effect waits, or its answer.
    /// Offer the rest again then.
    pub fn take_bytes(&mut self, bytes: &[u8], now_ms: u64) -> usize {
        match self.phase {
            // What the producer says now comes after the judgement.
            Phase::Judging(_) => 0,
            _ => self.receiver.take_bytes(bytes, now_ms),
        }
    }

    /// The bytes to send.
    pub fn output(&self) -> &[u8] {
        self.receiver.output()
    }

    /// Says that the first `bytes` bytes of [`DecoderCore::output`] were sent.
    ///
    /// # Panics
    /// If there were fewer.
    pub fn output_sent(&mut self, bytes: usize, now_ms: u64) {
        self.receiver.output_sent(bytes, now_ms);
    }

    /// Checks the deadlines. To be called periodically while a handoff or a greeting is awaited.
    pub fn tick(&mut self, now_ms: u64) {
        self.receiver.tick(now_ms);
    }

    /// Says that the connection ended and no more bytes come.
    pub fn ended(&mut self) {
        self.receiver.ended();
    }

    /// True if a handoff can be requested: between two of them, and of a producer that did not say that it is in trouble.
    pub fn is_idle(&self) -> bool {
        self.receiver.is_idle() && !matches!(self.phase, Phase::Spent)
    }

    /// True if no other handoff will be requested here: send the rest of the output, and close the lane.
    pub fn is_spent(&self) -> bool {
        self.receiver.is_closed() || matches!(self.phase, Phase::Spent)
    }

    /// Bytes of memory held for frames that come and go.
    pub fn buffer_bytes(&self) -> usize {
        self.receiver.buffer_bytes()
    }
}

/// Ends the handoff of `phase`, if it is not void already, and goes on to `next`.
fn end(phase: &mut Phase, next: Phase, error: HandoffError) -> DecoderEffect<'static> {
    match std::mem::replace(phase, next) {
        Phase::Void | Phase::Spent => DecoderEffect::Rested,
        _ => DecoderEffect::End(error),
    }
}

impl PendingEntry {
    fn of(order: &Order, accept: &Accept, boot_id: [u8; 16]) -> Self {
        let Request { key_id, nonce, tokens, .. } = &order.request;
        let mut prompt = blake3::Hasher::new();
        for token in tokens {
            prompt.update(&token.to_le_bytes());
        }
        Self {
            key_id: *key_id,
            nonce: *nonce,
            prompt_digest: *prompt.finalize().as_bytes(),
            boot_id,
            first_page: accept.first_page,
            rows: accept.rows,
            expiry_unix_ms: order.expiry_unix_ms,
        }
    }

    /// The entry as of `time_unix_ms`, the ledger's time, ms since 1970.
    pub fn at(&self, time_unix_ms: u64) -> LedgerEntry {
        let Self { key_id, nonce, prompt_digest, boot_id, first_page, rows, expiry_unix_ms } = *self;
        let rows = rows.into();
        LedgerEntry { key_id, nonce, prompt_digest, boot_id, first_page, rows, expiry_unix_ms, time_unix_ms }
    }
}
