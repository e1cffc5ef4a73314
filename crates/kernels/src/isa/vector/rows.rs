//! The row operations on vectors, written once for every instruction set.
//!
//! A module that expands [`row_kernels`] provides the vector type `V`, its `LANES` and one function per instruction. Tails
//! shorter than a vector run as a vector padded with zeros.

/// Defines `KERNELS` for one instruction set. `$features` are what the module's vector functions need.
macro_rules! row_kernels {
    ($features:literal) => {
        use crate::exp2::{EXP2_DEGREE6, LOG2_E, ROUND_TO_INTEGER};
        use crate::rope::{RopeAngles, RopeStyle};
        use crate::rows::{NORM_LANES, RowKernels};

        pub(super) const KERNELS: RowKernels = RowKernels {
            rms_norm: |x, weight, eps, out| {
                out.copy_from_slice(x);
                // SAFETY: `KERNELS` is handed out only where the features are.
                unsafe { rms_norm(out, weight, eps) }
            },
            // SAFETY: `KERNELS` is handed out only where the features are.
            rms_norm_in_place: |x, weight, eps| unsafe { rms_norm(x, weight, eps) },
            // SAFETY: as above.
            add: |h, y| unsafe { sum(h, y) },
            // SAFETY: as above.
            silu_mul: |gate, up| unsafe { silu_mul(gate, up) },
            // SAFETY: as above.
            sigmoid_gate: |o, gate| unsafe { sigmoid_gate(o, gate) },
            // SAFETY: as above.
            scale_soft_cap: |z, scale, cap| unsafe { scale_soft_cap(z, scale, cap) },
            // SAFETY: as above.
            rope: |x, angles, style| unsafe { rope(x, angles, style) },
            // SAFETY: as above.
            all_finite: |x| unsafe { all_finite(x) },
        };

        #[target_feature(enable = $features)]
        fn rms_norm(x: &mut [f32], weight: Option<&[f32]>, eps: f32) {
            let scale = splat(inverse_rms(x, eps));
            match weight {
                Some(weight) => zip_map(x, weight, |x, w| mul(mul(x, scale), w)),
                None => map(x, |x| mul(x, scale)),
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn inverse_rms(x: &[f32], eps: f32) -> f32 {
            const ACCUMULATORS: usize = 8;
            let mut lanes = [0f32; NORM_LANES];
            let (whole, tail) = x.as_chunks::<NORM_LANES>();
            for (block, lanes) in lanes.chunks_exact_mut(ACCUMULATORS * LANES).enumerate() {
                let mut sums = [splat(0.0); ACCUMULATORS];
                for x in whole {
                    let x = &x[block * ACCUMULATORS * LANES..][..ACCUMULATORS * LANES];
                    for i in 0..ACCUMULATORS {
                        let x = load(&x[i * LANES..]);
                        sums[i] = fma(x, x, sums[i]);
                    }
                }
                for i in 0..ACCUMULATORS {
                    store(&mut lanes[i * LANES..], sums[i]);
                }
            }
            zip_map(&mut lanes[..tail.len()], tail, |a, x| fma(x, x, a));

            // Lanes without elements hold +0, which changes no sum: short vectors start lower in the tree.
            let mut half = NORM_LANES / 2;
            while half >= LANES {
                if x.len() > half {
                    let (low, high) = lanes.split_at_mut(half);
                    zip_map(low, &high[..half], |a, b| add(a, b));
                }
                half /= 2;
            }
            while half > 0 {
                for lane in 0..half {
                    lanes[lane] += lanes[lane + half];
                }
                half /= 2;
            }
            crate::rows::inverse_rms_of_sum(lanes[0], x.len(), eps)
        }

        #[target_feature(enable = $features)]
        fn sum(h: &mut [f32], y: &[f32]) {
            zip_map(h, y, |h, y| add(h, y));
        }

        #[target_feature(enable = $features)]
        fn silu_mul(gate: &mut [f32], up: &[f32]) {
            zip_map(gate, up, |g, u| mul(div(g, one_plus_exp_of_minus(g)), u));
        }

        #[target_feature(enable = $features)]
        fn sigmoid_gate(o: &mut [f32], gate: &[f32]) {
            zip_map(o, gate, |o, g| {
                // g - g is +0, or NaN where g is not finite; the denominator is positive, so that +0 leaves it alone.
                let denominator = add(one_plus_exp_of_minus(g), sub(g, g));
                mul(o, div(splat(1.0), denominator))
            });
        }

        #[target_feature(enable = $features)]
        fn scale_soft_cap(z: &mut [f32], scale: Option<f32>, cap: Option<f32>) {
            if let Some(scale) = scale {
                let scale = splat(scale);
                map(z, |z| mul(z, scale));
            }
            if let Some(cap) = cap {
                let cap = splat(cap);
                map(z, |z| mul(cap, tanh(div(z, cap))));
            }
        }

        #[target_feature(enable = $features)]
        fn rope(x: &mut [f32], angles: RopeAngles<'_>, style: RopeStyle) {
            let RopeAngles { cos, sin } = angles;
            let pairs = cos.len();
            assert_eq!(pairs, sin.len(), "cosines and sines");
            assert!(2 * pairs <= x.len(), "{pairs} pairs rotate in a head of {} dimensions", x.len());
            match style {
                RopeStyle::Norm => {
                    let whole = pairs / (LANES / 2) * (LANES / 2);
                    for i in (0..whole).step_by(LANES / 2) {
                        let (c, s) = (load_twice(&cos[i..]), load_twice(&sin[i..]));
                        let old = load(&x[2 * i..]);
                        store(&mut x[2 * i..], fma_subtracting_even(old, c, mul(swap_neighbours(old), s)));
                    }
                    for i in whole..pairs {
                        rotate_one(x, (2 * i, 2 * i + 1), (cos[i], sin[i]));
                    }
                }
                RopeStyle::Neox => {
                    let whole = pairs / LANES * LANES;
                    for i in (0..whole).step_by(LANES) {
                        let (c, s) = (load(&cos[i..]), load(&sin[i..]));
                        let (x0, x1) = (load(&x[i..]), load(&x[pairs + i..]));
                        store(&mut x[i..], fms(x0, c, mul(x1, s)));
                        store(&mut x[pairs + i..], fma(x1, c, mul(x0, s)));
                    }
                    for i in whole..pairs {
                        rotate_one(x, (i, pairs + i), (cos[i], sin[i]));
                    }
                }
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn rotate_one(x: &mut [f32], (first, second): (usize, usize), (c, s): (f32, f32)) {
            let (x0, x1) = (x[first], x[second]);
            x[first] = x0.mul_add(c, -(x1 * s));
            x[second] = x1.mul_add(c, x0 * s);
        }

        #[target_feature(enable = $features)]
        fn all_finite(x: &[f32]) -> bool {
            // x - x is zero, or NaN where x is not finite; a sum keeps the NaN.
            let mut differences = splat(0.0);
            let whole = x.chunks_exact(LANES);
            let tail_finite = whole.remainder().iter().all(|x| x.is_finite());
            for x in whole {
                let x = load(x);
                differences = add(differences, sub(x, x));
            }
            let mut lanes = [0f32; LANES];
            store(&mut lanes, differences);
            tail_finite && lanes.iter().all(|&d| d == 0.0)
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn one_plus_exp_of_minus(g: V) -> V {
            // Changing the sign before or after rounding is the same.
            add(splat(1.0), exp2_degree6(mul(g, splat(-LOG2_E))))
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn tanh(z: V) -> V {
            let t = exp2_degree6(mul(mul(splat(-2.0), abs(z)), splat(LOG2_E)));
            // z - z is +0, or NaN where z is not finite; t is positive, so that +0 leaves it alone.
            let t = add(t, sub(z, z));
            let one = splat(1.0);
            copy_sign(div(sub(one, t), add(one, t)), z)
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn exp2_degree6(x: V) -> V {
            let x = min(max(x, splat(-126.0)), splat(126.0));
            let shifted = add(x, splat(ROUND_TO_INTEGER));
            let fraction = sub(x, sub(shifted, splat(ROUND_TO_INTEGER)));
            let mut y = splat(EXP2_DEGREE6[0]);
            for c in [EXP2_DEGREE6[1], EXP2_DEGREE6[2], EXP2_DEGREE6[3], EXP2_DEGREE6[4], EXP2_DEGREE6[5], 1.0] {
                y = fma(y, fraction, splat(c));
            }
            add_exponent(y, shifted)
        }

        /// `x = f(x)`
        #[target_feature(enable = $features)]
        #[inline]
        fn map(x: &mut [f32], f: impl Fn(V) -> V) {
            let (whole, tail) = x.as_chunks_mut::<LANES>();
            for x in whole {
                let y = f(load(x));
                store(x, y);
            }
            if !tail.is_empty() {
                let mut padded = [0f32; LANES];
                padded[..tail.len()].copy_from_slice(tail);
                let y = f(load(&padded));
                store(&mut padded, y);
                tail.copy_from_slice(&padded[..tail.len()]);
            }
        }

        /// `x = f(x, y)`
        #[target_feature(enable = $features)]
        #[inline]
        fn zip_map(x: &mut [f32], y: &[f32], f: impl Fn(V, V) -> V) {
            assert_eq!(x.len(), y.len(), "two rows combined element by element");
            let ((x, x_tail), (y, y_tail)) = (x.as_chunks_mut::<LANES>(), y.as_chunks::<LANES>());
            for (x, y) in x.iter_mut().zip(y) {
                let z = f(load(x), load(y));
                store(x, z);
            }
            if !x_tail.is_empty() {
                let (mut x_padded, mut y_padded) = ([0f32; LANES], [0f32; LANES]);
                x_padded[..x_tail.len()].copy_from_slice(x_tail);
                y_padded[..y_tail.len()].copy_from_slice(y_tail);
                let z = f(load(&x_padded), load(&y_padded));
                store(&mut x_padded, z);
                x_tail.copy_from_slice(&x_padded[..x_tail.len()]);
            }
        }
    };
}

/// Defines one-instruction functions on the vector type `V`.
macro_rules! vector_operations {
    ($features:literal, $($(#[$doc:meta])* fn $name:ident($($x:ident),+) = $instruction:expr;)+) => {
        $(
            $(#[$doc])*
            #[target_feature(enable = $features)]
            #[inline]
            fn $name($($x: V),+) -> V {
                $instruction
            }
        )+
    };
}

pub(crate) use {row_kernels, vector_operations};
