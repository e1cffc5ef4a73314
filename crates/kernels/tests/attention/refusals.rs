//! Refused jobs with their errors, and the pages that a job asks for.

use crate::sequence::{Sequence, normal_row};
use fastrand::Rng;
use muser_kernels::attention::{AttentionError, AttentionJob, AttentionScratch, AttentionShape, KvLayout};
use muser_kernels::cpu::Kernels;
use std::sync::Mutex;

fn shape() -> AttentionShape {
    AttentionShape::new(2, 1, 32).unwrap()
}

/// 150 rows of one key-value head and a query at each of the last two positions.
fn sequence(layout: KvLayout) -> (Sequence, Vec<f32>) {
    let mut rng = Rng::with_seed(1);
    let sequence = Sequence::random(shape(), layout, 150, &mut rng);
    (sequence, normal_row(2 * 64, 1.0, &mut rng))
}

const LAYOUTS: [KvLayout; 2] = [KvLayout::Q8, KvLayout::F16];
const POSITIONS: [u32; 2] = [148, 149];

#[test]
fn a_query_that_is_not_finite_is_named() {
    for Kernels { isa, attention: kernels, .. } in Kernels::available() {
        for layout in LAYOUTS {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let (sequence, mut queries) = sequence(layout);
                queries[64 + 40] = bad;
                let got = sequence.attend(&kernels, None, &queries, &POSITIONS);
                assert_eq!(got, Err(AttentionError::NotFinite { what: "query row", row: 1 }), "{}", isa.name());
            }
        }
    }
}

#[test]
fn a_damaged_scale_or_element_is_refused_only_where_it_is_seen() {
    let f16_key = 2 * (100 % 64 * 32 + 7);
    for Kernels { isa, attention: kernels, .. } in Kernels::available() {
        for (layout, at, bytes) in [
            (KvLayout::Q8, 2 * 64 * 32 + 4 * 36, f32::NAN.to_le_bytes()),
            (KvLayout::Q8, 2 * 64 * 32 + 4 * 36, f32::INFINITY.to_le_bytes()),
            (KvLayout::Q8, 2 * 64 * 32 + 4 * (64 + 36), f32::NAN.to_le_bytes()),
            (KvLayout::Q8, 2 * 64 * 32 + 4 * (64 + 36), f32::INFINITY.to_le_bytes()),
            (KvLayout::Q8, 2 * 64 * 32 + 4 * (64 + 36), (-1f32).to_le_bytes()),
            (KvLayout::F16, f16_key, [0x00, 0x7e, 0, 0]),
            (KvLayout::F16, f16_key, [0x00, 0x7c, 0, 0]),
            (KvLayout::F16, f16_key, [0x00, 0xfc, 0, 0]),
            (KvLayout::F16, 2 * 64 * 32 + f16_key, [0x01, 0x7c, 0, 0]),
            (KvLayout::F16, 2 * 64 * 32 + f16_key, [0x00, 0xfc, 0, 0]),
        ] {
            let (mut sequence, queries) = sequence(layout);
            // Position 100 is row 36 of page 1.
            sequence.pages[1][at..at + 4].copy_from_slice(&bytes);
            let got = sequence.attend(&kernels, None, &queries, &POSITIONS);
            assert!(
                matches!(
                    got,
                    Err(AttentionError::NotFinite { .. } | AttentionError::BadValueScale { page: 1, row: 36 })
                ),
                "{} {layout:?} {at} {bytes:?}: {got:?}",
                isa.name()
            );
            assert!(sequence.attend(&kernels, Some(48), &queries, &POSITIONS).is_ok(), "{}", isa.name());
        }
    }
}

#[test]
fn scores_and_sums_beyond_f32_are_refused() {
    for Kernels { isa, attention: kernels, .. } in Kernels::available() {
        let vector = |x: f32| vec![x; 32];
        let attend = |k: f32, v: f32, q: f32| {
            let keys = vec![vector(k), vector(1.0)];
            let sequence = Sequence::new(shape(), KvLayout::Q8, keys, vec![vector(v); 2]);
            sequence.attend(&kernels, None, &vec![q; 64], &[1])
        };
        let refused = Err(AttentionError::NotFinite { what: "query row", row: 0 });
        assert!(attend(1e30, 1e30, 1.0).is_ok());
        assert_eq!(attend(3e38, 1.0, 1.0), refused, "{}: the score overflows", isa.name());
        assert_eq!(attend(-3e38, 1.0, 1.0), refused, "{}: a score overflows downwards", isa.name());
        assert_eq!(attend(1e30, 1.0, 1e30), refused, "{}: the exponent overflows", isa.name());
    }
}

#[test]
fn only_pages_that_some_row_sees_are_asked_for() {
    let (sequence, _) = sequence(KvLayout::Q8);
    let queries = normal_row(2 * 64, 1.0, &mut Rng::with_seed(2));
    for Kernels { isa, attention: kernels, .. } in Kernels::available() {
        for (window, positions, expected) in
            [(None, [0, 149], vec![0, 1, 2]), (Some(20), [10, 149], vec![0, 2]), (Some(64), [127, 128], vec![1, 2])]
        {
            let asked = Mutex::new(Vec::new());
            let page = |index: usize| {
                asked.lock().unwrap().push(index);
                sequence.pages.get(index).map(Vec::as_slice)
            };
            let job = AttentionJob {
                shape: shape(),
                layout: KvLayout::Q8,
                kv_head: 0,
                window,
                page: &page,
                queries: &queries,
                positions: &positions,
            };
            let mut scratch = AttentionScratch::new(&shape(), 2);
            (kernels.attend)(&job, &mut scratch, &mut [0.0; 128]).unwrap();
            let mut asked = asked.into_inner().unwrap();
            asked.sort_unstable();
            asked.dedup();
            assert_eq!(asked, expected, "{}, window {window:?}", isa.name());
        }
    }
}

#[test]
fn jobs_that_do_not_fit_are_refused_with_the_numbers() {
    let (sequence, queries) = sequence(KvLayout::Q8);
    for Kernels { attention: kernels, .. } in Kernels::available() {
        let page = |index: usize| sequence.pages.get(index).map(Vec::as_slice);
        let fits = AttentionJob {
            shape: shape(),
            layout: KvLayout::Q8,
            kv_head: 0,
            window: None,
            page: &page,
            queries: &queries,
            positions: &POSITIONS,
        };
        let attend = |job: &AttentionJob, out: usize| {
            let mut scratch = AttentionScratch::new(&shape(), 2);
            (kernels.attend)(job, &mut scratch, &mut vec![0.0; out])
        };
        let length = |what, need, have| Err(AttentionError::Length { what, need, have });
        assert_eq!(attend(&fits, 128), Ok(()));
        assert_eq!(attend(&fits, 127), length("out", 128, 127));
        assert_eq!(attend(&AttentionJob { queries: &queries[1..], ..fits }, 128), length("queries", 128, 127));
        let out_of_range = AttentionError::OutOfRange { what: "kv_head", index: 1, count: 1 };
        assert_eq!(attend(&AttentionJob { kv_head: 1, ..fits }, 128), Err(out_of_range));
        assert_eq!(attend(&AttentionJob { window: Some(0), ..fits }, 128), Err(AttentionError::EmptyWindow));
        let positions = [149, 200];
        let missing = Err(AttentionError::MissingPage { page: 3 });
        assert_eq!(attend(&AttentionJob { positions: &positions, ..fits }, 128), missing);
        let page = KvLayout::F16.page_bytes(&shape());
        let wrong_page = length("page", page, sequence.pages[0].len());
        assert_eq!(attend(&AttentionJob { layout: KvLayout::F16, ..fits }, 128), wrong_page);
        assert_eq!(attend(&AttentionJob { queries: &[], positions: &[], ..fits }, 0), Ok(()));

        let smaller = AttentionShape::new(1, 1, 32).unwrap();
        let mut scratch = AttentionScratch::new(&smaller, 1);
        let refused = (kernels.attend)(&fits, &mut scratch, &mut [0.0; 128]);
        assert_eq!(refused, length("scratch queries", 2, 1));
    }
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    for Kernels { attention: kernels, .. } in Kernels::available() {
        let (good, bytes) = (vec![1.0; 32], KvLayout::F16.page_bytes(&shape()));
        let store = |k: &[f32], v: &[f32], row: usize, bytes: usize| {
            (kernels.store_row)(&shape(), KvLayout::F16, k, v, row, &mut vec![0; bytes])
        };
        let length = |what, need, have| Err(AttentionError::Length { what, need, have });
        assert_eq!(store(&good, &good, 63, bytes), Ok(()));
        assert_eq!(store(&good[1..], &good, 0, bytes), length("keys of a row", 32, 31));
        assert_eq!(store(&good, &good[1..], 0, bytes), length("values of a row", 32, 31));
        assert_eq!(store(&good, &good, 0, bytes - 1), length("page", bytes, bytes - 1));
        let out_of_range = AttentionError::OutOfRange { what: "page row", index: 64, count: 64 };
        assert_eq!(store(&good, &good, 64, bytes), Err(out_of_range));
        // The first number beyond f16 that rounds up to infinity, and the last that does not.
        assert_eq!(store(&[65519.0; 32], &good, 5, bytes), Ok(()));
        assert_eq!(store(&[65520.0; 32], &good, 5, bytes), Err(AttentionError::NotFinite { what: "key", row: 5 }));
        let value = Err(AttentionError::NotFinite { what: "value", row: 5 });
        assert_eq!(store(&good, &[f32::NAN; 32], 5, bytes), value);
    }
}

#[test]
fn a_small_scratch_that_saw_a_refused_job_serves_the_next_as_a_new_one_does() {
    for Kernels { isa, attention: kernels, .. } in Kernels::available() {
        for layout in LAYOUTS {
            let (good, queries) = sequence(layout);
            let (mut damaged, _) = sequence(layout);
            // Row 20 of page 2, position 148: a value so large that the sums overflow.
            match layout {
                KvLayout::Q8 => {
                    damaged.pages[2][2 * 64 * 32 + 4 * (64 + 20)..][..4].copy_from_slice(&f32::MAX.to_le_bytes());
                }
                KvLayout::F16 => damaged.pages[2][2 * (64 + 20) * 32 + 1] = 0x7c,
            }
            // One row in a pass, so that the second row is the first of its pass.
            let mut scratch = AttentionScratch::new(&shape(), 1);
            let mut attend = |sequence: &Sequence, queries: &[f32]| {
                let page = |index: usize| sequence.pages.get(index).map(Vec::as_slice);
                let (kv_head, window, positions) = (0, None, &POSITIONS);
                let job = AttentionJob { shape: shape(), layout, kv_head, window, page: &page, queries, positions };
                let mut out = vec![0.0; 128];
                (kernels.attend)(&job, &mut scratch, &mut out).map(|()| out)
            };
            let refused = |row| Err(AttentionError::NotFinite { what: "query row", row });
            assert_eq!(attend(&damaged, &queries), refused(0), "{}, {layout:?}", isa.name());
            let expected = good.attend(&kernels, None, &queries, &POSITIONS);
            assert_eq!(attend(&good, &queries), expected, "{}, {layout:?}", isa.name());
            let mut too_large = queries.clone();
            too_large[64..].fill(f32::INFINITY);
            assert_eq!(attend(&good, &too_large), refused(1), "{}, {layout:?}", isa.name());
        }
    }
}
