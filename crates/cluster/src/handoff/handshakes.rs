//! Admission of connections that are not lanes yet: limits on their number, in total and per address, and the choice of
//! the one that a new one displaces.
//!
//! Only their addresses are known, so limits are per address: no address has more than its part, and a part is kept for
//! addresses from which lanes came before. Within an address, a connection that has not sent a TLS greeting is closed
//! first: nodes send it at once.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroUsize;

/// Addresses that are remembered, those that were admitted last.
const KNOWN_MAX: usize = 1024;

/// The handshakes of a producer.
#[derive(Debug)]
pub(super) struct Handshakes {
    /// Handshakes under way at once. Each costs a descriptor and some kilobytes.
    total_max: usize,
    /// Of these, from one address.
    of_address_max: usize,
    /// Of these, kept for addresses that were admitted before.
    for_known: usize,
    /// The oldest first.
    under_way: Vec<Handshake>,
    next: u64,
    /// Admitted before, the latest last.
    known: VecDeque<IpAddr>,
}

/// A connection on the way to a lane.
#[derive(Clone, Copy, Debug)]
struct Handshake {
    number: u64,
    address: IpAddr,
    /// True once a whole TLS ClientHello was read.
    has_greeted: bool,
}

impl Handshakes {
    /// At most `total_max` at once: half of them from one address, a quarter kept for known addresses.
    pub(super) fn new(total_max: NonZeroUsize) -> Self {
        let total_max = total_max.get();
        Self {
            total_max,
            of_address_max: (total_max / 2).max(1),
            for_known: total_max / 4,
            under_way: Vec::new(),
            next: 0,
            known: VecDeque::new(),
        }
    }

    /// Takes a connection. Returns its number, and that of the connection to close for it.
    pub(super) fn begin(&mut self, from: IpAddr) -> (u64, Option<u64>) {
        let address = network_of(from);
        let evicted = self.to_evict(address);
        self.under_way.retain(|handshake| Some(handshake.number) != evicted);
        let number = self.next;
        self.next += 1;
        self.under_way.push(Handshake { number, address, has_greeted: false });
        (number, evicted)
    }

    /// Notes that a whole TLS ClientHello was read.
    pub(super) fn greeted(&mut self, number: u64) {
        if let Some(handshake) = self.under_way.iter_mut().find(|handshake| handshake.number == number) {
            handshake.has_greeted = true;
        }
    }

    /// Removes a handshake that ended, with a lane or without.
    pub(super) fn end(&mut self, number: u64) {
        self.under_way.retain(|handshake| handshake.number != number);
    }

    /// Remembers the address of an admitted lane.
    pub(super) fn admitted(&mut self, from: IpAddr) {
        let address = network_of(from);
        self.known.retain(|known| *known != address);
        if self.known.len() == KNOWN_MAX {
            self.known.pop_front();
        }
        self.known.push_back(address);
    }

    /// The one to end when the system has no descriptor left: the oldest that has not greeted, or else the oldest of
    /// the address with the most.
    pub(super) fn end_one(&mut self) -> Option<u64> {
        let silent = self.under_way.iter().find(|handshake| !handshake.has_greeted).map(|silent| silent.number);
        let addresses = || self.under_way.iter().map(|handshake| handshake.address);
        let ended = silent.or_else(|| self.first_of(self.most(addresses())?))?;
        self.end(ended);
        Some(ended)
    }

    /// Number of the connection to close for a new one from this address, if a limit is reached.
    fn to_evict(&self, address: IpAddr) -> Option<u64> {
        let is_known = |address: &IpAddr| self.known.contains(address);
        if self.of(address) >= self.of_address_max {
            return self.first_of(address);
        }
        let strangers = || self.under_way.iter().map(|handshake| handshake.address).filter(|from| !is_known(from));
        if !is_known(&address) && strangers().count() >= self.total_max - self.for_known {
            return self.first_of(self.most(strangers())?);
        }
        if self.under_way.len() >= self.total_max {
            // There are strangers, or known ones beyond the part that is kept for them.
            let all = || self.under_way.iter().map(|handshake| handshake.address);
            return self.first_of(self.most(strangers()).or_else(|| self.most(all()))?);
        }
        None
    }

    /// The address with the most handshakes.
    fn most(&self, addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
        addresses.max_by_key(|address| self.of(*address))
    }

    fn of(&self, address: IpAddr) -> usize {
        self.under_way.iter().filter(|handshake| handshake.address == address).count()
    }

    /// Of an address the oldest that has not greeted, or else the oldest.
    fn first_of(&self, address: IpAddr) -> Option<u64> {
        let of_address = self.under_way.iter().filter(|handshake| handshake.address == address);
        of_address.min_by_key(|handshake| (handshake.has_greeted, handshake.number)).map(|handshake| handshake.number)
    }
}

/// Network that one owner may have many addresses in: the first 64 bits of an IPv6 address.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDSHAKES_MAX: usize = 256;
    const OF_ADDRESS_MAX: usize = 128;
    const FOR_KNOWN: usize = 64;

    fn handshakes() -> Handshakes {
        Handshakes::new(NonZeroUsize::new(HANDSHAKES_MAX).unwrap())
    }

    fn at(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn silent_connections_of_one_address_leave_those_of_others_and_those_that_greeted() {
        let mut handshakes = handshakes();
        let (other, none) = handshakes.begin(at(9));
        let (greeted, _) = handshakes.begin(at(1));
        handshakes.greeted(greeted);
        let mut ended = Vec::new();
        for _ in 0..2000 {
            ended.extend(handshakes.begin(at(1)).1);
        }
        assert_eq!((none, handshakes.of(at(1)), ended.len()), (None, OF_ADDRESS_MAX, 2000 + 1 - OF_ADDRESS_MAX));
        assert!(!ended.contains(&other) && !ended.contains(&greeted));
        assert!(ended.is_sorted(), "the oldest make way");
    }

    #[test]
    fn strangers_of_many_addresses_leave_room_for_addresses_that_were_admitted_before() {
        let mut handshakes = handshakes();
        handshakes.admitted(at(250));
        for round in 0..20 {
            for last in 0..250 {
                handshakes.begin(at(last));
                assert!(handshakes.under_way.len() <= HANDSHAKES_MAX - FOR_KNOWN, "{round}");
            }
        }
        let known: Vec<u64> = (0..FOR_KNOWN)
            .map(|_| handshakes.begin(at(250)))
            .map(|(number, ended)| {
                assert_eq!(ended, None);
                number
            })
            .collect();
        for last in 0..250 {
            let (_, ended) = handshakes.begin(at(last));
            assert!(ended.is_some_and(|ended| !known.contains(&ended)));
        }
        // Beyond its part, a known address takes from strangers.
        let (_, ended) = handshakes.begin(at(250));
        assert!(ended.is_some_and(|ended| !known.contains(&ended)));
        assert_eq!(handshakes.under_way.len(), HANDSHAKES_MAX);
    }

    #[test]
    fn the_address_with_the_most_makes_way() {
        let mut handshakes = handshakes();
        let few: Vec<u64> = (0..5).map(|last| handshakes.begin(at(last)).0).collect();
        for last in [100, 101].into_iter().cycle().take(1000) {
            let (_, ended) = handshakes.begin(at(last));
            assert!(ended.is_none_or(|ended| !few.contains(&ended)));
        }
    }

    #[test]
    fn what_ended_is_not_counted_and_silence_is_ended_first_where_the_system_is_short() {
        let mut handshakes = handshakes();
        for _ in 0..1000 {
            let (number, ended) = handshakes.begin(at(1));
            assert_eq!(ended, None);
            handshakes.end(number);
        }
        let (first, _) = handshakes.begin(at(1));
        let (second, _) = handshakes.begin(at(2));
        handshakes.greeted(first);
        assert_eq!((handshakes.end_one(), handshakes.of(at(1))), (Some(second), 1));
        // Without a silent one, an address that has many gives one up.
        let (single, _) = handshakes.begin(at(3));
        let (newer, _) = handshakes.begin(at(1));
        [single, newer].into_iter().for_each(|number| handshakes.greeted(number));
        assert_eq!(handshakes.end_one(), Some(first));
        assert_eq!([handshakes.end_one(), handshakes.end_one()].map(|ended| ended.is_some()), [true; 2]);
        assert_eq!(handshakes.end_one(), None);
    }

    #[test]
    fn few_descriptors_leave_few_handshakes_and_a_known_address_its_part_of_them() {
        for total in 1..20 {
            let mut handshakes = Handshakes::new(NonZeroUsize::new(total).unwrap());
            handshakes.admitted(at(250));
            for last in (0..250).cycle().take(1000) {
                handshakes.begin(at(last));
                assert!(handshakes.under_way.len() <= total, "{total}");
            }
            let (_, ended) = handshakes.begin(at(250));
            assert_eq!(ended.is_none(), total >= 4, "{total}");
        }
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let of = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), at(1));
        let mut handshakes = handshakes();
        (0..3000u32).for_each(|last| handshakes.admitted(IpAddr::from((0x0A00_0000 + last).to_be_bytes())));
        assert_eq!(handshakes.known.len(), KNOWN_MAX);
    }
}
