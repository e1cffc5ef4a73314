//! A file's path inside a repository or a folder: it cannot lead out of there. And the names of a split model's parts.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Bytes of a whole path.
const PATH_BYTES_MAX: usize = 1024;
/// Bytes of one folder's or file's name, less what `.incomplete` needs on usual file systems.
const PART_BYTES_MAX: usize = 240;

/// A relative path with `/` between its parts, none of which is empty, `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(String);

/// Parse error of a [`FileName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileNameError {
    /// A part that names nothing, this folder, or the folder above; or an absolute path.
    #[error("file name {name:?} has the part {part:?}, which could lead elsewhere")]
    Part {
        /// The name.
        name: String,
        /// The part between two `/`.
        part: String,
    },
    /// A character that file systems or terminals give a meaning.
    #[error("file name {name:?} contains {character:?}")]
    Character {
        /// The name.
        name: String,
        /// The first such character.
        character: char,
    },
    /// Longer than file systems allow.
    #[error("a file name of {bytes} bytes, at most {max} are possible")]
    TooLong {
        /// Length of the path, or of one part of it.
        bytes: usize,
        /// The limit on it.
        max: usize,
    },
}

impl FromStr for FileName {
    type Err = FileNameError;

    fn from_str(name: &str) -> Result<Self, FileNameError> {
        if name.len() > PATH_BYTES_MAX {
            return Err(FileNameError::TooLong { bytes: name.len(), max: PATH_BYTES_MAX });
        }
        // A colon makes a path absolute on some systems, a backslash separates parts there.
        let forbidden = |c: &char| c.is_control() || matches!(c, '\\' | ':');
        if let Some(character) = name.chars().find(forbidden) {
            return Err(FileNameError::Character { name: name.into(), character });
        }
        for part in name.split('/') {
            if matches!(part, "" | "." | "..") {
                return Err(FileNameError::Part { name: name.into(), part: part.into() });
            }
            if part.len() > PART_BYTES_MAX {
                return Err(FileNameError::TooLong { bytes: part.len(), max: PART_BYTES_MAX });
            }
        }
        Ok(Self(name.into()))
    }
}

impl FileName {
    /// The path with `/` between its parts.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The parts of the path; the last is the file's own name.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/')
    }

    /// The file's own name, without folders.
    pub fn last(&self) -> &str {
        self.parts().next_back().unwrap_or_default()
    }

    /// The path in the system's terms.
    pub fn to_path(&self) -> PathBuf {
        self.parts().collect()
    }

    /// True if the name ends in `.gguf`, in any case, and is longer than that.
    pub fn is_gguf(&self) -> bool {
        self.0.len() > 5 && self.0.as_bytes()[self.0.len() - 5..].eq_ignore_ascii_case(b".gguf")
    }

    /// Part number, counted from 1, and part count of a split model, parsed from the name.
    pub fn part_of_split(&self) -> Option<(u32, u32)> {
        let (_, number, count) = split(&self.0)?;
        Some((number, count))
    }

    /// The names of all parts of the split model that this is a part of, in order; this name alone for a whole file.
    pub fn all_parts(&self) -> Vec<Self> {
        match split(&self.0) {
            None => vec![self.clone()],
            Some((prefix, _, count)) => {
                (1..=count).map(|number| Self(format!("{prefix}-{number:05}-of-{count:05}.gguf"))).collect()
            }
        }
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Splits `PREFIX-00001-of-00003.gguf` into prefix, number and count.
fn split(name: &str) -> Option<(&str, u32, u32)> {
    let rest = name.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let decimal = |digits: &str| {
        let plain = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| digits.parse::<u32>().ok()).flatten()
    };
    let (number, count) = (decimal(number)?, decimal(count)?);
    (1..=count).contains(&number).then_some((prefix, number, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_lead_out_of_its_folder_is_refused() {
        for part in ["..", "../x", "a/../b", "a/..", "/x", "//x", "a//b", "a/", "", ".", "./a", "a/./b"] {
            assert!(matches!(part.parse::<FileName>(), Err(FileNameError::Part { .. })), "{part:?}");
        }
        for name in ["a\\b", "..\\x", "C:x", "a\0b", "a\nb", "a\u{1b}[31mb", "a\u{9b}b"] {
            assert!(matches!(name.parse::<FileName>(), Err(FileNameError::Character { .. })), "{name:?}");
        }
        let long = "x".repeat(241);
        assert_eq!(long.parse::<FileName>(), Err(FileNameError::TooLong { bytes: 241, max: 240 }));
        let deep = "x/".repeat(600) + "x";
        assert_eq!(deep.parse::<FileName>(), Err(FileNameError::TooLong { bytes: 1201, max: 1024 }));
        for good in ["a", "...", "..a", "a..", "a b/ü.gguf", "Q4_K_M/x-00001-of-00002.gguf"] {
            assert_eq!(good.parse::<FileName>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn the_parts_of_a_split_model_are_named_from_any_of_them() {
        let part: FileName = "q/m-00002-of-00003.gguf".parse().unwrap();
        assert_eq!(part.part_of_split(), Some((2, 3)));
        let names: Vec<String> = part.all_parts().iter().map(FileName::to_string).collect();
        assert_eq!(names, ["q/m-00001-of-00003.gguf", "q/m-00002-of-00003.gguf", "q/m-00003-of-00003.gguf"]);
        let whole = [
            "m.gguf",
            "m-1-of-3.gguf",
            "m-00000-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-00001-of-00000.gguf",
            "m-+0001-of-00003.gguf",
            "m-00001-of-00003.bin",
        ];
        for name in whole {
            let name: FileName = name.parse().unwrap();
            assert_eq!((name.part_of_split(), name.all_parts().len()), (None, 1), "{name}");
        }
    }
}
