//! The definition against vectors that an independent script computed on exact fractions (`golden/dot/make.py`).

use muser_kernels::activations::{Activations, FormatSet};
use muser_kernels::cpu::Kernels;
use muser_kernels::dot::reference::{self, Quantisation};
use muser_kernels::formats::{WeightClass, WeightType};
use muser_kernels::matrix::{Matrix, PANEL_ROWS};

use super::available;

/// One tensor, activations and the bits of every output.
struct Case {
    ty: WeightType,
    cols: usize,
    quantisation: Quantisation,
    weights: Vec<u8>,
    x: Vec<f32>,
    y: Vec<u32>,
}

fn cases() -> Vec<Case> {
    let json: serde_json::Value = serde_json::from_str(include_str!("../../../../golden/dot/vectors.json")).unwrap();
    json.as_array().unwrap().iter().map(read_case).collect()
}

fn read_case(case: &serde_json::Value) -> Case {
    let number = |name: &str| usize::try_from(case[name].as_u64().unwrap()).unwrap();
    let text = |name: &str| case[name].as_str().unwrap();
    let digits = |text: &str, width: usize| -> Vec<u32> {
        (0..text.len()).step_by(width).map(|at| u32::from_str_radix(&text[at..at + width], 16).unwrap()).collect()
    };
    Case {
        ty: WeightType::ALL.into_iter().find(|ty| ty.name() == text("type")).unwrap(),
        cols: number("cols"),
        quantisation: Quantisation { bits: u32::try_from(number("bits")).unwrap(), group: number("group") },
        weights: digits(text("weights"), 2).into_iter().map(|byte| u8::try_from(byte).unwrap()).collect(),
        x: digits(text("x"), 8).into_iter().map(f32::from_bits).collect(),
        y: digits(text("y"), 8),
    }
}

#[test]
fn the_reference_gives_the_bits_of_exact_arithmetic() {
    let cases = cases();
    for ty in WeightType::ALL {
        assert!(cases.iter().filter(|case| case.ty == ty).count() >= 2, "{ty} has vectors");
    }
    for (index, case) in cases.iter().enumerate() {
        let y = reference::multiply(case.ty, case.cols, &case.weights, &case.x, case.quantisation).unwrap().unwrap();
        let bits: Vec<u32> = y.into_iter().map(f32::to_bits).collect();
        assert_eq!(bits, case.y, "case {index}: {} {:?}", case.ty, case.quantisation);
    }
}

#[test]
fn every_table_gives_the_bits_of_exact_arithmetic() {
    for (index, case) in cases().iter().enumerate() {
        let usual = match case.ty.class() {
            WeightClass::IntegerScales => Quantisation::INT8X256,
            _ => Quantisation::INT8X32,
        };
        if case.quantisation != usual {
            continue;
        }
        let matrix = Matrix::packed(case.ty, case.y.len(), case.cols, &case.weights).unwrap();
        for Kernels { isa, dot, .. } in available() {
            let mut activations = Activations::new(1, case.cols);
            assert!((dot.quantise_row)(&case.x, FormatSet::ALL, &mut activations.rows_mut()[0]));
            let mut tile = [[0.0; PANEL_ROWS]];
            (dot.panel)(&matrix, 0, &activations, 0..1, &mut tile);
            let bits: Vec<u32> = tile[0][..case.y.len()].iter().map(|value| value.to_bits()).collect();
            assert_eq!(bits, case.y, "{} case {index}: {}", isa.name(), case.ty);
        }
    }
}
