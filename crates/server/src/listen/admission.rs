//! Admission of connections beyond their limits.
//!
//! One address may hold three quarters of the places, so that one client cannot have them all. When all are taken, the
//! least costly idle connection is closed: one that is ending, or has sent no byte, or else one between two requests;
//! work is never interrupted. Beyond that there are a few narrow places, in which `/health` and the other routes
//! without a key are answered and everything else gets a `503`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// Phase of a connection, the cheapest to close first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionPhase {
    /// Its last answer was sent, and the client has not closed it.
    Leaving,
    /// No byte has been received.
    Silent,
    /// Kept alive between two requests.
    Waiting,
    /// A head is being received.
    Head,
    /// A request is being answered.
    Answering,
}

const PHASES: [ConnectionPhase; 5] = [
    ConnectionPhase::Leaving,
    ConnectionPhase::Silent,
    ConnectionPhase::Waiting,
    ConnectionPhase::Head,
    ConnectionPhase::Answering,
];

/// Class of a connection: the requests it may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionClass {
    /// Any number, to any route.
    Full,
    /// One request, to a route that needs no key.
    Narrow,
}

/// Entry of a connection in the table of all.
#[derive(Debug)]
pub struct Peer {
    address: IpAddr,
    class: ConnectionClass,
    phase: AtomicU8,
    /// Tick of the table's clock at which it came to its phase.
    since: AtomicU64,
    clock: Arc<AtomicU64>,
    leave: Notify,
}

/// All connections.
#[derive(Debug)]
pub struct Admission {
    full_max: usize,
    narrow_max: usize,
    share: usize,
    clock: Arc<AtomicU64>,
    open: Mutex<HashMap<u64, Arc<Peer>>>,
}

/// A connection's entry; it leaves the table when this is dropped.
#[derive(Debug)]
pub struct Admitted {
    number: u64,
    table: Arc<Admission>,
    /// The connection.
    pub peer: Arc<Peer>,
}

impl Peer {
    /// Its class, which does not change.
    pub fn class(&self) -> ConnectionClass {
        self.class
    }

    /// Sets its phase.
    pub fn enter(&self, phase: ConnectionPhase) {
        if self.phase.swap(phase as u8, Ordering::Relaxed) != phase as u8 {
            self.since.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Waits until it is closed in favour of another connection.
    pub async fn must_leave(&self) {
        self.leave.notified().await;
    }

    /// Its phase at this moment.
    pub fn phase(&self) -> ConnectionPhase {
        PHASES[usize::from(self.phase.load(Ordering::Relaxed))]
    }
}

impl Admission {
    /// A table of at most `full_max` full connections, three quarters of them from one address, and `narrow_max` narrow ones.
    pub fn new(full_max: usize, narrow_max: usize) -> Self {
        let share = full_max - full_max / 4;
        Self { full_max, narrow_max, share, clock: Arc::default(), open: Mutex::default() }
    }

    /// Closes the idle connection that costs the least, so that the system has its descriptor for another one.
    pub fn make_room(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let age = |peer: &Peer| (peer.phase(), peer.since.load(Ordering::Relaxed));
        dismiss(&mut open, |peer| peer.phase() <= ConnectionPhase::Waiting, age);
    }

    /// Admits a connection from `address`, closing an idle one if it must; `None` if neither class has room.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Admitted> {
        let address = network_of(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut of_addresses, mut full, mut narrow) = (HashMap::<IpAddr, usize>::new(), 0, 0);
        for peer in open.values() {
            match peer.class {
                ConnectionClass::Full => {
                    full += 1;
                    *of_addresses.entry(peer.address).or_default() += 1;
                }
                ConnectionClass::Narrow => narrow += 1,
            }
        }
        let own = of_addresses.get(&address).copied().unwrap_or(0);
        let has_share = own < self.share;
        let class = if full < self.full_max && has_share {
            ConnectionClass::Full
        } else {
            // The least loss first: by phase, then of the address with most connections, then by age.
            let may_leave = |peer: &Peer| {
                peer.class == ConnectionClass::Full
                    && peer.phase() <= ConnectionPhase::Waiting
                    && (has_share || peer.address == address)
            };
            let loss = |peer: &Peer| {
                let most = usize::MAX - of_addresses.get(&peer.address).copied().unwrap_or(0);
                (peer.phase(), most, peer.since.load(Ordering::Relaxed))
            };
            if dismiss(&mut open, may_leave, loss) {
                ConnectionClass::Full
            } else {
                let may_leave =
                    |peer: &Peer| peer.class == ConnectionClass::Narrow && peer.phase() < ConnectionPhase::Answering;
                let age = |peer: &Peer| (peer.phase(), 0, peer.since.load(Ordering::Relaxed));
                if narrow >= self.narrow_max && !dismiss(&mut open, may_leave, age) {
                    return None;
                }
                ConnectionClass::Narrow
            }
        };
        let number = self.clock.fetch_add(1, Ordering::Relaxed);
        let (clock, leave) = (Arc::clone(&self.clock), Notify::new());
        let peer = Peer {
            address,
            class,
            phase: AtomicU8::new(ConnectionPhase::Silent as u8),
            since: AtomicU64::new(number),
            clock,
            leave,
        };
        let peer = Arc::new(peer);
        open.insert(number, Arc::clone(&peer));
        Some(Admitted { number, table: Arc::clone(self), peer })
    }
}

/// Removes the connection with the least loss from the table, and notifies it; false if none may be closed.
fn dismiss<L: Ord>(
    open: &mut HashMap<u64, Arc<Peer>>,
    may_leave: impl Fn(&Peer) -> bool,
    loss: impl Fn(&Peer) -> L,
) -> bool {
    let least = open.iter().filter(|(_, peer)| may_leave(peer)).min_by_key(|(_, peer)| loss(peer));
    let Some(number) = least.map(|(number, _)| *number) else { return false };
    if let Some(peer) = open.remove(&number) {
        peer.leave.notify_one();
    }
    true
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.table.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// Address by which connections are counted: of IPv6 the /64 network, of which one client has all addresses.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW_MAX: usize = 64;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn admit(table: &Arc<Admission>, last: u8, phase: ConnectionPhase) -> Admitted {
        let admitted = table.admit(address(last)).unwrap();
        admitted.peer.enter(phase);
        admitted
    }

    /// True if the connection was notified to leave.
    fn left(admitted: &Admitted) -> bool {
        !admitted.table.open.lock().unwrap().contains_key(&admitted.number)
    }

    #[test]
    fn an_address_has_a_share_and_others_find_room_beside_it() {
        let table = Arc::new(Admission::new(8, NARROW_MAX));
        let many: Vec<_> = (0..8).map(|_| admit(&table, 1, ConnectionPhase::Answering)).collect();
        let classes: Vec<ConnectionClass> = many.iter().map(|admitted| admitted.peer.class()).collect();
        assert_eq!(classes.iter().filter(|class| **class == ConnectionClass::Full).count(), 6);
        assert_eq!(admit(&table, 2, ConnectionPhase::Answering).peer.class(), ConnectionClass::Full);
        assert!(many.iter().all(|admitted| !left(admitted)));
    }

    #[test]
    fn who_says_nothing_makes_way_first_then_who_waits_longest_and_never_who_works() {
        let table = Arc::new(Admission::new(4, NARROW_MAX));
        let waiting = admit(&table, 1, ConnectionPhase::Waiting);
        let head = admit(&table, 2, ConnectionPhase::Head);
        let silent = admit(&table, 3, ConnectionPhase::Silent);
        let answering = admit(&table, 4, ConnectionPhase::Answering);
        let first = admit(&table, 5, ConnectionPhase::Answering);
        assert!(left(&silent) && !left(&waiting));
        let second = admit(&table, 6, ConnectionPhase::Answering);
        assert!(left(&waiting) && !left(&head) && !left(&answering));
        assert_eq!((first.peer.class(), second.peer.class()), (ConnectionClass::Full, ConnectionClass::Full));
        let third = admit(&table, 7, ConnectionPhase::Answering);
        assert_eq!(third.peer.class(), ConnectionClass::Narrow);
        drop(head);
        assert_eq!(admit(&table, 8, ConnectionPhase::Answering).peer.class(), ConnectionClass::Full);
    }

    #[test]
    fn of_those_that_say_nothing_the_oldest_of_whoever_has_most_goes() {
        let table = Arc::new(Admission::new(4, NARROW_MAX));
        let lone = admit(&table, 1, ConnectionPhase::Silent);
        let many: Vec<_> = (0..3).map(|_| admit(&table, 2, ConnectionPhase::Silent)).collect();
        let next = admit(&table, 3, ConnectionPhase::Silent);
        assert!(!left(&lone) && left(&many[0]) && !left(&many[1]));
        // An address with all of its share loses one of its own.
        let own = admit(&table, 2, ConnectionPhase::Silent);
        assert!(!left(&lone) && left(&many[1]) && !left(&next) && !left(&own));
    }

    #[test]
    fn narrow_places_are_few_and_the_newest_has_one() {
        let table = Arc::new(Admission::new(1, NARROW_MAX));
        let _works = admit(&table, 1, ConnectionPhase::Answering);
        let narrow: Vec<_> = (0..NARROW_MAX).map(|_| admit(&table, 1, ConnectionPhase::Head)).collect();
        let newest = admit(&table, 1, ConnectionPhase::Answering);
        assert_eq!((left(&narrow[0]), left(&narrow[1]), newest.peer.class()), (true, false, ConnectionClass::Narrow));
        narrow.iter().for_each(|admitted| admitted.peer.enter(ConnectionPhase::Answering));
        assert!(table.admit(address(1)).is_none());
    }

    #[test]
    fn where_the_system_is_short_of_those_that_ask_for_nothing_the_silent_go_first() {
        let table = Arc::new(Admission::new(8, NARROW_MAX));
        let waiting = admit(&table, 1, ConnectionPhase::Waiting);
        let head = admit(&table, 2, ConnectionPhase::Head);
        let silent = admit(&table, 3, ConnectionPhase::Silent);
        let answering = admit(&table, 4, ConnectionPhase::Answering);
        table.make_room();
        assert!(left(&silent) && !left(&waiting));
        table.make_room();
        table.make_room();
        assert!(left(&waiting) && !left(&head) && !left(&answering));
        let (silent, leaving) = (admit(&table, 5, ConnectionPhase::Silent), admit(&table, 6, ConnectionPhase::Leaving));
        table.make_room();
        assert!(left(&leaving) && !left(&silent));
    }

    #[test]
    fn one_client_has_all_addresses_of_its_network() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2:ffff::"));
        assert_ne!(of("2001:db8:1:2::"), of("2001:db8:1:3::"));
        assert_eq!(of("::ffff:10.0.0.1"), address(1));
    }
}
