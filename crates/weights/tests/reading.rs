//! Reading of a well-formed file and its metadata.

mod common;

use common::{Raw, everything};
use muser_kernels::formats::WeightType;
use muser_weights::gguf::{
    Gguf, Metadata, MetadataError, ModelFiles, Optional, PerLayer, TensorError, TensorType, Value, ValueType,
};

fn with_metadata(bytes: &[u8], check: impl FnOnce(Metadata)) {
    check(Gguf::parse(bytes).unwrap().metadata());
}

#[test]
fn every_value_type_is_read() {
    with_metadata(&everything(), |metadata| {
        let expected = [
            ("general.architecture", Value::String(b"test")),
            ("one.u8", Value::U8(200)),
            ("one.i8", Value::I8(-128)),
            ("one.u16", Value::U16(0xfeff)),
            ("one.i16", Value::I16(-257)),
            ("one.u32", Value::U32(4_000_000_000)),
            ("one.i32", Value::I32(-2)),
            ("one.f32", Value::F32(1.5)),
            ("one.bool", Value::Bool(true)),
            ("one.bytes", Value::String(b"ab\xff")),
            ("one.u64", Value::U64(1 << 40)),
            ("one.i64", Value::I64(-1)),
            ("one.f64", Value::F64(2.5)),
        ];
        for ((key, value), expected) in metadata.iter().zip(expected) {
            assert_eq!((key, value), expected);
            assert_eq!(metadata.get(key), Some(value));
        }
        assert_eq!(metadata.len(), 26);
        assert_eq!(metadata.get("one"), None);
    });
}

#[test]
fn arrays_of_every_element_type_are_read() {
    with_metadata(&everything(), |metadata| {
        let elements = |key: &str| metadata.array(key).unwrap().iter().collect::<Vec<_>>();
        assert_eq!(elements("all.u8"), [Value::U8(1), Value::U8(2)]);
        assert_eq!(elements("all.i8"), [Value::I8(1), Value::I8(-1)]);
        assert_eq!(elements("all.u16"), [Value::U16(0x201)]);
        assert_eq!(elements("all.i16"), [Value::I16(-1)]);
        assert_eq!(elements("all.u32"), [Value::U32(7), Value::U32(9)]);
        assert_eq!(elements("all.i32"), [Value::I32(7), Value::I32(-1)]);
        assert_eq!(elements("all.f32"), [Value::F32(0.25)]);
        assert_eq!(elements("all.bool"), [Value::Bool(true), Value::Bool(false), Value::Bool(true)]);
        assert_eq!(elements("all.strings"), [Value::String(b"a"), Value::String(b""), Value::String(b"bc")]);
        assert_eq!(elements("all.u64"), [Value::U64(3)]);
        assert_eq!(elements("all.i64"), [Value::I64(-1)]);
        assert_eq!(elements("all.f64"), []);
        assert_eq!(metadata.array("all.f64").unwrap().element_type(), ValueType::F64);
        assert!(metadata.array("all.f64").unwrap().is_empty());
    });
}

#[test]
fn an_integer_of_any_width_is_accepted_where_it_fits() {
    with_metadata(&everything(), |metadata| {
        assert_eq!(metadata.u32("one.u8"), Ok(200));
        assert_eq!(metadata.u64("one.u32"), Ok(4_000_000_000));
        assert_eq!(metadata.i32("one.i64"), Ok(-1));
        assert_eq!(metadata.usize("one.u16"), Ok(0xfeff));
        assert_eq!(metadata.u32s("all.u64"), Ok(vec![3]));
        assert_eq!(metadata.i32s("all.i8"), Ok(vec![1, -1]));
        let out_of_range = |wanted, value| MetadataError::OutOfRange { key: "one.u32".into(), wanted, value };
        assert_eq!(metadata.i32("one.u32"), Err(out_of_range("an i32", 4_000_000_000)));
        assert_eq!(
            metadata.u32s("all.i32"),
            Err(MetadataError::OutOfRange { key: "all.i32".into(), wanted: "an array of u32", value: -1 })
        );
    });
}

#[test]
fn a_value_of_the_wrong_type_is_refused_by_key_wanted_and_found_type() {
    with_metadata(&everything(), |metadata| {
        let wrong = |key: &str, wanted, found| MetadataError::WrongType { key: key.into(), wanted, found };
        assert_eq!(metadata.u32("one.bool"), Err(wrong("one.bool", "a u32", ValueType::Bool)));
        assert_eq!(metadata.f32("one.f64"), Err(wrong("one.f64", "an f32", ValueType::F64)));
        assert_eq!(metadata.bool("one.u8"), Err(wrong("one.u8", "a bool", ValueType::U8)));
        assert_eq!(metadata.str("one.u8"), Err(wrong("one.u8", "a string", ValueType::U8)));
        assert_eq!(metadata.array("one.u8"), Err(wrong("one.u8", "an array", ValueType::U8)));
        assert_eq!(metadata.strs("one.u8"), Err(wrong("one.u8", "an array of strings", ValueType::U8)));
        let error = metadata.f32s("all.i32").unwrap_err();
        assert_eq!(error.to_string(), "metadata key \"all.i32\" must be an array of f32, it is an array of i32");
    });
}

#[test]
fn a_string_that_is_not_utf8_can_be_had_as_bytes_only() {
    with_metadata(&everything(), |metadata| {
        let not_utf8 = MetadataError::NotUtf8 { key: "one.bytes".into(), index: 0, valid_bytes: 2 };
        assert_eq!(metadata.str("one.bytes"), Err(not_utf8));
        assert_eq!(metadata.str("general.architecture"), Ok("test"));
        assert_eq!(metadata.strs("all.strings"), Ok(vec!["a", "", "bc"]));
    });
    let bytes = Raw::header(0, 1).key("k", 9).u32(8).u64(2).string(b"fine").string(b"x\x80").0;
    with_metadata(&bytes, |metadata| {
        assert_eq!(metadata.strs("k"), Err(MetadataError::NotUtf8 { key: "k".into(), index: 1, valid_bytes: 1 }));
    });
}

#[test]
fn a_missing_key_is_an_error_that_can_be_made_optional() {
    with_metadata(&everything(), |metadata| {
        assert_eq!(metadata.u32("nothing"), Err(MetadataError::Missing { key: "nothing".into() }));
        assert_eq!(metadata.u32("nothing").optional(), Ok(None));
        assert_eq!(metadata.u32("one.u8").optional(), Ok(Some(200)));
        assert!(metadata.u32("one.bool").optional().is_err());
    });
}

#[test]
fn a_setting_may_be_one_value_or_one_per_layer() {
    with_metadata(&everything(), |metadata| {
        assert_eq!(metadata.u32_per_layer("one.u8", 2), Ok(PerLayer::Same(200)));
        assert_eq!(metadata.u32_per_layer("all.u32", 2), Ok(PerLayer::Each(vec![7, 9])));
        assert_eq!(metadata.bool_per_layer("all.bool", 3), Ok(PerLayer::Each(vec![true, false, true])));
        assert_eq!(metadata.f32_per_layer("one.f32", 9), Ok(PerLayer::Same(1.5)));
        let wrong = MetadataError::WrongLayerCount { key: "all.u32".into(), layers: 3, found: 2 };
        assert_eq!(metadata.u32_per_layer("all.u32", 3), Err(wrong));
    });
    assert_eq!(PerLayer::Same(5).get(1000), Some(5));
    assert_eq!(PerLayer::Each(vec![5, 6]).get(1), Some(6));
    assert_eq!(PerLayer::Each(vec![5, 6]).get(2), None);
}

#[test]
fn tensors_come_in_file_order_with_their_shape_and_bytes() {
    let bytes = everything();
    let file = Gguf::parse(&bytes).unwrap();
    let seen: Vec<_> = file.tensors().map(|t| (t.name(), t.shape(), t.cols(), t.rows(), t.bytes().unwrap())).collect();
    assert_eq!(
        seen,
        [
            ("z.weight", &[3, 2][..], 3, 2, &[1; 24][..]),
            ("a.weight", &[32][..], 32, 1, &[8; 34][..]),
            ("odd.weight", &[256, 2][..], 256, 2, &[2; 168][..]),
        ]
    );
    assert_eq!(file.tensor("z.weight").unwrap().elements(), 6);
    assert!(file.tensor("z").is_none());
    assert_eq!(file.tensor("a.weight").unwrap().tensor_type(), TensorType::Supported(WeightType::Q8_0));
}

#[test]
fn a_tensor_of_an_unsupported_type_is_listed_but_not_loaded() {
    let files = ModelFiles::from_bytes(everything()).unwrap();
    let weight = files.weight("z.weight").unwrap();
    assert_eq!((weight.ty, weight.cols, weight.rows, weight.bytes), (WeightType::F32, 3, 2, &[1; 24][..]));
    let refused = files.weight("odd.weight").unwrap_err();
    let ty = TensorType::from_ggml(10);
    assert_eq!(refused, TensorError::Unsupported { name: "odd.weight".into(), ty });
    assert_eq!(refused.to_string(), "tensor \"odd.weight\" is stored as Q2_K, which muser cannot compute with");
    assert_eq!(files.weight("none"), Err(TensorError::Missing { name: "none".into() }));
}

#[test]
fn a_tensor_of_an_unknown_type_has_no_known_size() {
    let bytes = Raw::header(1, 0).tensor("new", &[7, 3], 1000, 0).pad(32).bytes(&[1]).0;
    let file = Gguf::parse(&bytes).unwrap();
    let tensor = file.tensor("new").unwrap();
    assert_eq!((tensor.byte_len(), tensor.bytes(), tensor.elements()), (None, None, 21));
    assert_eq!(tensor.tensor_type().to_string(), "type 1000");
    assert!(matches!(tensor.weight(), Err(TensorError::Unsupported { .. })));
}

#[test]
fn version_2_is_read_like_version_3() {
    let mut bytes = everything();
    bytes[4] = 2;
    assert_eq!(Gguf::parse(&bytes).unwrap().tensors().len(), 3);
}

#[test]
fn a_mapped_model_reads_like_one_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, everything()).unwrap();
    let (mapped, memory) = (ModelFiles::open(&path).unwrap(), ModelFiles::from_bytes(everything()).unwrap());
    assert!(mapped.tensors().map(|t| t.bytes()).eq(memory.tensors().map(|t| t.bytes())));
    assert!(mapped.metadata().iter().eq(memory.metadata().iter()));
    assert_eq!(mapped.paths().collect::<Vec<_>>(), [path.as_path()]);
    assert_eq!(mapped.file_bytes(), everything().len() as u64);
    let names: Vec<_> = mapped.tensors_by_name().map(|t| t.name()).collect();
    assert_eq!(names, ["a.weight", "odd.weight", "z.weight"]);
    assert_eq!(mapped.tensor_count(), 3);
}
