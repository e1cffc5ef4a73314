//! Plan of a handoff: its pages by layer group, and the framing overhead.

use std::ops::Range;

use crate::header::FrameHeader;
use crate::transfer::Pages;

/// The pages of a handoff. Both sides derive it from the same numbers, so it never crosses the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoffPlan {
    page_bytes: u32,
    groups: Vec<Vec<u16>>,
    layers: Vec<Range<u32>>,
}

/// Error in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The groups do not list every layer once, in ascending order within a group.
    #[error("{groups} groups do not hold each of {layers} layers once, in order")]
    Groups {
        /// Groups given.
        groups: usize,
        /// Layers that have a page range.
        layers: usize,
    },
    /// A page of no bytes.
    #[error("pages of 0 bytes")]
    EmptyPages,
    /// The sum of all page bytes overflows.
    #[error("the pages have more bytes than can be counted")]
    TooLarge,
}

/// Framing overhead of a plan's pages, in bytes; see [`HandoffPlan::framing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// `Pages` frames.
    pub frames: u64,
    /// Bytes of their headers.
    pub header_bytes: u64,
    /// Bytes of their digests.
    pub digest_bytes: u64,
    /// Bytes in front of their entries.
    pub range_bytes: u64,
    /// Bytes in front of each page.
    pub entry_bytes: u64,
}

/// The layer groups of a model: the global layers, then the local ones in at most three groups, as even as possible.
/// `is_local` has an element per layer. A kind of layer that the model does not have has no group.
///
/// # Panics
/// If there are more than 65,536 layers.
pub fn layer_groups(is_local: &[bool]) -> Vec<Vec<u16>> {
    assert!(is_local.len() <= 1 << 16, "{} layers", is_local.len());
    let of = |kind| (0u16..=u16::MAX).zip(is_local).filter(move |(_, local)| **local == kind).map(|(layer, _)| layer);
    let (global, local): (Vec<u16>, Vec<u16>) = (of(false).collect(), of(true).collect());
    let count = local.len().min(3);
    let mut groups = vec![global];
    for group in 0..count {
        groups.push(local[group * local.len() / count..(group + 1) * local.len() / count].to_vec());
    }
    groups.retain(|group| !group.is_empty());
    groups
}

impl HandoffPlan {
    /// The pages `layers[n]` (absolute indices) of each layer n, in `groups`, of `page_bytes` bytes each.
    ///
    /// # Errors
    /// Any [`PlanError`].
    pub fn new(groups: Vec<Vec<u16>>, layers: Vec<Range<u32>>, page_bytes: u32) -> Result<Self, PlanError> {
        let mut listed: Vec<usize> = groups.iter().flatten().map(|layer| usize::from(*layer)).collect();
        listed.sort_unstable();
        let ascending = groups.iter().all(|group| group.is_sorted() && !group.is_empty());
        if groups.len() > 255 || !ascending || !listed.iter().copied().eq(0..layers.len()) {
            return Err(PlanError::Groups { groups: groups.len(), layers: layers.len() });
        }
        if page_bytes == 0 {
            return Err(PlanError::EmptyPages);
        }
        let plan = Self { page_bytes, groups, layers };
        // The framing of a page is smaller than 2^8 bytes, so that no sum over the plan overflows either.
        let countable = plan.page_count().checked_mul(u64::from(page_bytes) + 256).is_some();
        if countable { Ok(plan) } else { Err(PlanError::TooLarge) }
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u32 {
        self.page_bytes
    }

    /// The layers of each group, ascending.
    pub fn groups(&self) -> &[Vec<u16>] {
        &self.groups
    }

    /// The pages of each layer, by absolute index.
    pub fn layers(&self) -> &[Range<u32>] {
        &self.layers
    }

    /// Pages over all layers.
    pub fn page_count(&self) -> u64 {
        self.layers.iter().map(|pages| pages.len() as u64).sum()
    }

    /// Bytes of all pages before packing.
    pub fn payload_bytes(&self) -> u64 {
        self.page_count() * u64::from(self.page_bytes)
    }

    /// The (layer, page) pairs of `group` with a page in `pages`, in the order of a `Pages` frame. None if there is no
    /// such group.
    pub fn entries(&self, group: u8, pages: Range<u32>) -> impl Iterator<Item = (u16, u32)> + '_ {
        let layers = self.groups.get(usize::from(group)).map_or(&[][..], Vec::as_slice);
        layers.iter().flat_map(move |&layer| {
            let planned = &self.layers[usize::from(layer)];
            (pages.start.max(planned.start)..pages.end.min(planned.end)).map(move |page| (layer, page))
        })
    }

    /// Splits the pages of `group` that lie in `pages` into ranges whose frames have bodies of at most `body_bytes_max`
    /// bytes even if nothing can be packed. A page index alone in its range may still exceed that: see
    /// [`Self::body_bytes_min`].
    pub fn frames(&self, group: u8, pages: Range<u32>, body_bytes_max: u32) -> Vec<Range<u32>> {
        let layers = self.groups.get(usize::from(group)).map_or(&[][..], Vec::as_slice);
        let planned = || layers.iter().map(|&layer| &self.layers[usize::from(layer)]).filter(|range| !range.is_empty());
        let start = planned().map(|range| range.start).min().unwrap_or(0).max(pages.start);
        let end = planned().map(|range| range.end).max().unwrap_or(0).min(pages.end);
        let (mut frames, mut body) = (Vec::<Range<u32>>::new(), u64::MAX);
        for page in start..end {
            let column = planned().filter(|range| range.contains(&page)).count() as u64 * self.entry_bytes();
            if column == 0 {
                continue;
            }
            match frames.last_mut() {
                Some(last) if last.end == page && body.saturating_add(column) <= u64::from(body_bytes_max) => {
                    last.end = page + 1;
                    body += column;
                }
                _ => {
                    frames.push(page..page + 1);
                    body = Pages::FIXED_BYTES as u64 + column;
                }
            }
        }
        frames
    }

    /// The least limit of `Pages` bodies, in bytes, under which this plan can be sent at all: one page of each layer
    /// of the largest group.
    pub fn body_bytes_min(&self) -> u64 {
        let layers = self.groups.iter().map(Vec::len).max().unwrap_or(0) as u64;
        Pages::FIXED_BYTES as u64 + layers * self.entry_bytes()
    }

    /// Framing overhead beyond [`Self::payload_bytes`], if each group is sent in as few frames as `body_bytes_max`
    /// allows. Messages other than `Pages` are not counted.
    pub fn framing(&self, body_bytes_max: u32) -> Framing {
        let groups = (0u8..=255).take(self.groups.len());
        let frames = groups.map(|group| self.frames(group, 0..u32::MAX, body_bytes_max).len() as u64).sum();
        Framing {
            frames,
            header_bytes: frames * FrameHeader::BYTES as u64,
            digest_bytes: frames * FrameHeader::DIGEST_BYTES as u64,
            range_bytes: frames * Pages::FIXED_BYTES as u64,
            entry_bytes: self.page_count() * Pages::ENTRY_BYTES as u64,
        }
    }

    /// Bytes of an unpacked page with its entry header.
    fn entry_bytes(&self) -> u64 {
        u64::from(self.page_bytes) + Pages::ENTRY_BYTES as u64
    }
}

impl Framing {
    /// Sum of all overhead, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.header_bytes + self.digest_bytes + self.range_bytes + self.entry_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn sizes(is_local: &[bool]) -> Vec<usize> {
        layer_groups(is_local).iter().map(Vec::len).collect()
    }

    #[test]
    fn three_of_four_layers_local_makes_four_groups_of_thirteen() {
        let is_local: Vec<bool> = (0..52).map(|layer| layer % 4 != 3).collect();
        assert_eq!(sizes(&is_local), [13, 13, 13, 13]);
        let groups = layer_groups(&is_local);
        assert_eq!(groups[0], (0..13).map(|index| 4 * index + 3).collect::<Vec<u16>>());
        assert_eq!(groups[1][..4], [0, 1, 2, 4]);
    }

    #[test]
    fn groups_are_as_even_as_possible_and_hold_every_layer_once() {
        for (local, expected) in [(0, &[2][..]), (1, &[2, 1]), (2, &[2, 1, 1]), (3, &[2, 1, 1, 1]), (5, &[2, 1, 2, 2])]
        {
            let is_local: Vec<bool> = (0..local + 2).map(|layer| layer < local).collect();
            assert_eq!(sizes(&is_local), expected);
        }
        assert_eq!(sizes(&[true; 7]), [2, 2, 3]);
        assert_eq!(sizes(&[]), [0; 0]);
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let is_local: Vec<bool> = (0..random.usize(1..80)).map(|_| random.bool()).collect();
            let groups = layer_groups(&is_local);
            let ranges = vec![0..1; is_local.len()];
            HandoffPlan::new(groups.clone(), ranges, 1).unwrap();
            let local = groups.iter().filter(|group| is_local[usize::from(group[0])]).map(Vec::len);
            assert!(local.clone().max().unwrap_or(0) - local.min().unwrap_or(0) <= 1);
        }
    }

    #[test]
    fn groups_that_miss_repeat_or_shuffle_layers_are_refused() {
        let wrong: [&[&[u16]]; 5] = [&[&[0]], &[&[0, 1], &[1]], &[&[1, 0]], &[&[0, 1], &[]], &[&[0], &[2]]];
        for groups in wrong {
            let groups: Vec<Vec<u16>> = groups.iter().map(|group| group.to_vec()).collect();
            let count = groups.len();
            let refused = HandoffPlan::new(groups, vec![0..1, 0..1], 1);
            assert_eq!(refused, Err(PlanError::Groups { groups: count, layers: 2 }));
        }
        assert_eq!(HandoffPlan::new(vec![vec![0], vec![1]], vec![0..1, 0..1], 0), Err(PlanError::EmptyPages));
    }

    #[test]
    fn frames_cover_the_plan_once_and_framing_counts_their_bytes() {
        let mut random = fastrand::Rng::with_seed(5);
        for round in 0..300 {
            let is_local: Vec<bool> = (0..random.usize(1..12)).map(|_| random.bool()).collect();
            let end = random.u32(1..40);
            let ranges = is_local.iter().map(|local| if *local { random.u32(0..end)..end } else { 0..end });
            let plan = HandoffPlan::new(layer_groups(&is_local), ranges.collect(), random.u32(1..500)).unwrap();
            let limit = random.u32(0..10_000).max(u32::try_from(plan.body_bytes_min()).unwrap());
            let (mut bytes, mut sent) = (0, BTreeSet::new());
            for group in 0..u8::try_from(plan.groups().len()).unwrap() {
                for range in plan.frames(group, 0..u32::MAX, limit) {
                    let mut body = Pages::FIXED_BYTES as u64;
                    for (layer, page) in plan.entries(group, range) {
                        assert!(sent.insert((layer, page)), "round {round}");
                        body += u64::from(plan.page_bytes()) + 8;
                    }
                    assert!(body <= u64::from(limit), "round {round}: {body} of {limit}");
                    bytes += body + 24 + 32;
                }
            }
            assert_eq!(sent.len() as u64, plan.page_count(), "round {round}");
            assert_eq!(bytes, plan.payload_bytes() + plan.framing(limit).total_bytes(), "round {round}");
        }
    }
}
