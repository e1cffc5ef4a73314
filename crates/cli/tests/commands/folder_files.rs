//! Files of the cluster folder that are damaged, cut, lost, old or left over: what commands and servers make of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Folder, muser};
use crate::produce::{Producing, cluster, complete};
use crate::serving::Serving;

fn prompt(number: usize) -> String {
    format!("{number}. {}", "There was an old house by the sea. ".repeat(20))
}

fn make_pipe(path: &str) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A folder in which `desk` began a cluster, and its path.
fn begun() -> (Folder, String) {
    let folder = Folder::new();
    let desk = folder.at("desk");
    muser(&["cluster", "begin", &desk, "--name", "desk"]).done();
    (folder, desk)
}

fn shown(folder: &str) -> Value {
    serde_json::from_str(&muser(&["cluster", "show", folder, "--json"]).done().stdout).unwrap()
}

fn revoked(folder: &str) -> usize {
    shown(folder)["revoked"].as_array().unwrap().len()
}

/// Asks until the producer helps again: after a failure it is left alone for a while.
fn until_helped(helped: &Serving, first: usize) {
    let mut times = Value::Null;
    for number in first..first + 200 {
        times = complete(helped, &prompt(number)).1;
        if times["kv_source"] == "producer" {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{times}");
}

#[test]
fn a_pipe_in_the_place_of_a_file_costs_the_producer_s_help_and_nothing_else() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let producing = Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let flags = ["--cluster", &decoder, "--producer-min-tokens", "40", "--prefill", "producer"];
    let helped = Serving::start(&[&flags[..], &["--producer", &producing.address]].concat());
    until_helped(&helped, 0);
    for (place, file) in [
        (&decoder, "revoked.toml"),
        (&decoder, "keys.toml"),
        (&decoder, "quarantine.toml"),
        (&producer, "revoked.toml"),
    ] {
        let (path, aside) = (format!("{place}/{file}"), format!("{place}/{file}.kept"));
        let was_there = fs::rename(&path, &aside).is_ok();
        make_pipe(&path);
        let (_, times) = complete(&helped, &prompt(1000));
        assert_eq!(times["kv_source"], "local", "{file}: {times}");
        let told = times["kv_fallback"].to_string();
        assert!(place == &producer || told.contains(file), "{file}: {times}");
        assert!(helped.ask("GET", "/health", "", "").starts_with("HTTP/1.1 200 "));
        if place == &producer {
            assert!(producing.says("not a regular file").contains(file));
        }
        fs::remove_file(&path).unwrap();
        if was_there {
            fs::rename(&aside, &path).unwrap();
        }
        until_helped(&helped, 2000);
    }
    // Nor does a pipe keep anybody from ending.
    fs::rename(format!("{decoder}/keys.toml"), format!("{decoder}/kept")).unwrap();
    make_pipe(&format!("{decoder}/keys.toml"));
    complete(&helped, &prompt(1001));
    helped.stopped();
}

#[test]
fn a_deny_list_that_was_cut_or_emptied_stops_a_running_producer_and_every_command_and_says_what_to_do() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let list = format!("{producer}/revoked.toml");
    muser(&["cluster", "revoke", &producer, &"a".repeat(64)]).done();
    let producing = Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let flags = ["--cluster", &decoder, "--producer-min-tokens", "40", "--prefill", "producer"];
    let helped = Serving::start(&[&flags[..], &["--producer", &producing.address]].concat());
    until_helped(&helped, 0);
    let whole = fs::read_to_string(&list).unwrap();
    let shorter = "version = 2\ncount = 0\nshortened_unix_s = 0\n";
    let half = &whole[..whole.len() / 2];
    for (number, cut) in ["", half, shorter].into_iter().enumerate() {
        fs::write(&list, cut).unwrap();
        let (_, times) = complete(&helped, &prompt(1000 + number));
        assert_eq!(times["kv_source"], "local", "{cut:?}: {times}");
        let told = producing.says("revoked.toml");
        assert!(cut == half || told.contains("muser cluster import"), "{told}");
        fs::write(&list, &whole).unwrap();
        until_helped(&helped, 2000 + 1000 * number);
    }
    for cut in ["", half] {
        fs::write(&list, cut).unwrap();
        for command in [&["cluster", "show", &producer][..], &["cluster", "revoke", &producer, &"b".repeat(64)]] {
            let line = muser(command).refused(2);
            assert!(line.contains("revoked.toml"), "{line}");
        }
        assert_eq!(fs::read_to_string(&list).unwrap(), cut);
    }
    helped.stopped();
}

#[test]
fn lists_that_are_carried_are_added_and_only_commands_make_a_list_shorter() {
    let (folder, desk) = begun();
    let other = folder.at("other");
    muser(&["cluster", "grant", &desk, "other", "--roles", "both", "--out", &other]).done();
    let (ours, theirs) = (format!("{desk}/revoked.toml"), format!("{other}/revoked.toml"));
    for (place, digit) in [(&desk, "a"), (&desk, "b"), (&other, "c")] {
        muser(&["cluster", "revoke", place, &digit.repeat(64)]).done();
    }
    let imported = muser(&["cluster", "import", &other, "--revoked", &ours]).done();
    assert!(imported.stdout.contains("3 entries"), "{}", imported.stdout);
    assert_eq!((revoked(&desk), revoked(&other)), (2, 3));

    // A list that is lost is taken from elsewhere, if that is said.
    fs::write(&ours, "").unwrap();
    let line = muser(&["cluster", "import", &desk, "--revoked", &theirs]).refused(2);
    assert!(line.contains("--instead"), "{line}");
    muser(&["cluster", "import", &desk, "--revoked", &theirs, "--instead"]).done();
    assert_eq!(revoked(&desk), 3);
    muser(&["cluster", "import", &desk]).wrong_usage();
    muser(&["cluster", "import", &desk, "--keys", &theirs]).refused(2);

    // Of version 1, as folders have it that were made before, with certificates that have run out since.
    let old: String = (0..500)
        .map(|number| format!("[[revoked]]\nserial = \"41{number:030x}\"\nsince_unix_s = {}\n", 1_000_000_000 + number))
        .collect();
    fs::write(&ours, old).unwrap();
    let lamp = folder.at("lamp");
    muser(&["cluster", "grant", &desk, "lamp", "--roles", "both", "--out", &lamp]).done();
    assert_eq!(revoked(&lamp), 500);
    muser(&["cluster", "revoke", &desk, &"d".repeat(64)]).done();
    assert!(fs::read_to_string(&ours).unwrap().starts_with("version = 2\ncount = 501\n"));
    assert!(muser(&["cluster", "prune", &desk]).done().stdout.contains("500 certificates"));
    assert_eq!(shown(&desk)["revoked"][0]["node"], json!("d".repeat(64)));
}

#[test]
fn keys_that_are_carried_add_the_next_one_and_never_bring_an_older_one_back() {
    let (folder, desk) = begun();
    let lamp = folder.at("lamp");
    muser(&["cluster", "grant", &desk, "lamp", "--roles", "both", "--out", &lamp]).done();
    let (ours, theirs, old) = (format!("{desk}/keys.toml"), format!("{lamp}/keys.toml"), folder.at("old"));
    fs::copy(&ours, &old).unwrap();
    muser(&["cluster", "rotate-keys", &desk]).done();
    let imported = muser(&["cluster", "import", &lamp, "--keys", &ours]).done();
    assert_eq!(imported.stdout, "active      1\nnext        2\n");
    muser(&["cluster", "activate-key", &lamp, "2"]).done();
    let imported = muser(&["cluster", "import", &lamp, "--keys", &old]).done();
    assert_eq!(imported.stdout, "verify-only 1\nactive      2\n");
    muser(&["cluster", "import", &desk, "--keys", &theirs]).done();
    assert_eq!(fs::read(&ours).unwrap(), fs::read(&theirs).unwrap());
    // Another cluster's keys are not.
    let strange = folder.at("strange");
    muser(&["cluster", "begin", &strange, "--name", "strange"]).done();
    let line = muser(&["cluster", "import", &strange, "--keys", &old]).refused(2);
    assert!(line.contains("not of the same cluster"), "{line}");
}

#[test]
fn keys_that_were_emptied_are_refused_by_every_command_and_taken_from_another_machine() {
    let (folder, desk) = begun();
    let lamp = folder.at("lamp");
    muser(&["cluster", "grant", &desk, "lamp", "--roles", "both", "--out", &lamp]).done();
    let (ours, theirs) = (format!("{desk}/keys.toml"), format!("{lamp}/keys.toml"));
    let whole = fs::read(&ours).unwrap();
    fs::write(&ours, "").unwrap();
    for command in [&["show", &desk][..], &["rotate-keys", &desk], &["revoke-key", &desk, "1"]] {
        let line = muser(&[&["cluster"], command].concat()).refused(2);
        assert!(line.contains("MAC keys is empty") && line.contains("import FOLDER --keys FILE"), "{line}");
    }
    let serve = muser(&["serve", "--cluster", &desk, "--producer", "127.0.0.1:9", "--port", "0"]).refused(1);
    assert!(serve.contains("MAC keys is empty"), "{serve}");
    assert_eq!(fs::read(&ours).unwrap(), b"");
    muser(&["cluster", "import", &desk, "--keys", &theirs]).done();
    assert_eq!(fs::read(&ours).unwrap(), whole);
}

#[test]
fn a_folder_under_way_that_a_killed_command_left_is_removed_by_the_next_and_nobody_else_s_is() {
    let (folder, desk) = begun();
    for (name, files) in
        [("old.77.partial", &["node.key", ".keys.toml.77.new"][..]), ("mine.78.partial", &["node.key", "notes"])]
    {
        fs::create_dir(folder.at(name)).unwrap();
        files.iter().for_each(|file| fs::write(Path::new(&folder.at(name)).join(file), "x").unwrap());
    }
    let lamp = folder.at("lamp");
    let granted = muser(&["cluster", "grant", &desk, "lamp", "--roles", "both", "--out", &lamp]).done();
    assert!(granted.stderr.contains("old.77.partial"), "{}", granted.stderr);
    assert_eq!(folder.names(), ["desk", "lamp", "mine.78.partial"]);
}

#[test]
fn what_a_killed_enrolment_granted_is_shown_and_taken_back_by_revoking_it() {
    let (_folder, desk) = begun();
    let (node, serial, left) = ("1".repeat(64), "41".repeat(16), format!("{desk}/enrolment-0123456789abcdef"));
    fs::create_dir(&left).unwrap();
    let granted = format!("node = \"{node}\"\nname = \"guest\"\nserial = \"{serial}\"\nsince_unix_s = 1796000000\n");
    fs::write(format!("{left}/granted.toml"), granted).unwrap();
    let pending = shown(&desk)["pending"][0].clone();
    assert_eq!(
        (&pending["name"], &pending["serial"], &pending["abandoned"]),
        (&json!("guest"), &json!(serial), &json!(true))
    );
    let words = muser(&["cluster", "show", &desk]).done().stdout;
    assert!(words.contains("its enrolment was killed"), "{words}");
    muser(&["cluster", "revoke", &desk, &node]).done();
    assert_eq!((shown(&desk)["pending"].clone(), revoked(&desk), Path::new(&left).exists()), (json!([]), 2, false));
}
