//! `muser quantize`.

use std::collections::BTreeMap;
use std::fs;

use muser_kernels::formats::WeightType;
use muser_weights::gguf::{GgufWriter, ModelFiles, TensorType};

use crate::common::{Folder, float_model, llama_spec, muser, muser_on_a_full_disk, with_data};

/// Columns of `ffn_down`: whole blocks of 256, of 32, and of nothing.
const WIDTHS: [u32; 3] = [256, 96, 80];

fn types(path: &str) -> BTreeMap<String, TensorType> {
    let files = ModelFiles::open(path.as_ref()).unwrap();
    files.tensors().map(|tensor| (tensor.name().to_owned(), tensor.tensor_type())).collect()
}

fn logits(model: &str, folder: &Folder) -> Vec<f32> {
    let (ids, out) = (folder.write("ids", "72 101 108 108 111"), folder.at("logits"));
    muser(&["logits", model, "--ids", &ids, "--out", &out]).done();
    let bytes = fs::read(&out).unwrap();
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// 1 for the same direction.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn every_type_is_written_with_its_fallback_and_the_result_runs() {
    use WeightType::{F16, Q4_0, Q4_K, Q5_0, Q6_K, Q8_0};
    let folder = Folder::new();
    for width in WIDTHS {
        let from = folder.write(&format!("from{width}.gguf"), float_model(&llama_spec(width), F16));
        let exact = logits(&from, &folder);
        for (name, ty, fallback, closeness) in [
            ("Q8_0", Q8_0, Q8_0, 0.999),
            ("q4_0", Q4_0, Q4_0, 0.97),
            ("Q4_K", Q4_K, Q5_0, 0.97),
            ("q6_k", Q6_K, Q8_0, 0.99),
        ] {
            let to = folder.at(&format!("{name}{width}.gguf"));
            let ended = muser(&["quantize", &from, &to, name]).done();
            assert_eq!(ended.stdout, "");
            let narrow = [ty, fallback, F16][WIDTHS.iter().position(|known| *known == width).unwrap()];
            for (tensor, found) in types(&to) {
                let expected = match tensor.as_str() {
                    tensor if tensor.contains("norm") => WeightType::F32,
                    tensor if tensor.contains("ffn_down") => narrow,
                    _ => ty,
                };
                assert_eq!(found, TensorType::Supported(expected), "{tensor}");
                let said = format!("F16 -> {expected}");
                let line = ended.stderr.lines().find(|line| line.starts_with(&format!("{tensor} ")));
                let changed = expected != F16 && expected != WeightType::F32;
                assert_eq!(line.is_some_and(|line| line.ends_with(&said)), changed, "{tensor}: {}", ended.stderr);
            }
            assert_eq!(muser(&["run", "-m", &to, "-n", "2", "-s", "1", "Hello"]).code, Some(0));
            let near = cosine(&exact, &logits(&to, &folder));
            assert!(near > closeness, "{name}, {width} columns: {near}");
        }
    }
    assert!(folder.names().iter().all(|name| !name.contains("partial")));
}

#[test]
fn metadata_is_kept_but_for_the_type_of_the_file_and_its_blocks() {
    let folder = Folder::new();
    let (from, to) = (folder.write("from.gguf", float_model(&llama_spec(256), WeightType::F16)), folder.at("to.gguf"));
    muser(&["quantize", &from, &to, "Q4_K"]).done();
    let [before, after] = [&from, &to].map(|path| ModelFiles::open(path.as_ref()).unwrap());
    for (key, value) in before.metadata().iter() {
        assert_eq!(after.metadata().get(key), Some(value), "{key}");
    }
    assert_eq!(after.metadata().len(), before.metadata().len() + 2);
    assert_eq!(after.metadata().u32("general.file_type").unwrap(), 14);
}

#[test]
fn threads_do_not_change_the_file() {
    let folder = Folder::new();
    let from = folder.write("from.gguf", float_model(&llama_spec(256), WeightType::BF16));
    let [one, three] = ["1", "3"].map(|threads| {
        let to = folder.at(threads);
        muser(&["quantize", &from, &to, "Q6_K", "-t", threads]).done();
        fs::read(to).unwrap()
    });
    assert!(one == three);
}

#[test]
fn precision_is_lost_twice_only_on_request() {
    let folder = Folder::new();
    let from = folder.write("from.gguf", float_model(&llama_spec(256), WeightType::F16));
    let (eight, four) = (folder.at("eight.gguf"), folder.at("four.gguf"));
    muser(&["quantize", &from, &eight, "Q8_0"]).done();
    let line = muser(&["quantize", &eight, &four, "Q4_0"]).refused(2);
    assert!(
        line.contains("token_embd.weight") && line.contains("Q8_0") && line.contains("--allow-requantize"),
        "{line}"
    );
    assert_eq!(folder.names(), ["eight.gguf", "from.gguf"]);
    muser(&["quantize", &eight, &four, "Q4_0", "--allow-requantize"]).done();
    assert_eq!(types(&four)["output.weight"], TensorType::Supported(WeightType::Q4_0));
    // To the type it has already is no loss.
    muser(&["quantize", &eight, &folder.at("again.gguf"), "Q8_0"]).done();
    assert_eq!(types(&eight), types(&folder.at("again.gguf")));
}

#[test]
fn what_is_there_is_never_overwritten() {
    let folder = Folder::new();
    let from = folder.write("from.gguf", float_model(&llama_spec(96), WeightType::F16));
    let before = fs::read(&from).unwrap();
    let old = folder.write("old.gguf", "from before");
    let dangling = folder.at("dangling");
    std::os::unix::fs::symlink(folder.at("nowhere"), &dangling).unwrap();
    for to in [&old, &from, &dangling, folder.path().to_str().unwrap()] {
        let line = muser(&["quantize", &from, to, "Q8_0"]).refused(2);
        assert!(line.contains("exists already"), "{line}");
    }
    assert_eq!((fs::read(&old).unwrap(), fs::read(&from).unwrap()), (b"from before".to_vec(), before));
    assert_eq!(folder.names(), ["dangling", "from.gguf", "old.gguf"]);
}

#[test]
fn a_failure_leaves_nothing_behind_and_names_the_tensor() {
    let folder = Folder::new();
    let sound = float_model(&llama_spec(256), WeightType::F32);
    // In the last tensor, when most of the file is written.
    let name = "blk.1.ffn_down.weight";
    let nan = folder.write("nan.gguf", with_data(&sound, name, 4 * 300, &f32::NAN.to_le_bytes()));
    let line = muser(&["quantize", &nan, &folder.at("to.gguf"), "Q8_0"]).refused(3);
    assert!(line.contains(name) && line.contains("not finite"), "{line}");
    // Finite, but its block's scale is beyond an f16.
    let large = folder.write("large.gguf", with_data(&sound, name, 0, &1e30f32.to_le_bytes()));
    let line = muser(&["quantize", &large, &folder.at("to.gguf"), "Q8_0"]).refused(3);
    assert!(line.contains(name), "{line}");
    let line = muser(&["quantize", &large, &folder.at("no/such/to.gguf"), "Q8_0"]).refused(1);
    assert!(line.contains("no/such/to.gguf") && line.contains("No such file"), "{line}");
    assert_eq!(folder.names(), ["large.gguf", "nan.gguf"]);
}

#[test]
fn a_full_disk_leaves_no_file() {
    let folder = Folder::new();
    let from = folder.write("from.gguf", float_model(&llama_spec(256), WeightType::F16));
    let line = muser_on_a_full_disk(&["quantize", &from, &folder.at("to.gguf"), "Q8_0"]).refused(1);
    assert!(line.contains("/to.gguf") && line.contains("too large"), "{line}");
    assert_eq!(folder.names(), ["from.gguf"]);
}

#[test]
fn a_tensor_with_a_scale_beside_it_is_refused() {
    let mut writer = GgufWriter::new();
    writer.tensor("a.weight", WeightType::F32, &[32, 2]).unwrap();
    writer.tensor("a.scale", WeightType::F32, &[1]).unwrap();
    let mut file = Vec::new();
    let ones = |count: usize| [1f32.to_le_bytes()].concat().repeat(count);
    writer
        .write(&mut file, |tensor, out| out.write_all(&ones(if tensor.name() == "a.scale" { 1 } else { 64 })))
        .unwrap();
    let folder = Folder::new();
    let from = folder.write("from.gguf", file);
    let line = muser(&["quantize", &from, &folder.at("to.gguf"), "Q8_0"]).refused(3);
    assert!(line.contains("\"a.weight\"") && line.contains("scale"), "{line}");
}

#[test]
fn the_new_file_states_its_type_and_the_version_of_quantised_blocks() {
    let folder = Folder::new();
    let from = folder.write("from.gguf", float_model(&llama_spec(256), WeightType::F16));
    let (once, twice) = (folder.at("once.gguf"), folder.at("twice.gguf"));
    muser(&["quantize", &from, &once, "Q8_0"]).done();
    // From a file that has both keys, one of them of another version.
    let mut bytes = fs::read(&once).unwrap();
    let key = b"general.quantization_version";
    let at = bytes.windows(key.len()).position(|found| found == key).unwrap() + key.len() + 4;
    assert_eq!(bytes[at..at + 4], 2u32.to_le_bytes());
    bytes[at] = 1;
    let older = folder.write("older.gguf", bytes);
    muser(&["quantize", "--allow-requantize", &older, &twice, "Q4_0"]).done();
    for (path, file_type) in [(&once, 7), (&twice, 2)] {
        let files = ModelFiles::open(path.as_ref()).unwrap();
        let stated = |key| files.metadata().u32(key).unwrap();
        assert_eq!((stated("general.quantization_version"), stated("general.file_type")), (2, file_type));
    }
}
