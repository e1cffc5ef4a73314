//! Files out of a hub's repositories: the cache's layout, who sees the token, and what is known without asking.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use muser_hub::{CachedContent, ChoiceError, Error, PullRequest, Quant, ReferenceError, Sha256};

use crate::support::hub::{COMMIT, FakeHub, listing};
use crate::support::{Asked, Reply, Server};
use crate::{Home, content, request};

#[test]
fn the_cache_has_the_layout_of_the_hubs_own_client() {
    let (a, b) = (content(3000), content(4000));
    let fake = FakeHub::start(&[("m-Q4_K_M.gguf", &a), ("sub/m-Q8_0.gguf", &b), ("README.md", b"x")]);
    let home = Home::new(&fake.hub.url);
    let file = home.pull(&request("user/repo")).unwrap().files.remove(0);
    let repo = home.path().join("hub/models--user--repo");
    assert_eq!(file.path, repo.join("snapshots").join(COMMIT).join("m-Q4_K_M.gguf"));
    let digest = Sha256::of(&a);
    assert_eq!((file.sha256, file.bytes, file.from_cache), (Some(digest), 3000, false));
    assert_eq!(fs::read_link(&file.path).unwrap(), Path::new("../../blobs").join(digest.to_string()));
    assert_eq!(fs::read(&file.path).unwrap(), a);
    assert_eq!(fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    let deeper = home.pull(&request("user/repo:q8_0")).unwrap().files.remove(0);
    assert_eq!(fs::read_link(&deeper.path).unwrap(), Path::new("../../../blobs").join(Sha256::of(&b).to_string()));
    assert_eq!(fs::read(&deeper.path).unwrap(), b);
    let names = home.whole_files();
    let blobs: Vec<&String> = names.iter().filter(|name| name.contains("/blobs/")).collect();
    assert_eq!((names.len(), blobs.len()), (5, 2), "{names:?}");
    assert!(home.path().join(format!("hub/.locks/models--user--repo/{digest}.lock")).is_file());
}

#[test]
fn a_file_that_is_here_is_not_fetched_again() {
    let fake = FakeHub::start(&[("m.gguf", &content(3000))]);
    let home = Home::new(&fake.hub.url);
    assert_eq!(home.bytes(&request("user/repo")), content(3000));
    let again = home.pull(&request("user/repo")).unwrap().files.remove(0);
    assert_eq!((again.from_cache, again.sha256), (true, Some(Sha256::of(&content(3000)))));
    assert_eq!(fake.storage.asked().len(), 1);
    // Cut short behind our back: the size tells.
    fs::write(&again.path, "short").unwrap();
    assert_eq!(home.bytes(&request("user/repo")), content(3000));
    assert_eq!(fake.storage.asked().len(), 2);
}

#[test]
fn files_that_the_hubs_own_client_left_are_used() {
    let whole = content(3000);
    let fake = FakeHub::start(&[("m.gguf", &whole)]);
    let home = Home::new(&fake.hub.url);
    let blobs = home.path().join("hub/models--user--repo/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let blob = blobs.join(Sha256::of(&whole).to_string());
    // Half of it, with no word about its etag: the digest will tell.
    fs::write(blob.with_extension("incomplete"), &whole[..1000]).unwrap();
    assert_eq!(home.bytes(&request("user/repo")), whole);
    assert_eq!(fake.storage.asked()[0].range_start(), Some(1000));
    // All of it, but not named.
    fs::rename(&blob, blob.with_extension("incomplete")).unwrap();
    assert_eq!(home.bytes(&request("user/repo")), whole);
    assert_eq!(fake.storage.asked().len(), 1);
}

#[test]
fn a_partial_file_of_other_bytes_is_found_out_and_removed() {
    let whole = content(3000);
    let fake = FakeHub::start(&[("m.gguf", &whole)]);
    let home = Home::new(&fake.hub.url);
    let blobs = home.path().join("hub/models--user--repo/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.incomplete", Sha256::of(&whole))), "other").unwrap();
    let error = home.refused(&request("user/repo"));
    assert!(matches!(error, Error::Digest { .. }), "{error}");
    assert_eq!(home.bytes(&request("user/repo")), whole);
}

#[test]
fn the_token_is_seen_by_the_endpoint_and_by_nobody_else() {
    let fake = FakeHub::start(&[("m.gguf", &content(3000))]);
    let mut home = Home::new(&fake.hub.url);
    home.settings.token = Some("hf_secret".parse().unwrap());
    home.pull(&request("user/repo")).unwrap();
    let tokens = |asked: Vec<Asked>| -> Vec<Option<String>> {
        asked.iter().map(|asked| asked.header("authorization").map(str::to_owned)).collect()
    };
    assert_eq!(tokens(fake.hub.asked()), vec![Some("Bearer hf_secret".to_owned()); 3]);
    assert_eq!(tokens(fake.storage.asked()), [None]);
    // Nor by another port of the endpoint's host that is asked directly, nor by the endpoint after a detour.
    let back = format!("{}/user/repo/resolve/{COMMIT}/m.gguf", fake.hub.url);
    let detour = Server::start(move |_| Reply::redirect(back.clone()));
    home.pull(&request(&format!("{}/m.gguf", detour.url))).unwrap();
    assert_eq!(tokens(detour.asked()), [None]);
    assert_eq!(tokens(fake.hub.asked())[3..], [None]);
}

#[test]
fn what_is_in_the_cache_is_found_without_a_network() {
    let fake = FakeHub::start(&[("m-Q8_0.gguf", &content(3000)), ("n-Q4_K_M.gguf", &content(10))]);
    let home = Home::new(&fake.hub.url);
    let pulled = home.pull(&request("user/repo:Q8_0")).unwrap();
    drop(fake);
    let hub = home.hub();
    for reference in ["user/repo", "user/repo:q8_0"] {
        assert_eq!(hub.cached(&request(reference)).unwrap().files[0].path, pulled.files[0].path);
    }
    let mut at_commit = request("user/repo");
    at_commit.revision = Some(COMMIT.parse().unwrap());
    assert_eq!(hub.cached(&at_commit).unwrap().files[0].bytes, 3000);
    let other_quant = hub.cached(&request("user/repo:Q4_K_M")).unwrap_err();
    assert!(other_quant.to_string().ends_with("there are: m-Q8_0.gguf"), "{other_quant}");
    let mut other_revision = request("user/repo");
    other_revision.revision = Some("other".parse().unwrap());
    for absent in [request("user/other"), other_revision] {
        let error = hub.cached(&absent).unwrap_err();
        assert!(matches!(error, Error::NotCached { .. }), "{error}");
    }
    // A link whose blob is gone is no file.
    let blob = fs::canonicalize(&pulled.files[0].path).unwrap();
    fs::remove_file(blob).unwrap();
    assert!(matches!(hub.cached(&request("user/repo")), Err(Error::NotCached { .. })));
}

#[test]
fn what_is_here_is_used_without_asking_unless_there_may_be_a_better_choice() {
    let fake = FakeHub::start(&[("a-Q8_0.gguf", &content(3000)), ("m-Q4_K_M.gguf", &content(10))]);
    let home = Home::new(&fake.hub.url);
    let hub = home.hub();
    let get = |reference| hub.cached_or_pull(&request(reference), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(!get("user/repo:Q8_0").files[0].from_cache);
    let asked = fake.hub.asked().len();
    assert!(get("user/repo:Q8_0").files[0].from_cache);
    assert_eq!(fake.hub.asked().len(), asked);
    // Of the one file that is here nobody knows that it is the one to choose.
    assert!(get("user/repo").files[0].path.ends_with("m-Q4_K_M.gguf"));
    let asked = fake.hub.asked().len();
    assert!(get("user/repo").files[0].from_cache);
    assert_eq!(fake.hub.asked().len(), asked);
}

#[test]
fn a_revision_is_asked_for_and_noted_under_its_name() {
    let fake = FakeHub::start(&[("m.gguf", &content(30))]);
    let home = Home::new(&fake.hub.url);
    let mut wanted = request("user/repo");
    wanted.revision = Some("refs/pr/7".parse().unwrap());
    home.pull(&wanted).unwrap();
    assert_eq!(fake.hub.asked()[0].path, "/api/models/user/repo/revision/refs%2Fpr%2F7");
    let refs = home.path().join("hub/models--user--repo/refs");
    assert_eq!(fs::read_to_string(refs.join("refs/pr/7")).unwrap(), COMMIT);
    wanted.revision = Some(COMMIT.parse().unwrap());
    home.pull(&wanted).unwrap();
    assert!(!refs.join(COMMIT).exists(), "a commit needs no note of where it is");
}

#[test]
fn all_parts_of_a_split_model_come_and_a_missing_one_is_named() {
    let names = ["s/m-00001-of-00002.gguf", "s/m-00002-of-00002.gguf"];
    let fake = FakeHub::start(&[(names[1], &content(20)), (names[0], &content(30))]);
    let home = Home::new(&fake.hub.url);
    let pulled = home.pull(&request("user/repo")).unwrap();
    let sizes: Vec<u64> = pulled.files.iter().map(|file| file.bytes).collect();
    assert_eq!(sizes, [30, 20]);
    let mut digest = request("user/repo");
    digest.sha256 = Some(Sha256::of(b""));
    let refused = home.pull(&digest).unwrap_err();
    assert!(matches!(refused, Error::Reference(ReferenceError::OnlyForOneFile { parts: 2, .. })), "{refused}");
    let fake = FakeHub::start(&[(names[0], &content(30))]);
    let home = Home::new(&fake.hub.url);
    let refused = home.refused(&request("user/repo"));
    assert!(matches!(&refused, Error::Choice { reason: ChoiceError::PartMissing { .. }, .. }), "{refused}");
    assert!(refused.to_string().contains("00002-of-00002"), "{refused}");
}

#[test]
fn a_file_that_is_not_there_is_answered_with_those_that_are() {
    let fake = FakeHub::start(&[("m-Q8_0.gguf", b"x"), ("a.gguf", b"y")]);
    let home = Home::new(&fake.hub.url);
    let refused = home.refused(&request("user/repo:Q2_K"));
    let expected = "user/repo at main: there is no GGUF file of the quantisation Q2_K; there are: a.gguf, m-Q8_0.gguf";
    assert_eq!(refused.to_string(), expected);
    let mut named = request("user/repo");
    named.file = Some("b.gguf".parse().unwrap());
    assert!(home.refused(&named).to_string().contains("there is no GGUF file \"b.gguf\""));
    named.file = Some("a.gguf".parse().unwrap());
    assert_eq!(home.bytes(&named), b"y");
    let both = muser_hub::PullRequest { file: named.file, ..request("user/repo:Q8_0") };
    let quant: Quant = "q8_0".parse().unwrap();
    let refused = home.pull(&both).unwrap_err();
    assert!(
        matches!(&refused, Error::Reference(ReferenceError::QuantAndFile { quant: named, .. }) if *named == quant),
        "{refused}"
    );
    let refused = home.pull(&request("user/absent")).unwrap_err();
    assert!(matches!(refused, Error::NotFound { .. }), "{refused}");
}

#[test]
fn a_hub_that_is_busy_is_asked_again() {
    let busy = std::sync::atomic::AtomicUsize::new(0);
    let server = Server::start(move |asked| match busy.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % 3 {
        0 => Reply::status(503),
        1 => Reply::status(429),
        _ if asked.path.starts_with("/api/") => Reply::ok(listing(["m.gguf"])),
        _ => Reply::ok("small").with("ETag", "\"0123abc\""),
    });
    let home = Home::new(&server.url);
    // A file that is kept without a digest for its name, and is not redirected.
    let file = home.pull(&request("user/repo")).unwrap().files.remove(0);
    assert_eq!(fs::read_link(&file.path).unwrap(), Path::new("../../blobs/0123abc"));
    assert_eq!((file.bytes, file.sha256), (5, Some(Sha256::of(b"small"))));
    assert_eq!(server.asked().len(), 9);
}

#[test]
fn a_digest_that_the_hub_does_not_have_is_refused_before_a_byte_comes() {
    let fake = FakeHub::start(&[("m.gguf", &content(3000))]);
    let home = Home::new(&fake.hub.url);
    let mut wanted = request("user/repo");
    wanted.sha256 = Some(Sha256::of(b"other"));
    assert!(matches!(home.refused(&wanted), Error::Digest { .. }));
    assert_eq!(fake.storage.asked().len(), 0);
    wanted.sha256 = Some(Sha256::of(&content(3000)));
    wanted.output = Some(home.path().join("mine"));
    assert_eq!(home.bytes(&wanted), content(3000));
    assert_eq!(home.whole_files(), ["mine"]);
    assert!(home.hub().cached(&wanted).unwrap().files[0].from_cache);
    wanted.sha256 = None;
    assert!(matches!(home.hub().cached(&wanted), Err(Error::NotCached { .. })));
}

#[test]
fn an_interrupted_blob_is_gone_on_with_by_a_later_pull() {
    let whole = content(30_000);
    let fake = FakeHub::start(&[("m.gguf", &whole)]);
    fake.trouble(|asked, content| Some(Reply::file(asked, content, "\"s\"").cut_after(7000)));
    let mut home = Home::new(&fake.hub.url);
    home.settings.retry_pauses = vec![Duration::ZERO; 1];
    let error = home.refused(&request("user/repo"));
    assert!(matches!(&error, Error::GaveUp { partial: Some((_, 14_000)), .. }), "{error}");
    let (path, kept) = home.partial();
    assert!(path.ends_with(format!("blobs/{}.incomplete", Sha256::of(&whole))), "{path:?}");
    assert_eq!(kept, whole[..14_000]);
    fake.trouble(|asked, content| Some(Reply::file(asked, content, "\"s\"")));
    assert_eq!(home.bytes(&request("user/repo")), whole);
    let starts: Vec<_> = fake.storage.asked().iter().map(Asked::range_start).collect();
    assert_eq!(starts, [None, Some(7000), Some(14_000)]);
    assert_eq!(fake.storage.asked()[2].header("if-range"), Some("\"s\""));
}

#[test]
fn what_does_not_begin_as_it_should_never_gets_the_models_name_and_is_asked_for_again() {
    let (page, model) = (b"<!DOCTYPE html><title>blocked".as_slice(), [b"GGUF", content(3000).as_slice()].concat());
    let proxied = FakeHub::start(&[("m.gguf", page)]);
    let mut home = Home::new(&proxied.hub.url);
    let asked = PullRequest { magic: b"GGUF", ..request("user/repo") };
    let refused = home.refused(&asked);
    assert!(matches!(refused, Error::Magic { .. }), "{refused}");
    assert_eq!(
        refused.to_string(),
        r#"m.gguf: what came begins with "<!DOCTYPE html><", and should begin with "GGUF""#
    );
    assert_eq!(home.partial_files(), [""; 0]);
    // One that an earlier pull, or the hub's own client, kept under the model's name.
    let by_quant = PullRequest { file: Some("m.gguf".parse().unwrap()), ..asked };
    let kept = home.pull(&PullRequest { magic: b"", ..by_quant.clone() }).unwrap();
    assert_eq!(fs::read(&kept.files[0].path).unwrap(), page);
    assert!(matches!(home.hub().cached(&by_quant), Err(Error::NotCached { .. })));
    let healthy = FakeHub::start(&[("m.gguf", &model)]);
    home.settings.endpoint = healthy.hub.url.parse().unwrap();
    let pulled = home.hub().cached_or_pull(&by_quant, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(fs::read(&pulled.files[0].path).unwrap(), model);
    assert!(!pulled.files[0].from_cache);
    // Of the model's size, under the name that its digest gives.
    let page = vec![b'<'; model.len()];
    fs::write(&pulled.files[0].path, page).unwrap();
    assert_eq!(home.bytes(&by_quant), model);
}

#[test]
fn a_cached_file_that_is_doubted_is_read_and_brought_again_unless_its_digest_is_right() {
    let whole = content(3000);
    let fake = FakeHub::start(&[("m.gguf", &whole)]);
    let home = Home::new(&fake.hub.url);
    let doubting = PullRequest { cached: CachedContent::Doubted, ..request("user/repo") };
    let path = home.pull(&doubting).unwrap().files.remove(0).path;
    assert!(home.pull(&doubting).unwrap().files[0].from_cache);
    let mut other = whole.clone();
    other[1000] ^= 1;
    fs::write(&path, &other).unwrap();
    assert_eq!(home.bytes(&request("user/repo")), other, "of this size it is believed");
    assert_eq!(home.bytes(&doubting), whole);
    let address = format!("{}/{}", fake.storage.url, Sha256::of(&whole));
    let path = home.pull(&request(&address)).unwrap().files.remove(0).path;
    fs::write(&path, &other).unwrap();
    let doubting = PullRequest { cached: CachedContent::Doubted, ..request(&address) };
    assert_eq!(home.bytes(&doubting), whole);
}
