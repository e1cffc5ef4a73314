//! Violations of the invariants that every world checks.

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A page has other bytes than its tokens give.
    #[error("page {page} of layer {layer} is complete and wrong")]
    WrongPage {
        /// The page's layer.
        layer: u16,
        /// The page's absolute index.
        page: u32,
    },
    /// A complete handoff lacks a page, or brought one that was not planned.
    #[error("a handoff is complete with {got} pages of {want}")]
    PageCount {
        /// Pages that came.
        got: u64,
        /// Pages planned.
        want: u64,
    },
    /// A complete handoff reports other timings than its sender.
    #[error("a handoff is complete with times that its sender did not tell")]
    WrongTimes,
    /// A page was handed out twice, or none was due.
    #[error("page {page} of layer {layer} was handed out and was not due")]
    PageNotDue {
        /// The page's layer.
        layer: u16,
        /// The page's absolute index.
        page: u32,
    },
    /// Pages of an incomplete handoff are visible.
    #[error("page {page} of layer {layer} can be seen and belongs to nothing whole")]
    PartlyVisible {
        /// The page's layer.
        layer: u16,
        /// The page's absolute index.
        page: u32,
    },
    /// A page was taken before the handoff was durably on record.
    #[error("a page was taken of a handoff that is not durably on record")]
    NotOnRecord,
    /// The ledger accepted a handoff twice.
    #[error("decoder {decoder} accepted a handoff of key {key_id} twice")]
    AcceptedTwice {
        /// The decoder.
        decoder: usize,
        /// The MAC key.
        key_id: u32,
    },
    /// The ledger accepted a handoff that is older than entries that it dropped.
    #[error(
        "decoder {decoder} accepted a handoff that expires at {expiry_unix_ms} ms, up to {floor_unix_ms} ms are forgotten"
    )]
    AcceptedTooOld {
        /// The decoder.
        decoder: usize,
        /// The handoff's expiry.
        expiry_unix_ms: u64,
        /// The latest expiry that may be forgotten.
        floor_unix_ms: u64,
    },
    /// The ledger reported an entry as written that a power loss would remove.
    #[error("decoder {decoder} has a record that a power loss would take away")]
    RecordNotDurable {
        /// The decoder.
        decoder: usize,
    },
    /// A ledger with only a torn tail does not open.
    #[error("the ledger of decoder {decoder} does not open: {error}")]
    LedgerLost {
        /// The decoder.
        decoder: usize,
        /// Text of the error.
        error: String,
    },
    /// A handoff failed without a fault.
    #[error("a handoff of decoder {decoder} with producer {producer} failed without a fault: {end}")]
    FailedWithoutFault {
        /// The decoder.
        decoder: usize,
        /// The producer.
        producer: usize,
        /// Outcome of the attempt.
        end: String,
    },
    /// A fault was reported as another kind of failure.
    #[error("a fault ({fault}) was told as {end}")]
    WrongReason {
        /// The fault.
        fault: String,
        /// Outcome of the attempt.
        end: String,
    },
    /// Pages became visible whose maker, or key, was not trusted at that moment.
    #[error("decoder {decoder} uses for request {job} what a node sent that it does not trust")]
    UntrustedVisible {
        /// The decoder.
        decoder: usize,
        /// The request.
        job: u32,
    },
    /// Pages were refused although the trust in their maker was not lost.
    #[error("decoder {decoder} refuses for request {job} what a trusted node sent: {reason}")]
    TrustedRefused {
        /// The decoder.
        decoder: usize,
        /// The request.
        job: u32,
        /// Text of the engine's reason.
        reason: String,
    },
    /// Pages were used that arrived before an order to drop them, or from a listed node.
    #[error("decoder {decoder} uses pages of handoff {arrival} for request {job}, and was to forget them")]
    UsedAfterForgetting {
        /// The decoder.
        decoder: usize,
        /// The request.
        job: u32,
        /// The handoff that the pages came with.
        arrival: u32,
    },
    /// A request used pages of another realm.
    #[error("decoder {decoder} uses pages of another realm for request {job}")]
    RealmCrossed {
        /// The decoder.
        decoder: usize,
        /// The request.
        job: u32,
    },
    /// A producer reused pages that it had computed for another node or realm.
    #[error("a producer reuses for decoder {decoder} what it computed in another scope")]
    ScopeCrossed {
        /// The decoder.
        decoder: usize,
    },
    /// A node was condemned that sent no wrong page.
    #[error("decoder {decoder} condemns a node that sent nothing wrong")]
    WrongBlame {
        /// The decoder.
        decoder: usize,
    },
    /// A request has no answer, or a wrong one.
    #[error("request {job} of decoder {decoder} has no answer, or a wrong one")]
    NoAnswer {
        /// The decoder.
        decoder: usize,
        /// The request.
        job: u32,
    },
    /// An end waits for longer than it may.
    #[error("the {end} of lane {lane} has waited for {waited_ms} ms, {limit_ms} ms are the most")]
    NotNoticed {
        /// Receiver or sender.
        end: &'static str,
        /// The lane.
        lane: u32,
        /// Waiting time so far.
        waited_ms: u64,
        /// The limit.
        limit_ms: u64,
    },
    /// An end holds more memory than it may.
    #[error("the {end} of lane {lane} holds {bytes} bytes, {max} are the most")]
    Memory {
        /// Receiver or sender.
        end: &'static str,
        /// The lane.
        lane: u32,
        /// Bytes held.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// After the recovery some work did not end, or an end is neither idle nor closed.
    #[error("after {now_ms} ms of which the last were calm: {what}")]
    NotSettled {
        /// Time of the check.
        now_ms: u64,
        /// Description of the work still under way.
        what: String,
    },
    /// A producer that works again is not used again.
    #[error("decoder {decoder} does not use producer {producer} again: {end}")]
    NotUsedAgain {
        /// The decoder.
        decoder: usize,
        /// The producer.
        producer: usize,
        /// Outcome of the last attempt.
        end: String,
    },
    /// A call that must succeed did not.
    #[error("{call} was refused: {error}")]
    Call {
        /// The call.
        call: &'static str,
        /// Text of the error.
        error: String,
    },
    /// Code panicked.
    #[error("panicked: {0}")]
    Panic(String),
}
