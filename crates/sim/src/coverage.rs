//! Counts of the events in played worlds, which show a check that never had anything to check.

use muser_wire::{Failure, RefuseCode};

/// Lists the marks once, for the type and for [`Mark::ALL`].
macro_rules! marks {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Something that can happen in a world.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names say what happened")]
        pub enum Mark {
            $($(#[$doc])* $name,)*
        }

        impl Mark {
            /// Every mark, in order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

marks! {
    // Faults of the network.
    CutInHeader,
    CutAtHeaderEnd,
    CutInBody,
    CutAtBodyEnd,
    CutInDigest,
    CutAtFrameEnd,
    CutInHandshake,
    CutInCommit,
    CutBetweenCommitAndInstalled,
    CutTowardsReceiver,
    CutTowardsSender,
    HalfOpenOneWay,
    HalfOpenBothWays,
    FlippedHeader,
    FlippedBody,
    FlippedDigest,
    ForgedHeader,
    ForgedBody,
    FrameRepeated,
    FrameRenumbered,
    FrameEmptied,
    FrameDropped,
    FramesExchanged,
    FrameOfAnotherHandoff,
    FrameLate,
    PingsWithoutEnd,
    LengthTooLarge,
    Noise,
    StrangeFrame,
    SessionReplayedToReceiver,
    SessionReplayedToSender,
    // Faults of processes, disks and people.
    ProducerKilled,
    ProducerFrozen,
    ProducerOfOtherIdentity,
    ProducerOfOtherKeys,
    ConnectionRefused,
    DecoderRestarted,
    DecoderFrozen,
    PowerLost,
    PowerLostDuringSync,
    LedgerTorn,
    DiskShortWrite,
    DiskFull,
    DiskSyncFailed,
    DiskSyncForgot,
    DiskReplaceFailed,
    DiskReadFailed,
    ClockSetBack,
    NonceDrawnAgain,
    SnapshotRestored,
    KeySpread,
    KeyRotated,
    KeyRevoked,
    KeyChangedUnderWay,
    ShortExpiry,
    ClientGone,
    ClientGoneBetweenPages,
    EngineFailed,
    InstallFailed,
    WrongClaim,
    // Changes of trust, and the steps of handoffs at which they came.
    TrustRevoked,
    TrustQuarantined,
    TrustCertificateEnded,
    TrustKeyRotatedAway,
    TrustRealmChanged,
    TrustTakenBack,
    TrustAllForgotten,
    TrustLieBegun,
    ChangedWhenConnected,
    ChangedWhenAsked,
    ChangedWhenRecorded,
    ChangedBetweenPages,
    ChangedWhenComplete,
    ChangedWhenArrived,
    ChangedWhenRenewed,
    ChangedWhileRunning,
    ChangedWhenKept,
    // What came of them.
    Untrusted,
    UntrustedWhenConnecting,
    UntrustedWhenAsking,
    UntrustedWhenComplete,
    UntrustedKey,
    TurnRefusedUntrusted,
    TurnRefusedTakenBack,
    LeftNothing,
    LostTakenBack,
    LiarCondemned,
    EarlierLiarCondemned,
    TrustedBesideOthers,
    WrongAnswer,
    // Outcomes of attempts.
    Completed,
    CompletedPacked,
    CompletedBesideHeldPages,
    CompletedWithoutPages,
    CompletedUnderFaults,
    CancelledByReceiver,
    CancelledBySender,
    Dropped,
    RefusedBusy,
    RefusedStaleClaim,
    RefusedUnknownKey,
    RefusedRevokedKey,
    RefusedInternal,
    FailedFrame,
    FailedBody,
    FailedUnexpected,
    FailedIdentity,
    FailedVersion,
    FailedAccept,
    FailedSequence,
    FailedNothingPlanned,
    FailedDuplicate,
    FailedEntry,
    FailedUnpack,
    FailedIncomplete,
    FailedProgress,
    FailedManifest,
    FailedMac,
    FailedOtherLane,
    FailedExpired,
    FailedStalled,
    FailedPingFlood,
    FailedRefusedByPeer,
    FailedEnded,
    // Outcomes of the ledger.
    LedgerRecorded,
    LedgerReplay,
    LedgerRefusedARecording,
    LedgerExpired,
    LedgerFull,
    LedgerForgot,
    LedgerIo,
    LedgerPoisoned,
    LedgerWrittenAnew,
    LedgerReopened,
    LedgerDamaged,
    // Answers.
    AnsweredByProducer,
    AnsweredByOtherProducer,
    AnsweredLocally,
    AnswerRefused,
    RecoveredPeerUsed,
}

/// Count of each mark, by its index in [`Mark::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage(Vec<u64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(vec![0; Mark::ALL.len()])
    }
}

impl Coverage {
    /// Number of times that `mark` occurred.
    pub fn of(&self, mark: Mark) -> u64 {
        self.0[mark as usize]
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, count)| *sum += count);
    }

    /// The marks that occurred fewer than `least` times, with their counts.
    pub fn below(&self, least: u64) -> Vec<(Mark, u64)> {
        Mark::ALL.iter().map(|mark| (*mark, self.of(*mark))).filter(|(_, count)| *count < least).collect()
    }

    pub(crate) fn count(&mut self, mark: Mark) {
        self.0[mark as usize] += 1;
    }
}

/// A line per mark.
impl std::fmt::Display for Coverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Mark::ALL.iter().try_for_each(|mark| writeln!(f, "{:>9} {mark:?}", self.of(*mark)))
    }
}

/// The mark of a failure at either end.
pub(crate) fn mark_of_failure(failure: &Failure) -> Option<Mark> {
    Some(match failure {
        Failure::Frame(_) => Mark::FailedFrame,
        Failure::Body(_) => Mark::FailedBody,
        Failure::Unexpected { .. } => Mark::FailedUnexpected,
        Failure::Version { .. } => Mark::FailedVersion,
        Failure::NothingPlanned { .. } => Mark::FailedNothingPlanned,
        Failure::Unpack { .. } => Mark::FailedUnpack,
        Failure::Incomplete { .. } => Mark::FailedIncomplete,
        Failure::Identity(_) => Mark::FailedIdentity,
        Failure::Accept { .. } => Mark::FailedAccept,
        Failure::Sequence { .. } => Mark::FailedSequence,
        Failure::Duplicate { .. } => Mark::FailedDuplicate,
        Failure::Entry { .. } => Mark::FailedEntry,
        Failure::Progress { .. } => Mark::FailedProgress,
        Failure::Manifest { .. } => Mark::FailedManifest,
        Failure::Mac(_) => Mark::FailedMac,
        Failure::OtherLane => Mark::FailedOtherLane,
        Failure::Expired { .. } => Mark::FailedExpired,
        Failure::Stalled { .. } | Failure::NotGreeted { .. } => Mark::FailedStalled,
        Failure::PingFlood(_) | Failure::Unasked(_) => Mark::FailedPingFlood,
        Failure::RefusedByPeer(_) => Mark::FailedRefusedByPeer,
        Failure::Ended(_) => Mark::FailedEnded,
        // The list may grow.
        _ => return None,
    })
}

/// The mark of a refused request.
pub(crate) fn mark_of_refusal(code: RefuseCode) -> Option<Mark> {
    Some(match code {
        RefuseCode::Busy => Mark::RefusedBusy,
        RefuseCode::StaleClaim => Mark::RefusedStaleClaim,
        RefuseCode::UnknownKey => Mark::RefusedUnknownKey,
        RefuseCode::RevokedKey => Mark::RefusedRevokedKey,
        RefuseCode::Internal => Mark::RefusedInternal,
        _ => return None,
    })
}
