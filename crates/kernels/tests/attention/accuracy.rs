//! The arithmetic against softmax attention in f64: the layouts' rounding is the only difference.

use crate::sequence::{Sequence, normal_row};
use fastrand::Rng;
use muser_kernels::attention::{AttentionShape, KvLayout};
use muser_kernels::cpu::Kernels;

const CASES: [(u32, Option<u32>); 11] = [
    (0, None),
    (5, None),
    (63, None),
    (64, None),
    (200, Some(32)),
    (200, Some(1)),
    (1023, None),
    (1024, None),
    (2299, None),
    (2299, Some(256)),
    (2299, Some(2048)),
];

fn relative_error(layout: KvLayout, position: u32, window: Option<u32>, seed: u64) -> f64 {
    let mut rng = Rng::with_seed(seed);
    let shape = AttentionShape::new(4, 2, [32, 64, 96, 128, 256][rng.usize(0..5)]).unwrap();
    let sequence = Sequence::random(shape, layout, position as usize + 1, &mut rng);
    let query = normal_row(shape.query_heads() * shape.head_dim(), 1.5, &mut rng);
    let expected = sequence.attend_f64(window, &query, position);
    let got = sequence.attend(&Kernels::detected().attention, window, &query, &[position]).unwrap();
    let error: f64 = got.iter().zip(&expected).map(|(g, e)| (f64::from(*g) - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    (error / norm).sqrt()
}

#[test]
fn q8_attention_is_within_two_percent_of_exact_softmax() {
    for (seed, (position, window)) in CASES.into_iter().enumerate() {
        let error = relative_error(KvLayout::Q8, position, window, seed as u64);
        assert!(error < 0.02, "position {position}, window {window:?}: relative error {error}");
    }
}

#[test]
fn f16_attention_is_within_a_thousandth_of_exact_softmax() {
    for (seed, (position, window)) in CASES.into_iter().enumerate() {
        let error = relative_error(KvLayout::F16, position, window, seed as u64);
        assert!(error < 1e-3, "position {position}, window {window:?}: relative error {error}");
    }
}
