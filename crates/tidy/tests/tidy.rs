//! Runs every rule over the repository. Each rule has its own file in `tidy/`, with a test that plants violations.

#[path = "tidy/arguments.rs"]
mod arguments;
#[path = "tidy/arrows.rs"]
mod arrows;
#[path = "tidy/comments.rs"]
mod comments;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/glossary.rs"]
mod glossary;
#[path = "tidy/invariants.rs"]
mod invariants;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/records.rs"]
mod records;
#[path = "tidy/repository.rs"]
mod repository;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/words.rs"]
mod words;

use repository::Repository;

#[test]
fn the_repository_obeys_the_house_rules() {
    let repository = Repository::read();
    let sources = repository.texts_ending_in(".rs");
    assert!(sources.len() > 10, "only {} source files found: is this the repository?", sources.len());
    let broken: Vec<String> = [
        source::long_files(&sources, source::LONG_FILES),
        source::files_without_an_introduction(&sources),
        comments::opening_with_a_question(&sources),
        names::defined_twice(&sources, names::SHARED),
        arguments::packed_in_tuples(&sources, arguments::PACKED),
        words::outside_their_home(&sources),
        words::forbidden(&sources),
        words::unsafe_not_forbidden(&sources),
        arrows::against_the_order(&repository.texts_ending_in("Cargo.toml")),
        documents::crates_missing_from_the_map(&repository),
        documents::dead_paths(&repository),
        documents::dead_links(&repository),
        glossary::unknown_types(&repository),
        invariants::without_a_keeper(&repository),
        records::incomplete(&repository),
    ]
    .concat();
    assert!(broken.is_empty(), "{} broken rules:\n{}", broken.len(), broken.join("\n"));
}
