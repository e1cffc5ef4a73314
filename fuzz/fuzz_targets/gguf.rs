//! Any bytes as a GGUF file: they are read or refused. What is read is then touched to the last byte.
//!
//! Run in this folder, with the files of `golden/gguf` copied to `corpus/gguf` as a begin:
//! `cargo +nightly fuzz run gguf -- -max_len=16384 -rss_limit_mb=600 -malloc_limit_mb=64`

#![no_main]

use libfuzzer_sys::fuzz_target;
use muser_weights::digest::FileDigest;
use muser_weights::gguf::{GgufWriter, HeaderOnly, ModelFiles, Value};

fuzz_target!(|bytes: &[u8]| {
    let header = HeaderOnly::parse(bytes);
    let Ok(files) = ModelFiles::from_bytes(bytes.to_vec()) else { return };
    let header = header.expect("what is accepted with its data is accepted without");
    assert_eq!(header.tensors().len(), files.tensor_count());
    touch_metadata(&files);
    touch_tensors(&files);
    let _ = FileDigest::compute(&files);
});

/// Every value is found by its key, converts without a panic, and survives being written and read again.
fn touch_metadata(files: &ModelFiles) {
    let metadata = files.metadata();
    for (key, value) in metadata.iter() {
        assert_eq!(metadata.get(key).map(|found| found.value_type()), Some(value.value_type()));
        assert!(!value.to_string().is_empty());
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
        let _ = (metadata.u32(key), metadata.u64(key), metadata.i32(key), metadata.usize(key), metadata.f32(key));
        let _ = (metadata.bool(key), metadata.str(key), metadata.strs(key), metadata.bools(key));
        let _ = (metadata.u32s(key), metadata.i32s(key), metadata.f32s(key));
        let _ = (metadata.u32_per_layer(key, 1), metadata.f32_per_layer(key, 2), metadata.bool_per_layer(key, 3));
    }
    let mut writer = GgufWriter::new();
    writer.copy_metadata(metadata).expect("what was read can be written");
    let mut copy = Vec::new();
    writer.write_header(&mut copy).expect("a vector takes any bytes");
    let copy = HeaderOnly::parse(&copy).expect("what was written can be read");
    let of_layout = |key: &str| key == "general.alignment" || key.starts_with("split.");
    let kept = metadata.iter().filter(|(key, _)| !of_layout(key));
    // Compared as text, because NaN is not equal to itself.
    assert!(kept.map(|entry| format!("{entry:?}")).eq(copy.metadata().iter().map(|entry| format!("{entry:?}"))));
}

/// Every tensor is found by its name, and its data is as long as its shape says and shares no byte with another's.
fn touch_tensors(files: &ModelFiles) {
    let mut sum = 0u64;
    for tensor in files.tensors() {
        let found = files.tensor(tensor.name()).expect("a listed tensor is found");
        assert_eq!((found.data_offset(), found.shape()), (tensor.data_offset(), tensor.shape()));
        let bytes = tensor.bytes().unwrap_or_default();
        assert_eq!(tensor.byte_len().unwrap_or(0), bytes.len() as u64);
        sum += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        if let Ok(weight) = tensor.weight() {
            let row = weight.ty.row_bytes(weight.cols).expect("rows are whole blocks");
            assert_eq!(row * weight.rows, weight.bytes.len());
        }
    }
    std::hint::black_box(sum);
    let data: u64 = files.tensors().filter_map(|tensor| tensor.byte_len()).sum();
    assert!(data <= files.file_bytes());
}
