//! `muser enroll`: two processes, a ticket, and then a producer and a server that need nothing but their configuration.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::common::{Ended, Folder, command, muser};
use crate::produce::{Producing, complete};
use crate::serving::Serving;

/// An enrolment that waits, and its ticket.
struct Waiting {
    child: Child,
    ticket: String,
}

impl Waiting {
    fn start(args: &[&str]) -> Self {
        let listen = ["--listen", "127.0.0.1:0", "--tokens", "150", "-t", "1"];
        let mut child = command(&[&["enroll"], args, &listen].concat()).spawn().unwrap();
        let mut ticket = String::new();
        // What is left of it is read at the end; a line ends the first read.
        let mut byte = [0];
        while !ticket.ends_with('\n') {
            let stdout = child.stdout.as_mut().unwrap();
            if stdout.read(&mut byte).unwrap() == 0 {
                panic!("{:?}", Ended::of(child.wait_with_output().unwrap()));
            }
            ticket.push(char::from(byte[0]));
        }
        Self { child, ticket: ticket.trim().to_owned() }
    }

    fn ended(self) -> Ended {
        Ended::of(self.child.wait_with_output().unwrap())
    }
}

fn join(ticket: &str, folder: &str, more: &[&str]) -> Ended {
    let args = ["enroll", ticket, "--cluster", folder, "--listen", "127.0.0.1:0", "--tokens", "150", "-t", "1"];
    muser(&[&args, more].concat())
}

fn table(folder: &str) -> toml::Table {
    fs::read_to_string(Path::new(folder).join("muser.toml")).unwrap().parse().unwrap()
}

fn serving(folder: &str, more: &[&str]) -> Serving {
    let config = Path::new(folder).join("muser.toml");
    Serving::start(&[&["--config", config.to_str().unwrap()], more].concat())
}

#[test]
fn two_commands_make_a_producer_and_a_server_that_need_only_their_configuration_and_answer_with_the_same_bits() {
    let folder = Folder::new();
    let (desk, gpu_box) = (folder.at("desk"), folder.at("gpu-box"));
    let waiting = Waiting::start(&["--cluster", &desk]);
    let joined = join(&waiting.ticket, &gpu_box, &[]).done();
    let waited = waiting.ended().done();
    for said in [&joined.stdout, &waited.stdout] {
        assert!(said.contains("enrolled   gpu-box as producer, node "), "{said}");
        assert!(said.contains("by the new node: 149 rows, ") && said.contains("identical, bit for bit: yes"), "{said}");
        assert!(said.contains("to the decoder ") && said.contains("Gbit/s"), "{said}");
        assert!(!said.contains("KEY"), "{said}");
    }
    // No secret is printed but the ticket, and that to the standard output alone.
    assert!(
        !waited.stderr.contains("muser-ticket-") && waited.stderr.contains("muser enroll - --cluster"),
        "{}",
        waited.stderr
    );
    let key = fs::read_to_string(Path::new(&desk).join("keys.toml")).unwrap();
    assert!(!waited.stderr.contains(key.split('"').nth(3).unwrap()), "{}", waited.stderr);
    let shown: Value = serde_json::from_str(&muser(&["cluster", "show", &gpu_box, "--json"]).done().stdout).unwrap();
    assert_eq!((&shown["name"], &shown["roles"]), (&json!("gpu-box"), &json!(["producer"])));

    let producing = Producing::start(&["--config", &format!("{gpu_box}/muser.toml")]);
    assert_eq!(table(&desk)["serve"]["producer"][0].as_str(), Some(producing.address.as_str()));
    let (alone, helped) = (Serving::start(&[]), serving(&desk, &[]));
    let prompt = "There was an old house by the sea. ".repeat(40);
    let (local, _) = complete(&alone, &prompt);
    let (remote, timings) = complete(&helped, &prompt);
    assert_eq!(remote, local);
    assert_eq!((&timings["kv_source"], &timings["kv_producer"]), (&json!("producer"), &json!("gpu-box")), "{timings}");

    helped.signal("TERM");
    assert_eq!(helped.ended().0, Some(0));
    // Taken back, it is refused, and the prompt is computed here.
    muser(&["cluster", "revoke", &desk, shown["node_id"].as_str().unwrap()]).done();
    let again = serving(&desk, &["--prefill", "producer"]);
    let (local, timings) = complete(&again, &prompt);
    assert_eq!((&local, &timings["kv_source"]), (&remote, &json!("local")));
    assert!(timings["kv_fallback"].to_string().contains("deny-list"), "{timings}");
    for serving in [alone, again] {
        serving.signal("TERM");
        assert_eq!(serving.ended().0, Some(0));
    }
}

#[test]
fn a_second_node_is_added_to_what_is_configured_and_may_decode_with_the_first_machine_s_pages() {
    let folder = Folder::new();
    let (desk, gpu_box, laptop) = (folder.at("desk"), folder.at("gpu-box"), folder.at("laptop"));
    let waiting = Waiting::start(&["--cluster", &desk, "--name", "home"]);
    join(&waiting.ticket, &gpu_box, &[]).done();
    waiting.ended().done();
    let first = table(&desk);
    // The ticket comes by standard input.
    // Its name is in its certificate by now.
    let named = muser(&["enroll", "--cluster", &desk, "--name", "other", "--listen", "127.0.0.1:0"]).refused(2);
    assert!(named.contains("--name"), "{named}");
    let nowhere = muser(&["enroll", "--cluster", &desk, "--advertise", "desk"]).wrong_usage();
    assert!(nowhere.contains("--advertise"), "{nowhere}");
    muser(&["enroll", "TICKET", "--cluster", &laptop, "--days", "3"]).wrong_usage();
    muser(&["enroll", "TICKET", "--ticket-file", &laptop, "--cluster", &laptop]).wrong_usage();
    let waiting = Waiting::start(&["--cluster", &desk, "--roles", "both"]);
    let mut joining = command(&["enroll", "-", "--cluster", &laptop, "--listen", "127.0.0.1:0", "--tokens", "150"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(joining.stdin.take().unwrap(), "{}", waiting.ticket).unwrap();
    let joined = Ended::of(joining.wait_with_output().unwrap()).done();
    assert!(joined.stdout.matches("identical, bit for bit: yes").count() == 2, "{}", joined.stdout);
    waiting.ended().done();
    let (second, theirs) = (table(&desk), table(&laptop));
    assert_eq!(second["serve"]["producer"].as_array().unwrap().len(), 2);
    assert_eq!(second["serve"]["producer"][0], first["serve"]["producer"][0]);
    assert_eq!(theirs["serve"]["producer"][0], second["produce"]["listen"]);
    assert_eq!(second["serve"]["producer"][1], theirs["produce"]["listen"]);
}

#[test]
fn what_is_no_ticket_is_wrong_usage_and_a_failed_enrolment_leaves_no_folder_and_a_revoked_certificate() {
    let folder = Folder::new();
    let (desk, gpu_box) = (folder.at("desk"), folder.at("gpu-box"));
    let mistyped = join("muser-ticket-abc", &gpu_box, &[]).refused(2);
    assert!(mistyped.contains("incomplete or mistyped"), "{mistyped}");
    let waiting = Waiting::start(&["--cluster", &desk]);
    // A ticket is for a machine with the same model.
    let file = folder.write("ticket", format!("{}\n", waiting.ticket));
    let args = ["enroll", "--ticket-file", &file, "--cluster", &gpu_box, "--listen", "127.0.0.1:0", "-t", "1"];
    let other = muser(&[&args[..], &["--kv", "f16"]].concat()).refused(1);
    fs::remove_file(&file).unwrap();
    muser(&[&args[..], &["--kv", "f16"]].concat()).refused(1);
    assert!(other.contains("OtherModel") && other.contains("KV layout"), "{other}");
    let waited = waiting.ended();
    assert!(waited.code == Some(1) && waited.stderr.contains("KV layout"), "{}", waited.stderr);
    assert_eq!(folder.names(), ["desk"]);
    // Its holder is gone, and so is whoever waited.
    let waiting = Waiting::start(&["--cluster", &desk]);
    assert!(Command::new("kill").args(["-TERM", &waiting.child.id().to_string()]).status().unwrap().success());
    let ticket = waiting.ticket.clone();
    assert_eq!(waiting.ended().code, Some(143));
    let late = join(&ticket, &gpu_box, &[]).refused(1);
    // Another program may have the port by now, and whatever it is, it does not have the CA.
    assert!(late.contains("nobody was enrolled"), "{late}");
    assert_eq!(folder.names(), ["desk"]);
    let taken = join(&ticket, &desk, &[]).refused(2);
    assert!(taken.contains("exists already"), "{taken}");
}
