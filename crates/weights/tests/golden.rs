//! Files written by the format's own library (`golden/gguf/make.py`) say what that library was told.

use muser_kernels::formats::WeightType;
use muser_weights::digest::FileDigest;
use muser_weights::gguf::{ModelFiles, ModelOpenError, SplitError, TensorType, Value};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/gguf").join(name)
}

#[test]
fn metadata_of_every_type_is_what_was_given() {
    let files = ModelFiles::open(&golden("sample.gguf")).unwrap();
    let metadata = files.metadata();
    let expected = [
        ("general.architecture", Value::String(b"llama")),
        ("sample.u8", Value::U8(200)),
        ("sample.i8", Value::I8(-100)),
        ("sample.u16", Value::U16(60_000)),
        ("sample.i16", Value::I16(-30_000)),
        ("sample.u32", Value::U32(4_000_000_000)),
        ("sample.i32", Value::I32(-2_000_000_000)),
        ("sample.f32", Value::F32(0.1)),
        ("sample.u64", Value::U64(1 << 63)),
        ("sample.i64", Value::I64(-(1 << 62))),
        ("sample.f64", Value::F64(0.1)),
        ("sample.bool", Value::Bool(true)),
        ("sample.string", Value::String("naïve 🦙".as_bytes())),
    ];
    let seen: Vec<_> = metadata.iter().take(expected.len()).collect();
    assert_eq!(seen, expected);
    assert_eq!(metadata.i32s("sample.i32s"), Ok(vec![1, -2, 3]));
    assert_eq!(metadata.f32s("sample.f32s"), Ok(vec![0.5, -0.25]));
    assert_eq!(metadata.bools("sample.bools"), Ok(vec![true, false, true]));
    assert_eq!(metadata.strs("tokenizer.ggml.tokens"), Ok(vec!["<s>", "a", "Ġb", ""]));
}

#[test]
fn tensors_of_every_type_have_their_bytes() {
    let files = ModelFiles::open(&golden("sample.gguf")).unwrap();
    let numbers: Vec<f32> = (0..512u16).map(|n| (f32::from(n) - 200.0) / 64.0).collect();
    let f32s: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(files.weight("f32").unwrap().bytes, f32s);
    let f16s: Vec<u8> = numbers.iter().flat_map(|number| half::f16::from_f32(*number).to_le_bytes()).collect();
    assert_eq!(files.weight("f16").unwrap().bytes, f16s);
    let three = files.weight("three.dimensions").unwrap();
    assert_eq!((three.cols, three.rows, files.tensor("three.dimensions").unwrap().shape()), (4, 6, &[4, 3, 2][..]));
    for ty in WeightType::ALL {
        let weight = files.weight(&ty.name().to_lowercase()).unwrap();
        assert_eq!((weight.ty, weight.cols, weight.rows), (ty, 256, 2));
        assert_eq!(weight.bytes.len(), 2 * ty.row_bytes(256).unwrap());
    }
    // Copied blocks: byte n of the s-th of the types from Q4_K on is 7 n + s, modulo 256.
    for (seed, name) in [(2, "q6_k"), (6, "nvfp4"), (7, "q2_k"), (8, "iq3_s")] {
        let bytes = files.tensor(name).unwrap().bytes().unwrap();
        let expected = (0..bytes.len()).map(|n| (n * 7 + seed).to_le_bytes()[0]);
        assert!(expected.eq(bytes.iter().copied()), "{name}");
    }
    assert_eq!(files.tensor("iq3_s").unwrap().tensor_type(), TensorType::from_ggml(21));
    assert_eq!(files.tensor_count(), 18);
}

#[test]
fn the_digests_are_those_of_an_independent_program() {
    // Printed by golden/gguf/digest.py.
    let digest = FileDigest::compute(&ModelFiles::open(&golden("sample.gguf")).unwrap()).unwrap();
    let tensors = "a7dee5761e89d1c79cb22a7019fb04914659e0d21de3b2d600d74e2f64faba39";
    assert_eq!(digest.tensors.to_string(), tensors);
    let tokenizer = "8d2bf319bd810320e7e1ef400f4aa7369250cc2e0db79fd331f4afd3e7212442";
    assert_eq!(digest.tokenizer.to_string(), tokenizer);
}

#[test]
fn a_split_model_is_one_model() {
    let files = ModelFiles::open(&golden("split-00001-of-00003.gguf")).unwrap();
    assert_eq!(files.paths().len(), 3);
    assert_eq!(files.metadata().u32("llama.block_count"), Ok(1));
    for n in 0..6u8 {
        let value = f32::from(n).to_le_bytes();
        assert_eq!(files.weight(&format!("tensor.{n}")).unwrap().bytes, [value, value, value].concat());
    }
    let later = golden("split-00003-of-00003.gguf");
    let first = golden("split-00001-of-00003.gguf");
    match ModelFiles::open(&later) {
        Err(ModelOpenError::Split { reason, .. }) => {
            assert_eq!(reason, SplitError::NotFirst { number: 3, count: 3, first });
        }
        other => panic!("{other:?}"),
    }
}
