//! Servers that mean harm or make no sense.

use muser_hub::{AnswerFault, Error, Listing, ListingError, RedirectFault, Sha256};

use crate::support::hub::{COMMIT, FakeHub, listing};
use crate::support::{Body, Reply, Server};
use crate::{Home, content, request};

/// A hub that lists `m.gguf` and answers for it with `reply`.
fn hub_with(reply: fn() -> Reply) -> Server {
    Server::start(move |asked| if asked.path.starts_with("/api/") { Reply::ok(listing(["m.gguf"])) } else { reply() })
}

#[test]
fn a_file_name_that_leads_elsewhere_is_refused() {
    for name in ["../../evil.gguf", "/evil.gguf", "a/../../evil.gguf", "..\\\\evil.gguf", "C:/evil.gguf"] {
        let server = Server::start(move |_| Reply::ok(listing(["good-Q4_K_M.gguf", name])));
        let home = Home::new(&server.url);
        let error = home.refused(&request("user/repo"));
        assert!(matches!(&error, Error::Listing { reason: ListingError::FileName(_), .. }), "{error}");
    }
}

#[test]
fn an_etag_or_a_commit_that_is_a_path_is_refused() {
    let server = hub_with(|| Reply::ok("x").with("ETag", "\"../../../evil\""));
    let error = Home::new(&server.url).refused(&request("user/repo"));
    assert!(matches!(&error, Error::Answer { reason: AnswerFault::Etag(Some(_)), .. }), "{error}");
    let server = hub_with(|| Reply::ok("x"));
    let error = Home::new(&server.url).refused(&request("user/repo"));
    assert!(matches!(&error, Error::Answer { reason: AnswerFault::Etag(None), .. }), "{error}");
    let server = hub_with(|| Reply::ok("x").with("ETag", "\"abc\"").with("X-Repo-Commit", "../../evil"));
    let error = Home::new(&server.url).refused(&request("user/repo"));
    assert!(matches!(&error, Error::Answer { reason: AnswerFault::Commit { .. }, .. }), "{error}");
    let server = Server::start(|_| Reply::ok(listing(["m.gguf"]).replace(COMMIT, "../../../evil")));
    let error = Home::new(&server.url).refused(&request("user/repo"));
    assert!(matches!(&error, Error::Listing { reason: ListingError::Commit(_), .. }), "{error}");
}

#[test]
fn what_another_host_says_about_a_file_is_not_believed() {
    let elsewhere = Server::start(|_| Reply::ok("evil").with("X-Linked-Etag", "\"aaaa\"").with("ETag", "\"bbbb\""));
    let target = format!("{}/x", elsewhere.url);
    let server = Server::start(move |asked| match asked.path.starts_with("/api/") {
        true => Reply::ok(listing(["m.gguf"])),
        false => Reply::redirect(target.clone()),
    });
    let home = Home::new(&server.url);
    let file = home.pull(&request("user/repo")).unwrap().files.remove(0);
    assert!(std::fs::read_link(&file.path).unwrap().ends_with("bbbb"));
}

#[test]
fn a_circle_of_redirects_ends() {
    let server = Server::start(|asked| Reply::redirect(asked.path.clone()));
    let home = Home::new(&server.url);
    for reference in [format!("{}/m.gguf", server.url), "user/repo".into()] {
        let before = server.asked().len();
        let error = home.refused(&request(&reference));
        assert!(matches!(&error, Error::Redirect { reason: RedirectFault::TooMany { max: 10 }, .. }), "{error}");
        assert_eq!(server.asked().len() - before, 11);
    }
}

#[test]
fn a_redirect_to_no_usable_address_is_refused() {
    for location in ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://user:secret@127.0.0.1/x", "http://"] {
        let server = Server::start(move |_| Reply::redirect(location));
        let error = Home::new(&server.url).refused(&request(&format!("{}/m.gguf", server.url)));
        assert!(matches!(&error, Error::Redirect { reason: RedirectFault::Address(_), .. }), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let server = Server::start(|_| Reply::status(302));
    let error = Home::new(&server.url).refused(&request(&format!("{}/m.gguf", server.url)));
    assert!(matches!(&error, Error::Redirect { reason: RedirectFault::NoLocation, .. }), "{error}");
}

#[test]
fn an_endless_list_of_files_is_not_read_to_its_end() {
    let server = Server::start(|_| Reply::new(200, Body::Endless(&[b' '; 65536])));
    let error = Home::new(&server.url).refused(&request("user/repo"));
    let Error::Listing { reason: ListingError::TooLarge { max }, .. } = error else { panic!("{error}") };
    assert_eq!(max, Listing::BYTES_MAX);
}

#[test]
fn an_answer_that_is_no_list_of_files_is_refused() {
    for text in ["", "{}", "[]", "<html>", "{\"sha\":1}"] {
        let server = Server::start(move |_| Reply::ok(text));
        let error = Home::new(&server.url).refused(&request("user/repo"));
        assert!(matches!(&error, Error::Listing { reason: ListingError::Json(_), .. }), "{error}");
    }
}

#[test]
fn bytes_that_are_not_the_hubs_file_never_get_its_name() {
    let whole = content(3000);
    let mut other = whole.clone();
    other[1500] ^= 1;
    let fake = FakeHub::start(&[("m.gguf", &whole)]);
    let (home, served) = (Home::new(&fake.hub.url), other.clone());
    fake.trouble(move |_, _| Some(Reply::ok(served.clone())));
    let error = home.refused(&request("user/repo"));
    let expected = format!("m.gguf: its SHA-256 is {}, and should be {}", Sha256::of(&other), Sha256::of(&whole));
    assert_eq!(error.to_string(), expected);
    assert_eq!(home.partial_files(), [""; 0]);
    for (bytes, stated) in [(2999, 2999), (3001, 3001)] {
        fake.trouble(move |_, _| Some(Reply::ok(content(bytes))));
        let error = home.refused(&request("user/repo"));
        let fault = AnswerFault::Size { stated, expected: 3000 };
        assert!(matches!(&error, Error::Answer { reason, .. } if *reason == fault), "{error}");
    }
    // Of a length that is not stated, more than the file has.
    fake.trouble(|_, content| Some(Reply::new(200, Body::UntilClose([content, b"more"].concat()))));
    let error = home.refused(&request("user/repo"));
    assert!(matches!(&error, Error::Answer { reason: AnswerFault::TooLong(3000), .. }), "{error}");
    // And less.
    fake.trouble(|_, content| Some(Reply::new(200, Body::UntilClose(content[..2000].into()))));
    let error = home.refused(&request("user/repo"));
    assert!(matches!(&error, Error::GaveUp { .. }), "{error}");
    fake.trouble(|_, _| None);
    assert_eq!(home.bytes(&request("user/repo")), whole);
}

#[test]
fn a_compressed_body_that_nobody_asked_for_is_refused() {
    let server = Server::start(|_| Reply::ok("x").with("Content-Encoding", "gzip"));
    let error = Home::new(&server.url).refused(&request(&format!("{}/m.gguf", server.url)));
    assert!(matches!(&error, Error::Answer { reason: AnswerFault::Encoding(_), .. }), "{error}");
    assert_eq!(server.asked()[0].header("accept-encoding"), Some("identity"));
}

#[test]
fn a_part_that_nobody_asked_for_is_refused() {
    let server = Server::start(|_| Reply::new(206, Body::Whole("x".into())).with("Content-Range", "bytes 0-0/1"));
    let error = Home::new(&server.url).refused(&request(&format!("{}/m.gguf", server.url)));
    assert!(matches!(&error, Error::Answer { reason: AnswerFault::Range { asked: 0, .. }, .. }), "{error}");
}

#[test]
fn an_encrypted_connection_to_who_does_not_speak_it_fails_at_once() {
    let server = Server::speaking_nonsense();
    let home = Home::new(&server.url);
    let error = home.refused(&request(&format!("{}/m.gguf", server.url.replace("http:", "https:"))));
    assert!(matches!(&error, Error::Network { .. }), "{error}");
}
