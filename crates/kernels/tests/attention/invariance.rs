//! A result depends on nothing but its own query and the keys that it sees.

use crate::sequence::{Sequence, normal_row};
use fastrand::Rng;
use muser_kernels::attention::{AttentionShape, KvLayout};
use muser_kernels::cpu::Kernels;

const WINDOWS: [Option<u32>; 4] = [None, Some(32), Some(64), Some(100)];

fn bits(x: Vec<f32>) -> Vec<u32> {
    x.into_iter().map(f32::to_bits).collect()
}

#[test]
fn rows_one_by_one_equal_a_block_and_any_split() {
    for Kernels { isa, attention: kernels, .. } in Kernels::available() {
        for seed in 0..40 {
            let mut rng = Rng::with_seed(seed);
            let shape = AttentionShape::new(rng.usize(1..=5) * 2, 2, rng.choice([32, 64, 96]).unwrap()).unwrap();
            let layout = rng.choice([KvLayout::Q8, KvLayout::F16]).unwrap();
            let window = rng.choice(WINDOWS).unwrap();
            let columns = shape.query_heads() * shape.head_dim();
            let start = rng.choice([0, 40, 1000]).unwrap();
            let positions: Vec<u32> = (start..start + rng.u32(2..=70)).collect();
            let rows = positions.len();
            let sequence = Sequence::random(shape, layout, start as usize + rows, &mut rng);
            let queries = normal_row(rows * columns, 1.0, &mut rng);
            let whole = bits(sequence.attend(&kernels, window, &queries, &positions).unwrap());

            let (mut split, mut row) = (Vec::new(), 0);
            while row < rows {
                let block = rng.usize(1..=rows - row);
                let (queries, positions) = (&queries[row * columns..][..block * columns], &positions[row..][..block]);
                split.extend(bits(sequence.attend(&kernels, window, queries, positions).unwrap()));
                row += block;
            }
            assert!(split == whole, "{}, seed {seed}, {layout:?}, window {window:?}", isa.name());
        }
    }
}

#[test]
fn bytes_of_keys_that_no_query_sees_change_nothing() {
    for Kernels { isa, attention: kernels, .. } in Kernels::available() {
        for seed in 0..60 {
            let mut rng = Rng::with_seed(seed);
            let shape = AttentionShape::new(6, 2, rng.choice([32, 64, 128]).unwrap()).unwrap();
            let layout = rng.choice([KvLayout::Q8, KvLayout::F16]).unwrap();
            let window = rng.choice(WINDOWS).unwrap();
            let rows = rng.u32(1..=4);
            let last = rng.u32(rows..200);
            let mut sequence = Sequence::random(shape, layout, last as usize + 1, &mut rng);
            let queries = normal_row(rows as usize * shape.query_heads() * shape.head_dim(), 1.0, &mut rng);
            let positions: Vec<u32> = (last + 1 - rows..=last).collect();
            let clean = bits(sequence.attend(&kernels, window, &queries, &positions).unwrap());

            let first = window.map_or(0, |w| (positions[0] + 1).saturating_sub(w));
            for position in (0..first).chain(last + 1..(last / 64 + 1) * 64) {
                overwrite_row(&mut sequence, position as usize, &mut rng);
            }
            let dirty = bits(sequence.attend(&kernels, window, &queries, &positions).unwrap());
            assert!(clean == dirty, "{}, seed {seed}, {layout:?}, window {window:?}, last {last}", isa.name());
        }
    }
}

/// Fills every byte that belongs to `position` with the worst: all ones (NaN) or random bytes.
fn overwrite_row(sequence: &mut Sequence, position: usize, rng: &mut Rng) {
    let (page, row) = (position / 64, position % 64);
    let head_dim = sequence.shape.head_dim();
    let element_bytes = if sequence.layout == KvLayout::Q8 { 1 } else { 2 };
    let vectors = 2 * 64 * head_dim * element_bytes;
    let scales = if sequence.layout == KvLayout::Q8 { 2 * 64 * 4 } else { 0 };
    for head in sequence.pages[page].chunks_exact_mut(vectors + scales) {
        let (vectors, scales) = head.split_at_mut(vectors);
        let rows = vectors.chunks_exact_mut(head_dim * element_bytes).skip(row).step_by(64);
        for bytes in rows.chain(scales.chunks_exact_mut(4).skip(row).step_by(64)) {
            let ones = rng.bool();
            bytes.fill_with(|| if ones { 0xff } else { rng.u8(..) });
        }
    }
}
