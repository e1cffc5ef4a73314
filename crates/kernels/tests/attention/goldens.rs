//! Attention against golden vectors of exact arithmetic (`golden/attention/make.py`).

use crate::sequence::Sequence;
use muser_kernels::attention::{AttentionShape, KvLayout};
use muser_kernels::cpu::Kernels;
use serde_json::Value;

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/attention/attention.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Numbers of `digits` hexadecimal digits each.
fn words(value: &Value, digits: usize) -> Vec<u32> {
    let text = value.as_str().unwrap().as_bytes().chunks_exact(digits);
    text.map(|d| u32::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// The rows of `make.py`: a stream of numbers in [-1, 1), each row times a power of two.
fn rows(seed: u64, count: usize, columns: usize, pattern: &str) -> Vec<Vec<f32>> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    let mut row = |index| {
        let spread = exponent(pattern, index).map_or(0.0, |e| 2f32.powi(e));
        (0..columns).map(|_| next() * spread + 0.0).collect()
    };
    (0..count).map(&mut row).collect()
}

/// Power of two of a row, or `None` for a row of zeros.
fn exponent(pattern: &str, row: usize) -> Option<i32> {
    match pattern {
        "plain" => Some(0),
        "steep" => Some(4),
        "spread" => i32::try_from(row * 7 % 13).ok().map(|e| e - 6),
        "first page zero" => (row >= 64).then_some(0),
        "zero" => None,
        "tiny" => Some([-98, -99, -100, -101, -120][row % 5]),
        "huge" => Some(90),
        "mixed" => [None, Some(40), Some(-40), Some(0), Some(12)][row % 5],
        other => panic!("unknown pattern {other}"),
    }
}

#[test]
fn every_implementation_attends_as_exact_arithmetic_does() {
    let golden = golden();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 36);
    for (index, case) in cases.iter().enumerate() {
        let field = |name: &str| number(&case[name]);
        let shape = AttentionShape::new(field("query_heads"), field("kv_heads"), field("head_dim")).unwrap();
        let layout = if case["layout"] == "q8" { KvLayout::Q8 } else { KvLayout::F16 };
        let window = case["window"].as_u64().map(|w| u32::try_from(w).unwrap());
        let positions: Vec<u32> =
            case["positions"].as_array().unwrap().iter().map(|p| u32::try_from(number(p)).unwrap()).collect();
        let pattern = |i: usize| case["patterns"][i].as_str().unwrap();

        let seed = case["seed"].as_u64().unwrap();
        let (kv_columns, query_columns) = (shape.kv_heads() * shape.head_dim(), shape.query_heads() * shape.head_dim());
        let count = *positions.iter().max().unwrap() as usize + 1;
        let keys = rows(seed, count, kv_columns, pattern(0));
        let values = rows(seed + 1000, count, kv_columns, pattern(1));
        let queries = rows(seed + 2000, positions.len(), query_columns, pattern(2)).concat();
        let sequence = Sequence::new(shape, layout, keys, values);
        for Kernels { isa, attention: kernels, .. } in Kernels::available() {
            let out = sequence.attend(&kernels, window, &queries, &positions).unwrap();
            let bits: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
            let expected = words(&case["out"], 8);
            let differs = bits.iter().zip(&expected).position(|(g, e)| g != e);
            assert!(bits.len() == expected.len(), "case {index}");
            assert!(differs.is_none(), "{}, case {index}, element {differs:?}: {case}", isa.name());
        }
    }
}

#[test]
fn every_implementation_stores_as_exact_arithmetic_does() {
    let golden = golden();
    let shape = AttentionShape::new(1, 1, 32).unwrap();
    for (index, vector) in golden["stored"].as_array().unwrap().iter().enumerate() {
        let x: Vec<f32> = words(&vector["x"], 8).into_iter().map(f32::from_bits).collect();
        for Kernels { isa, attention: kernels, .. } in Kernels::available() {
            let mut page = vec![0; KvLayout::Q8.page_bytes(&shape)];
            (kernels.store_row)(&shape, KvLayout::Q8, &x, &x, 3, &mut page).unwrap();
            let codes: Vec<u8> = words(&vector["codes"], 2).into_iter().map(|c| u8::try_from(c).unwrap()).collect();
            let scale = words(&vector["scale"], 8)[0].to_le_bytes();
            for side in 0..2 {
                assert_eq!(page[(side * 64 + 3) * 32..][..32], codes, "{}, vector {index}", isa.name());
                assert_eq!(page[2 * 64 * 32 + (side * 64 + 3) * 4..][..4], scale, "{}, vector {index}", isa.name());
            }
            if vector["halves"].is_string() {
                let mut page = vec![0; KvLayout::F16.page_bytes(&shape)];
                (kernels.store_row)(&shape, KvLayout::F16, &x, &x, 63, &mut page).unwrap();
                let halves =
                    words(&vector["halves"], 4).into_iter().flat_map(|h| [h.to_le_bytes()[0], h.to_le_bytes()[1]]);
                let halves: Vec<u8> = halves.collect();
                assert_eq!(page[2 * 63 * 32..][..64], halves, "{}, vector {index}", isa.name());
                assert_eq!(page[2 * 127 * 32..][..64], halves, "{}, vector {index}", isa.name());
            }
        }
    }
}
