//! `muser logits`.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::process::Command;
use std::thread;

use muser_kernels::cpu::Kernels;
use muser_kernels::formats::WeightType;

use crate::common::{Ended, Folder, SHIPPED, float_model, llama_spec, muser, muser_on_a_full_disk, with_data};

/// Bytes of one position's logits of the shipped model.
const ROW_BYTES: usize = 4096 * 4;

fn logits(ids: &str, out: &str, more: &[&str]) -> Ended {
    muser(&[&["logits", "--ids", ids, "--out", out], more].concat())
}

#[test]
fn files_are_the_same_with_any_chunk_threads_and_kernels() {
    let folder = Folder::new();
    let (floats, model) = (folder.at("floats.gguf"), folder.at("model.gguf"));
    folder.write("floats.gguf", float_model(&llama_spec(96), WeightType::F16));
    muser(&["quantize", &floats, &model, "Q4_K"]).done();
    // 70 tokens are more than a page, 3 are less than every chunk but one.
    let long: Vec<String> = (0..70u32).map(|index| (index * 53 % 320).to_string()).collect();
    let ids = folder.write("ids", format!("{}\n\n  7\t8 9\n", long.join(" ")));
    let (out, alone) = (folder.at("out"), folder.write("alone", "7 8 9"));
    let file = |ids: &str, more: &[&str]| {
        let ended = logits(ids, &out, more).done();
        assert_eq!((ended.stdout, ended.stderr), (String::new(), String::new()));
        fs::read(&out).unwrap()
    };
    for model in [&floats, &model] {
        for kv in ["q8", "f16"] {
            let expected = file(&ids, &["--kv", kv, model]);
            assert_eq!(expected.len(), 73 * 320 * 4);
            for kernels in Kernels::available() {
                for (chunk, threads) in [("1", "1"), ("7", "2"), ("64", "3"), ("1000000000000", "1")] {
                    let args = ["--kv", kv, "--kernels", kernels.name(), "--chunk", chunk, "--threads", threads, model];
                    assert!(file(&ids, &args) == expected, "{args:?}");
                }
            }
            // A prompt alone gives what it gives in company.
            assert!(file(&alone, &["--kv", kv, model]) == expected[70 * 320 * 4..]);
        }
        assert!(file(&ids, &["--kv", "q8", model]) != file(&ids, &["--kv", "f16", model]));
    }
    assert_eq!(folder.names(), ["alone", "floats.gguf", "ids", "model.gguf", "out"]);
}

#[test]
fn the_shipped_model_has_one_file_for_all_kernels_in_the_binary_and_beside_it() {
    let folder = Folder::new();
    let (ids, out) = (folder.write("ids", "1 2 3\n4095\n"), folder.at("out"));
    logits(&ids, &out, &[]).done();
    let expected = fs::read(&out).unwrap();
    assert_eq!(expected.len(), 4 * ROW_BYTES);
    for kernels in Kernels::available() {
        logits(&ids, &out, &["--kernels", kernels.name(), "--chunk", "2", SHIPPED]).done();
        assert!(fs::read(&out).unwrap() == expected, "{kernels:?}");
    }
}

#[test]
fn ids_that_cannot_be_are_refused_by_line_and_leave_the_old_file() {
    let folder = Folder::new();
    let out = folder.write("out", "from before");
    let long = "1 ".repeat(2049);
    let cases: [(&[u8], &[&str]); 9] = [
        (b"1 2\n3 x4 5\n", &["line 2", "\"x4\" is not a token id"]),
        (b"1 2\n\n\n-3\n", &["line 4", "\"-3\" is not a token id"]),
        (b"4294967296", &["line 1", "\"4294967296\" is not a token id"]),
        (b"1.0", &["line 1", "\"1.0\""]),
        (b"1\n4095\n5 4096\n", &["line 3", "token 4096 does not exist", "4096"]),
        (b"", &["line 1", "no token ids"]),
        (b" \n\t\n", &["line 1", "no token ids"]),
        (b"1\n2\n\xff\n", &["line 3", "UTF-8"]),
        (long.as_bytes(), &["line 1", "2049", "2048"]),
    ];
    for (bytes, expected) in cases {
        let ids = folder.write("ids", bytes);
        let line = logits(&ids, &out, &[]).refused(2);
        for part in [&["/ids\""], expected].concat() {
            assert!(line.contains(part), "{line:?} does not name {part:?}");
        }
        assert_eq!(
            (folder.names(), fs::read(&out).unwrap()),
            (vec!["ids".into(), "out".into()], b"from before".to_vec())
        );
    }
    let line = logits(&folder.at("absent"), &out, &[]).refused(1);
    assert!(line.contains("absent") && line.contains("No such file"), "{line}");
    // As many tokens as the context has are fine.
    let ids = folder.write("ids", "1 ".repeat(128));
    let model = folder.write("small.gguf", float_model(&llama_spec(64), WeightType::F16));
    logits(&ids, &out, &[&model]).done();
    assert_eq!(fs::read(&out).unwrap().len(), 128 * 320 * 4);
    let line = logits(&folder.write("ids", "1 ".repeat(129)), &out, &[&model]).refused(2);
    assert!(line.contains("129") && line.contains("128"), "{line}");
}

#[test]
fn a_prompt_that_fails_on_the_way_leaves_no_file() {
    // The second prompt has a token whose embedding overflows in the first layer.
    let model = float_model(&llama_spec(64), WeightType::F32);
    let model = with_data(&model, "token_embd.weight", 5 * 256 * 4, &[f32::MAX.to_le_bytes(); 256].concat());
    let folder = Folder::new();
    let (model, ids, out) = (folder.write("m.gguf", model), folder.write("ids", "1 2\n3 5\n"), folder.at("out"));
    let line = logits(&ids, &out, &[&model]).refused(1);
    assert!(line.contains("not finite at position 1"), "{line}");
    assert_eq!(folder.names(), ["ids", "m.gguf"]);
    folder.write("ids", "1 2\n3 4\n");
    logits(&ids, &out, &[&model]).done();
    assert_eq!(folder.names(), ["ids", "m.gguf", "out"]);
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let folder = Folder::new();
    let ids = folder.write("ids", "1 2");
    for (out, reason) in
        [(folder.at("no/such/folder/out"), "No such file"), (folder.path().to_str().unwrap().to_owned(), "directory")]
    {
        let line = logits(&ids, &out, &[]).refused(1);
        assert!(line.contains(&out) && line.contains(reason), "{line}");
    }
    assert_eq!(folder.names(), ["ids"]);
}

#[test]
fn a_full_disk_leaves_the_old_file_and_nothing_else() {
    let folder = Folder::new();
    let (ids, out) = (folder.write("ids", "1 2"), folder.write("out", "from before"));
    let line = muser_on_a_full_disk(&["logits", "--ids", &ids, "--out", &out]).refused(1);
    assert!(line.contains(&out) && line.contains("too large"), "{line}");
    assert_eq!((folder.names(), fs::read(&out).unwrap()), (vec!["ids".into(), "out".into()], b"from before".to_vec()));
}

#[test]
fn pipes_are_written_to_and_not_replaced_and_links_stay_links() {
    let folder = Folder::new();
    let ids = folder.write("ids", "1 2");
    // A pipe of our own stands for devices too: a mistake here must not replace one of the system's.
    let pipe = folder.at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap().len()
    });
    logits(&ids, &pipe, &[]).done();
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(reader.join().unwrap(), 2 * ROW_BYTES);
    let (target, link) = (folder.write("target", ""), folder.at("link"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    logits(&ids, &link, &[]).done();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&target).unwrap().len(), 2 * ROW_BYTES);
}
