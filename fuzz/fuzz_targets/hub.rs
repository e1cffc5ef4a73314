//! Any reference and any listing are refused or read, and no file that is chosen leads out of its folder.
//!
//! Run in this folder: `cargo +nightly fuzz run hub -- -max_len=4096 -rss_limit_mb=600`

#![no_main]

use std::path::Component;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use muser_hub::{FileName, Listing, Reference, Revision, Sha256, FileChoice};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    reference: &'a str,
    file: &'a str,
    revision: &'a str,
    digest: &'a str,
    /// An answer of any form.
    answer: &'a [u8],
    /// Names in an answer of the right form.
    names: Vec<&'a str>,
}

fuzz_target!(|input: Input| {
    let reference: Option<Reference> = input.reference.parse().ok();
    let file: Option<FileName> = input.file.parse().ok();
    if let Ok(revision) = input.revision.parse::<Revision>() {
        assert_eq!(revision.as_str(), input.revision);
        stays_inside(std::path::Path::new(revision.as_str()));
    }
    if let Ok(digest) = input.digest.parse::<Sha256>() {
        assert_eq!(digest.to_string(), input.digest.to_ascii_lowercase());
    }
    let siblings = input.names.iter().map(|name| format!("{{\"rfilename\":{name:?}}}")).collect::<Vec<_>>().join(",");
    let formed = format!("{{\"sha\":\"{}\",\"siblings\":[{siblings}]}}", "0a".repeat(20));
    for answer in [input.answer, formed.as_bytes()] {
        let Ok(listing) = Listing::parse(answer) else { continue };
        let mut wanted = vec![FileChoice::Default];
        wanted.extend(file.as_ref().map(FileChoice::File));
        if let Some(Reference::Repo { quant: Some(quant), .. }) = &reference {
            wanted.push(FileChoice::Quant(quant));
        }
        for wanted in wanted {
            for chosen in listing.choose(wanted).unwrap_or_default() {
                assert!(listing.files.contains(&chosen) && chosen.is_gguf());
                stays_inside(&chosen.to_path());
            }
        }
    }
});

/// Every part of the path is a name.
fn stays_inside(path: &std::path::Path) {
    assert!(path.components().count() > 0);
    assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{path:?}");
}
