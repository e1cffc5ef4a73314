//! Every twin against the scalar reference, bit for bit.

use crate::sequence::{Sequence, normal, normal_row};
use fastrand::Rng;
use muser_kernels::attention::{AttentionError, AttentionKernels, AttentionShape, KvLayout};
use muser_kernels::cpu::Kernels;

const HEAD_DIMS: [usize; 6] = [32, 64, 96, 128, 160, 256];
const WINDOWS: [Option<u32>; 7] = [None, None, Some(1), Some(32), Some(64), Some(100), Some(256)];
const EDGES: [u32; 14] = [0, 1, 31, 32, 33, 62, 63, 64, 65, 127, 1023, 1024, 1025, 2048];

/// A sequence and query rows at its end, drawn from `seed`.
struct Case {
    sequence: Sequence,
    window: Option<u32>,
    queries: Vec<f32>,
    positions: Vec<u32>,
}

impl Case {
    fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let head_dim = rng.choice(HEAD_DIMS).unwrap();
        let kv_heads = rng.usize(1..=2);
        let shape = AttentionShape::new(kv_heads * rng.usize(1..=16), kv_heads, head_dim).unwrap();
        let layout = if rng.bool() { KvLayout::Q8 } else { KvLayout::F16 };
        let window = rng.choice(WINDOWS).unwrap();
        let rows = rng.u32(1..=5);
        let last = rng.choice(EDGES).unwrap() + rng.u32(0..=2);
        let positions: Vec<u32> = match rng.u32(0..4) {
            0 => (0..rows).map(|_| rng.u32(0..=last)).collect(),
            _ => (0..rows).map(|row| last.saturating_sub(rows - 1 - row)).collect(),
        };

        let columns = kv_heads * head_dim;
        let (key_kind, value_kind) = (rng.u32(0..7), rng.u32(0..7));
        let keys: Vec<_> = (0..=last).map(|_| row_of_kind(key_kind, layout, columns, &mut rng)).collect();
        let values: Vec<_> = (0..=last).map(|_| row_of_kind(value_kind, layout, columns, &mut rng)).collect();
        let query_kind = rng.u32(0..7);
        let query_columns = shape.query_heads() * head_dim;
        let queries = (0..rows).flat_map(|_| row_of_kind(query_kind, KvLayout::Q8, query_columns, &mut rng)).collect();
        let mut sequence = Sequence::new(shape, layout, keys, values);
        if let Some(window) = window {
            let lowest = positions.iter().copied().min().unwrap();
            sequence.first_page = (lowest + 1).saturating_sub(window) as usize / 64;
        }
        Self { sequence, window, queries, positions }
    }

    fn attend(&self, kernels: &AttentionKernels) -> Result<Vec<u32>, AttentionError> {
        let out = self.sequence.attend(kernels, self.window, &self.queries, &self.positions)?;
        Ok(out.into_iter().map(f32::to_bits).collect())
    }
}

/// Rows of several kinds: ordinary ones, and the ones at which formulas break.
fn row_of_kind(kind: u32, layout: KvLayout, columns: usize, rng: &mut Rng) -> Vec<f32> {
    let spread = match (kind, layout) {
        (0 | 1, _) => 1.0,
        (2, KvLayout::Q8) => (4.0 * normal(rng)).exp(),
        (2, KvLayout::F16) => normal(rng).exp(),
        // Around the magnitude below which a vector counts as zero.
        (3, KvLayout::Q8) => 2f32.powi(-100) * rng.f32(),
        (4, KvLayout::Q8) => 2f32.powi(rng.i32(-90..95)),
        (3 | 4, KvLayout::F16) => 2f32.powi(rng.i32(-24..10)),
        (5, _) => return vec![if rng.u32(0..3) == 0 { 0.0 } else { 0.75 }; columns],
        _ => return vec![0.0; columns],
    };
    normal_row(columns, spread, rng)
}

#[test]
fn every_twin_equals_the_reference_bit_for_bit() {
    let twins = Kernels::available();
    if twins.len() < 3 {
        eprintln!("skipped: of the twins only {:?} run here", twins.iter().map(Kernels::name).collect::<Vec<_>>());
    }
    let mut refused = 0;
    for seed in 0..600 {
        let case = Case::draw(seed);
        let expected = case.attend(&Kernels::scalar().attention);
        refused += u32::from(expected.is_err());
        for Kernels { isa, attention, .. } in &twins[1..] {
            let got = case.attend(attention);
            assert_eq!(got.is_err(), expected.is_err(), "{}, seed {seed}: {got:?}, {expected:?}", isa.name());
            assert!(got.is_err() || got == expected, "{}, seed {seed}: {:?}", isa.name(), case.positions);
        }
    }
    assert!(refused < 60, "{refused} of 600 cases overflowed: too few are compared");
}

#[test]
fn every_twin_stores_the_bytes_of_the_reference() {
    for seed in 0..400 {
        let mut rng = Rng::with_seed(seed);
        let shape = AttentionShape::new(3, 3, rng.choice(HEAD_DIMS).unwrap()).unwrap();
        let columns = 3 * shape.head_dim();
        for layout in [KvLayout::Q8, KvLayout::F16] {
            // Magnitudes up to the limits of f32 and f16, some beyond the latter.
            let spread = match layout {
                KvLayout::Q8 => 2f32.powi(rng.i32(-110..124)),
                KvLayout::F16 => 2f32.powi(rng.i32(-30..15)),
            };
            let mut k = normal_row(columns, spread, &mut rng);
            let v = normal_row(columns, spread, &mut rng);
            if rng.u32(0..8) == 0 {
                k[rng.usize(0..columns)] = rng.choice([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN]).unwrap();
            }
            let row = rng.usize(0..64);
            let filler: Vec<u8> = (0..layout.page_bytes(&shape)).map(|_| rng.u8(..)).collect();
            let store = |kernels: &AttentionKernels| {
                let mut page = filler.clone();
                (kernels.store_row)(&shape, layout, &k, &v, row, &mut page).map(|()| page)
            };
            let expected = store(&Kernels::scalar().attention);
            for Kernels { isa, attention, .. } in &Kernels::available()[1..] {
                assert_eq!(store(attention), expected, "{}, seed {seed}, {layout:?}", isa.name());
            }
        }
    }
}
