//! Helpers of both searches: sums in a fixed order and rounding, written so that a compiler can use vectors.

/// The least positive f16, 2^-24.
pub const LEAST_F16: f32 = f32::from_bits((127 - 24) << 23);

/// Weights of at most this magnitude are nearer to zero than to [`LEAST_F16`].
pub const NEGLIGIBLE: f32 = LEAST_F16 / 2.0;

/// The greatest magnitude in `x`.
pub fn magnitude(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |max, v| if v.abs() > max { v.abs() } else { max })
}

/// `v` to the nearest integer, ties to even, within `low..=high`; both are integers below 2^22.
pub fn rounded_within(v: f32, low: f32, high: f32) -> f32 {
    // At 1.5 * 2^23 the last bit of an f32 counts ones, so that adding it rounds.
    const INTEGERS: f32 = 12_582_912.0;
    let v = if v > low { v } else { low };
    let v = if v < high { v } else { high };
    v + INTEGERS - INTEGERS
}

/// Sum of `term` over `x`, whose length is a multiple of 8: 8 strided lanes, then a tree.
#[inline(always)]
pub fn sum<const N: usize>(x: &[f32; N], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; 8];
    for x in x.as_chunks::<8>().0 {
        for lane in 0..8 {
            lanes[lane] += term(x[lane]);
        }
    }
    tree(lanes)
}

/// As [`sum`], `COUNT` sums at once.
#[inline(always)]
pub fn sums<const N: usize, const COUNT: usize>(x: &[f32; N], terms: impl Fn(f32) -> [f32; COUNT]) -> [f32; COUNT] {
    let mut lanes = [[0.0; 8]; COUNT];
    for x in x.as_chunks::<8>().0 {
        for lane in 0..8 {
            let terms = terms(x[lane]);
            for which in 0..COUNT {
                lanes[which][lane] += terms[which];
            }
        }
    }
    lanes.map(tree)
}

fn tree(a: [f32; 8]) -> f32 {
    ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
}
