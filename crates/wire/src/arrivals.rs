//! Parser of `Pages` frames: accepts each page of the plan once, in an agreed codec, and nothing else.

use std::ops::Range;

use crate::checklist::Checklist;
use crate::codec::{Codecs, PageCodec, PagePacker};
use crate::failure::Failure;
use crate::manifest::{LaneBinding, MacKeys, Manifest};
use crate::plan::HandoffPlan;
use crate::reader::Frame;
use crate::transfer::{Commit, Pages, Request};

/// Arrived pages of one handoff, and the entries of the current frame that were not handed out yet.
#[derive(Debug)]
pub struct Arrivals {
    plan: HandoffPlan,
    codecs: Codecs,
    checklist: Checklist,
    manifest: Manifest,
    packer: PagePacker,
    /// Entries of the frame under way, last one first.
    entries: Vec<Entry>,
}

/// Location of a page in a frame's body.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) layer: u16,
    pub(crate) page: u32,
    codec: PageCodec,
    stored: Range<usize>,
}

impl Arrivals {
    pub(crate) fn new(plan: HandoffPlan, codecs: Codecs, manifest: Manifest) -> Self {
        let checklist = Checklist::new(&plan);
        Self { plan, codecs, checklist, manifest, packer: PagePacker::default(), entries: Vec::new() }
    }

    /// Checks a whole `Pages` frame of this handoff before any of its pages is handed out.
    pub(crate) fn take(&mut self, frame: &Frame<'_>, request: &Request) -> Result<(), Failure> {
        let pages = Pages::read(frame.body)?;
        if pages.handoff != request.handoff {
            return Err(Failure::Unexpected { kind: frame.kind, state: "receiving another handoff" });
        }
        let (got, want) = (pages.sequence, self.manifest.frames());
        if got != want {
            return Err(Failure::Sequence { got, want });
        }
        let stored = self.read_entries(&pages, frame)?;
        if self.entries.is_empty() {
            let Pages { group, first_page, page_count, .. } = pages;
            return Err(Failure::NothingPlanned { group, first_page, page_count });
        }
        self.entries.reverse();
        self.manifest.add(&frame.digest, stored);
        Ok(())
    }

    /// Goes on to the next page of the frame under way, whose body is `body`.
    pub(crate) fn next(&mut self, body: &[u8]) -> Option<Result<Entry, Failure>> {
        let entry = self.entries.pop()?;
        let (layer, page) = (entry.layer, entry.page);
        if entry.codec == PageCodec::PlanesLz4 {
            let unpacked = self.packer.unpack(&body[entry.stored.clone()], self.plan.page_bytes() as usize);
            if let Err(cause) = unpacked {
                return Some(Err(Failure::Unpack { layer, page, cause }));
            }
        }
        Some(Ok(entry))
    }

    /// The page of the entry that [`Arrivals::next`] gave last.
    pub(crate) fn page<'a>(&'a self, entry: Entry, body: &'a [u8]) -> &'a [u8] {
        match entry.codec {
            PageCodec::None => &body[entry.stored],
            PageCodec::PlanesLz4 => self.packer.unpacked(),
        }
    }

    /// Checks a commit that came over `lane` against everything that arrived.
    pub(crate) fn check(
        &self,
        commit: &Commit,
        lane: &LaneBinding,
        (key_id, keys): (u32, &MacKeys),
    ) -> Result<(), Failure> {
        let missing = self.checklist.left();
        if missing > 0 {
            return Err(Failure::Incomplete { missing });
        }
        if commit.lane != *lane {
            return Err(Failure::OtherLane);
        }
        let counted = (commit.frames, commit.stored_bytes) == (self.manifest.frames(), self.manifest.stored_bytes());
        if !counted || commit.root != self.manifest.root() {
            return Err(Failure::Manifest { frames: commit.frames, stored_bytes: commit.stored_bytes });
        }
        if commit.mac != self.manifest.mac(keys.to_serve(key_id)?, lane, &commit.times) {
            return Err(Failure::Mac(key_id));
        }
        Ok(())
    }

    pub(crate) fn plan(&self) -> &HandoffPlan {
        &self.plan
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Lists the entries and returns the bytes that they store.
    fn read_entries(&mut self, pages: &Pages<'_>, frame: &Frame<'_>) -> Result<u64, Failure> {
        let Self { plan, checklist, entries, .. } = self;
        let mut fields = crate::body::Fields::new(frame.kind, pages.entries);
        let (mut at, mut sum, page_bytes) = (Pages::FIXED_BYTES, 0, plan.page_bytes());
        for (layer, page) in
            plan.entries(pages.group, pages.first_page..pages.first_page.saturating_add(pages.page_count))
        {
            let (raw, stored) = (fields.u32()?, fields.u32()?);
            let codec = u8::try_from(raw).ok().and_then(PageCodec::decode);
            let codec = codec.filter(|codec| self.codecs.contains(*codec)).filter(|codec| match codec {
                PageCodec::None => stored == page_bytes,
                PageCodec::PlanesLz4 => stored < page_bytes,
            });
            let codec = codec.ok_or(Failure::Entry { layer, page, codec: raw, stored })?;
            fields.bytes(stored as usize)?;
            if checklist.has(plan, layer, page) {
                return Err(Failure::Duplicate { layer, page });
            }
            checklist.mark(plan, layer, page);
            let start = at + Pages::ENTRY_BYTES;
            at = start + stored as usize;
            entries.push(Entry { layer, page, codec, stored: start..at });
            sum += u64::from(stored);
        }
        fields.finish()?;
        Ok(sum)
    }
}
