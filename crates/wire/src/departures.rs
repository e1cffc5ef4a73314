//! Writer of `Pages` frames: each page of the plan once, packed where that makes it smaller.

use std::ops::Range;

use crate::HandoffId;
use crate::checklist::Checklist;
use crate::codec::{Codecs, PageCodec, PagePacker};
use crate::header::FrameKind;
use crate::manifest::{KeyError, Manifest};
use crate::plan::HandoffPlan;
use crate::reader::write_frame;
use crate::transfer::Pages;

/// Error of a [`Sender`](crate::Sender) call; nothing has changed, except that [`SendError::Key`] ended the handoff
/// with a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The call is not valid in the current state.
    #[error("not possible while {0}")]
    State(&'static str),
    /// More pages left out than the receiver says it holds.
    #[error("the plan leaves out {first_page} pages, the receiver holds {held_pages}")]
    FirstPage {
        /// Pages left out.
        first_page: u32,
        /// Pages held.
        held_pages: u32,
    },
    /// The frame would be longer than both sides allow.
    #[error("a pages body of {got} bytes exceeds the limit of {max}")]
    FrameTooLarge {
        /// Bytes needed, with nothing packed.
        got: u64,
        /// The lower of both sides' limits.
        max: u32,
    },
    /// No page of the plan.
    #[error("pages {start} to {end} of group {group} are not in the plan")]
    NothingPlanned {
        /// The layer group.
        group: u8,
        /// The first page.
        start: u32,
        /// Behind the last page.
        end: u32,
    },
    /// The page was sent.
    #[error("page {page} of layer {layer} was sent")]
    Duplicate {
        /// The page's layer.
        layer: u16,
        /// The page's absolute index.
        page: u32,
    },
    /// The page was not given whole.
    #[error("page {page} of layer {layer} has {got} bytes, not {want}")]
    PageLength {
        /// The page's layer.
        layer: u16,
        /// The page's absolute index.
        page: u32,
        /// Bytes given.
        got: usize,
        /// Bytes of a page.
        want: u32,
    },
    /// The output is above its backlog limit.
    #[error("{0} bytes wait to be sent")]
    Backlog(usize),
    /// Progress beyond the rows of the handoff, or backward.
    #[error("progress of {done} of {total} rows")]
    Progress {
        /// Rows done.
        done: u32,
        /// Rows of the handoff.
        total: u32,
    },
    /// Pages of the plan were not sent.
    #[error("{0} pages were not sent")]
    Incomplete(u64),
    /// The key was revoked meanwhile.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Amounts of a handoff sent so far, including bytes still in the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Rows of the handoff.
    pub rows: u32,
    /// Bytes of the pages before packing.
    pub payload_bytes: u64,
    /// Bytes of the pages as stored in the frames.
    pub stored_bytes: u64,
}

/// Sent pages of one handoff, and the manifest over their frames.
#[derive(Debug)]
pub struct Departures {
    plan: HandoffPlan,
    /// Codecs that both sides have.
    agreed: Codecs,
    /// The subset of `agreed` used for the next frame.
    codecs: Codecs,
    checklist: Checklist,
    manifest: Manifest,
    packer: PagePacker,
    rows_done: u32,
}

impl Departures {
    pub(crate) fn new(plan: HandoffPlan, manifest: Manifest, codecs: Codecs) -> Self {
        let checklist = Checklist::new(&plan);
        Self { plan, agreed: codecs, codecs, checklist, manifest, packer: PagePacker::default(), rows_done: 0 }
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Amounts sent so far of a handoff of `rows` rows.
    pub(crate) fn sent(&self, rows: u32) -> Sent {
        let pages = self.plan.page_count() - self.left();
        let payload_bytes = pages * u64::from(self.plan.page_bytes());
        Sent { rows, payload_bytes, stored_bytes: self.manifest.stored_bytes() }
    }

    pub(crate) fn use_codecs(&mut self, codecs: Codecs) {
        self.codecs = self.agreed.common(codecs);
    }

    /// Pages that were not sent yet.
    pub(crate) fn left(&self) -> u64 {
        self.checklist.left()
    }

    pub(crate) fn progress(&mut self, done: u32, total: u32) -> Result<(), SendError> {
        if !(self.rows_done..=total).contains(&done) {
            return Err(SendError::Progress { done, total });
        }
        self.rows_done = done;
        Ok(())
    }

    /// Appends a frame of the planned pages of (group, range) to the output, if its body has at most `max` bytes.
    pub(crate) fn send<'p>(
        &mut self,
        handoff: HandoffId,
        (group, pages): (u8, Range<u32>),
        (max, output): (u32, &mut Vec<u8>),
        page: impl Fn(u16, u32) -> &'p [u8],
    ) -> Result<(), SendError> {
        self.check(group, pages.clone(), max, &page)?;
        let Self { plan, codecs, checklist, manifest, packer, .. } = self;
        let (sequence, first_page, page_count) = (manifest.frames(), pages.start, pages.end - pages.start);
        let head = Pages { handoff, sequence, group, first_page, page_count, entries: &[] };
        let mut stored_bytes = 0;
        let digest = write_frame(output, FrameKind::Pages, |out| {
            head.write(out);
            for (layer, index) in plan.entries(group, pages) {
                let (codec, stored) = packer.pack(page(layer, index), *codecs);
                write_entry(out, codec, stored);
                checklist.mark(plan, layer, index);
                stored_bytes += stored.len() as u64;
            }
        });
        manifest.add(&digest, stored_bytes);
        Ok(())
    }

    /// Checks a frame completely before a byte of it is written.
    fn check<'p>(
        &self,
        group: u8,
        pages: Range<u32>,
        max: u32,
        page: impl Fn(u16, u32) -> &'p [u8],
    ) -> Result<(), SendError> {
        let (start, end, want) = (pages.start, pages.end, self.plan.page_bytes());
        let mut body = Pages::FIXED_BYTES as u64;
        for (layer, index) in self.plan.entries(group, pages) {
            if self.checklist.has(&self.plan, layer, index) {
                return Err(SendError::Duplicate { layer, page: index });
            }
            let got = page(layer, index).len();
            if got != want as usize {
                return Err(SendError::PageLength { layer, page: index, got, want });
            }
            body += Pages::ENTRY_BYTES as u64 + u64::from(want);
        }
        if body == Pages::FIXED_BYTES as u64 {
            return Err(SendError::NothingPlanned { group, start, end });
        }
        if body > u64::from(max) {
            return Err(SendError::FrameTooLarge { got: body, max });
        }
        Ok(())
    }
}

fn write_entry(out: &mut Vec<u8>, codec: PageCodec, stored: &[u8]) {
    // A stored page is at most as long as a page, whose length is a `u32`.
    let length = u32::try_from(stored.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&[codec as u8, 0, 0, 0]);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(stored);
}
