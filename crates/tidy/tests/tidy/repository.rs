//! The files of the repository, read once. Rules look at this and never at the disk, so that tests can plant violations.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Paths are relative to the root, with `/`.
#[derive(Default)]
pub struct Repository {
    texts: BTreeMap<String, String>,
    /// Every file and folder, also those that are not text.
    paths: Vec<String>,
}

/// A file's path and content.
pub type Text<'a> = (&'a str, &'a str);

/// Endings of the files whose text is read.
const TEXT_ENDINGS: [&str; 4] = [".rs", ".md", ".json", "Cargo.toml"];

impl Repository {
    /// Reads the repository that this crate lies in.
    pub fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut repository = Self::default();
        repository.read_folder(&root, "");
        repository
    }

    /// A made-up repository, for tests of the rules.
    pub fn of(files: &[Text<'_>]) -> Self {
        let mut repository = Self::default();
        for &(path, text) in files {
            repository.texts.insert(path.into(), text.into());
            let folders = path.match_indices('/').map(|(end, _)| path[..end].to_owned());
            repository.paths.extend(folders.chain([path.to_owned()]));
        }
        repository
    }

    pub fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    pub fn has(&self, path: &str) -> bool {
        self.paths.iter().any(|known| known == path)
    }

    pub fn texts_ending_in(&self, ending: &str) -> Vec<Text<'_>> {
        let all = self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        all.filter(|(path, _)| path.ends_with(ending)).collect()
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !is_foreign(&name) {
                self.read_folder(&entry.path(), &format!("{path}/"));
            } else if kind.is_file() && TEXT_ENDINGS.iter().any(|ending| name.ends_with(ending)) {
                let text = fs::read_to_string(entry.path()).unwrap_or_else(|error| panic!("{path}: {error}"));
                self.texts.insert(path.clone(), text);
            }
            self.paths.push(path);
        }
    }
}

/// Build products, what a fuzzer found, and what tools and editors keep in hidden folders.
fn is_foreign(folder: &str) -> bool {
    ["target", "corpus", "artifacts", "node_modules"].contains(&folder) || folder.starts_with('.')
}
