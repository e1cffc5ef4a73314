//! Files by address: cached, resumed, checked.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use muser_hub::{Error, PullEvent, ReferenceError, Sha256};

use crate::support::{Asked, Body, End, Reply, Server};
use crate::{Home, content, request};

/// Change of a reply before it is sent.
type Change = fn(Reply) -> Reply;
/// A reply made anew each time.
type Make = fn() -> Reply;
/// Predicate on an error: true for the expected one.
type Check = fn(&Error) -> bool;

/// A server whose first answers are made by `first`, one each, and all others are the file.
fn server_with(content: Vec<u8>, etag: &'static str, first: Vec<Change>) -> Server {
    let count = AtomicUsize::new(0);
    Server::start(move |asked| {
        let whole = Reply::file(asked, &content, etag);
        match first.get(count.fetch_add(1, SeqCst)) {
            Some(change) => change(whole),
            None => whole,
        }
    })
}

fn starts(server: &Server) -> Vec<Option<usize>> {
    server.asked().iter().map(Asked::range_start).collect()
}

#[test]
fn a_file_is_fetched_once_and_again_only_when_it_has_changed() {
    let version = std::sync::Arc::new(Mutex::new((content(100), "\"one\"")));
    let served = version.clone();
    let server = Server::start(move |asked| {
        let (content, etag) = &*served.lock().unwrap();
        Reply::file(asked, content, etag)
    });
    let home = Home::new(&server.url);
    let wanted = request(&format!("{}/a/m.gguf", server.url));
    let first = home.pull(&wanted).unwrap().files.remove(0);
    assert_eq!(first.sha256, Some(Sha256::of(&content(100))));
    assert!(!first.from_cache && first.path.ends_with("m.gguf"));
    let again = home.pull(&wanted).unwrap().files.remove(0);
    assert!(again.from_cache && again.path == first.path);
    assert_eq!(home.hub().cached(&wanted).unwrap().files[0].path, first.path);
    // Another content of the same size.
    let mut other = content(100);
    other[50] ^= 1;
    *version.lock().unwrap() = (other.clone(), "\"two\"");
    assert_eq!(home.bytes(&wanted), other);
    assert_eq!(home.whole_files().len(), 1);
}

#[test]
fn files_of_one_name_from_two_folders_stay_apart() {
    let server = Server::start(|asked| Reply::ok(asked.path.clone()));
    let home = Home::new(&server.url);
    for path in ["/a/m.gguf", "/b/m.gguf", "/a/m.gguf?version=2"] {
        assert_eq!(home.bytes(&request(&format!("{}{path}", server.url))), path.as_bytes());
    }
    assert_eq!(home.whole_files().len(), 3);
}

#[test]
fn a_cut_at_any_place_is_gone_on_with_and_gives_the_same_bytes() {
    let whole = content(300_000);
    for cut in [0, 1, 1000, 131_071, 131_072, 131_073, 299_999] {
        let content = whole.clone();
        let cuts = AtomicUsize::new(0);
        let server = Server::start(move |asked| {
            let reply = Reply::file(asked, &content, "\"e\"");
            if cuts.fetch_add(1, SeqCst) == 0 { reply.cut_after(cut) } else { reply }
        });
        let home = Home::new(&server.url);
        assert_eq!(home.bytes(&request(&format!("{}/m.gguf", server.url))), whole, "{cut}");
        let resumed = (cut > 0).then_some(cut);
        assert_eq!(starts(&server), [None, resumed], "{cut}");
        assert_eq!(server.asked()[1].header("if-range"), resumed.map(|_| "\"e\""), "{cut}");
    }
}

#[test]
fn a_later_pull_goes_on_where_an_earlier_one_gave_up() {
    let whole = content(5000);
    let first: Vec<Change> = vec![|whole| whole.cut_after(2000), |_| Reply::status(503)];
    let server = server_with(whole.clone(), "\"e\"", first);
    let mut home = Home::new(&server.url);
    let wanted = request(&format!("{}/m.gguf", server.url));
    home.settings.retry_pauses = vec![Duration::ZERO];
    let error = home.refused(&wanted);
    assert!(error.to_string().contains("status 503; gave up after 2 attempts; 2000 bytes are kept in"), "{error}");
    assert_eq!(home.partial().1, whole[..2000]);
    assert_eq!(home.bytes(&wanted), whole);
    assert_eq!(starts(&server), [None, Some(2000), Some(2000)]);
}

#[test]
fn what_does_not_continue_the_partial_file_is_begun_again() {
    let whole = content(5000);
    let cases: [(&str, Change); 6] = [
        ("the range is ignored", |_| Reply::ok(content(5000)).with("ETag", "\"e\"")),
        ("the etag has changed", |_| Reply::ok(content(5000)).with("ETag", "\"f\"")),
        ("another etag on a part", |reply| {
            Reply { headers: vec![reply.headers[0].clone()], ..reply }.with("ETag", "\"f\"")
        }),
        ("another range", |_| {
            Reply::new(206, Body::Whole(content(5000)[1000..].into())).with("Content-Range", "bytes 1000-4999/5000")
        }),
        ("no range", |_| Reply::new(206, Body::Whole(content(5000)[2000..].into()))),
        ("the range is not there", |_| Reply::status(416)),
    ];
    for (case, second) in cases {
        let server = server_with(whole.clone(), "\"e\"", vec![|whole| whole.cut_after(2000), second]);
        let home = Home::new(&server.url);
        assert_eq!(home.bytes(&request(&format!("{}/m.gguf", server.url))), whole, "{case}");
        assert_eq!(starts(&server)[..2], [None, Some(2000)], "{case}");
    }
}

#[test]
fn of_a_file_that_changes_in_between_no_byte_of_the_old_one_stays() {
    // Shorter than what is there already, longer, and in a part that claims to continue the old one.
    let part: Make = || Reply::file(&Asked::of_range(2000), &content(6000), "\"new\"");
    for (bytes, as_part) in [(500, None), (6000, None), (6000, Some(part))] {
        let count = AtomicUsize::new(0);
        let server = Server::start(move |asked| match (count.fetch_add(1, SeqCst), as_part) {
            (0, _) => Reply::file(asked, &content(5000), "\"old\"").cut_after(2000),
            (1, Some(part)) => part(),
            _ => Reply::file(asked, &content(bytes), "\"new\""),
        });
        let home = Home::new(&server.url);
        assert_eq!(home.bytes(&request(&format!("{}/m.gguf", server.url))), content(bytes));
    }
}

#[test]
fn without_an_etag_or_a_digest_nothing_is_gone_on_with() {
    let whole = content(5000);
    for etag in ["W/\"weak\"", "none"] {
        let served = whole.clone();
        let cuts = AtomicUsize::new(0);
        let server = Server::start(move |_| {
            let reply = Reply::ok(served.clone());
            let reply = if etag == "none" { reply } else { reply.with("ETag", etag) };
            if cuts.fetch_add(1, SeqCst) == 0 { reply.cut_after(2000) } else { reply }
        });
        let home = Home::new(&server.url);
        assert_eq!(home.bytes(&request(&format!("{}/m.gguf", server.url))), whole);
        assert_eq!(starts(&server), [None, None], "{etag}");
    }
}

#[test]
fn a_server_that_keeps_failing_is_given_up_with_the_partial_file_kept() {
    let cases: [(&str, Make); 4] = [
        ("0 bytes of 100", || Reply::ok(content(100)).cut_after(0)),
        ("status 500", || Reply::status(500)),
        ("status 429", || Reply::status(429)),
        ("interrupted after 0 bytes", || Reply::new(200, Body::Chunked(Vec::new(), End::CutOff))),
    ];
    for (said, reply) in cases {
        let server = Server::start(move |_| reply());
        let home = Home::new(&server.url);
        let error = home.refused(&request(&format!("{}/m.gguf", server.url)));
        assert!(matches!(&error, Error::GaveUp { attempts: 4, .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!(server.count("GET"), 4, "{said}");
    }
}

#[test]
fn an_answer_that_will_not_change_is_not_asked_for_again() {
    let answers: [(u16, Check); 5] = [
        (404, |error| matches!(error, Error::NotFound { .. })),
        (401, |error| matches!(error, Error::Denied { status: 401, .. })),
        (403, |error| matches!(error, Error::Denied { status: 403, .. })),
        (400, |error| matches!(error, Error::Status { status: 400, .. })),
        (204, |error| matches!(error, Error::Status { status: 204, .. })),
    ];
    for (status, is_expected) in answers {
        let server = Server::start(move |_| Reply::status(status));
        let home = Home::new(&server.url);
        let error = home.refused(&request(&format!("{}/m.gguf?key=secret", server.url)));
        assert!(is_expected(&error), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert_eq!(server.count("GET"), 1, "{status}");
    }
}

#[test]
fn a_server_says_how_long_to_wait() {
    let replies = AtomicUsize::new(0);
    let server = Server::start(move |_| match replies.fetch_add(1, SeqCst) {
        0 => Reply::status(429).with("Retry-After", "1"),
        _ => Reply::ok("x"),
    });
    let home = Home::new(&server.url);
    let mut pauses = Vec::new();
    let pulled = home.hub().pull(&request(&format!("{}/m.gguf", server.url)), &mut |event| {
        if let PullEvent::Retrying { pause, .. } = event {
            pauses.push(pause);
        }
        ControlFlow::Continue(())
    });
    assert_eq!(pulled.unwrap().files[0].bytes, 1);
    assert_eq!(pauses, [Duration::from_secs(1)]);
}

#[test]
fn nobody_listening_is_a_failure_of_the_network() {
    let server = Server::start(|_| Reply::status(500));
    let (url, home) = (server.url.clone(), Home::new(&server.url));
    drop(server);
    let error = home.refused(&request(&format!("{url}/m.gguf")));
    let Error::GaveUp { reason, .. } = &error else { panic!("{error}") };
    assert!(matches!(**reason, Error::Network { .. }) && error.to_string().contains("refused"), "{error}");
}

#[test]
fn a_server_that_goes_silent_is_an_interruption() {
    let whole = content(5000);
    let first: Vec<Change> =
        vec![|_| Reply::new(200, Body::Stalled(content(5000)[..1234].into(), 5000)).with("ETag", "\"e\"")];
    let server = server_with(whole.clone(), "\"e\"", first);
    let mut home = Home::new(&server.url);
    home.settings.stall_timeout = Duration::from_millis(300);
    home.settings.retry_pauses = vec![Duration::ZERO; 20];
    assert_eq!(home.bytes(&request(&format!("{}/m.gguf", server.url))), whole);
    assert_eq!(starts(&server)[..2], [None, Some(1234)]);
}

#[test]
fn a_file_of_unknown_size_ends_where_its_encoding_ends() {
    let whole = content(5000);
    let bodies: [fn(Vec<u8>) -> Body; 2] = [|bytes| Body::Chunked(bytes, End::Marked), Body::UntilClose];
    for body in bodies {
        let served = whole.clone();
        let server = Server::start(move |_| Reply::new(200, body(served.clone())));
        let home = Home::new(&server.url);
        assert_eq!(home.bytes(&request(&format!("{}/m.gguf", server.url))), whole);
    }
    let first: Vec<Change> =
        vec![|_| Reply::new(200, Body::Chunked(content(5000)[..3000].into(), End::CutOff)).with("ETag", "\"e\"")];
    let server = server_with(whole.clone(), "\"e\"", first);
    let home = Home::new(&server.url);
    assert_eq!(home.bytes(&request(&format!("{}/m.gguf", server.url))), whole);
    assert_eq!(starts(&server), [None, Some(3000)]);
}

#[test]
fn a_wrong_digest_names_both_and_leaves_nothing() {
    let server = server_with(content(5000), "\"e\"", Vec::new());
    let home = Home::new(&server.url);
    let mut wanted = request(&format!("{}/m.gguf", server.url));
    wanted.sha256 = Some(Sha256::of(b"other"));
    let error = home.refused(&wanted);
    let (found, expected) = (Sha256::of(&content(5000)), Sha256::of(b"other"));
    assert_eq!(error.to_string(), format!("m.gguf: its SHA-256 is {found}, and should be {expected}"));
    assert_eq!(home.partial_files(), [""; 0]);
    wanted.sha256 = Some(found);
    assert_eq!(home.bytes(&wanted), content(5000));
    let asked = server.asked().len();
    assert!(home.pull(&wanted).unwrap().files[0].from_cache);
    assert_eq!(server.asked().len(), asked, "a file with its digest needs no server");
}

#[test]
fn a_damaged_file_in_the_cache_is_replaced_if_a_digest_tells() {
    let server = server_with(content(5000), "\"e\"", Vec::new());
    let home = Home::new(&server.url);
    let mut wanted = request(&format!("{}/m.gguf", server.url));
    let path = home.pull(&wanted).unwrap().files.remove(0).path;
    let mut damaged = content(5000);
    damaged[77] ^= 1;
    fs::write(&path, damaged).unwrap();
    wanted.sha256 = Some(Sha256::of(&content(5000)));
    assert!(matches!(home.hub().cached(&wanted), Err(Error::Digest { .. })));
    assert_eq!(home.bytes(&wanted), content(5000));
}

#[test]
fn the_user_says_where_a_file_goes() {
    let server = server_with(content(5000), "\"e\"", Vec::new());
    let home = Home::new(&server.url);
    let mut wanted = request(&format!("{}/download?id=1", server.url));
    wanted.output = Some(home.path().join("mine.bin"));
    assert_eq!(home.bytes(&wanted), content(5000));
    assert_eq!(home.whole_files(), ["mine.bin"]);
    assert!(home.pull(&wanted).unwrap().files[0].from_cache);
    fs::write(home.path().join("mine.bin"), "somebody else's").unwrap();
    assert_eq!(home.bytes(&wanted), content(5000));
    wanted.output = Some(home.path().join("absent/mine.bin"));
    assert!(matches!(home.pull(&wanted), Err(Error::Disk { .. })));
    wanted.output = Some(home.path().to_owned());
    assert!(matches!(home.pull(&wanted), Err(Error::NotAFile { .. })));
}

#[test]
fn a_link_at_the_users_path_stays_a_link() {
    let server = server_with(content(5000), "\"e\"", Vec::new());
    let home = Home::new(&server.url);
    fs::write(home.path().join("real"), "old").unwrap();
    std::os::unix::fs::symlink("real", home.path().join("link")).unwrap();
    let mut wanted = request(&format!("{}/m.gguf", server.url));
    wanted.output = Some(home.path().join("link"));
    assert_eq!(home.bytes(&wanted), content(5000));
    assert_eq!(fs::read(home.path().join("real")).unwrap(), content(5000));
    assert!(home.path().join("link").is_symlink());
}

#[test]
fn all_parts_of_a_split_model_are_fetched_into_one_folder() {
    let server = Server::start(|asked| Reply::ok(asked.path.clone()));
    let home = Home::new(&server.url);
    let mut wanted = request(&format!("{}/a/m-00002-of-00003.gguf?x=1", server.url));
    let pulled = home.pull(&wanted).unwrap();
    for (number, file) in (1..).zip(&pulled.files) {
        let name = format!("m-0000{number}-of-00003.gguf");
        assert!(file.path.ends_with(&name) && file.path.parent() == pulled.files[0].path.parent());
        assert_eq!(fs::read_to_string(&file.path).unwrap(), format!("/a/{name}?x=1"));
    }
    assert_eq!(pulled.files.len(), 3);
    wanted.output = Some(home.path().join("one"));
    let refused = home.pull(&wanted).unwrap_err();
    assert!(matches!(refused, Error::Reference(ReferenceError::OnlyForOneFile { parts: 3, .. })), "{refused}");
}

#[test]
fn what_belongs_to_repositories_is_refused_with_an_address() {
    let home = Home::new("http://127.0.0.1:1");
    let mut wanted = request("http://127.0.0.1:1/m.gguf");
    wanted.file = Some("m.gguf".parse().unwrap());
    assert!(matches!(home.refused(&wanted), Error::Reference(ReferenceError::OnlyForRepositories("file name"))));
    wanted.file = None;
    wanted.revision = Some("main".parse().unwrap());
    assert!(matches!(home.refused(&wanted), Error::Reference(ReferenceError::OnlyForRepositories("revision"))));
    let nameless = home.refused(&request("http://127.0.0.1:1/"));
    assert!(matches!(nameless, Error::Reference(ReferenceError::NoFileName(_))), "{nameless}");
}
