//! `muser produce` beside `muser serve`: two processes, one answer.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muser_trust::identity::{ClusterAuthority, ClusterFolder, Grant, NodeKey, NodeName, Roles};
use muser_trust::keys::KeyRing;
use serde_json::{Value, json};

use crate::common::{Folder, command, command_with_descriptors, muser};
use crate::serving::Serving;

/// A producer that is ready.
pub struct Producing {
    pub child: Child,
    pub address: String,
    /// Lines on its standard error after the start.
    said: Receiver<String>,
}

impl Producing {
    pub fn start(args: &[&str]) -> Self {
        Self::of(command(&[&["produce", "-t", "1"], args].concat()))
    }

    /// One that has at most so many descriptors.
    pub fn start_with_descriptors(descriptors: u64, args: &[&str]) -> Self {
        Self::of(command_with_descriptors(descriptors, &[&["produce", "-t", "1"], args].concat()))
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("producing on ") {
            assert!(stderr.read_line(&mut said).unwrap() > 0, "ended with {:?}: {said}", child.wait());
        }
        let address = said.split("producing on ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        let (say, said) = channel();
        // It must not stop at a pipe that nobody reads.
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(|line| drop(say.send(line))));
        Self { child, address, said }
    }

    /// Lines with these words that were said and not heard yet.
    pub fn heard(&self, words: &str) -> usize {
        self.said.try_iter().filter(|line| line.contains(words)).count()
    }

    /// Waits for a line with these words.
    #[track_caller]
    pub fn says(&self, words: &str) -> String {
        let mut before = Vec::new();
        loop {
            let Ok(line) = self.said.recv_timeout(Duration::from_secs(60)) else {
                panic!("not said: {words}: {before:?}")
            };
            if line.contains(words) {
                return line;
            }
            before.push(line);
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Producing {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Folders of two nodes of one cluster.
pub fn cluster(folder: &Folder) -> (String, String) {
    let [producer, decoder] = nodes(folder, [("producer", Roles::Producer), ("decoder", Roles::Decoder)]);
    (producer, decoder)
}

/// Folders of the nodes of one cluster.
pub fn nodes<const N: usize>(folder: &Folder, nodes: [(&str, Roles); N]) -> [String; N] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let authority = ClusterAuthority::create(&NodeName::new("test").unwrap(), now).unwrap();
    let keys = KeyRing::generate(now).unwrap();
    nodes.map(|(name, roles)| {
        let path = folder.at(name);
        let node = ClusterFolder::new(Path::new(&path));
        let key = NodeKey::generate().unwrap();
        node.join(authority.certificate_pem(), &keys).unwrap();
        node.save_node_key(&key).unwrap();
        let grant = Grant { name: NodeName::new(name).unwrap(), roles, lifetime_s: 3600 };
        node.save_node_certificate(&authority.sign(&key.request().unwrap(), &grant, now).unwrap()).unwrap();
        path
    })
}

/// A completion's text and tokens, and its times.
pub fn complete(serving: &Serving, prompt: &str) -> (Value, Value) {
    let body = json!({"prompt": prompt, "n_predict": 12, "seed": 5, "n_probs": 40, "return_tokens": true});
    let answer = serving.ask("POST", "/completion", "", &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut answer: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let timings = answer["timings"].take();
    (json!([answer["content"], answer["tokens"], answer["completion_probabilities"]]), timings)
}

#[test]
fn a_server_answers_alike_with_a_producer_without_one_and_when_it_dies() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let mut producing =
        Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0", "--pace", "0.1", "--compress", "always"]);
    let alone = Serving::start(&[]);
    let flags = ["--cluster", &decoder, "--producer", &producing.address, "--producer-min-tokens", "40"];
    let flags = [&flags[..], &["--prefill", "producer"]].concat();
    let helped = Serving::start(&flags);
    let prompts: Vec<String> =
        (0..3).map(|n| format!("{n}. ") + &"There was an old house by the sea. ".repeat(20)).collect();
    for prompt in &prompts[..2] {
        let (local, of_local) = complete(&alone, prompt);
        let (remote, of_remote) = complete(&helped, prompt);
        assert_eq!(remote, local);
        assert_eq!((&of_local["kv_source"], &of_remote["kv_source"]), (&json!("local"), &json!("producer")));
        assert_eq!((&of_remote["kv_producer"], &of_remote["prompt_n"]), (&json!("producer"), &json!(1)));
        let tokens = |timings: &Value, name: &str| timings[name].as_u64().unwrap_or(0);
        let sum = |timings| tokens(timings, "cache_n") + tokens(timings, "prompt_n") + tokens(timings, "kv_brought_n");
        assert_eq!(sum(&of_remote), sum(&of_local));
        assert!(tokens(&of_remote, "kv_payload_bytes") > 100_000, "{of_remote}");
        let line = producing.says("muser: handoff to decoder: ");
        assert!(
            line.contains(" bytes, ")
                && line.contains("(wall), pace 0.100 Gbit/s")
                && line.contains(", compressed to "),
            "{line}"
        );
    }
    // A short prompt is not worth the way.
    assert_eq!(complete(&helped, "Once upon a time").1["kv_source"], "local");
    producing.kill();
    let (local, _) = complete(&alone, &prompts[2]);
    let (fallen_back, times) = complete(&helped, &prompts[2]);
    assert_eq!(fallen_back, local);
    assert!(times["kv_source"] == "local" && times["kv_fallback"].is_string(), "{times}");
    assert!(helped.ask("GET", "/health", "", "").starts_with("HTTP/1.1 200 "));
    for serving in [alone, helped] {
        serving.signal("TERM");
        assert_eq!(serving.ended().0, Some(0));
    }
}

#[test]
fn keys_that_are_revoked_while_both_run_count_at_once() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let producing = Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let flags = ["--cluster", &decoder, "--producer", &producing.address, "--prefill", "producer"];
    let serving = Serving::start(&flags);
    let source = |number: usize| {
        let prompt = format!("{number}. ") + &"There was an old house by the sea. ".repeat(20);
        complete(&serving, &prompt).1
    };
    assert_eq!(source(1)["kv_source"], "producer");
    muser(&["cluster", "revoke-key", &producer, "1"]).done();
    let times = source(2);
    assert_eq!(times["kv_source"], "local");
    assert!(times["kv_fallback"].as_str().unwrap().contains("key 1 is revoked"), "{times}");
    serving.signal("TERM");
    assert_eq!(serving.ended().0, Some(0));
}

#[test]
fn without_a_producer_the_request_fails_if_that_is_what_was_asked_for() {
    let folder = Folder::new();
    let (_, decoder) = cluster(&folder);
    let flags =
        ["--cluster", &decoder, "--producer", "127.0.0.1:1", "--producer-min-tokens", "40", "--fallback", "fail"];
    let serving = Serving::start(&flags);
    let body = json!({"prompt": "There was an old house by the sea. ".repeat(20), "n_predict": 2});
    let answer = serving.ask("POST", "/completion", "", &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("no producer helps"), "{answer}");
    serving.signal("TERM");
    assert_eq!(serving.ended().0, Some(0));
}

#[test]
fn a_producer_ends_in_order_and_with_75_if_it_cannot_serve() {
    let folder = Folder::new();
    let (producer, _) = cluster(&folder);
    let mut producing = Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let taken = muser(&["produce", "--cluster", &producer, "--listen", &producing.address]).refused(75);
    assert!(taken.contains("cannot produce"), "{taken}");
    for rate in ["0", "-1", "nan", "inf", "fast", "1e-10"] {
        let wrong = muser(&["produce", "--cluster", &producer, &format!("--pace={rate}")]).wrong_usage();
        assert!(wrong.contains("--pace"), "{rate}: {wrong}");
    }
    let absent = muser(&["produce", "--cluster", &folder.at("absent")]).refused(75);
    assert!(absent.contains("absent"), "{absent}");
    assert!(Command::new("kill").args(["-TERM", &producing.child.id().to_string()]).status().unwrap().success());
    assert_eq!(producing.child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_demonstration_compares_the_bits_and_leaves_nothing_behind() {
    for kv in ["q8", "f16"] {
        let shown = muser(&["demo", "--tokens", "300", "-n", "4", "--kv", kv, "-t", "1"]).done().stdout;
        assert!(shown.contains("a prompt of 300 tokens, 4 tokens answered"), "{shown}");
        assert!(shown.contains("| same tokens and logits, bit for bit | | yes |"), "{shown}");
    }
    let long = muser(&["demo", "-n", "2047"]).refused(2);
    assert!(long.contains("it needs to have 2 to"), "{long}");
    assert!(muser(&["demo", "-m", "absent.gguf"]).refused(3).contains("absent.gguf"));
}

#[test]
fn decoders_that_share_prefixes_find_each_others_at_a_producer_that_does_and_nowhere_else() {
    let folder = Folder::new();
    let roles = [("producer", Roles::Producer), ("one", Roles::Decoder), ("other", Roles::Decoder)];
    let [producer, one, other] = nodes(&folder, roles);
    let prompt = "There was an old house by the sea. ".repeat(30);
    for shares in [true, false] {
        let flags = ["--cluster", &producer, "--listen", "127.0.0.1:0"];
        let flags = [&flags[..], if shares { &["--share-prefixes"] } else { &[] }].concat();
        let producing = Producing::start(&flags);
        let mut answers = Vec::new();
        for (name, decoder) in [("one", &one), ("other", &other)] {
            let flags = ["--cluster", decoder, "--producer", &producing.address, "--prefill", "producer"];
            let serving = Serving::start(&[&flags[..], &["--share-prefixes"]].concat());
            let (answer, timings) = complete(&serving, &prompt);
            assert_eq!(timings["kv_source"], "producer", "{timings}");
            answers.push(answer);
            let line = producing.says(&format!("muser: handoff to {name}: "));
            let reuses = line.contains(" rows reused");
            assert_eq!(reuses, shares && name == "other", "shares: {shares}: {line}");
            serving.stopped();
        }
        assert_eq!(answers[0], answers[1]);
    }
}
