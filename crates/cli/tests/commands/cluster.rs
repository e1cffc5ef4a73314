//! `muser cluster`: the folders it makes, what it refuses, and that no secret leaves them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muser_lane::{Acceptor, Connector, LaneError, LaneSettings, PeerRefusal, Refusal, Wanted};
use muser_trust::identity::{ClusterAuthority, ClusterFolder, Grant, NodeId, NodeName, Role, Roles};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::common::{Ended, Folder, command, muser};

/// A folder in which `desk` began a cluster, and its path.
fn begun() -> (Folder, String) {
    let folder = Folder::new();
    let desk = folder.at("desk");
    muser(&["cluster", "begin", &desk, "--name", "desk"]).done();
    (folder, desk)
}

fn granted(folder: &Folder, name: &str, roles: &str) -> String {
    let (desk, out) = (folder.at("desk"), folder.at(name));
    muser(&["cluster", "grant", &desk, name, "--roles", roles, "--out", &out]).done();
    out
}

fn shown(folder: &str) -> Value {
    serde_json::from_str(&muser(&["cluster", "show", folder, "--json"]).done().stdout).unwrap()
}

/// The word behind `label` in what a command printed.
#[track_caller]
fn printed(ended: &Ended, label: &str) -> String {
    let line = ended.stdout.lines().find_map(|line| line.strip_prefix(label)).expect("the label begins a line");
    line.trim().to_owned()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn names(path: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(path).unwrap().map(name).collect();
    names.sort();
    names
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[cfg(unix)]
fn mode(path: impl AsRef<Path>) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions()) & 0o777
}

#[cfg(unix)]
fn set_mode(path: &str, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn a_begun_and_a_granted_folder_hold_what_their_machine_needs_and_only_the_first_the_ca_key() {
    let folder = Folder::new();
    let (desk, lamp) = (folder.at("new/desk"), folder.at("lamp"));
    let began = muser(&["cluster", "begin", &desk, "--name", "home", "--node", "desk", "--days", "7"]).done();
    let gave = muser(&["cluster", "grant", &desk, "lamp", "--roles", "producer", "--out", &lamp]).done();
    assert_eq!(names(Path::new(&desk)), ["ca.key", "ca.pem", "keys.toml", "node.key", "node.pem", "revoked.toml"]);
    assert_eq!(names(Path::new(&lamp)), ["ca.pem", "keys.toml", "node.key", "node.pem", "revoked.toml"]);
    assert_eq!(
        (folder.names(), names(&folder.path().join("new"))),
        (vec!["lamp".into(), "new".into()], vec!["desk".into()])
    );
    for file in ["ca.pem", "keys.toml"] {
        assert_eq!(fs::read(format!("{desk}/{file}")).unwrap(), fs::read(format!("{lamp}/{file}")).unwrap(), "{file}");
    }
    let (of_desk, of_lamp) = (shown(&desk), shown(&lamp));
    assert_eq!(of_desk["cluster_id"], of_lamp["cluster_id"]);
    for (ended, report, name, roles, authority) in [
        (&began, &of_desk, "desk", json!(["decoder", "producer"]), true),
        (&gave, &of_lamp, "lamp", json!(["producer"]), false),
    ] {
        assert_eq!(printed(ended, "cluster"), text(&report["cluster_id"]));
        assert_eq!(printed(ended, "node"), text(&report["node_id"]));
        assert_eq!(printed(ended, "serial"), text(&report["serial"]));
        assert_eq!((&report["name"], &report["roles"]), (&json!(name), &roles));
        assert_eq!((&report["authority"], &report["valid"]), (&json!(authority), &json!(true)));
        assert_eq!(report["revoked"], json!([]));
        assert_eq!((&report["mac_keys"][0]["id"], &report["mac_keys"][0]["state"]), (&json!(1), &json!("active")));
    }
    assert_ne!(of_desk["node_id"], of_lamp["node_id"]);
    // A day is lost as soon as a second has passed.
    assert!((6..=7).contains(&of_desk["days_left"].as_i64().unwrap()), "{of_desk}");
    assert!((29..=30).contains(&of_lamp["days_left"].as_i64().unwrap()), "{of_lamp}");
    assert!(gave.stderr.contains(&format!("scp -pr {lamp} USER@HOST:FOLDER")), "{}", gave.stderr);
    let in_words = muser(&["cluster", "show", &lamp]).done().stdout;
    for part in ["name      lamp\n", "roles     producer\n", "valid     yes, ", "ca.key    elsewhere\n", "active"] {
        assert!(in_words.contains(part), "{in_words}");
    }
}

#[cfg(unix)]
#[test]
fn new_folders_are_for_their_owner_alone_and_secrets_that_others_may_read_end_with_5() {
    let (folder, desk) = begun();
    let open = folder.at("lamp");
    fs::create_dir(&open).unwrap();
    set_mode(&open, 0o777);
    let lamp = granted(&folder, "lamp", "decoder");
    for made in [&desk, &lamp] {
        assert_eq!(mode(made), 0o700);
        for secret in ["keys.toml", "node.key"] {
            assert_eq!(mode(format!("{made}/{secret}")), 0o600, "{secret}");
        }
    }
    assert_eq!(mode(format!("{desk}/ca.key")), 0o600);
    muser(&["cluster", "rotate-keys", &desk]).done();
    assert_eq!(mode(format!("{desk}/keys.toml")), 0o600);

    let other = folder.at("other");
    let (key, keys, ca) = (format!("{lamp}/node.key"), format!("{lamp}/keys.toml"), format!("{desk}/ca.key"));
    for (secret, args) in [
        (&key, &["cluster", "show", &lamp][..]),
        (&keys, &["cluster", "revoke-key", &lamp, "1"]),
        (&ca, &["cluster", "grant", &desk, "a", "--roles", "both", "--out", &other]),
        (&ca, &["cluster", "rotate-keys", &desk]),
    ] {
        set_mode(secret, 0o644);
        let line = muser(args).refused(5);
        assert!(line.contains(secret) && line.contains("mode 644"), "{line}");
        set_mode(secret, 0o600);
    }
    assert_eq!(folder.names(), ["desk", "lamp"]);
}

#[test]
fn nothing_that_exists_is_replaced_and_a_folder_that_is_none_is_refused() {
    let (folder, desk) = begun();
    let before = fs::read(format!("{desk}/ca.key")).unwrap();
    let lamp = granted(&folder, "lamp", "both");
    let file = folder.write("file", "x");
    for taken in [&desk, &lamp, &file] {
        for args in [
            &["cluster", "begin", taken, "--name", "other"][..],
            &["cluster", "grant", &desk, "other", "--roles", "both", "--out", taken],
        ] {
            let line = muser(args).refused(2);
            assert!(line.contains("exists already") && line.contains(taken), "{line}");
        }
    }
    assert!(muser(&["cluster", "begin", "..", "--name", "a"]).refused(2).contains("the name of a folder"));
    assert_eq!(fs::read(format!("{desk}/ca.key")).unwrap(), before);
    assert_eq!((names(Path::new(&lamp)).len(), folder.names()), (5, vec!["desk".into(), "file".into(), "lamp".into()]));

    let (out, nowhere) = (folder.at("out"), folder.at("nowhere"));
    for not_the_ca in [&lamp, &nowhere, &file] {
        for args in [
            &["cluster", "grant", not_the_ca, "a", "--roles", "both", "--out", &out][..],
            &["cluster", "rotate-keys", not_the_ca],
            &["cluster", "renew", not_the_ca],
        ] {
            muser(args).refused(2);
        }
    }
    assert!(muser(&["cluster", "renew", &lamp]).refused(2).contains("no ca.key"));
    assert!(muser(&["cluster", "show", &nowhere]).refused(2).contains("does not exist"));
    assert!(muser(&["cluster", "revoke-key", &desk, "2"]).refused(2).contains("no MAC key 2"));
    assert_eq!(folder.names(), ["desk", "file", "lamp"]);
    assert_eq!(shown(&lamp)["mac_keys"].as_array().unwrap().len(), 1);
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_whole_leaves_nothing_and_ends_with_1() {
    let (folder, desk) = begun();
    let files = || ["keys.toml", "node.pem", "revoked.toml"].map(|file| fs::read(format!("{desk}/{file}")).unwrap());
    let (out, before) = (folder.at("out"), files());
    let on_a_full_disk = |args: &[&str]| {
        // Without the trap the system would end the process instead of failing the write.
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ && ulimit -f 0 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_muser")]);
        Ended::of(shell.args(args).stdin(Stdio::null()).output().unwrap())
    };
    on_a_full_disk(&["cluster", "begin", &out, "--name", "a"]).refused(1);
    on_a_full_disk(&["cluster", "grant", &desk, "a", "--roles", "both", "--out", &out]).refused(1);
    on_a_full_disk(&["cluster", "rotate-keys", &desk]).refused(1);
    on_a_full_disk(&["cluster", "renew", &desk]).refused(1);
    on_a_full_disk(&["cluster", "revoke", &desk, &"a".repeat(64)]).refused(1);
    assert_eq!(folder.names(), ["desk"]);
    assert!(files() == before);
}

#[test]
fn of_commands_that_run_at_a_time_each_does_what_it_says_and_no_change_is_lost() {
    let (_folder, desk) = begun();
    let all_at_once = |args: &dyn Fn(usize) -> Vec<String>| -> Vec<Ended> {
        let children: Vec<_> = (0..20).map(|number| command(&args(number)).spawn().unwrap()).collect();
        children.into_iter().map(|child| Ended::of(child.wait_with_output().unwrap()).done()).collect()
    };
    let words = |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    let serial = |number: usize| format!("41{number:030x}");
    all_at_once(&|number| words(&["cluster", "revoke", &desk, &serial(number)]));
    let report = shown(&desk);
    let mut revoked: Vec<&str> =
        report["revoked"].as_array().unwrap().iter().map(|entry| text(&entry["serial"])).collect();
    revoked.sort_unstable();
    assert!(revoked.iter().copied().eq((0..20).map(serial)), "{revoked:?}");

    let rotated = all_at_once(&|_| words(&["cluster", "rotate-keys", &desk]));
    let mut ids: Vec<u32> = rotated.iter().map(|ended| printed(ended, "next").parse().unwrap()).collect();
    ids.sort_unstable();
    assert!(ids.iter().copied().eq(2..=21), "{ids:?}");
    assert_eq!(shown(&desk)["mac_keys"].as_array().unwrap().len(), 21);
}

#[cfg(unix)]
#[test]
fn a_changed_file_keeps_its_mode_and_a_link_still_leads_to_the_list_that_machines_share() {
    let (folder, desk) = begun();
    let (keys, list, shared) = (format!("{desk}/keys.toml"), format!("{desk}/revoked.toml"), folder.at("shared.toml"));
    set_mode(&keys, 0o640);
    muser(&["cluster", "rotate-keys", &desk]).done();
    assert_eq!(mode(&keys), 0o640);
    fs::rename(&list, &shared).unwrap();
    std::os::unix::fs::symlink("../shared.toml", &list).unwrap();
    let node = "a".repeat(64);
    muser(&["cluster", "revoke", &desk, &node]).done();
    assert!(fs::read_to_string(&shared).unwrap().contains(&node));
    assert!(fs::symlink_metadata(&list).unwrap().is_symlink());
}

#[cfg(unix)]
#[test]
fn files_and_folders_that_others_may_write_end_with_5_and_are_named() {
    let (_folder, desk) = begun();
    for (file, open, closed) in [("ca.pem", 0o666, 0o644), ("revoked.toml", 0o664, 0o644), ("", 0o777, 0o700)] {
        let path = format!("{desk}/{file}");
        set_mode(&path, open);
        let line = muser(&["cluster", "show", &desk]).refused(5);
        assert!(
            line.contains(path.trim_end_matches('/')) && line.contains("others than its owner may write"),
            "{line}"
        );
        set_mode(&path, closed);
    }
    muser(&["cluster", "show", &desk]).done();
}

#[test]
fn rotated_and_revoked_keys_show_their_states_and_travel_with_the_next_folder() {
    let (folder, desk) = begun();
    let states = |folder: &str| -> Vec<String> {
        let report = shown(folder);
        let line = |key: &Value| format!("{} {}", key["id"], text(&key["state"]));
        report["mac_keys"].as_array().unwrap().iter().map(line).collect()
    };
    assert_eq!(printed(&muser(&["cluster", "rotate-keys", &desk]).done(), "next"), "2");
    assert_eq!(states(&desk), ["1 active", "2 next"]);
    assert_eq!(printed(&muser(&["cluster", "activate-key", &desk, "2"]).done(), "active"), "2");
    assert_eq!(states(&desk), ["1 verify-only", "2 active"]);
    let back = muser(&["cluster", "activate-key", &desk, "1"]).refused(2);
    assert!(back.contains("MAC key 1 is verify-only"), "{back}");
    for _ in 0..2 {
        let revoked = muser(&["cluster", "revoke-key", &desk, "1"]).done();
        assert_eq!(printed(&revoked, "revoked"), "key 1");
        assert!(!revoked.stderr.contains("no MAC key is active"), "{}", revoked.stderr);
    }
    assert_eq!(states(&desk), ["1 revoked", "2 active"]);
    let last = muser(&["cluster", "revoke-key", &desk, "2"]).done();
    assert!(last.stderr.contains("no MAC key is active"), "{}", last.stderr);
    muser(&["cluster", "rotate-keys", &desk]).done();
    let expected = ["1 revoked", "2 revoked", "3 active"];
    assert_eq!(states(&desk), expected);
    assert_eq!(states(&granted(&folder, "lamp", "both")), expected);
}

#[test]
fn what_is_revoked_is_listed_once_refused_by_later_folders_too_and_not_renewed() {
    let (folder, desk) = begun();
    let (lamp, old) = (granted(&folder, "lamp", "producer"), granted(&folder, "old", "both"));
    let (node, serial) = (shown(&lamp)["node_id"].clone(), shown(&old)["serial"].clone());
    for _ in 0..2 {
        let revoked = muser(&["cluster", "revoke", &desk, text(&node)]).done();
        assert_eq!(printed(&revoked, "revoked"), format!("node {}", text(&node)));
    }
    muser(&["cluster", "revoke", &desk, &text(&serial).to_uppercase()]).done();
    for place in [desk.clone(), granted(&folder, "late", "decoder")] {
        let revoked = shown(&place)["revoked"].clone();
        assert_eq!(revoked.as_array().unwrap().len(), 2, "{revoked}");
        assert_eq!((&revoked[0]["node"], &revoked[1]["serial"]), (&node, &serial));
        assert!(revoked[0]["since_unix_s"].as_u64().unwrap().abs_diff(now_unix_s()) < 600);
        let in_words = muser(&["cluster", "show", &place]).done().stdout;
        assert!(in_words.contains(text(&node)) && in_words.contains(text(&serial)), "{in_words}");
    }
    // The machine itself hears of it with the list that is carried there.
    assert_eq!(shown(&lamp)["valid"], true);
    fs::copy(format!("{desk}/revoked.toml"), format!("{lamp}/revoked.toml")).unwrap();
    assert_eq!(shown(&lamp)["valid"], false);

    let line = muser(&["cluster", "renew", &desk, "--for", &lamp]).refused(2);
    assert!(line.contains("revoked") && line.contains(text(&node)), "{line}");
    muser(&["cluster", "renew", &desk, "--for", &old]).done();
}

#[test]
fn renewal_keeps_node_name_and_roles_and_takes_only_what_this_ca_issued() {
    let (folder, desk) = begun();
    let lamp = granted(&folder, "lamp", "decoder");
    for (renewed, args) in [
        (&desk, &["cluster", "renew", &desk, "--days", "90"][..]),
        (&lamp, &["cluster", "renew", &desk, "--for", &lamp, "--days", "90"]),
    ] {
        let before = shown(renewed);
        let ended = muser(args).done();
        let after = shown(renewed);
        for kept in ["cluster_id", "node_id", "name", "roles", "authority", "mac_keys"] {
            assert_eq!(before[kept], after[kept], "{kept}");
        }
        assert_ne!(before["serial"], after["serial"]);
        assert_eq!(printed(&ended, "serial"), text(&after["serial"]));
        assert!((89..=90).contains(&after["days_left"].as_i64().unwrap()), "{after}");
    }

    // A certificate that promises more than was granted, signed by a CA of its owner's.
    let path = ClusterFolder::new(&lamp);
    let now = now_unix_s();
    let own = ClusterAuthority::create(&NodeName::new("desk").unwrap(), now).unwrap();
    let more = Grant { name: NodeName::new("lamp").unwrap(), roles: Roles::Both, lifetime_s: 3600 };
    let forged = own.sign(&path.load_node_key().unwrap().request().unwrap(), &more, now).unwrap();
    path.save_node_certificate(&forged).unwrap();
    let line = muser(&["cluster", "renew", &desk, "--for", &lamp]).refused(2);
    assert!(line.contains("was not issued by the CA"), "{line}");
    assert_eq!(fs::read_to_string(format!("{lamp}/node.pem")).unwrap(), forged);
}

#[test]
fn no_command_prints_a_secret_not_even_of_a_damaged_file() {
    let (folder, desk) = begun();
    let lamp = granted(&folder, "lamp", "both");
    let mut secrets = Vec::new();
    for file in
        [format!("{desk}/ca.key"), format!("{desk}/node.key"), format!("{lamp}/node.key"), format!("{desk}/keys.toml")]
    {
        let content = fs::read_to_string(file).unwrap();
        let words = content.split(['\n', '"']).filter(|word| word.len() >= 20 && !word.starts_with("---"));
        secrets.extend(words.filter(|word| !word.contains(' ')).map(str::to_owned));
    }
    assert!(secrets.len() >= 7, "{}", secrets.len());
    let (other, node) = (folder.at("other"), shown(&lamp)["node_id"].clone());
    let commands = [
        &["cluster", "grant", &desk, "a", "--roles", "both", "--out", &other][..],
        &["cluster", "show", &desk],
        &["cluster", "show", &desk, "--json"],
        &["cluster", "show", &lamp, "--json"],
        &["cluster", "renew", &desk, "--for", &lamp],
        &["cluster", "revoke", &desk, text(&node)],
        &["cluster", "revoke-key", &desk, "7"],
        &["cluster", "rotate-keys", &desk],
    ];
    let tell_nothing = || {
        for args in commands {
            let ended = muser(args);
            let said = ended.stdout + &ended.stderr;
            assert!(secrets.iter().all(|secret| !said.contains(secret.as_str())), "{args:?}: {said}");
        }
    };
    tell_nothing();
    for (place, file) in [(&desk, "ca.key"), (&desk, "node.key"), (&lamp, "node.key"), (&desk, "keys.toml")] {
        let path = format!("{place}/{file}");
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, whole.replace("-----BEGIN", "BEGIN").replace("state =", "state = state")).unwrap();
        tell_nothing();
        let line = muser(&["cluster", if file == "ca.key" { "rotate-keys" } else { "show" }, place]).refused(2);
        assert!(file == "keys.toml" || line.contains(&path), "{line}");
        fs::write(&path, whole).unwrap();
    }
}

#[test]
fn flags_of_nested_commands_come_from_their_table_and_from_the_environment() {
    let folder = Folder::new();
    let (desk, lamp) = (folder.at("desk"), folder.at("lamp"));
    let config =
        "[cluster]\ndays = 5\n[cluster.begin]\nname = \"desk\"\n[cluster.grant]\nroles = \"producer\"\ndays = 9\n";
    let config = folder.write("config.toml", config);
    let run = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = command(&[args, &["--config", &config]].concat());
        Ended::of(command.envs(variables.iter().copied()).output().unwrap()).done()
    };
    let days = |folder: &str| shown(folder)["days_left"].as_i64().unwrap();
    run(&["cluster", "begin", &desk], &[]);
    run(&["cluster", "grant", &desk, "lamp", "--out", &lamp], &[]);
    assert!((4..=5).contains(&days(&desk)) && (8..=9).contains(&days(&lamp)));
    assert_eq!(shown(&lamp)["roles"], json!(["producer"]));
    run(&["cluster", "renew", &desk, "--for", &lamp], &[("MUSER_ARG_DAYS", "3")]);
    assert!((2..=3).contains(&days(&lamp)));

    let checked = |command: &str| -> Vec<Value> {
        let report = run(&["config", "check", command, "--json"], &[]).stdout;
        serde_json::from_value(serde_json::from_str::<Value>(&report).unwrap()["flags"].clone()).unwrap()
    };
    let mut commands: Vec<String> = checked("cluster").iter().map(|flag| text(&flag["command"]).to_owned()).collect();
    commands.dedup();
    assert_eq!(commands, ["cluster begin", "cluster grant", "cluster show", "cluster import", "cluster renew"]);
    let flags = checked("cluster grant");
    let values = |name: &str| flags.iter().find(|flag| flag["flag"] == name).unwrap()["values"].clone();
    assert_eq!((values("roles"), values("days"), values("out")), (json!(["producer"]), json!(["9"]), json!([])));
}

#[test]
fn two_carried_folders_make_a_lane_until_one_is_revoked_and_a_stranger_s_does_not() {
    let (folder, _) = begun();
    let (decoder, producer) = (granted(&folder, "decoder", "decoder"), granted(&folder, "producer", "producer"));
    let elsewhere = Folder::new();
    let foreign = elsewhere.at("foreign");
    muser(&["cluster", "begin", &foreign, "--name", "foreign"]).done();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let meet = |from: &str| runtime.block_on(both_ends(from, &producer));

    let (connected, accepted) = meet(&decoder);
    assert_eq!((connected.unwrap().as_str(), accepted.unwrap().as_str()), ("producer", "decoder"));
    assert!(matches!(meet(&foreign).0, Err(LaneError::Refused(Refusal::NotOurCluster))));
    // A producer may not ask.
    assert!(matches!(meet(&producer).1, Err(LaneError::Refused(Refusal::WrongRole { .. }))));
    let id = NodeId::from_hex(text(&shown(&decoder)["node_id"])).unwrap();
    muser(&["cluster", "revoke", &producer, &id.to_string()]).done();
    let (connected, accepted) = meet(&decoder);
    assert!(matches!(accepted, Err(LaneError::Refused(Refusal::Revoked { id: found, .. })) if found == id));
    assert!(matches!(connected, Err(LaneError::RefusedByPeer(PeerRefusal::Revoked))), "{connected:?}");
}

/// Whom each end found at the other when `from` asked `to` for a lane.
async fn both_ends(from: &str, to: &str) -> (Result<String, LaneError>, Result<String, LaneError>) {
    let settings = |folder: &ClusterFolder| LaneSettings {
        revocations: Arc::new(folder.load_revocations().unwrap()),
        handshake_timeout: Duration::from_secs(60),
        clock: Arc::new(now_unix_s),
    };
    let wanted = |role| Wanted { role, id: None };
    let (from, to) = (ClusterFolder::new(from), ClusterFolder::new(to));
    let connector = Connector::new(&from.load_identity().unwrap(), settings(&from)).unwrap();
    let acceptor = Acceptor::new(&to.load_identity().unwrap(), settings(&to), wanted(Role::Decoder)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = async { acceptor.accept(listener.accept().await.unwrap().0).await };
    let (connected, accepted) = tokio::join!(connector.connect(address, wanted(Role::Producer)), accepting);
    let name = |lane: muser_lane::Lane| lane.peer().name.to_string();
    (connected.map(name), accepted.map(name))
}
