//! The budget of bytes for all requests at once: bodies, what they become while they are read, and answers that are kept
//! until they are whole.
//!
//! Bounds on single requests do not bound their sum. What exceeds the budget is refused, not awaited: a request that waited
//! would hold what it has.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiError, ErrorKind};

/// Bytes of one request that are not charged: connections bound their sum, and small requests go on when large ones have
/// taken all of the budget.
pub const FREE_BYTES: usize = 64 << 10;

const UNIT_BYTES: usize = 1 << 10;
/// Seconds after which a client whom the budget turned away may try again.
const RETRY_SECONDS: u64 = 1;

/// The budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    units: Arc<Semaphore>,
    bytes_max: usize,
    returned: Arc<Notify>,
}

/// Bytes of a request that are charged until this is dropped.
#[derive(Debug, Default)]
pub struct Charge {
    permit: Option<OwnedSemaphorePermit>,
    bytes: usize,
    /// Notified when charged bytes are released.
    returned: Option<Arc<Notify>>,
}

impl MemoryBudget {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        let units = (bytes_max / UNIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self { units: Arc::new(Semaphore::new(units)), bytes_max, returned: Arc::default() }
    }

    /// Waits until charged bytes have been given back since the last time.
    pub async fn returned(&self) {
        self.returned.notified().await;
    }

    /// Charges `bytes` at once.
    ///
    /// # Errors
    /// If they are not there now.
    pub fn charge(&self, bytes: usize) -> Result<Charge, ApiError> {
        let mut charge = Charge::default();
        charge.grow_to(self, bytes)?;
        Ok(charge)
    }
}

impl Charge {
    /// Charges as much more as makes it `bytes` in all; never less than before.
    ///
    /// # Errors
    /// If that is not there now. What was charged stays charged.
    pub fn grow_to(&mut self, budget: &MemoryBudget, bytes: usize) -> Result<(), ApiError> {
        let units = |bytes: usize| bytes.saturating_sub(FREE_BYTES).div_ceil(UNIT_BYTES);
        let more = units(bytes).saturating_sub(units(self.bytes));
        let none = || {
            let message =
                format!("requests hold as much of the {} bytes for all of them as they may", budget.bytes_max);
            ApiError::new(ErrorKind::Unavailable, message).retry_after(RETRY_SECONDS)
        };
        let permits = u32::try_from(more).map_err(|_| none())?;
        let permit = Arc::clone(&budget.units).try_acquire_many_owned(permits).map_err(|_| none())?;
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
        self.bytes = self.bytes.max(bytes);
        self.returned = Some(Arc::clone(&budget.returned)).filter(|_| self.bytes > FREE_BYTES);
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.returned.iter().for_each(|returned| returned.notify_one());
    }
}

/// Bytes that stay charged until their last owner drops them.
pub fn charged(bytes: Vec<u8>, charge: Charge) -> Bytes {
    struct Charged {
        bytes: Vec<u8>,
        _charge: Charge,
    }
    impl AsRef<[u8]> for Charged {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    Bytes::from_owner(Charged { bytes, _charge: charge })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    fn free_bytes(budget: &MemoryBudget) -> usize {
        budget.units.available_permits() * UNIT_BYTES
    }

    #[test]
    fn bytes_are_charged_beyond_the_free_ones_and_given_back_with_the_last_holder() {
        let budget = MemoryBudget::new(100 * KIB);
        let small = budget.charge(FREE_BYTES).unwrap();
        assert_eq!(free_bytes(&budget), 100 * KIB);
        let mut large = budget.charge(FREE_BYTES + 60 * KIB).unwrap();
        assert_eq!(free_bytes(&budget), 40 * KIB);
        large.grow_to(&budget, 10).unwrap();
        large.grow_to(&budget, FREE_BYTES + 90 * KIB - 1).unwrap();
        assert_eq!(free_bytes(&budget), 10 * KIB);
        let bytes = charged(vec![7; 3], large);
        let part = bytes.slice(1..);
        drop((bytes, small));
        assert_eq!((free_bytes(&budget), &part[..]), (10 * KIB, &[7, 7][..]));
        drop(part);
        assert_eq!(free_bytes(&budget), 100 * KIB);
    }

    #[test]
    fn what_is_not_there_is_refused_and_costs_nothing() {
        let budget = MemoryBudget::new(100 * KIB);
        let mut held = budget.charge(FREE_BYTES + 80 * KIB).unwrap();
        for bytes in [FREE_BYTES + 21 * KIB, usize::MAX] {
            let refused = budget.charge(bytes).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
        }
        assert_eq!(held.grow_to(&budget, FREE_BYTES + 101 * KIB).unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(free_bytes(&budget), 20 * KIB);
        assert!(budget.charge(FREE_BYTES + 20 * KIB).is_ok());
    }
}
