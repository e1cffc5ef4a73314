//! Processes and connections that a producer must not be troubled by, and a server that finds the wrong producer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muser_lane::{Connector, LaneSettings, Wanted};
use muser_trust::identity::{ClusterAuthority, ClusterFolder, Grant, NodeKey, NodeName, Revoked, Role, Roles};
use muser_trust::keys::KeyRing;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::Folder;
use crate::produce::{Producing, cluster, complete};
use crate::serving::Serving;

const HOUR_S: u64 = 3600;

fn prompt(number: usize) -> String {
    format!("{number}. {}", "There was an old house by the sea. ".repeat(20))
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn serve(folder: &str, address: &str) -> Serving {
    let flags = ["--cluster", folder, "--producer", address, "--producer-min-tokens", "40", "--prefill", "producer"];
    Serving::start(&flags)
}

fn ends_well(serving: Serving) {
    serving.signal("TERM");
    assert_eq!(serving.ended().0, Some(0));
}

/// The folder of a decoder of `authority` whose certificate is as old as that.
fn decoder_of(authority: &ClusterAuthority, keys: &KeyRing, path: &str, age_s: u64) {
    let folder = ClusterFolder::new(Path::new(path));
    let key = NodeKey::generate().unwrap();
    folder.join(authority.certificate_pem(), keys).unwrap();
    folder.save_node_key(&key).unwrap();
    let grant = Grant { name: NodeName::new("decoder").unwrap(), roles: Roles::Decoder, lifetime_s: HOUR_S };
    let certificate = authority.sign(&key.request().unwrap(), &grant, now_unix_s() - age_s).unwrap();
    folder.save_node_certificate(&certificate).unwrap();
}

#[test]
fn a_server_with_the_wrong_ca_certificate_or_key_answers_alone_and_says_why() {
    let folder = Folder::new();
    let authority = ClusterAuthority::create(&NodeName::new("ours").unwrap(), now_unix_s() - 3 * HOUR_S).unwrap();
    let other = ClusterAuthority::create(&NodeName::new("ours").unwrap(), now_unix_s()).unwrap();
    let [keys, other_keys] = [(), ()].map(|()| KeyRing::generate(now_unix_s()).unwrap());
    let producer = ClusterFolder::new(Path::new(&folder.at("producer")));
    let key = NodeKey::generate().unwrap();
    producer.join(authority.certificate_pem(), &keys).unwrap();
    producer.save_node_key(&key).unwrap();
    let grant = Grant { name: NodeName::new("producer").unwrap(), roles: Roles::Producer, lifetime_s: HOUR_S };
    producer.save_node_certificate(&authority.sign(&key.request().unwrap(), &grant, now_unix_s()).unwrap()).unwrap();
    let producing = Producing::start(&["--cluster", &folder.at("producer"), "--listen", "127.0.0.1:0"]);
    decoder_of(&authority, &keys, &folder.at("right"), 0);
    decoder_of(&other, &keys, &folder.at("stranger"), 0);
    decoder_of(&authority, &keys, &folder.at("late"), HOUR_S + 600);
    decoder_of(&authority, &other_keys, &folder.at("keyless"), 0);
    decoder_of(&authority, &keys, &folder.at("revoked"), 0);
    let revoked = ClusterFolder::new(Path::new(&folder.at("revoked"))).load_identity().unwrap().facts().id;
    producer.load_revocations().unwrap().revoke(Revoked::Node(revoked), now_unix_s()).unwrap();
    let alone = Serving::start(&[]);
    let expected = complete(&alone, &prompt(1)).0;
    for (name, reason) in [
        ("right", None),
        ("stranger", Some("not of this cluster")),
        ("late", Some("valid")),
        ("keyless", Some("MAC")),
        ("revoked", Some("deny-list")),
        ("right", None),
    ] {
        let helped = serve(&folder.at(name), &producing.address);
        let (found, times) = complete(&helped, &prompt(1));
        assert!(found == expected, "{name}: other bits");
        match reason {
            None => assert_eq!(times["kv_source"], "producer", "{name}: {times}"),
            Some(reason) => {
                let told = times["kv_fallback"].as_str().unwrap_or_default();
                assert!(times["kv_source"] == "local" && told.contains(reason), "{name}: {times}");
            }
        }
        ends_well(helped);
    }
    ends_well(alone);
}

fn resident_kib(producing: &Producing) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", producing.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn connections_that_say_nothing_or_nonsense_keep_no_decoder_from_its_producer() {
    // A hundred connections that never ended their handshake once took all places for lanes, and a decoder that came then
    // was closed at the door. Now the oldest of them makes way.
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let producing = Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let helped = serve(&decoder, &producing.address);
    // Half of them begin a greeting, the others say nothing.
    let mut silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&producing.address).unwrap()).collect();
    for (number, stream) in silent.iter_mut().enumerate().filter(|(number, _)| number % 2 == 0) {
        // It may have been closed already.
        let _ = stream.write_all(&[22, 3, 1, 2, 0][..1 + number % 5]);
    }
    let (_, times) = complete(&helped, &prompt(1));
    assert_eq!(times["kv_source"], "producer", "{times}");
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 9000], &[0xff; 40_000], &[22, 3, 3, 0xff, 0xff]] {
        let mut stream = TcpStream::connect(&producing.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let _ = stream.write_all(nonsense);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // An alert, or nothing; in any case the end.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let (_, times) = complete(&helped, &prompt(2));
    assert_eq!(times["kv_source"], "producer", "{times}");
    ends_well(helped);
}

#[test]
fn a_member_that_announces_endless_frames_costs_its_own_connection_and_no_memory() {
    let folder = Folder::new();
    let (producer, decoder) = cluster(&folder);
    let producing = Producing::start(&["--cluster", &producer, "--listen", "127.0.0.1:0"]);
    let member = ClusterFolder::new(Path::new(&decoder));
    let settings = LaneSettings {
        revocations: Arc::new(member.load_revocations().unwrap()),
        handshake_timeout: Duration::from_secs(30),
        clock: Arc::new(now_unix_s),
    };
    let connector = Connector::new(&member.load_identity().unwrap(), settings).unwrap();
    let helped = serve(&decoder, &producing.address);
    complete(&helped, &prompt(1));
    let before = resident_kib(&producing);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let address = producing.address.parse().unwrap();
        for kind in 1..=12u16 {
            for length in [1 << 40, u64::MAX] {
                let mut lane = connector.connect(address, Wanted { role: Role::Producer, id: None }).await.unwrap();
                let mut header = *b"MUSR\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
                header[6..8].copy_from_slice(&kind.to_le_bytes());
                header[12..20].copy_from_slice(&length.to_le_bytes());
                let checksum = crc32c(&header[..20]);
                header[20..].copy_from_slice(&checksum.to_le_bytes());
                lane.write_all(&header).await.unwrap();
                lane.flush().await.unwrap();
                let mut said = Vec::new();
                // A refusal, and then the end: without the rest of the frame.
                let ended = tokio::time::timeout(Duration::from_secs(30), lane.read_to_end(&mut said)).await;
                assert!(ended.is_ok(), "kind {kind} of {length} bytes: the producer waits for it");
            }
        }
    });
    let grown = resident_kib(&producing).saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB more");
    assert_eq!(complete(&helped, &prompt(2)).1["kv_source"], "producer");
    ends_well(helped);
}

/// The Castagnoli checksum, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}
