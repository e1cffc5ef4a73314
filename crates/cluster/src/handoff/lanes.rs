//! Lane table of a producer: limits per node, and the choice of the idle lane that ends for another node's.
//!
//! Only as many lanes as there are handoffs at a time can be busy; all others are idle, and one of them can end. No node
//! has more than half of them. Where all are taken, the node with the most loses the one that is idle for longest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muser_trust::identity::NodeId;
use tokio::sync::Notify;

/// A lane on which nothing was asked for longer ends.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// The lanes of a producer.
#[derive(Clone, Debug)]
pub(super) struct Lanes(Arc<Mutex<Table>>);

/// A lane's place among the others; free again once dropped.
#[derive(Debug)]
pub(super) struct Place {
    lanes: Lanes,
    number: u64,
    end: Arc<Notify>,
}

#[derive(Debug)]
struct Table {
    max: usize,
    open: Vec<Open>,
    next: u64,
}

#[derive(Debug)]
struct Open {
    number: u64,
    node: NodeId,
    /// None while a handoff is under way.
    idle_since: Option<Instant>,
    end: Arc<Notify>,
}

impl Lanes {
    /// Up to `max` lanes.
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(Mutex::new(Table { max, open: Vec::new(), next: 0 })))
    }

    /// A place for a lane of this node. None if there is none and no idle lane can end for it.
    pub(super) fn open(&self, node: NodeId) -> Option<Place> {
        let mut table = self.table();
        if !table.make_room(node) {
            return None;
        }
        let (number, end) = (table.next, Arc::new(Notify::new()));
        table.next += 1;
        table.open.push(Open { number, node, idle_since: Some(Instant::now()), end: Arc::clone(&end) });
        drop(table);
        Some(Place { lanes: self.clone(), number, end })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// A handoff begins on this lane. False if the lane has to end instead.
    pub(super) fn begin(&self) -> bool {
        let mut table = self.lanes.table();
        let own = table.open.iter_mut().find(|open| open.number == self.number);
        own.map(|open| open.idle_since = None).is_some()
    }

    /// No handoff is under way: idle from now on, if it was not before.
    pub(super) fn rest(&self) {
        let mut table = self.lanes.table();
        if let Some(own) = table.open.iter_mut().find(|open| open.number == self.number) {
            own.idle_since.get_or_insert_with(Instant::now);
        }
    }

    /// Waits until another lane needs this place.
    pub(super) async fn is_needed(&self) {
        self.end.notified().await;
    }

    /// True if nothing was asked for on this lane for long enough to end it.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        let table = self.lanes.table();
        let own = table.open.iter().find(|open| open.number == self.number);
        own.and_then(|open| open.idle_since).is_some_and(|since| now.saturating_duration_since(since) > IDLE_MAX)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lanes.table().open.retain(|open| open.number != self.number);
    }
}

impl Table {
    /// Sees to it that there is room for one more of `node`, if that can be.
    fn make_room(&mut self, node: NodeId) -> bool {
        let of_node_max = self.max.div_ceil(2);
        if self.of(node) >= of_node_max {
            return self.end_one(node);
        }
        if self.open.len() < self.max {
            return true;
        }
        // Those with the most lose one first, and nobody one for a node that then has more.
        let mut nodes: Vec<NodeId> = self.open.iter().map(|open| open.node).collect();
        nodes.sort_by_key(|other| (std::cmp::Reverse(self.of(*other)), *other));
        nodes.dedup();
        nodes.retain(|other| *other == node || self.of(*other) > self.of(node));
        nodes.into_iter().any(|other| self.end_one(other))
    }

    fn of(&self, node: NodeId) -> usize {
        self.open.iter().filter(|open| open.node == node).count()
    }

    /// Ends the lane of `node` that is idle for longest.
    fn end_one(&mut self, node: NodeId) -> bool {
        let idle = self.open.iter().enumerate().filter(|(_, open)| open.node == node && open.idle_since.is_some());
        let Some((index, _)) = idle.min_by_key(|(_, open)| (open.idle_since, open.number)) else { return false };
        let ended = self.open.remove(index);
        ended.end.notify_one();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(byte: u8) -> NodeId {
        NodeId([byte; 32])
    }

    fn count(lanes: &Lanes, byte: u8) -> usize {
        lanes.table().of(node(byte))
    }

    #[test]
    fn one_node_never_has_more_than_half_and_its_longest_idle_lane_makes_way() {
        let lanes = Lanes::new(8);
        let mut places: Vec<Place> = (0..4).map(|_| lanes.open(node(1)).unwrap()).collect();
        assert!(places[0].begin());
        places.push(lanes.open(node(1)).unwrap());
        assert_eq!(count(&lanes, 1), 4);
        // The first is busy, so the second had to end.
        assert!(places[0].begin() && !places[1].begin() && places[2].begin() && places[3].begin());
        assert!(places[4].begin());
        assert!(lanes.open(node(1)).is_none(), "all are busy");
        places[2].rest();
        assert!(lanes.open(node(1)).is_some());
        drop(places);
        assert_eq!(count(&lanes, 1), 0);
    }

    #[test]
    fn a_node_without_lanes_has_one_although_others_have_them_all() {
        let lanes = Lanes::new(8);
        let mut places: Vec<Place> = (0..16).filter_map(|index| lanes.open(node(1 + index / 8))).collect();
        assert_eq!((count(&lanes, 1), count(&lanes, 2)), (4, 4));
        for byte in 3..=8 {
            places.push(lanes.open(node(byte)).unwrap());
        }
        assert!((1..=8).all(|byte| count(&lanes, byte) == 1));
        // Nobody has more than it.
        assert!(lanes.open(node(9)).is_some());
        assert_eq!((1..=8).map(|byte| count(&lanes, byte)).sum::<usize>(), 7);
        drop(places);
    }

    #[test]
    fn an_idle_lane_is_forgotten_after_a_while_and_a_busy_one_is_not() {
        let lanes = Lanes::new(8);
        let place = lanes.open(node(1)).unwrap();
        let later = Instant::now() + IDLE_MAX + Duration::from_secs(1);
        assert!(!place.is_forgotten(Instant::now()) && place.is_forgotten(later));
        assert!(place.begin() && !place.is_forgotten(later));
        place.rest();
        let rested = Instant::now();
        place.rest();
        assert!(place.is_forgotten(rested + IDLE_MAX + Duration::from_nanos(1)));
    }
}
