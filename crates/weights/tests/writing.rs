//! Written files read back equal, and nothing can be written that the reader would refuse.

mod common;

use common::everything;
use muser_kernels::formats::WeightType;
use muser_weights::gguf::{Element, Gguf, GgufFault, GgufWriter, ModelFiles, Value, ValueType, WriteError};
use std::collections::BTreeMap;
use std::io;

/// The bytes of a file whose tensors hold `data`, by name.
fn written(writer: &GgufWriter, data: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    writer.write(&mut bytes, |tensor, out| out.write_all(&data[tensor.name()])).unwrap();
    bytes
}

/// Adds a random value of any type, or an array of some type; returns what is to be read, as [`shown`].
fn set_random(writer: &mut GgufWriter, key: &str, random: &mut fastrand::Rng) -> String {
    let len = random.usize(0..5);
    let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
    let text = |random: &mut fastrand::Rng| -> String { (0..random.usize(0..9)).map(|_| random.char(..)).collect() };
    let value = match random.usize(0..17) {
        0 => Value::U8(random.u8(..)),
        1 => Value::I8(random.i8(..)),
        2 => Value::U16(random.u16(..)),
        3 => Value::I16(random.i16(..)),
        4 => Value::U32(random.u32(..)),
        5 => Value::I32(random.i32(..)),
        6 => Value::F32(random.f32()),
        7 => Value::Bool(random.bool()),
        8 => Value::String(&bytes),
        9 => Value::U64(random.u64(..)),
        10 => Value::I64(random.i64(..)),
        11 => Value::F64(random.f64()),
        12 => return set_array(writer, key, bytes, |value| Value::U8(*value)),
        13 => return set_array(writer, key, (0..len).map(|_| random.i64(..)).collect(), |value| Value::I64(*value)),
        14 => return set_array(writer, key, (0..len).map(|_| random.bool()).collect(), |value| Value::Bool(*value)),
        15 => return set_array(writer, key, (0..len).map(|_| random.f32()).collect(), |value| Value::F32(*value)),
        _ => {
            let strings: Vec<String> = (0..len).map(|_| text(random)).collect();
            return set_array(writer, key, strings, |value| Value::String(value.as_bytes()));
        }
    };
    writer.set(key, value).unwrap();
    shown(value)
}

fn set_array<T: Element>(writer: &mut GgufWriter, key: &str, values: Vec<T>, value: fn(&T) -> Value) -> String {
    writer.set_array(key, &values).unwrap();
    format!("{} {:?}", T::TYPE, values.iter().map(value).collect::<Vec<_>>())
}

/// A value as text that is the same for equal values only.
fn shown(value: Value) -> String {
    match value {
        Value::Array(array) => format!("{} {:?}", array.element_type(), array.iter().collect::<Vec<_>>()),
        scalar => format!("{scalar:?}"),
    }
}

#[test]
fn what_was_written_is_read() {
    for seed in 0..500 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut writer = GgufWriter::new();
        let keys: Vec<String> = (0..random.usize(0..20)).map(|index| format!("key.{index}")).collect();
        let values: Vec<String> = keys.iter().map(|key| set_random(&mut writer, key, &mut random)).collect();
        let mut data = BTreeMap::new();
        for index in 0..random.usize(0..8) {
            let ty = WeightType::ALL[random.usize(..WeightType::ALL.len())];
            let blocks = random.usize(1..4);
            let mut shape = vec![(blocks * ty.block_len()) as u64];
            shape.extend((0..random.usize(0..4)).map(|_| random.u64(1..4)));
            let name = format!("tensor.{index}");
            writer.tensor(&name, ty, &shape).unwrap();
            let rows = usize::try_from(shape[1..].iter().product::<u64>()).unwrap();
            data.insert(name, (0..blocks * ty.block_bytes() * rows).map(|_| random.u8(..)).collect());
        }
        let bytes = written(&writer, &data);
        let file = Gguf::parse(&bytes).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(file.metadata().iter().map(|(key, _)| key).eq(&keys), "seed {seed}");
        assert_eq!(file.metadata().iter().map(|(_, value)| shown(value)).collect::<Vec<_>>(), values, "seed {seed}");
        assert_eq!(file.tensors().len(), data.len(), "seed {seed}");
        for (tensor, planned) in file.tensors().zip(writer.tensors()) {
            assert_eq!(tensor.name(), planned.name(), "seed {seed}");
            assert_eq!(tensor.shape(), planned.shape(), "seed {seed}");
            assert_eq!(tensor.weight().unwrap().ty, planned.weight_type(), "seed {seed}");
            assert_eq!(tensor.bytes().unwrap(), data[tensor.name()], "seed {seed}");
        }
        // Written again from what was read, the file is the same.
        let mut again = GgufWriter::new();
        again.copy_metadata(file.metadata()).unwrap();
        for tensor in file.tensors() {
            again.tensor(tensor.name(), tensor.weight().unwrap().ty, tensor.shape()).unwrap();
        }
        assert_eq!(written(&again, &data), bytes, "seed {seed}");
    }
}

#[test]
fn values_keep_their_type_and_order() {
    let mut writer = GgufWriter::new();
    writer.set("b", Value::I8(-3)).unwrap();
    writer.set("a", Value::String(b"\xff")).unwrap();
    writer.set_array("list", &["x", ""]).unwrap();
    writer.set_array::<f32>("none", &[]).unwrap();
    let bytes = written(&writer, &BTreeMap::new());
    let file = Gguf::parse(&bytes).unwrap();
    let keys: Vec<_> = file.metadata().iter().map(|(key, _)| key.to_owned()).collect();
    assert_eq!(keys, ["b", "a", "list", "none"]);
    assert_eq!(file.metadata().get("b"), Some(Value::I8(-3)));
    assert_eq!(file.metadata().get("a"), Some(Value::String(b"\xff")));
    assert_eq!(file.metadata().strs("list"), Ok(vec!["x", ""]));
    assert_eq!(file.metadata().array("none").unwrap().element_type(), ValueType::F32);
}

#[test]
fn another_files_metadata_is_copied_without_its_layout() {
    let bytes = everything();
    let source = Gguf::parse(&bytes).unwrap();
    let mut writer = GgufWriter::new();
    writer.copy_metadata(source.metadata()).unwrap();
    let copy = written(&writer, &BTreeMap::new());
    let copy = Gguf::parse(&copy).unwrap();
    assert_eq!(source.metadata().len(), copy.metadata().len() + 1);
    assert!(source.metadata().iter().filter(|(key, _)| *key != "general.alignment").eq(copy.metadata().iter()));
}

#[test]
fn nothing_is_written_that_the_reader_would_refuse() {
    let mut writer = GgufWriter::new();
    let fault = |outcome| match outcome {
        Err(WriteError::Refused { fault, .. }) => fault,
        other => panic!("{other:?}"),
    };
    assert_eq!(fault(writer.set("", Value::U8(1))), GgufFault::EmptyName);
    let (length, limit) = (65_536, 65_535);
    assert_eq!(fault(writer.set(&"k".repeat(65_536), Value::U8(1))), GgufFault::NameTooLong { length, limit });
    assert_eq!(fault(writer.set("general.alignment", Value::U32(64))), GgufFault::Alignment { value: 64 });
    let found = ValueType::U8;
    assert_eq!(fault(writer.set("general.alignment", Value::U8(32))), GgufFault::AlignmentType { found });
    writer.set("general.alignment", Value::U32(32)).unwrap();
    assert!(matches!(writer.set("general.alignment", Value::U32(32)), Err(WriteError::Duplicate { .. })));
    let f32 = WeightType::F32;
    assert_eq!(fault(writer.tensor("", f32, &[1])), GgufFault::EmptyName);
    assert_eq!(fault(writer.tensor(&"t".repeat(65), f32, &[1])), GgufFault::NameTooLong { length: 65, limit: 64 });
    assert_eq!(fault(writer.tensor("t", f32, &[])), GgufFault::DimensionCount { count: 0 });
    assert_eq!(fault(writer.tensor("t", f32, &[1; 5])), GgufFault::DimensionCount { count: 5 });
    assert_eq!(fault(writer.tensor("t", f32, &[1, 0])), GgufFault::ZeroDimension { axis: 1 });
    let shape = vec![1 << 62, 2];
    assert_eq!(fault(writer.tensor("t", f32, &shape)), GgufFault::SizeOverflow { shape });
    let partial = GgufFault::PartialBlock { cols: 33, type_id: 8, block_len: 32 };
    assert_eq!(fault(writer.tensor("t", WeightType::Q8_0, &[33])), partial);
    writer.tensor("t", f32, &[1]).unwrap();
    assert!(matches!(writer.tensor("t", f32, &[1]), Err(WriteError::Duplicate { .. })));
}

#[test]
fn data_of_the_wrong_length_is_refused_by_tensor_and_count() {
    let mut writer = GgufWriter::new();
    writer.tensor("t", WeightType::F32, &[2]).unwrap();
    let given = |bytes: &[u8]| match writer
        .write(&mut Vec::new(), |_, out| bytes.chunks(5).try_for_each(|chunk| out.write_all(chunk)))
    {
        Err(WriteError::WrongDataLength { name, expected: 8, given }) => Some((name, given)),
        Ok(()) => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(given(&[0; 8]), None);
    assert_eq!(given(&[0; 7]), Some(("t".into(), 7)));
    assert_eq!(given(&[0; 10]), Some(("t".into(), 10)));
    let failed = writer.write(&mut Vec::new(), |_, _| Err(io::Error::other("no data")));
    assert!(matches!(failed, Err(WriteError::Io(error)) if error.to_string() == "no data"));
}

#[test]
fn shards_written_one_by_one_are_read_as_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = |number| folder.path().join(format!("m-0000{number}-of-00002.gguf"));
    for number in 1u16..=2 {
        let mut writer = GgufWriter::new();
        writer.set("split.no", Value::U16(number - 1)).unwrap();
        writer.set("split.count", Value::U16(2)).unwrap();
        writer.tensor(&format!("t{number}"), WeightType::F32, &[1]).unwrap();
        let mut file = std::fs::File::create(path(number)).unwrap();
        writer.write(&mut file, |_, out| out.write_all(&u32::from(number).to_le_bytes())).unwrap();
    }
    let files = ModelFiles::open(&path(1)).unwrap();
    assert_eq!(files.weight("t2").unwrap().bytes, [2, 0, 0, 0]);
    assert_eq!(files.tensors().map(|tensor| tensor.name()).collect::<Vec<_>>(), ["t1", "t2"]);
}
