//! Models in several files: found by the first one's name, and refused when they do not make a whole.

mod common;

use common::{Raw, everything};
use muser_weights::gguf::{GgufFault, MetadataError, ModelFiles, ModelOpenError, SplitError, ValueType};
use std::fs;
use std::path::PathBuf;

/// A folder for the shards of a model.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A folder with `count` whole shards of one tensor each, `t1`, `t2` and so on.
    fn with_shards(count: u16) -> Self {
        let folder = Self::new();
        (1..=count).for_each(|number| folder.write(number, count, shard(number, count, &format!("t{number}"))));
        folder
    }

    fn path(&self, number: u16, count: u16) -> PathBuf {
        self.0.path().join(format!("some-model-{number:05}-of-{count:05}.gguf"))
    }

    fn write(&self, number: u16, count: u16, raw: Raw) {
        fs::write(self.path(number, count), raw.0).unwrap();
    }

    /// Refusal of the model of `count` shards, the first one being opened.
    fn reason(&self, count: u16) -> SplitError {
        split_reason(ModelFiles::open(&self.path(1, count)).unwrap_err())
    }
}

fn split_reason(error: ModelOpenError) -> SplitError {
    match error {
        ModelOpenError::Split { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

fn split_keys(raw: Raw, number: u16, count: u16) -> Raw {
    raw.key("split.no", 2).bytes(&(number - 1).to_le_bytes()).key("split.count", 2).bytes(&count.to_le_bytes())
}

/// A shard with one tensor, whose data is its number.
fn shard(number: u16, count: u16, tensor: &str) -> Raw {
    let header = split_keys(Raw::header(1, 2), number, count).tensor(tensor, &[1], 0, 0).pad(32);
    header.u32(number.into())
}

#[test]
fn the_tensors_of_all_shards_are_one_set() {
    let folder = Folder::with_shards(11);
    let files = ModelFiles::open(&folder.path(1, 11)).unwrap();
    let names: Vec<_> = files.tensors().map(|tensor| tensor.name().to_owned()).collect();
    assert_eq!(names, (1..=11).map(|number| format!("t{number}")).collect::<Vec<_>>());
    for number in 1..=11u32 {
        assert_eq!(files.weight(&format!("t{number}")).unwrap().bytes, number.to_le_bytes());
    }
    let paths: Vec<_> = (1..=11).map(|number| folder.path(number, 11)).collect();
    assert_eq!(files.paths().collect::<Vec<_>>(), paths);
}

#[test]
fn a_later_shard_is_refused_with_the_name_of_the_first() {
    let folder = Folder::with_shards(3);
    let error = ModelFiles::open(&folder.path(2, 3)).unwrap_err();
    assert!(error.to_string().contains("some-model-00001-of-00003.gguf"), "{error}");
    assert_eq!(split_reason(error), SplitError::NotFirst { number: 2, count: 3, first: folder.path(1, 3) });
}

#[test]
fn a_missing_shard_is_named() {
    let folder = Folder::with_shards(3);
    fs::remove_file(folder.path(2, 3)).unwrap();
    assert_eq!(folder.reason(3), SplitError::Missing { number: 2, count: 3, path: folder.path(2, 3) });
}

#[test]
fn a_shard_must_be_named_like_one() {
    let folder = Folder::with_shards(2);
    for name in ["model.gguf", "m-00001-of-00003.gguf", "m-1-of-2.gguf", "m-00001-of-00002.GGUF", "00001-of-00002.gguf"]
    {
        let path = folder.0.path().join(name);
        fs::copy(folder.path(1, 2), &path).unwrap();
        let expected = "<name>-00001-of-00002.gguf".into();
        let reason = split_reason(ModelFiles::open(&path).unwrap_err());
        assert_eq!(reason, SplitError::Name { number: 1, count: 2, expected }, "{name}");
    }
    let in_memory = ModelFiles::from_bytes(shard(1, 2, "t").0).unwrap_err();
    assert!(matches!(split_reason(in_memory), SplitError::Name { number: 1, count: 2, .. }));
}

#[test]
fn a_shard_numbers_itself_within_the_count() {
    let folder = Folder::new();
    for (number, count) in [(1, 0), (3, 2), (65_535, 1)] {
        folder.write(1, 2, shard(number, count, "t"));
        assert_eq!(folder.reason(2), SplitError::Number { number: number.into(), count: count.into() });
    }
}

#[test]
fn the_numbers_of_later_shards_agree_with_their_place() {
    let folder = Folder::with_shards(3);
    let path = folder.path(2, 3);
    let found = |found_number, found_count| SplitError::Disagrees {
        path: path.clone(),
        found_number,
        found_count,
        number: 2,
        count: 3,
    };
    folder.write(2, 3, shard(3, 3, "t2"));
    assert_eq!(folder.reason(3), found(3, 3));
    folder.write(2, 3, shard(2, 4, "t2"));
    assert_eq!(folder.reason(3), found(2, 4));
    folder.write(2, 3, Raw(everything()));
    assert_eq!(folder.reason(3), found(1, 1));
}

#[test]
fn no_tensor_is_in_two_shards() {
    let folder = Folder::with_shards(3);
    folder.write(3, 3, shard(3, 3, "t1"));
    let (first, second) = (folder.path(1, 3), folder.path(3, 3));
    assert_eq!(folder.reason(3), SplitError::DuplicateTensor { name: "t1".into(), first, second });
}

#[test]
fn the_stated_number_of_tensors_is_found() {
    let counted = |count: u32| {
        let folder = Folder::with_shards(2);
        let header = split_keys(Raw::header(1, 3), 1, 2).key("split.tensors.count", 5).u32(count);
        folder.write(1, 2, header.tensor("t1", &[1], 0, 0).pad(32).u32(1));
        folder
    };
    assert_eq!(ModelFiles::open(&counted(2).path(1, 2)).unwrap().tensor_count(), 2);
    assert_eq!(counted(3).reason(2), SplitError::TensorCount { stated: 3, found: 2 });
    assert_eq!(counted(1).reason(2), SplitError::TensorCount { stated: 1, found: 2 });
    let negative = counted(u32::MAX);
    match ModelFiles::open(&negative.path(1, 2)) {
        Err(ModelOpenError::Metadata { reason, .. }) => {
            let key = "split.tensors.count".into();
            assert_eq!(reason, MetadataError::OutOfRange { key, wanted: "a u64", value: -1 });
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn split_keys_are_integers_that_fit() {
    let reason = |raw: Raw| match ModelFiles::from_bytes(raw.0) {
        Err(ModelOpenError::Metadata { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let wrong = |key: &str, wanted, found| MetadataError::WrongType { key: key.into(), wanted, found };
    let string = Raw::header(0, 1).key("split.no", 8).string(b"0");
    assert_eq!(reason(string), wrong("split.no", "a u32", ValueType::String));
    let large = Raw::header(0, 1).key("split.count", 4).u32(65_536);
    let key = "split.count".into();
    assert_eq!(reason(large), MetadataError::OutOfRange { key, wanted: "a u16", value: 65_536 });
}

#[test]
fn one_shard_of_one_may_have_any_name() {
    let folder = Folder::new();
    let path = folder.0.path().join("whole.gguf");
    fs::write(&path, shard(1, 1, "t").0).unwrap();
    assert_eq!(ModelFiles::open(&path).unwrap().tensor_count(), 1);
}

#[test]
fn a_damaged_shard_is_named() {
    let folder = Folder::with_shards(2);
    fs::write(folder.path(2, 2), b"GGUX").unwrap();
    match ModelFiles::open(&folder.path(1, 2)) {
        Err(ModelOpenError::Gguf { path, reason }) => {
            assert_eq!((path, reason.fault), (folder.path(2, 2), GgufFault::NotGguf { found: *b"GGUX" }));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_path_that_is_not_a_file_is_refused() {
    let folder = Folder::new();
    let refused = |path: PathBuf| match ModelFiles::open(&path) {
        Err(ModelOpenError::Io { path: named, reason }) => {
            assert_eq!(named, path);
            reason.kind()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(folder.0.path().join("absent")), std::io::ErrorKind::NotFound);
    assert_eq!(refused(folder.0.path().into()), std::io::ErrorKind::InvalidInput);
}
