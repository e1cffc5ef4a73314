//! Powers of two by polynomial, and the functions built on them: sigmoid and tanh (rule 8) and the softmax weight (rule 9).
//!
//! No library exponential takes part: every step here is one IEEE operation, so every device gets the same bits.

/// 1.5 * 2^23: adding it to a small float rounds that float to an integer, which then sits in the low mantissa bits.
pub(crate) const ROUND_TO_INTEGER: f32 = 12_582_912.0;

/// `log2(e)` rounded to f32.
pub(crate) const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);

/// Coefficients of x^6 ... x^1 in 2^x over [-1/2, 1/2]; the constant term is 1. Relative error below 7.9e-8.
pub(crate) const EXP2_DEGREE6: [f32; 6] = [
    f32::from_bits(0x3920_fdde), // 0x1.41fbbcp-13
    f32::from_bits(0x3aaf_9f2a), // 0x1.5f3e54p-10
    f32::from_bits(0x3c1d_96a6), // 0x1.3b2d4cp-7
    f32::from_bits(0x3d63_5774), // 0x1.c6aee8p-5
    f32::from_bits(0x3e75_fdee), // 0x1.ebfbdcp-3
    f32::from_bits(0x3f31_7218), // 0x1.62e430p-1
];

/// Coefficients of x^4 ... x^1 in 2^x over [-1/2, 1/2]; the constant term is 1.
pub(crate) const EXP2_DEGREE4: [f32; 4] = [
    f32::from_bits(0x3c1d_0166), // 0x1.3a02ccp-7
    f32::from_bits(0x3d64_fe23), // 0x1.c9fc46p-5
    f32::from_bits(0x3e76_01bc), // 0x1.ec0378p-3
    f32::from_bits(0x3f31_7096), // 0x1.62e12cp-1
];

/// The softmax weight clamps its exponent to [-64, 0], scaled to [0, 1]; this is the scale.
pub(crate) const EXPONENT_SPAN: f32 = 64.0;

/// `2^x` with `x` clamped to [-126, 126], by a polynomial of degree 6. `x` must not be NaN.
pub(crate) fn exp2_degree6(x: f32) -> f32 {
    let x = x.clamp(-126.0, 126.0);
    let shifted = x + ROUND_TO_INTEGER;
    let fraction = x - (shifted - ROUND_TO_INTEGER);
    let mantissa = horner(&EXP2_DEGREE6, fraction);
    add_exponent(mantissa, shifted)
}

/// `2^(64 u - 64)` for `u` in [0, 1], by a polynomial of degree 4: the weight of a key in the softmax.
pub(crate) fn softmax_weight(u: f32) -> f32 {
    let offset = ROUND_TO_INTEGER - EXPONENT_SPAN;
    let shifted = u.mul_add(EXPONENT_SPAN, offset);
    let integer = shifted - offset;
    let fraction = u.mul_add(EXPONENT_SPAN, -integer);
    add_exponent(horner(&EXP2_DEGREE4, fraction), shifted)
}

/// `2^n` for an integer-valued `n <= 127`, flushed to zero below the normal range. Zero for `-inf`.
pub(crate) fn pow2(n: f32) -> f32 {
    if n < -126.0 || n.is_nan() {
        return 0.0;
    }
    #[expect(clippy::cast_possible_truncation, reason = "n is an integer in -126..=127")]
    let exponent = n as i32 + 127;
    f32::from_bits(exponent.cast_unsigned() << 23)
}

/// `1 + 2^(-g log2 e)`, the denominator of the sigmoid and of `SiLU`.
pub(crate) fn one_plus_exp_of_minus(g: f32) -> f32 {
    1.0 + exp2_degree6(-g * LOG2_E)
}

/// The logistic sigmoid; NaN for anything not finite, so that the next quantisation reports it.
pub(crate) fn sigmoid(g: f32) -> f32 {
    if !g.is_finite() {
        return f32::NAN;
    }
    1.0 / one_plus_exp_of_minus(g)
}

/// The hyperbolic tangent; NaN for anything not finite, so that the check of the logits reports it.
pub(crate) fn tanh(z: f32) -> f32 {
    if !z.is_finite() {
        return f32::NAN;
    }
    let t = exp2_degree6(-2.0 * z.abs() * LOG2_E);
    ((1.0 - t) / (1.0 + t)).copysign(z)
}

/// `((c0 x + c1) x + ...) x + 1`, each step one fused multiply-add.
fn horner(coefficients: &[f32], x: f32) -> f32 {
    let highest = coefficients[0];
    let polynomial = coefficients[1..].iter().fold(highest, |p, &c| p.mul_add(x, c));
    polynomial.mul_add(x, 1.0)
}

/// Adds the integer in the low mantissa bits of `shifted` to the exponent of `mantissa`.
fn add_exponent(mantissa: f32, shifted: f32) -> f32 {
    f32::from_bits(mantissa.to_bits().wrapping_add(shifted.to_bits() << 23))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_are_the_contract_hex_floats() {
        #[expect(clippy::cast_possible_truncation, reason = "24 significant bits")]
        let bits = |mantissa: u32, exponent: i32| {
            (f64::from(0x0100_0000 + mantissa) / 16_777_216.0 * 2f64.powi(exponent)) as f32
        };
        let six = [(0x41fbbc, -13), (0x5f3e54, -10), (0x3b2d4c, -7), (0xc6aee8, -5), (0xebfbdc, -3), (0x62e430, -1)];
        let four = [(0x3a02cc, -7), (0xc9fc46, -5), (0xec0378, -3), (0x62e12c, -1)];
        assert_eq!(EXP2_DEGREE6, six.map(|(m, e)| bits(m, e)));
        assert_eq!(EXP2_DEGREE4, four.map(|(m, e)| bits(m, e)));
        assert_eq!(LOG2_E, bits(0x715476, 0));
    }

    #[test]
    fn both_polynomials_match_exact_arithmetic() {
        let golden = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/rows/exp2.json"));
        let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
        let words = |name: &str| -> Vec<u32> {
            let digits = golden[name].as_str().unwrap().as_bytes().chunks_exact(8);
            digits.map(|d| u32::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
        };
        let apply = |name: &str, f: fn(f32) -> f32| -> Vec<u32> {
            words(name).into_iter().map(|bits| f(f32::from_bits(bits)).to_bits()).collect()
        };
        assert_eq!(apply("x", exp2_degree6), words("degree6"));
        assert_eq!(apply("u", softmax_weight), words("softmax_weight"));
    }

    #[test]
    fn exp2_stays_within_its_error_over_the_whole_range() {
        for step in -126_000..=126_000 {
            let x = step as f32 / 1000.0;
            let error = f64::from(exp2_degree6(x)) / f64::from(x).exp2() - 1.0;
            assert!(error.abs() < 1.5e-7, "x {x}: relative error {error}");
        }
        assert_eq!(exp2_degree6(1e30), 2f32.powi(126));
        assert_eq!(exp2_degree6(-1e30), 2f32.powi(-126));
    }

    #[test]
    fn softmax_weight_spans_minus_64_to_0() {
        assert_eq!(softmax_weight(1.0), 1.0);
        assert_eq!(softmax_weight(0.0), 2f32.powi(-64));
        for step in 0..=64_000 {
            let u = step as f32 / 64_000.0;
            let error = f64::from(softmax_weight(u)) / (64.0 * f64::from(u) - 64.0).exp2() - 1.0;
            assert!(error.abs() < 5e-6, "u {u}: relative error {error}");
        }
    }

    #[test]
    fn pow2_flushes_below_the_normal_range() {
        assert_eq!([0.0, -1.0, -126.0, -127.0, f32::NEG_INFINITY].map(pow2), [1.0, 0.5, 2f32.powi(-126), 0.0, 0.0]);
    }

    #[test]
    fn sigmoid_and_tanh_follow_the_mathematical_functions_and_refuse_what_is_not_finite() {
        for step in -4000..=4000 {
            let x = step as f32 / 100.0;
            let sigmoid_error = f64::from(sigmoid(x)) * (1.0 + f64::from(-x).exp()) - 1.0;
            assert!(sigmoid_error.abs() < 5e-6, "x {x}: {sigmoid_error}");
            let tanh_error = f64::from(tanh(x)) - f64::from(x).tanh();
            assert!(tanh_error.abs() < 2e-7, "x {x}: {tanh_error}");
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(sigmoid(bad).is_nan() && tanh(bad).is_nan());
        }
    }
}
