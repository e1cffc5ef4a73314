//! `docs/limits.md` has a row for every kind of frame, with the bound that the code has.

use muser_wire::{FrameKind, Limits, Refuse};

const PAGE: &str = include_str!("../../../docs/limits.md");

/// The bound in the row of a kind.
fn bound_of(kind: FrameKind) -> &'static str {
    let section =
        PAGE.split("\n## ").find(|part| part.starts_with("Frames of a handoff")).expect("a section of frames");
    let name = format!("`{kind:?}`");
    let mut rows = section.lines().filter_map(|line| line.strip_prefix('|')?.split_once('|'));
    let row = rows.find(|(kinds, _)| kinds.split([',', ' ']).any(|word| word == name));
    row.unwrap_or_else(|| panic!("docs/limits.md has no row for {name}")).1
}

#[test]
fn every_kind_of_frame_has_a_row_with_its_bound() {
    let limits = Limits::new(1000, Limits::PAGES_BYTES_DEFAULT);
    for kind in FrameKind::ALL {
        let bound = bound_of(kind);
        match kind {
            FrameKind::Request => assert!(bound.contains("4 bytes for each position"), "{bound}"),
            FrameKind::Pages => assert!(bound.contains(&format!("{} MiB", limits.of(kind) >> 20)), "{bound}"),
            _ => assert!(bound.contains(&format!("{} KiB", limits.of(kind) >> 10)), "{kind:?}: {bound}"),
        }
    }
    assert!(bound_of(FrameKind::Refuse).contains(&format!("{} bytes", Refuse::DETAIL_BYTES_MAX)));
    let longer = Limits::new(1001, 0).request_bytes_max - limits.request_bytes_max;
    assert_eq!(longer, 4);
}
