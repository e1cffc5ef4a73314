//! Row operations and the rotary table against golden vectors of exact arithmetic (`golden/rows/make.py`).

use muser_kernels::cpu::Kernels;
use muser_kernels::rope::{RopeAngles, RopeStyle, RopeTable};
use serde_json::Value;

fn golden(name: &str) -> Value {
    let path = format!("{}/../../golden/rows/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// f32 numbers from their bits, eight hexadecimal digits each.
fn words(value: &Value) -> Vec<f32> {
    let digits = value.as_str().unwrap().as_bytes().chunks_exact(8);
    digits.map(|d| f32::from_bits(u32::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap())).collect()
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// The generator of `golden/rows/exact.py`.
struct Stream(u64);

impl Stream {
    fn take(&mut self, count: usize, exponent: i32) -> Vec<f32> {
        let next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 40) as f32 / 8_388_608.0 - 1.0) * 2f32.powi(exponent)
        };
        std::iter::repeat_with(next).take(count).collect()
    }
}

fn assert_same_bits(what: &str, got: &[f32], expected: &[f32]) {
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let differs = bits(got).iter().zip(&bits(expected)).position(|(g, e)| g != e);
    assert!(got.len() == expected.len() && differs.is_none(), "{what}: element {differs:?}");
}

#[test]
fn norms_match() {
    let golden = golden("rows");
    for (index, case) in golden["norms"].as_array().unwrap().iter().enumerate() {
        let n = number(&case["n"]);
        let mut stream = Stream(case["seed"].as_u64().unwrap());
        let x = stream.take(n, i32::try_from(case["exponent"].as_i64().unwrap()).unwrap());
        let weight = stream.take(n, 0);
        let weight = case["weighted"].as_bool().unwrap().then_some(weight.as_slice());
        for Kernels { isa, rows: kernels, .. } in Kernels::available() {
            let mut out = vec![0.0; n];
            (kernels.rms_norm)(&x, weight, words(&case["eps"])[0], &mut out);
            assert_same_bits(&format!("{}, norm {index}", isa.name()), &out, &words(&case["out"]));
        }
    }
}

#[test]
fn sums_gates_and_soft_caps_match() {
    let gates = &golden("rows")["gates"];
    let (x, y) = (words(&gates["x"]), words(&gates["y"]));
    let (scale, cap) = (words(&gates["scale"])[0], words(&gates["cap"])[0]);
    for Kernels { isa, rows: kernels, .. } in Kernels::available() {
        let check = |name: &str, start: &[f32], operation: &dyn Fn(&mut [f32])| {
            let mut out = start.to_vec();
            operation(&mut out);
            assert_same_bits(&format!("{} {name}", isa.name()), &out, &words(&gates[name]));
        };
        check("add", &x, &|h| (kernels.add)(h, &y));
        check("silu_mul", &x, &|gate| (kernels.silu_mul)(gate, &y));
        check("sigmoid_gate", &y, &|o| (kernels.sigmoid_gate)(o, &x));
        check("scale_soft_cap", &x, &|z| (kernels.scale_soft_cap)(z, Some(scale), Some(cap)));
        check("soft_cap_1", &x, &|z| (kernels.scale_soft_cap)(z, None, Some(1.0)));
    }
}

#[test]
fn rotary_tables_match() {
    let golden = golden("rope");
    for case in golden["table"].as_array().unwrap() {
        let factors = words(&case["factors"]);
        let factors = (!factors.is_empty()).then_some(factors.as_slice());
        let (base, dims) = (words(&case["base"])[0], number(&case["dims"]));
        let table = RopeTable::new(base, dims, 131_072, factors).unwrap();
        for entry in case["entries"].as_array().unwrap() {
            let (position, pair) = (number(&entry[0]), number(&entry[1]));
            let row = table.row(position);
            let what = format!("base {base}, position {position}, pair {pair}");
            assert_same_bits(&what, &[row.cos[pair], row.sin[pair]], &words(&entry[2]));
        }
    }
}

#[test]
fn rotations_match() {
    let rotation = &golden("rope")["rotation"];
    let (cos, sin) = (words(&rotation["cos"]), words(&rotation["sin"]));
    for Kernels { isa, rows: kernels, .. } in Kernels::available() {
        for (style, expected) in [(RopeStyle::Norm, &rotation["norm"]), (RopeStyle::Neox, &rotation["neox"])] {
            let mut x = words(&rotation["x"]);
            (kernels.rope)(&mut x, RopeAngles { cos: &cos, sin: &sin }, style);
            assert_same_bits(&format!("{} {style:?}", isa.name()), &x, &words(expected));
        }
    }
}
