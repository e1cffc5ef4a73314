//! Whatever the bytes, the reader neither panics nor takes more memory than the file and 1 MiB.

mod common;

use common::{Raw, everything};
use muser_kernels::formats::WeightType;
use muser_weights::digest::FileDigest;
use muser_weights::gguf::{ENTRIES_MAX, Gguf, GgufWriter, HeaderOnly, ModelFiles, PlannedTensor, Value};
use std::io::Write;

/// The most bytes this thread held at once while `work` ran, beyond those held before.
fn most_held(work: impl FnOnce()) -> usize {
    let counted = allocation_counter::measure(work);
    usize::try_from(counted.bytes_max).expect("memory is addressable")
}

/// Parses `bytes` in every way and, where that succeeds, touches all of it. Returns whether it did.
fn touch_everything(bytes: &[u8]) -> bool {
    let limit = bytes.len() + (1 << 20);
    let mut accepted = false;
    let held = most_held(|| accepted = Gguf::parse(bytes).is_ok());
    assert!(held <= limit, "parsing {} bytes took {held}", bytes.len());
    let held = most_held(|| drop(HeaderOnly::parse(bytes)));
    assert!(held <= limit, "parsing the header of {} bytes took {held}", bytes.len());
    let copy = bytes.to_vec();
    let mut outcome = None;
    let held = most_held(|| outcome = Some(ModelFiles::from_bytes(copy)));
    assert!(held <= limit, "opening {} bytes took {held}", bytes.len());
    match outcome {
        Some(Ok(files)) => touch(&files),
        Some(Err(error)) => assert!(!error.to_string().is_empty()),
        None => unreachable!(),
    }
    accepted
}

fn touch(files: &ModelFiles) {
    let metadata = files.metadata();
    for (key, value) in metadata.iter() {
        assert!(!value.to_string().is_empty() && metadata.get(key).is_some());
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
        let _ = (metadata.u32(key), metadata.u64(key), metadata.i32(key), metadata.f32(key), metadata.bool(key));
        let _ = (metadata.str(key), metadata.strs(key), metadata.u32s(key), metadata.i32s(key), metadata.f32s(key));
        let _ = (metadata.bools(key), metadata.u32_per_layer(key, 3), metadata.bool_per_layer(key, usize::MAX));
    }
    for tensor in files.tensors() {
        assert_eq!(files.tensor(tensor.name()).map(|found| found.data_offset()), Some(tensor.data_offset()));
        assert!(tensor.elements() >= tensor.rows() && !tensor.tensor_type().to_string().is_empty());
        if let Ok(weight) = tensor.weight() {
            assert_eq!(weight.ty.row_bytes(weight.cols).map(|row| row * weight.rows), Some(weight.bytes.len()));
        }
    }
    let _ = FileDigest::compute(files);
}

/// A model of one layer as the writer writes it, with a vocabulary and f16 matrices.
fn model() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", Value::String(b"muse-glimmer")).unwrap();
    for (key, count) in [("block_count", 1), ("context_length", 8), ("embedding_length", 4), ("vocab_size", 260)] {
        writer.set(&format!("muse-glimmer.{key}"), Value::U32(count)).unwrap();
    }
    writer.set("muse-glimmer.rope.freq_base", Value::F32(10_000.0)).unwrap();
    writer.set_array("muse-glimmer.attention.sliding_window_pattern", &[true]).unwrap();
    let tokens: Vec<String> = (0..260).map(|id| format!("[{id}]")).collect();
    writer.set_array("tokenizer.ggml.tokens", &tokens).unwrap();
    writer.set_array("tokenizer.ggml.token_type", &[1i32; 260]).unwrap();
    writer.set("tokenizer.ggml.add_bos_token", Value::Bool(false)).unwrap();
    writer.tensor("token_embd.weight", WeightType::F16, &[4, 260]).unwrap();
    writer.tensor("output_norm.weight", WeightType::F32, &[4]).unwrap();
    for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        writer.tensor(&format!("blk.0.{part}.weight"), WeightType::F16, &[4, 4]).unwrap();
    }
    let mut bytes = Vec::new();
    let fill = |tensor: &PlannedTensor, out: &mut dyn Write| {
        out.write_all(&vec![0x3c; usize::try_from(tensor.byte_len()).unwrap()])
    };
    writer.write(&mut bytes, fill).unwrap();
    bytes
}

#[test]
fn a_file_with_any_one_byte_changed_is_read_or_refused() {
    let seeds = [everything(), model()];
    let mut accepted = 0;
    let mut random = fastrand::Rng::with_seed(20_260);
    for round in 0..100_000 {
        let mut bytes = seeds[round % 2].clone();
        let at = random.usize(..bytes.len());
        bytes[at] = random.u8(..);
        accepted += u32::from(touch_everything(&bytes));
    }
    assert!((10_000..90_000).contains(&accepted), "{accepted} of 100,000 files were accepted");
}

#[test]
fn a_file_with_several_numbers_replaced_by_extreme_ones_is_read_or_refused() {
    let extremes = [0, 1, 2, 9, 31, 32, 33, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 40, 1 << 61, 1 << 63, u64::MAX];
    let whole = everything();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..30_000 {
        let mut bytes = whole.clone();
        for _ in 0..random.usize(1..4) {
            let (at, extreme) = (random.usize(..bytes.len() - 8), extremes[random.usize(..extremes.len())]);
            let width = [1, 4, 8][random.usize(..3)];
            bytes[at..at + width].copy_from_slice(&extreme.to_le_bytes()[..width]);
        }
        bytes.truncate(random.usize(..bytes.len() * 2));
        touch_everything(&bytes);
    }
}

#[test]
fn random_bytes_behind_a_header_are_read_or_refused() {
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..30_000 {
        let mut raw = Raw::header(random.u64(..3), random.u64(..3));
        // Mostly zeros, so that lengths and types are often small enough to lead somewhere.
        for _ in 0..random.usize(..200) {
            raw.0.push(if random.u8(..4) == 0 { random.u8(..20) } else { 0 });
        }
        touch_everything(&raw.0);
    }
}

#[test]
fn the_most_entries_a_file_can_declare_fit_the_memory_limit() {
    let short = |index: u64| std::str::from_utf8(&index.to_le_bytes()[..2]).map(String::from);
    let names: Vec<String> = (0..1 << 16).filter_map(|index| short(index).ok()).take(16_384).collect();
    let mut raw = Raw::header(ENTRIES_MAX, ENTRIES_MAX);
    for index in 0..16_384 {
        raw = raw.key(&names[index % names.len()].repeat(1 + index / names.len()), 0).bytes(&[0]);
    }
    for (index, offset) in (0..16_384).zip((0..).step_by(32)) {
        raw = raw.tensor(&names[index % names.len()].repeat(1 + index / names.len()), &[1], 24, offset);
    }
    // Without data, every tensor is refused after the whole directory was read; with data, it is accepted.
    assert!(!touch_everything(&raw.0));
    let raw = raw.pad(32).bytes(&vec![0; 32 * 16_384]);
    assert!(touch_everything(&raw.0));
}
