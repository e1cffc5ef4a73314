//! File listing of a repository at a revision, and choice of a model's files from it.

use serde::Deserialize;

use crate::file_name::{FileName, FileNameError};
use crate::reference::{Quant, is_commit};

/// Names of files that an error lists.
const SHOWN_FILES: usize = 40;

/// The GGUF files of a repository at a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The commit: 40 hexadecimal digits.
    pub commit: String,
    /// The GGUF files, sorted by name.
    pub files: Vec<FileName>,
}

/// Parse error of a [`Listing`].
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// Larger than any list of files needs to be.
    #[error("the list of files has more than {max} bytes")]
    TooLarge {
        /// The limit.
        max: usize,
    },
    /// Not the JSON that hubs send.
    #[error("the list of files cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// The commit has another form.
    #[error("the list of files names the commit {0:?}, and not 40 hexadecimal digits")]
    Commit(String),
    /// A file's name that could lead elsewhere.
    #[error("the list of files is refused: {0}")]
    FileName(#[from] FileNameError),
}

/// Rule for choosing a model's file.
#[derive(Clone, Copy, Debug)]
pub enum FileChoice<'a> {
    /// Q4_K_M if there is one, else the first by name.
    Default,
    /// The first by name of this quantisation.
    Quant(&'a Quant),
    /// The one of this name.
    File(&'a FileName),
}

/// Reasons for which no file could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// The repository has no GGUF file.
    #[error("there is no GGUF file")]
    NoGguf,
    /// No file is what was asked for.
    #[error("there is no GGUF file {wanted}; there are: {}", shown(available))]
    NoMatch {
        /// Requested name or quantisation.
        wanted: String,
        /// All GGUF files of the repository.
        available: Vec<FileName>,
    },
    /// A part of a split model is not there.
    #[error("the split model lacks its part {part:?}; there are: {}", shown(available))]
    PartMissing {
        /// The part's name.
        part: FileName,
        /// All GGUF files of the repository.
        available: Vec<FileName>,
    },
}

fn shown(files: &[FileName]) -> String {
    let names: Vec<&str> = files.iter().take(SHOWN_FILES).map(FileName::as_str).collect();
    let more = files.len().saturating_sub(SHOWN_FILES);
    names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

impl Listing {
    /// Bytes of the largest answer that is read.
    pub const BYTES_MAX: usize = 16 << 20;

    /// Parses the hub's model info of a repository.
    ///
    /// # Errors
    /// If it is no such answer, is too large, or names a GGUF file that could lead out of its folder.
    pub fn parse(json: &[u8]) -> Result<Self, ListingError> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
            #[serde(default)]
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        if json.len() > Self::BYTES_MAX {
            return Err(ListingError::TooLarge { max: Self::BYTES_MAX });
        }
        let Info { sha, siblings } = serde_json::from_slice(json)?;
        if !is_commit(&sha) {
            return Err(ListingError::Commit(sha.chars().take(80).collect()));
        }
        let is_gguf = |name: &str| name.to_ascii_lowercase().ends_with(".gguf");
        let names = siblings.iter().map(|sibling| sibling.rfilename.as_str()).filter(|name| is_gguf(name));
        let mut files = names.map(str::parse).collect::<Result<Vec<FileName>, _>>()?;
        files.sort_unstable();
        files.dedup();
        Ok(Self { commit: sha, files })
    }

    /// The files to fetch: one, or all parts of a split model in order.
    ///
    /// # Errors
    /// If no file is what is wanted, or a part of it is missing.
    pub fn choose(&self, wanted: FileChoice<'_>) -> Result<Vec<FileName>, ChoiceError> {
        let available = || self.files.clone();
        if self.files.is_empty() {
            return Err(ChoiceError::NoGguf);
        }
        let first_of = |quant: &Quant| self.models().find(|file| quant.is_in(file.as_str()));
        let (chosen, description) = match wanted {
            FileChoice::Default => {
                let chosen = first_of(&Quant::default_choice()).or_else(|| self.models().next());
                (chosen.or(self.files.first()), "that is a model".to_owned())
            }
            FileChoice::Quant(quant) => (first_of(quant), format!("of the quantisation {quant}")),
            FileChoice::File(name) => (self.files.iter().find(|file| *file == name), format!("{:?}", name.as_str())),
        };
        let Some(chosen) = chosen else {
            return Err(ChoiceError::NoMatch { wanted: description, available: available() });
        };
        let parts = chosen.all_parts();
        match parts.iter().find(|part| self.files.binary_search(part).is_err()) {
            Some(part) => Err(ChoiceError::PartMissing { part: part.clone(), available: available() }),
            None => Ok(parts),
        }
    }

    /// Files that are a language model, or begin one: no later parts, projectors or calibration data.
    fn models(&self) -> impl Iterator<Item = &FileName> {
        self.files.iter().filter(|file| {
            let name = file.last().to_ascii_lowercase();
            let is_first = file.part_of_split().is_none_or(|(number, _)| number == 1);
            is_first && !name.contains("mmproj") && !name.contains("imatrix")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn listing(names: &[&str]) -> Listing {
        let siblings: Vec<_> = names.iter().map(|name| serde_json::json!({ "rfilename": name })).collect();
        let json = serde_json::json!({ "sha": COMMIT, "siblings": siblings, "likes": 3 });
        Listing::parse(json.to_string().as_bytes()).unwrap()
    }

    #[track_caller]
    fn chosen(names: &[&str], wanted: FileChoice<'_>) -> Vec<String> {
        listing(names).choose(wanted).unwrap().iter().map(FileName::to_string).collect()
    }

    fn quant(name: &str) -> Quant {
        name.parse().unwrap()
    }

    #[test]
    fn without_a_quantisation_q4_k_m_is_taken_or_the_first_by_name() {
        let names = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-IQ2_M.gguf", "README.md"];
        assert_eq!(chosen(&names, FileChoice::Default), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen(&["z.gguf", "b/Q8_0.gguf", "c.gguf"], FileChoice::Default), ["b/Q8_0.gguf"]);
        let beside = ["imatrix.gguf", "mmproj-m-Q4_K_M.gguf", "n.gguf"];
        assert_eq!(chosen(&beside, FileChoice::Default), ["n.gguf"]);
        assert_eq!(chosen(&beside[..2], FileChoice::Default), ["imatrix.gguf"]);
    }

    #[test]
    fn a_quantisation_or_a_name_chooses_the_file() {
        let names = ["m-Q4_K_S.gguf", "m-Q4_K_M.gguf", "m-q8_0.gguf", "mmproj-Q8_0.gguf"];
        assert_eq!(chosen(&names, FileChoice::Quant(&quant("q4_k_s"))), ["m-Q4_K_S.gguf"]);
        assert_eq!(chosen(&names, FileChoice::Quant(&quant("Q8_0"))), ["m-q8_0.gguf"]);
        assert_eq!(chosen(&names, FileChoice::File(&names[3].parse().unwrap())), ["mmproj-Q8_0.gguf"]);
    }

    #[test]
    fn a_split_model_is_all_its_parts_in_order() {
        let parts = ["Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf"];
        let names = [parts[1], "z.gguf", parts[0]];
        assert_eq!(chosen(&names, FileChoice::Quant(&quant("Q8_0"))), parts);
        assert_eq!(chosen(&names, FileChoice::File(&parts[1].parse().unwrap())), parts);
        assert_eq!(chosen(&names, FileChoice::Default), parts);
        let refused = listing(&[parts[0], "z.gguf"]).choose(FileChoice::Default).unwrap_err();
        assert!(matches!(&refused, ChoiceError::PartMissing { part, .. } if part.as_str() == parts[1]), "{refused}");
    }

    #[test]
    fn a_choice_that_is_not_there_lists_what_is() {
        let refused =
            listing(&["b.gguf", "a-Q8_0.gguf", "c.bin"]).choose(FileChoice::Quant(&quant("Q2_K"))).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "there is no GGUF file of the quantisation Q2_K; there are: a-Q8_0.gguf, b.gguf"
        );
        assert_eq!(listing(&["c.bin"]).choose(FileChoice::Default), Err(ChoiceError::NoGguf));
        let many: Vec<String> = (0..45).map(|number| format!("{number:02}.gguf")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let refused = listing(&many).choose(FileChoice::File(&"x.gguf".parse().unwrap())).unwrap_err().to_string();
        assert!(refused.contains("\"x.gguf\"") && refused.ends_with("39.gguf and 5 more"), "{refused}");
    }

    #[test]
    fn an_answer_that_is_no_listing_is_refused() {
        let good = format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"a.gguf"}}]}}"#);
        Listing::parse(good.as_bytes()).unwrap();
        for end in 0..good.len() {
            assert!(matches!(Listing::parse(&good.as_bytes()[..end]), Err(ListingError::Json(_))), "{end}");
        }
        for name in ["../a.gguf", "/a.gguf", "a/../../b.GGUF", "..\\\\a.gguf", "a\\u0000.gguf"] {
            let hostile = good.replace("a.gguf", name);
            assert!(matches!(Listing::parse(hostile.as_bytes()), Err(ListingError::FileName(_))), "{name}");
        }
        for sha in ["..", "", "0123", &COMMIT.to_uppercase(), &format!("{COMMIT}0")] {
            let hostile = good.replace(COMMIT, sha);
            assert!(matches!(Listing::parse(hostile.as_bytes()), Err(ListingError::Commit(_))), "{sha}");
        }
        let huge = vec![b' '; Listing::BYTES_MAX + 1];
        assert!(matches!(Listing::parse(&huge), Err(ListingError::TooLarge { .. })));
    }
}
