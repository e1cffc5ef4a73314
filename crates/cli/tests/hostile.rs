//! Files made to break the program: every command refuses them with exit code 3 and one line that names the part that is
//! wrong, prints nothing else, and takes neither time nor memory for them.

mod common;
#[path = "../../weights/tests/common/mod.rs"]
mod raw;

use std::ffi::OsStr;
use std::fs;
use std::process::{Command, Stdio};

use common::{
    Ended, Folder, SHIPPED, float_model, llama_spec, muser, repository, with_data, with_keys, with_tensor_type,
};
use muser_kernels::formats::WeightType;
use muser_weights::gguf::Value;
use raw::Raw;

/// Address space, and so resident memory, that a command may take beside the file's length.
const KIB_MAX: u64 = 64 << 10;

/// Runs the binary with no more than [`KIB_MAX`] of memory beside `file_bytes`, and one second of processor time.
fn muser_within<A: AsRef<OsStr>>(file_bytes: u64, args: &[A]) -> Ended {
    let kib = KIB_MAX + file_bytes.div_ceil(1024);
    let limited = format!("ulimit -v {kib} && ulimit -t 1 && exec \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_muser")]).args(args).stdin(Stdio::null());
    Ended::of(shell.output().unwrap())
}

/// Checks that every command refuses the model at `path`, in a line that holds all of `expected`.
#[track_caller]
fn refused_at(folder: &Folder, path: &str, expected: &[&str]) {
    let bytes = fs::metadata(path).map_or(0, |found| if found.is_file() { found.len() } else { 0 });
    let (ids, out) = (folder.write("ids", "1 2\n"), folder.at("out"));
    let before = folder.names();
    let commands: [&[&str]; 8] = [
        &["inspect", path],
        &["inspect", path, "--json"],
        &["run", "-m", path, "-n", "1", "Hello"],
        &["logits", path, "--ids", &ids, "--out", &out],
        &["bench", "-m", path, "-p", "1", "-n", "1", "-r", "1"],
        &["quantize", path, &out, "Q8_0"],
        &["tokenize", "-m", path, "Hello"],
        &["chat", "-m", path],
    ];
    for command in commands {
        let line = muser_within(bytes, command).refused(3);
        for part in expected {
            assert!(line.contains(part), "{command:?}: {line:?} does not name {part:?}");
        }
    }
    assert_eq!(folder.names(), before, "something was left behind");
}

#[track_caller]
fn refused(file: impl AsRef<[u8]>, expected: &[&str]) {
    let folder = Folder::new();
    let path = folder.write("model.gguf", file);
    refused_at(&folder, &path, &[expected, &["model.gguf"]].concat());
}

#[test]
fn a_file_that_is_hardly_there_is_refused() {
    refused(b"", &["header", "byte 0", "cut short"]);
    refused(b"GGUF", &["header", "byte 4", "cut short"]);
    refused(b"PK\x03\x04 no model at all, but long enough", &["header", "byte 0", "not a GGUF file"]);
    refused(Raw(b"GGUF".to_vec()).u32(1).u64(0).u64(0).0, &["header", "byte 4", "version 1"]);
    refused(Raw(b"GGUF".to_vec()).bytes(&[0, 0, 0, 3]).u64(0).u64(0).0, &["header", "byte 4", "big-endian"]);
}

#[test]
fn a_dimension_of_zero_is_refused_whatever_the_type() {
    for type_id in [0, 2, 12, 1000] {
        let file = |shape: &[u64]| Raw::header(1, 0).tensor("t", shape, type_id, 0).pad(32).bytes(&[0; 32]).0;
        refused(file(&[0]), &["tensor \"t\"", "byte 37", "dimension 0 is 0"]);
        refused(file(&[256, 0]), &["tensor \"t\"", "byte 45", "dimension 1 is 0"]);
    }
}

#[test]
fn absurd_counts_and_lengths_are_refused_without_memory() {
    for count in [1 << 63, u64::MAX, 1 << 32] {
        refused(Raw::header(0, count).bytes(&[0; 64]).0, &["header", "byte 16", &count.to_string()]);
        refused(Raw::header(count, 0).bytes(&[0; 64]).0, &["header", "byte 8", &count.to_string()]);
        let array = Raw::header(0, 1).key("k", 9).u32(8).u64(count).bytes(&[0; 64]);
        refused(array.0, &["metadata key \"k\"", "byte 41", &count.to_string()]);
    }
    let length = 1 << 40;
    let in_value = Raw::header(0, 1).key("k", 8).u64(length).bytes(&[b'x'; 64]);
    refused(in_value.0, &["metadata key \"k\"", "byte 45", "1099511627776"]);
    let in_key = Raw::header(0, 1).u64(length).bytes(&[b'x'; 64]);
    refused(in_key.0, &["key of metadata entry 0", "byte 24", "1099511627776"]);
    let in_name = Raw::header(1, 0).u64(length).bytes(&[b'x'; 64]);
    refused(in_name.0, &["name of tensor 0", "byte 24", "1099511627776"]);
    let shape = Raw::header(1, 0).tensor("t", &[1 << 40, 1 << 40], 0, 0).pad(32).bytes(&[0; 64]);
    refused(shape.0, &["tensor \"t\"", "byte 37", "overflows"]);
    let data = Raw::header(1, 0).tensor("t", &[1 << 40], 0, 0).pad(32).bytes(&[0; 64]);
    refused(data.0, &["tensor \"t\"", "byte 24", "4398046511104"]);
}

#[test]
fn arrays_in_arrays_do_not_reach_the_stack() {
    let nested = (0..10_000).fold(Raw::header(0, 1).key("k", 9), |raw, _| raw.u32(9).u64(1));
    refused(nested.u32(0).u64(0).0, &["metadata key \"k\"", "byte 37", "arrays of arrays"]);
}

#[test]
fn an_alignment_that_cannot_be_is_refused() {
    let name = "general.alignment";
    for value in [0, 3, 1 << 30] {
        let file = Raw::header(0, 1).key(name, 4).u32(value);
        refused(file.0, &[name, "byte 53", "power of two", &value.to_string()]);
    }
    refused(Raw::header(0, 1).key(name, 5).u32(32).0, &[name, "byte 53", "must be a u32"]);
}

#[test]
fn names_are_neither_empty_nor_given_twice() {
    refused(Raw::header(0, 1).key("", 4).u32(1).0, &["key of metadata entry 0", "byte 24", "empty"]);
    let keys = Raw::header(0, 2).key("twice", 4).u32(1).key("twice", 4).u32(2);
    refused(keys.0, &["metadata key \"twice\"", "byte 45", "first seen at byte 24"]);
    let tensors = Raw::header(2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).pad(32).bytes(&[0; 64]);
    refused(tensors.0, &["tensor \"t\"", "byte 57", "first seen at byte 24"]);
}

#[test]
fn a_real_file_cut_short_is_refused_wherever_the_cut_is() {
    let whole = fs::read(SHIPPED).unwrap();
    for length in [23, 1000, 100_000, 140_000, whole.len() / 2, whole.len() - 32] {
        refused(&whole[..length], &["byte "]);
    }
}

#[test]
fn a_split_model_without_all_its_parts_is_refused() {
    let name = |number| format!("split-0000{number}-of-00003.gguf");
    let part = |number| fs::read(repository("golden/gguf").join(name(number))).unwrap();
    let folder = Folder::new();
    let first = folder.write(&name(1), part(1));
    refused_at(&folder, &first, &["shard 2 of 3 is missing", "split-00002-of-00003.gguf"]);
    let second = folder.write(&name(2), part(2));
    refused_at(&folder, &first, &["shard 3 of 3 is missing", "split-00003-of-00003.gguf"]);
    refused_at(&folder, &second, &["shard 2 of 3", "open the first one", "split-00001-of-00003.gguf"]);
    folder.write(&name(3), part(2));
    refused_at(&folder, &first, &["split-00003-of-00003.gguf", "shard 2 of 3"]);
}

#[test]
fn a_path_without_a_regular_file_is_refused() {
    let folder = Folder::new();
    refused_at(&folder, &folder.at("absent.gguf"), &["absent.gguf", "No such file"]);
    refused_at(&folder, folder.path().to_str().unwrap(), &["not a regular file"]);
    let pipe = folder.at("pipe.gguf");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Opening it would wait for a writer that never comes.
    refused_at(&folder, &pipe, &["pipe.gguf", "not a regular file"]);
    let circle = folder.at("circle.gguf");
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    refused_at(&folder, &circle, &["circle.gguf"]);
}

/// Checks that a sound file of a model that cannot run is described with the reason, and that the commands that would run it
/// refuse it with the same.
#[track_caller]
fn described_but_not_run(file: impl AsRef<[u8]>, expected: &[&str]) {
    let folder = Folder::new();
    let (path, ids, out) = (folder.write("model.gguf", file), folder.write("ids", "1 2\n"), folder.at("out"));
    let bytes = fs::metadata(&path).unwrap().len();
    let report = muser_within(bytes, &["inspect", &path, "--json"]).done();
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["runs"], false);
    let text = muser_within(bytes, &["inspect", &path]).done().stdout;
    let described = text.lines().filter(|line| line.starts_with("runs        no: ")).collect::<String>();
    let run = muser_within(bytes, &["run", "-m", &path, "-n", "1", "Hello"]).refused(3);
    let logits = muser_within(bytes, &["logits", &path, "--ids", &ids, "--out", &out]).refused(3);
    let problems: Vec<&str> =
        report["problems"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    for line in [&problems.concat(), &described, &run, &logits] {
        for part in expected {
            assert!(line.contains(part), "{line:?} does not name {part:?}");
        }
    }
    assert!(!folder.names().contains(&"out".to_owned()));
}

fn small() -> Vec<u8> {
    float_model(&llama_spec(64), WeightType::F16)
}

#[test]
fn counts_of_zero_are_refused_by_key() {
    let keys = ["attention.head_count", "attention.head_count_kv", "block_count", "embedding_length", "context_length"];
    for key in keys.map(|key| format!("llama.{key}")) {
        let file = with_keys(&small(), &[(&key, Some(Value::U32(0)))]);
        described_but_not_run(file, &[&format!("{key} is 0")]);
    }
}

#[test]
fn counts_beyond_the_tensors_are_refused_without_memory() {
    for key in ["block_count", "embedding_length", "feed_forward_length", "attention.head_count"] {
        for count in [1 << 12, 1 << 24, u32::MAX] {
            let file = with_keys(&small(), &[(&format!("llama.{key}"), Some(Value::U32(count)))]);
            described_but_not_run(file, &[]);
        }
    }
}

#[test]
fn an_unknown_architecture_is_answered_with_the_known_ones() {
    let file = with_keys(&small(), &[("general.architecture", Some(Value::String(b"gpt9")))]);
    described_but_not_run(file, &["\"gpt9\" is not supported", "llama", "muse-glimmer", "qwen2", "qwen3"]);
    let file = with_keys(&small(), &[("general.architecture", None)]);
    described_but_not_run(file, &["\"general.architecture\" is missing"]);
}

#[test]
fn an_unsupported_tensor_type_is_refused_by_tensor_and_type() {
    let (name, folder) = ("blk.1.ffn_up.weight", Folder::new());
    // Q2_K, Q3_K, I8, TQ1_0, and a number that nothing has: none takes more bytes than F16.
    for (type_id, ty) in [(10, "Q2_K"), (11, "Q3_K"), (24, "I8"), (34, "TQ1_0"), (999, "999")] {
        let file = with_tensor_type(&small(), name, type_id);
        described_but_not_run(&file, &[name, ty]);
        let path = folder.write("model.gguf", &file);
        let line = muser(&["quantize", &path, &folder.at("out"), "Q8_0"]).refused(3);
        assert!(line.contains(name) && line.contains(ty), "{line}");
        assert_eq!(folder.names(), ["model.gguf"]);
    }
}

#[test]
fn an_unsupported_tokenizer_is_refused_by_name() {
    let unigram = with_keys(&small(), &[("tokenizer.ggml.model", Some(Value::String(b"t5")))]);
    let folder = Folder::new();
    let path = folder.write("model.gguf", unigram);
    let line = muser(&["run", "-m", &path, "-n", "1", "Hello"]).refused(3);
    assert!(line.contains("tokenizer") && line.contains("`t5`") && line.contains("gpt2"), "{line}");
    let report: serde_json::Value = serde_json::from_str(&muser(&["inspect", &path, "--json"]).done().stdout).unwrap();
    assert_eq!(report["runs"], false);
    assert!(report["problems"].to_string().contains("`t5`"), "{report:#}");
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_tensor_or_end_the_run_by_layer() {
    let nan = 0x7e00u16.to_le_bytes();
    let file = with_data(&small(), "blk.1.ffn_up.weight", 0, &nan);
    described_but_not_run(file, &["blk.1.ffn_up.weight"]);
    // Finite weights that make an infinity out of a sound input are only found by computing.
    let largest = [f32::MAX.to_le_bytes(); 256].concat();
    let file = with_data(&float_model(&llama_spec(64), WeightType::F32), "output_norm.weight", 0, &largest);
    let folder = Folder::new();
    let path = folder.write("model.gguf", file);
    let line = muser(&["run", "-m", &path, "-n", "1", "Hello"]).refused(1);
    assert!(line.contains("not finite at position"), "{line}");
}

#[test]
fn names_out_of_a_file_cannot_break_a_line_or_steer_the_terminal() {
    let evil = "two\nlines \u{1b}[31mred\u{202e}";
    let folder = Folder::new();
    let key = folder.write("key.gguf", Raw::header(0, 1).key(evil, 99).0);
    let line = muser(&["inspect", &key]).refused(3);
    assert!(line.contains("value type 99"), "{line}");
    let changes = [("tokenizer.ggml.model", Some(Value::String(evil.as_bytes()))), (evil, Some(Value::U32(1)))];
    let path = folder.write("model.gguf", with_keys(&small(), &changes));
    let line = muser(&["run", "-m", &path, "-n", "1", "Hello"]).refused(3);
    assert!(line.contains("two\\nlines"), "{line}");
    let text = muser(&["inspect", &path]).done().stdout;
    assert!(text.contains("two\\nlines") && !text.contains(['\u{1b}', '\u{202e}']), "{text}");
}

#[test]
fn a_file_with_wrong_bytes_anywhere_never_ends_a_command_in_a_panic() {
    let whole = float_model(&llama_spec(64), WeightType::F16);
    let folder = Folder::new();
    let mut random = fastrand::Rng::with_seed(11);
    let mut codes = [0; 5];
    for round in 0..150 {
        let mut file = whole.clone();
        // Most of what steers the program is in the first bytes.
        let end = *random.choice(&[64, 2000, 16_000, file.len()]).unwrap();
        for _ in 0..random.usize(1..4) {
            let (at, any) = (random.usize(0..end), random.u8(..));
            file[at] = *random.choice(&[0, 1, 4, 127, 128, 255, any]).unwrap();
        }
        let path = folder.write("model.gguf", &file);
        let command: &[&str] = if round % 2 == 0 {
            &["run", "-m", &path, "-n", "2", "-t", "1", "Hello"]
        } else {
            &["inspect", &path, "--json"]
        };
        let ended = muser(command);
        let code = ended.code.unwrap_or_else(|| panic!("round {round}: ended by a signal: {}", ended.stderr));
        assert!(matches!(code, 0 | 1 | 3), "round {round}: {code}: {}", ended.stderr);
        codes[usize::try_from(code).unwrap()] += 1;
    }
    assert!(codes[0] > 10 && codes[3] > 10, "{codes:?}");
}

#[test]
fn files_without_an_end_are_refused_and_long_names_are_cut_in_a_line() {
    let folder = Folder::new();
    let long = "x".repeat(100_000);
    let changes = [("general.architecture", Some(Value::String(long.as_bytes())))];
    let (path, ids) = (folder.write("model.gguf", with_keys(&small(), &changes)), folder.write("ids", &long));
    for (args, code, part) in [
        (&["run", "-m", &path, "-n", "1", "Hello"][..], 3, "is not supported"),
        (&["logits", SHIPPED, "--ids", &ids, "--out", &folder.at("out")], 2, "is not a token id"),
    ] {
        let line = muser(args).refused(code);
        assert!(line.len() < 5000 && (line.contains(part) || line.ends_with("...")), "{line}");
    }
    for (args, code) in [
        (&["logits", SHIPPED, "--ids", "/dev/zero", "--out", &folder.at("out")][..], 1),
        (&["run", "-f", "/dev/zero"], 1),
        (&["--config", "/dev/zero", "config", "check"], 2),
    ] {
        let line = muser(args).refused(code);
        assert!(line.contains("/dev/zero") && line.contains("more than 33554432 bytes"), "{line}");
    }
}
