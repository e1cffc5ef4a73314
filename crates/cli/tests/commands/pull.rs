//! `muser pull`, against a hub on the loopback interface.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use muser_hub::Sha256;

use crate::common::{Ended, Folder, SHIPPED, command, muser};
use crate::server::hub::{COMMIT, FakeHub};
use crate::server::{Body, Gate, Reply, Server};

fn shipped() -> Vec<u8> {
    fs::read(SHIPPED).unwrap()
}

/// A command in an environment that knows nothing but the hub and a home.
fn at_home(mut command: Command, endpoint: &str, home: &Folder) -> Command {
    command.env_clear().env("HF_ENDPOINT", endpoint).env("HOME", home.path());
    command
}

fn pull(endpoint: &str, home: &Folder, args: &[&str]) -> Ended {
    Ended::of(at_home(command(&[&["pull"], args].concat()), endpoint, home).output().unwrap())
}

/// The last line on standard error, and the exit code.
fn last_line(ended: &Ended) -> (Option<i32>, &str) {
    assert_eq!(ended.stdout, "");
    (ended.code, ended.stderr.lines().last().unwrap_or_default())
}

#[test]
fn the_path_of_a_pulled_model_can_be_handed_to_the_other_commands() {
    let fake = FakeHub::start(&[("m-Q4_K_M.gguf", &shipped()), ("m-Q8_0.gguf", b"not asked for")]);
    let home = Folder::new();
    let first = pull(&fake.hub.url, &home, &["user/repo"]).done();
    let path = first.stdout.strip_suffix('\n').unwrap();
    let expected = format!(".cache/huggingface/hub/models--user--repo/snapshots/{COMMIT}/m-Q4_K_M.gguf");
    assert_eq!(path, home.at(&expected));
    assert!(muser(&["run", "-m", path, "-n", "2", "--temp", "0", "Once"]).done().stdout.starts_with("Once"));
    // Again, from the cache; then without anybody to ask.
    assert_eq!(pull(&fake.hub.url, &home, &["user/repo:q4_k_m"]).done().stdout, first.stdout);
    assert_eq!(fake.storage.asked().len(), 1);
    let url = fake.hub.url.clone();
    drop(fake);
    assert_eq!(pull(&url, &home, &["--offline", "user/repo"]).done().stdout, first.stdout);
}

#[test]
fn the_other_commands_bring_the_model_that_they_name() {
    let fake = FakeHub::start(&[("m-Q4_K_M.gguf", &shipped())]);
    let home = Folder::new();
    let run = |args: &[&str]| Ended::of(at_home(command(args), &fake.hub.url, &home).output().unwrap());
    let named = ["run", "-hf", "user/repo", "-n", "2", "--temp", "0", "Once"];
    let expected = muser(&["run", "-n", "2", "--temp", "0", "Once"]).done().stdout;
    assert_eq!(run(&[&named[..], &["--offline"]].concat()).code, Some(1));
    for _ in 0..2 {
        assert_eq!(run(&named).done().stdout, expected);
    }
    assert_eq!(fake.storage.asked().len(), 1);
    let digest = |ended: Ended| {
        serde_json::from_str::<serde_json::Value>(&ended.done().stdout).unwrap()["tensor_digest"].clone()
    };
    let named = run(&["inspect", "--hf-repo", "user/repo", "--offline", "--json"]);
    assert_eq!(digest(named), digest(muser(&["inspect", "--json"])));
    run(&["run", "-m", "x.gguf", "-hf", "user/repo", "Once"]).wrong_usage();
    run(&["run", "--offline", "Once"]).wrong_usage();
}

#[test]
fn the_machine_readable_output_says_everything_and_nothing_else() {
    let fake = FakeHub::start(&[("m.gguf", &shipped())]);
    let home = Folder::new();
    for from_cache in [false, true] {
        let ended = pull(&fake.hub.url, &home, &["--json", "user/repo"]).done();
        assert_eq!(ended.stderr, "");
        let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(report["from_cache"], from_cache);
        assert_eq!(report["bytes"], shipped().len());
        assert_eq!(report["sha256"], Sha256::of(&shipped()).to_string());
        assert_eq!(report["files"][0]["path"], report["path"]);
        assert_eq!(fs::read(report["path"].as_str().unwrap()).unwrap(), shipped());
    }
    // By address, where no hub tells the digest of what is here.
    let address = format!("{}/{}", fake.storage.url, Sha256::of(&shipped()));
    for from_cache in [false, true] {
        let ended = pull(&fake.hub.url, &home, &["--json", &address]).done();
        let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(
            (&report["from_cache"], &report["sha256"]),
            (&from_cache.into(), &address[address.len() - 64..].into())
        );
        assert!(report["path"].as_str().unwrap().starts_with(&home.at(".cache/muser/downloads/")));
    }
}

#[test]
fn the_variables_of_the_hubs_own_client_are_followed() {
    let fake = FakeHub::start(&[("m.gguf", &shipped())]);
    let home = Folder::new();
    let path_with = |variables: &[(&str, String)]| {
        let mut command = at_home(command(&["pull", "user/repo"]), &fake.hub.url, &home);
        let ended = Ended::of(command.envs(variables.iter().cloned()).output().unwrap()).done();
        ended.stdout.strip_prefix(home.path().to_str().unwrap()).unwrap().to_owned()
    };
    let (cache, hf_home, hub) = (home.at("xdg"), home.at("hf"), home.at("hub"));
    let xdg = ("XDG_CACHE_HOME", cache);
    assert!(path_with(std::slice::from_ref(&xdg)).starts_with("/xdg/huggingface/hub/models--user--repo/"));
    let hf = ("HF_HOME", hf_home);
    assert!(path_with(&[xdg.clone(), hf.clone()]).starts_with("/hf/hub/models--user--repo/"));
    assert!(path_with(&[xdg, hf, ("HF_HUB_CACHE", hub)]).starts_with("/hub/models--user--repo/"));
    let mut offline = at_home(command(&["pull", "user/repo"]), &fake.hub.url, &home);
    let ended = Ended::of(offline.env("HF_HUB_OFFLINE", "1").output().unwrap());
    assert!(ended.refused(1).contains("is not in the cache"));
    let mut nowhere = at_home(command(&["pull", "user/repo"]), &fake.hub.url, &home);
    let ended = Ended::of(nowhere.env_remove("HOME").output().unwrap());
    assert!(ended.refused(2).contains("set HOME or XDG_CACHE_HOME"));
    let ended = pull("ftp://host", &home, &["user/repo"]);
    assert!(ended.refused(2).contains("HF_ENDPOINT"));
}

#[test]
fn a_token_comes_from_the_environment_or_the_file_and_is_never_shown() {
    let server = Server::start(|_| Reply::status(401));
    let home = Folder::new();
    fs::create_dir_all(home.path().join(".cache/huggingface")).unwrap();
    home.write(".cache/huggingface/token", "hf_of_file\n");
    let of_file = pull(&server.url, &home, &["user/repo"]).refused(2);
    let mut with_variable = at_home(command(&["pull", "user/repo"]), &server.url, &home);
    let of_variable = Ended::of(with_variable.env("HF_TOKEN", "hf_of_variable").output().unwrap()).refused(2);
    let mut with_wrong = at_home(command(&["pull", "user/repo"]), &server.url, &home);
    let wrong = Ended::of(with_wrong.env("HF_TOKEN", "hf of nobody").output().unwrap()).refused(2);
    let tokens: Vec<_> = server.asked().iter().map(|asked| asked.header("authorization").unwrap().to_owned()).collect();
    assert_eq!(tokens, ["Bearer hf_of_file", "Bearer hf_of_variable"]);
    for line in [of_file, of_variable, wrong] {
        assert!(!line.contains("hf_of") && !line.contains("nobody"), "{line}");
        assert!(line.contains("token"), "{line}");
    }
}

#[test]
fn progress_is_a_line_per_tenth_unless_it_is_not_wanted() {
    let fake = FakeHub::start(&[("m.gguf", &shipped())]);
    let home = Folder::new();
    let ended = pull(&fake.hub.url, &home, &["user/repo"]).done();
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines[0], format!("m.gguf: {} bytes", shipped().len()));
    let tenths: Vec<String> = (1..=10).map(|tenth| format!("m.gguf: {} %", tenth * 10)).collect();
    assert_eq!(lines[1..], tenths);
    let quiet = pull(&fake.hub.url, &Folder::new(), &["--no-progress", "user/repo"]).done();
    assert_eq!(quiet.stderr, "");
}

#[test]
fn exit_codes_say_whose_fault_it_is() {
    let fake = FakeHub::start(&[("page.gguf", b"<html>not a model</html>"), ("n-Q8_0.gguf", b"GGUF\x03\0\0\0")]);
    let home = Folder::new();
    let of = |args: &[&str]| pull(&fake.hub.url, &home, &[&["--no-progress"], args].concat());
    let no_gguf = of(&["user/repo", "--hf-file", "page.gguf"]);
    assert!(
        last_line(&no_gguf).0 == Some(3)
            && no_gguf.stderr.contains("page.gguf: what came begins with \"<html>not a mode\"")
    );
    assert_eq!(last_line(&of(&["user/repo:Q8_0"])).0, Some(3));
    let no_match = of(&["user/repo:Q2_K"]).refused(2);
    assert!(no_match.ends_with("there are: n-Q8_0.gguf, page.gguf"), "{no_match}");
    assert!(of(&["user/absent"]).refused(2).contains("not found"));
    assert!(of(&["user/repo:Q8_0", "-hff", "page.gguf"]).refused(2).contains("both given"));
    let digest = Sha256::of(b"").to_string();
    let mismatch = of(&["user/repo:Q8_0", "--sha256", &digest]).refused(3);
    assert!(mismatch.contains(&digest), "{mismatch}");
    assert!(of(&["--offline", "user/other"]).refused(1).contains("is not in the cache"));
    let server = Server::start(|_| Reply::status(400));
    let refused = of(&[&format!("{}/m.gguf", server.url)]).refused(1);
    assert!(refused.contains("status 400"), "{refused}");
}

#[test]
fn a_wrong_reference_or_flag_is_refused_with_what_is_right() {
    for (args, said) in [
        (&["repo"][..], "neither an address"),
        (&["a/b/c"], "neither an address"),
        (&["a/b:Q 4"], "quantisation"),
        (&["ftp://host/x"], "only http and https"),
        (&["a/b", "--hf-file", "../x.gguf"], "could lead elsewhere"),
        (&["a/b", "--revision", "a/../b"], "branch, tag or commit"),
        (&["a/b", "--sha256", "123"], "64 hexadecimal digits"),
        (&[], "REFERENCE"),
    ] {
        let said_so = muser(&[&["pull"], args].concat()).wrong_usage();
        assert!(said_so.contains(said), "{args:?}: {said_so}");
    }
    let help = muser(&["pull", "--help"]).done().stdout;
    for flag in ["--hf-file", "-hff", "--revision", "--sha256", "-o, --output", "--offline", "--no-progress", "--json"]
    {
        assert!(help.contains(flag), "{flag}");
    }
}

#[test]
fn an_interrupt_keeps_what_came_and_the_next_pull_goes_on() {
    let fake = FakeHub::start(&[("m.gguf", &shipped())]);
    let home = Folder::new();
    let gate = Arc::new(Gate::default());
    let at_storage = gate.clone();
    fake.trouble(move |_, content| {
        Some(Reply::new(200, Body::Gated(content.into(), at_storage.clone())).with("ETag", "\"e\""))
    });
    let mut child = at_home(command(&["pull", "user/repo"]), &fake.hub.url, &home).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    // A little less than half of the file was sent, and nothing more comes.
    assert!(lines.by_ref().map(Result::unwrap).any(|line| line.ends_with(" 40 %")));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let status = child.wait().unwrap();
    assert!(status.signal() == Some(2) || status.code() == Some(130), "{status}");
    gate.open();
    fake.trouble(|asked, content| Some(Reply::file(asked, content, "\"e\"")));
    let ended = pull(&fake.hub.url, &home, &["user/repo"]).done();
    assert!(ended.stderr.contains("going on from "), "{}", ended.stderr);
    assert!(fake.storage.asked()[1].range_start().unwrap() >= shipped().len() * 2 / 5);
    assert_eq!(fs::read(ended.stdout.trim_end()).unwrap(), shipped());
}

#[test]
fn a_full_disk_is_named_and_what_fits_is_kept() {
    let fake = FakeHub::start(&[("m.gguf", &shipped())]);
    let home = Folder::new();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "trap '' XFSZ && ulimit -f 8 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_muser")]);
    shell.args(["pull", "--no-progress", "user/repo"]).stdin(Stdio::null());
    let line = Ended::of(at_home(shell, &fake.hub.url, &home).output().unwrap()).refused(1);
    assert!(line.contains("cannot write") && line.contains(".incomplete") && line.contains("too large"), "{line}");
    let path = pull(&fake.hub.url, &home, &["user/repo"]).done().stdout;
    assert_eq!(fs::read(path.trim_end()).unwrap(), shipped());
}

#[test]
fn a_file_goes_where_the_user_says() {
    let bytes = shipped();
    let server = Server::start(move |asked| Reply::file(asked, &bytes, "\"e\""));
    let home = Folder::new();
    let to = home.at("mine.gguf");
    let digest = Sha256::of(&shipped()).to_string();
    let args = [&format!("{}/m.gguf", server.url), "-o", &to, "--sha256", &digest];
    assert_eq!(pull(&server.url, &home, &args).done().stdout, format!("{to}\n"));
    assert_eq!(fs::read(&to).unwrap(), shipped());
    let beside: Vec<String> = home.names().into_iter().filter(|name| name != ".cache").collect();
    assert_eq!(beside, ["mine.gguf"]);
    let line = pull(&server.url, &home, &[args[0], "-o", home.path().to_str().unwrap()]).refused(1);
    assert!(line.contains("is no file"), "{line}");
    assert!(Path::new(&to).is_file());
}

#[test]
fn a_cached_file_that_is_no_model_is_asked_for_again() {
    let fake = FakeHub::start(&[("m-Q4_K_M.gguf", &shipped())]);
    let home = Folder::new();
    let run = |args: &[&str]| Ended::of(at_home(command(args), &fake.hub.url, &home).output().unwrap());
    let named = ["run", "-hf", "user/repo:Q4_K_M", "-n", "2", "--temp", "0", "Once"];
    let expected = run(&named).done().stdout;
    let path = pull(&fake.hub.url, &home, &["user/repo"]).done().stdout.trim_end().to_owned();
    let mut damaged = shipped();
    damaged[4..8].copy_from_slice(&[9; 4]); // a version that does not exist
    for wrong in [b"<!DOCTYPE html>".to_vec(), shipped()[..4000].to_vec(), damaged] {
        fs::write(&path, &wrong).unwrap();
        assert_eq!(run(&[&named[..], &["--offline"]].concat()).stdout, "");
        assert_eq!(run(&named).done().stdout, expected);
        assert_eq!(fs::read(&path).unwrap(), shipped());
    }
}
