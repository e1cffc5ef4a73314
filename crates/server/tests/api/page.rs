//! The page to talk to the model in a browser, as far as it is files. What it does is checked with a browser, by
//! `scripts/check_page.py`.

use crate::client::begin;
use crate::world::World;

const FILES: [(&str, &str); 4] = [
    ("/", "text/html; charset=utf-8"),
    ("/page.css", "text/css; charset=utf-8"),
    ("/page.js", "text/javascript; charset=utf-8"),
    ("/page.svg", "image/svg+xml"),
];

#[test]
fn the_files_have_their_types_and_a_policy_that_allows_nothing_foreign() {
    let world = World::shipped();
    for (path, media_type) in FILES {
        let answer = world.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(media_type)), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        let rules: Vec<&str> = policy.split("; ").collect();
        for rule in ["default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"] {
            assert!(rules.contains(&rule), "{path}: {rule} is missing in {policy}");
        }
        let sources = rules.iter().filter_map(|rule| rule.split_once(' '));
        assert!(sources.clone().count() >= 8 && sources.clone().all(|(_, from)| from == "'self'" || from == "'none'"));
    }
}

#[test]
fn the_files_are_small_and_name_no_other_place() {
    let world = World::shipped();
    let bodies = FILES.map(|(path, _)| (path, world.get(path).body));
    let bytes: usize = bodies.iter().map(|(_, body)| body.len()).sum();
    assert!(bytes < 40_000, "{bytes} bytes in all");
    for (path, body) in bodies {
        assert!(!body.is_empty(), "{path}");
        // The name space of SVG is a name, and no address that is opened.
        let body = body.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["://", "@import", "src=\"//", "href=\"//", "url("] {
            assert!(!body.contains(foreign), "{path} has {foreign}");
        }
        for markup in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=\"", "onclick="]
        {
            assert!(!body.contains(markup), "{path} has {markup}");
        }
    }
}

#[test]
fn a_file_that_the_browser_has_is_not_sent_again_and_a_head_request_gets_no_body() {
    let world = World::shipped();
    for (path, media_type) in FILES {
        let whole = world.get(path);
        let tag = whole.header("etag").unwrap();
        assert_eq!(whole.header("cache-control"), Some("no-cache"));
        for held in [tag.to_owned(), format!("\"other\", W/{tag}")] {
            let again = begin(world.address, "GET", path, &[("If-None-Match", &held)], b"").finish();
            assert_eq!((again.status, again.body.as_str(), again.header("etag")), (304, "", Some(tag)), "{path}");
        }
        let changed = begin(world.address, "GET", path, &[("If-None-Match", "\"other\"")], b"").finish();
        assert_eq!((changed.status, &changed.body), (200, &whole.body));
        let head = begin(world.address, "HEAD", path, &[], b"").finish();
        assert_eq!((head.status, head.body.as_str(), head.header("content-type")), (200, "", Some(media_type)));
        assert_eq!(head.header("content-length"), Some(whole.body.len().to_string().as_str()));
    }
    let written = begin(world.address, "POST", "/page.js", &[], b"").finish();
    written.refused(405, "invalid_request_error");
}
