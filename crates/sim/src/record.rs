//! A decoder and its ledger: an accepted handoff is entered before a page is taken, and every answer of the ledger is
//! checked against all entries that it ever accepted.

use muser_handoff::{HandoffError, PendingEntry};
use muser_ledger::{Ledger, LedgerEntry, OpenError, RecordError};
use muser_wire::{CancelReason, RequestError};

use crate::attempt::{End, Excuse, LedgerRefusal};
use crate::change::Step;
use crate::context::Context;
use crate::coverage::Mark;
use crate::decoder::Decoder;
use crate::lane::Lane;
use crate::violation::Violation;

/// Time after expiry from which a full ledger drops an entry, ms.
const FORGET_MARGIN_MS: u64 = 100;
/// Wall-clock time at the world's start, ms since 1970.
const UNIX_START_MS: u64 = 1_000_000;

impl Decoder {
    /// Opens the ledger from the disk. Only a disk that dropped unwritten bytes as clean may leave it damaged.
    pub(crate) fn open_ledger(&mut self, context: &mut Context) -> Result<(), Violation> {
        self.ledger = None;
        self.is_ledger_spoilt = false;
        self.ledger_opened_ms = context.now_ms;
        match Ledger::open(self.disk.open(), self.ledger_entries_max) {
            Ok(ledger) => {
                // All that was ever let in must be refused, by its place in the ledger or by its age.
                let own = context.accepted.iter().filter(|((decoder, ..), _)| *decoder == self.index);
                for ((_, key_id, _), entry) in own {
                    if ledger.record(*entry).is_ok() {
                        return Err(Violation::AcceptedTwice { decoder: self.index, key_id: *key_id });
                    }
                }
                self.ledger = Some(ledger);
            }
            Err(error) => {
                self.is_ledger_spoilt = true;
                let marks = self.disk.take_marks();
                let is_right = match &error {
                    OpenError::Damaged(_) => self.disk.has_lied(),
                    OpenError::Io(_) | OpenError::Create(_) => !marks.is_empty(),
                    _ => false,
                };
                marks.into_iter().for_each(|mark| context.mark(mark));
                context.say(|| format!("decoder {}: no ledger: {error}", self.index));
                if !is_right {
                    return Err(Violation::LedgerLost { decoder: self.index, error: error.to_string() });
                }
                context.mark(if matches!(error, OpenError::Damaged(_)) { Mark::LedgerDamaged } else { Mark::LedgerIo });
            }
        }
        Ok(())
    }

    /// Enters the accepted handoff in the ledger; its pages are taken from then on.
    pub(crate) fn record(
        &mut self,
        entry: PendingEntry,
        lane: &mut Lane,
        context: &mut Context,
    ) -> Result<(), Violation> {
        let Some(end) = &mut lane.receiver else { return Ok(()) };
        let Some(attempt) = &mut end.attempt else { return Ok(()) };
        let Some(asked) = &mut attempt.asked else { return Ok(()) };
        let entry = entry.at(self.ledger_ms(context.now_ms));
        if let Err(refusal) = self.enter(entry, context)? {
            if refusal == LedgerRefusal::Replay && lane.excuses.contains(&Excuse::Recording) {
                context.mark(Mark::LedgerRefusedARecording);
            }
            if self.is_right(refusal, &entry, context) {
                attempt.excuses.insert(match refusal {
                    LedgerRefusal::Replay => Excuse::Nonce,
                    LedgerRefusal::Expired if attempt.excuses.contains(&Excuse::Expiry) => Excuse::Expiry,
                    _ => Excuse::Ledger,
                });
            }
            if context.random.bool() {
                return self.give_up(lane, CancelReason::Internal, End::Ledger(refusal), context);
            }
            self.end(lane, End::Ledger(refusal), context)?;
            self.close(lane, context);
            return Ok(());
        }
        asked.recorded = true;
        end.moved_ms = context.now_ms;
        let recorded = end.core.recorded(context.now_ms);
        self.reach(Step::Recorded, lane.producer);
        match recorded {
            Ok(()) => Ok(()),
            Err(HandoffError::Request(error @ RequestError::State(_))) => {
                Err(Violation::Call { call: "recorded", error: error.to_string() })
            }
            Err(error) => {
                self.end(lane, End::HandoffError(error), context)?;
                self.close(lane, context);
                Ok(())
            }
        }
    }

    pub(crate) fn unix_ms(&self, now_ms: u64) -> u64 {
        (UNIX_START_MS + now_ms).saturating_sub(self.clock_back_ms)
    }

    /// Ledger time of new entries, ms since 1970.
    pub(crate) fn ledger_ms(&self, now_ms: u64) -> u64 {
        let clock_unix_ms = self.unix_ms(now_ms);
        self.ledger.as_ref().map_or(clock_unix_ms, |ledger| ledger.time(clock_unix_ms, now_ms - self.ledger_opened_ms))
    }

    /// Drops expired entries of the ledger.
    pub(crate) fn forget_old(&mut self, context: &mut Context) {
        let unix_ms = self.ledger_ms(context.now_ms);
        let Some(ledger) = &self.ledger else { return };
        match ledger.forget_expired(unix_ms, FORGET_MARGIN_MS) {
            Ok(0) => return,
            Ok(_) => {
                context.mark(Mark::LedgerForgot);
                self.forgotten_unix_ms.1 = self.forgotten_unix_ms.1.max(unix_ms - FORGET_MARGIN_MS);
            }
            // The disk may have the new ledger all the same.
            Err(_) => self.is_ledger_spoilt = true,
        }
        self.forgotten_unix_ms.0 = self.forgotten_unix_ms.0.max(unix_ms - FORGET_MARGIN_MS);
    }

    /// Enters a handoff, and checks the ledger's answer against all entries that it ever accepted.
    fn enter(&mut self, entry: LedgerEntry, context: &mut Context) -> Result<Result<(), LedgerRefusal>, Violation> {
        let Some(ledger) = &self.ledger else { return Ok(Err(LedgerRefusal::Absent)) };
        let was_full = ledger.len() >= self.ledger_entries_max;
        let recorded = ledger.record_making_room(entry, FORGET_MARGIN_MS);
        let forgotten_unix_ms = entry.time_unix_ms - FORGET_MARGIN_MS;
        if was_full {
            self.forgotten_unix_ms.0 = self.forgotten_unix_ms.0.max(forgotten_unix_ms);
        }
        let refusal = match recorded {
            Ok(forgotten) => {
                if forgotten > 0 {
                    context.mark(Mark::LedgerForgot);
                    self.forgotten_unix_ms.1 = self.forgotten_unix_ms.1.max(forgotten_unix_ms);
                }
                context.mark(Mark::LedgerRecorded);
                if std::mem::take(&mut self.is_ledger_spoilt) {
                    context.mark(Mark::LedgerWrittenAnew);
                }
                let handoff = (self.index, entry.key_id, entry.nonce);
                // A dropped entry is refused by its expiry. The same nonce with another expiry is another handoff.
                let before = context.accepted.insert(handoff, entry);
                if before.is_some_and(|before| before.expiry_unix_ms > self.forgotten_unix_ms.0) {
                    return Err(Violation::AcceptedTwice { decoder: self.index, key_id: entry.key_id });
                }
                let (expiry_unix_ms, floor_unix_ms) = (entry.expiry_unix_ms, self.forgotten_unix_ms.1);
                if expiry_unix_ms <= floor_unix_ms {
                    return Err(Violation::AcceptedTooOld { decoder: self.index, expiry_unix_ms, floor_unix_ms });
                }
                if !self.disk.has_durably(&entry.nonce) {
                    return Err(Violation::RecordNotDurable { decoder: self.index });
                }
                return Ok(Ok(()));
            }
            Err(RecordError::Replay { .. }) => LedgerRefusal::Replay,
            Err(RecordError::Expired { .. }) => LedgerRefusal::Expired,
            Err(RecordError::Full { .. }) => LedgerRefusal::Full,
            Err(RecordError::Poisoned | RecordError::Renewal(_)) => LedgerRefusal::Poisoned,
            Err(_) => {
                self.doubted.insert((entry.key_id, entry.nonce));
                LedgerRefusal::Io
            }
        };
        Ok(Err(refusal))
    }

    /// True if the ledger had a reason for this refusal.
    fn is_right(&mut self, refusal: LedgerRefusal, entry: &LedgerEntry, context: &mut Context) -> bool {
        let marks = self.disk.take_marks();
        let has_failed = !marks.is_empty();
        marks.into_iter().for_each(|mark| context.mark(mark));
        let was_spoilt = self.is_ledger_spoilt;
        self.is_ledger_spoilt |= has_failed;
        match refusal {
            LedgerRefusal::Absent | LedgerRefusal::Poisoned => was_spoilt || has_failed,
            LedgerRefusal::Replay => {
                let was_accepted = context.accepted.contains_key(&(self.index, entry.key_id, entry.nonce));
                was_accepted || self.doubted.contains(&(entry.key_id, entry.nonce))
            }
            // Not because a clock went back: the ledger's time does not.
            LedgerRefusal::Expired => entry.expiry_unix_ms <= entry.time_unix_ms,
            LedgerRefusal::Full => {
                has_failed
                    || was_spoilt
                    || self.ledger.as_ref().is_some_and(|ledger| ledger.len() >= self.ledger_entries_max)
            }
            LedgerRefusal::Io => has_failed,
        }
    }
}
