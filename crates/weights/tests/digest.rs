//! Digests: the bytes they depend on, and the conditions under which the cache beside a model is used.

mod common;

use common::{Raw, everything};
use muser_weights::digest::{Digest, DigestError, DigestSource, FileDigest};
use muser_weights::gguf::{ModelFiles, TensorType};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn digest_of(bytes: Vec<u8>) -> FileDigest {
    FileDigest::compute(&ModelFiles::from_bytes(bytes).unwrap()).unwrap()
}

/// A file with two tensors, `a` and `b`, whose directory entries come in the given order.
fn two_tensors(order: [(&str, u8); 2]) -> Vec<u8> {
    let [(first, one), (second, two)] = order;
    let header = Raw::header(2, 0).tensor(first, &[2], 0, 0).tensor(second, &[2], 0, 32).pad(32);
    header.bytes(&[one; 8]).pad(32).bytes(&[two; 8]).0
}

/// A file with these tokenizer keys and string values.
fn tokenizer(keys: &[(&str, &str)]) -> Vec<u8> {
    let header = Raw::header(0, keys.len() as u64);
    keys.iter().fold(header, |raw, (key, value)| raw.key(key, 8).string(value.as_bytes())).0
}

#[test]
fn the_order_of_tensors_and_keys_does_not_matter() {
    let same = digest_of(two_tensors([("a", 1), ("b", 2)]));
    assert_eq!(digest_of(two_tensors([("b", 2), ("a", 1)])), same);
    let same = digest_of(tokenizer(&[("tokenizer.a", "1"), ("tokenizer.b", "2")]));
    assert_eq!(digest_of(tokenizer(&[("tokenizer.b", "2"), ("tokenizer.a", "1")])), same);
}

#[test]
fn every_name_type_dimension_and_byte_of_a_tensor_matters() {
    let file = |name: &str, shape: &[u64], type_id, data: &[u8]| {
        digest_of(Raw::header(1, 0).tensor(name, shape, type_id, 0).pad(32).bytes(data).0).tensors
    };
    let digests = [
        file("a", &[4, 2], 1, &[0; 16]),
        file("b", &[4, 2], 1, &[0; 16]),
        file("a", &[2, 4], 1, &[0; 16]),
        file("a", &[8], 1, &[0; 16]),
        file("a", &[4, 2, 1], 1, &[0; 16]),
        file("a", &[4, 2], 30, &[0; 16]),
        file("a", &[4, 2], 1, &[[0; 15].as_slice(), &[1]].concat()),
    ];
    for (index, digest) in digests.iter().enumerate() {
        assert!(!digests[..index].contains(digest), "{index}");
    }
    assert_ne!(digest_of(two_tensors([("a", 1), ("b", 2)])), digest_of(two_tensors([("a", 2), ("b", 1)])));
}

#[test]
fn tokenizer_metadata_matters_and_chat_templates_and_other_metadata_do_not() {
    let same = digest_of(tokenizer(&[("tokenizer.a", "1")])).tokenizer;
    let same_with = |key, value| digest_of(tokenizer(&[("tokenizer.a", "1"), (key, value)])).tokenizer == same;
    assert!(same_with("tokenizer.chat_template", "x"));
    assert!(same_with("tokenizer.chat_template.tool_use", "x"));
    assert!(same_with("tokenizer.chat_templates", "x"));
    assert!(same_with("general.name", "x"));
    assert!(same_with("tokenizers", "x"));
    assert!(!same_with("tokenizer.b", ""));
    assert_ne!(digest_of(tokenizer(&[("tokenizer.a", "2")])).tokenizer, same);
    assert_ne!(digest_of(tokenizer(&[("tokenizer.a1", "")])).tokenizer, same);
    let number = Raw::header(0, 1).key("tokenizer.a", 4).u32(1).0;
    let signed = Raw::header(0, 1).key("tokenizer.a", 5).u32(1).0;
    assert_ne!(digest_of(number).tokenizer, digest_of(signed).tokenizer);
}

#[test]
fn shards_have_the_digest_of_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = |number| folder.path().join(format!("m-0000{number}-of-00002.gguf"));
    for (number, name) in [(1, "a"), (2, "b")] {
        let header = Raw::header(1, 2).key("split.no", 2).bytes(&[number - 1, 0]).key("split.count", 2).bytes(&[2, 0]);
        let bytes = header.tensor(name, &[2], 0, 0).pad(32).bytes(&[number; 8]).0;
        fs::write(path(number), bytes).unwrap();
    }
    let split = FileDigest::compute(&ModelFiles::open(&path(1)).unwrap()).unwrap();
    assert_eq!(split, digest_of(two_tensors([("a", 1), ("b", 2)])));
}

#[test]
fn a_tensor_of_unknown_size_has_no_digest() {
    let bytes = Raw::header(1, 0).tensor("new", &[7], 1000, 0).pad(32).bytes(&[1]).0;
    let refused = FileDigest::compute(&ModelFiles::from_bytes(bytes).unwrap()).unwrap_err();
    assert_eq!(refused, DigestError::UnknownSize { name: "new".into(), ty: TensorType::from_ggml(1000) });
}

/// A model on disk, last modified in 2001.
struct OnDisk {
    folder: tempfile::TempDir,
}

fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(100)
}

const LONG_AGO: Duration = Duration::from_nanos(1_000_000_000_123_456_789);

impl OnDisk {
    fn new() -> Self {
        let disk = Self { folder: tempfile::tempdir().unwrap() };
        disk.write(&everything(), UNIX_EPOCH + LONG_AGO);
        disk
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("m.gguf")
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("m.gguf.muser-digest")
    }

    fn write(&self, bytes: &[u8], modified: SystemTime) {
        fs::write(self.model(), bytes).unwrap();
        File::options().write(true).open(self.model()).unwrap().set_modified(modified).unwrap();
    }

    /// The digest, at a time when every write is long ago.
    fn digest(&self) -> (FileDigest, DigestSource) {
        self.digest_at(later())
    }

    fn digest_at(&self, now: SystemTime) -> (FileDigest, DigestSource) {
        FileDigest::load_or_compute(&ModelFiles::open(&self.model()).unwrap(), now).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }
}

#[test]
fn a_digest_is_computed_once_per_file() {
    let disk = OnDisk::new();
    let (computed, source) = disk.digest();
    assert_eq!((computed, source), (digest_of(everything()), DigestSource::Computed));
    assert_eq!(disk.digest(), (computed, DigestSource::Cache));
    assert_eq!(disk.files(), [disk.model(), disk.cache()]);
}

#[test]
fn the_cache_file_is_laid_out_as_documented() {
    let disk = OnDisk::new();
    let (digest, _) = disk.digest();
    let model = everything();
    let state = fs::metadata(disk.model()).unwrap();
    let mut expected = b"MUSERDIG\x02\0\0\0\x01\0\0\0".to_vec();
    expected.extend_from_slice(&(model.len() as u64).to_le_bytes());
    expected.extend_from_slice(&1_000_000_000_123_456_789i128.to_le_bytes());
    let changed = i128::from(state.ctime()) * 1_000_000_000 + i128::from(state.ctime_nsec());
    expected.extend_from_slice(&changed.to_le_bytes());
    expected.extend_from_slice(&state.dev().to_le_bytes());
    expected.extend_from_slice(&state.ino().to_le_bytes());
    // The tensors take 64, 64 and 168 bytes at the end.
    expected.extend_from_slice(blake3::hash(&model[..model.len() - 296]).as_bytes());
    expected.extend_from_slice(samples(&model).as_bytes());
    expected.extend_from_slice(&digest.tensors.0);
    expected.extend_from_slice(&blake3::derive_key("muser 2026 digest cache, version 2", &expected));
    assert_eq!(fs::read(disk.cache()).unwrap(), expected);
}

#[test]
fn a_cache_of_another_length_time_or_header_is_stale() {
    let stale = |change: fn(&OnDisk)| {
        let disk = OnDisk::new();
        disk.digest();
        change(&disk);
        let now = digest_of(fs::read(disk.model()).unwrap());
        assert_eq!(disk.digest(), (now, DigestSource::Computed));
        assert_eq!(disk.digest(), (now, DigestSource::Cache), "the stale cache is replaced");
    };
    let renamed = || {
        let mut bytes = everything();
        let name = bytes.windows(8).position(|window| window == b"z.weight").unwrap();
        bytes[name] = b'y';
        bytes
    };
    assert_ne!(digest_of(renamed()), digest_of(everything()));
    stale(|disk| disk.write(&everything(), UNIX_EPOCH + LONG_AGO + Duration::from_nanos(1)));
    stale(|disk| disk.write(&everything(), UNIX_EPOCH - LONG_AGO));
    stale(|disk| disk.write(&[everything(), vec![0]].concat(), UNIX_EPOCH + LONG_AGO));
    let disk = OnDisk::new();
    disk.digest();
    disk.write(&renamed(), UNIX_EPOCH + LONG_AGO);
    assert_eq!(disk.digest(), (digest_of(renamed()), DigestSource::Computed));
}

/// A change of the last byte of the last tensor, under the same length, header and time of modification.
fn with_another_weight() -> Vec<u8> {
    let mut bytes = everything();
    *bytes.last_mut().unwrap() ^= 1;
    bytes
}

#[test]
fn equal_times_and_lengths_do_not_hide_that_a_file_was_written_or_replaced() {
    for time in [UNIX_EPOCH, UNIX_EPOCH + LONG_AGO] {
        let disk = OnDisk::new();
        disk.write(&everything(), time);
        assert_eq!(disk.digest(), (digest_of(everything()), DigestSource::Computed));
        assert_eq!(disk.digest().1, DigestSource::Cache);
        disk.write(&with_another_weight(), time);
        assert_eq!(disk.digest(), (digest_of(with_another_weight()), DigestSource::Computed), "written in place");
        let aside = disk.folder.path().join("aside");
        fs::write(&aside, everything()).unwrap();
        File::options().write(true).open(&aside).unwrap().set_modified(time).unwrap();
        fs::rename(&aside, disk.model()).unwrap();
        assert_eq!(disk.digest(), (digest_of(everything()), DigestSource::Computed), "replaced");
    }
}

/// The digest over both ends of every tensor.
fn samples(model: &[u8]) -> blake3::Hash {
    let files = ModelFiles::from_bytes(model.to_vec()).unwrap();
    let mut tensors: Vec<_> = files.tensors().collect();
    tensors.sort_by_key(|tensor| tensor.name().to_owned());
    let mut ends = blake3::Hasher::new();
    for tensor in tensors {
        let bytes = tensor.bytes().unwrap();
        ends.update(&bytes[..bytes.len().min(2048)]).update(&bytes[bytes.len().saturating_sub(2048)..]);
    }
    ends.finalize()
}

#[test]
fn a_file_whose_tensors_begin_or_end_otherwise_is_another_even_if_the_file_system_says_that_it_is_not() {
    let disk = OnDisk::new();
    let (digest, _) = disk.digest();
    // What the file system would say if its clock had been set back: the cache is of this very state.
    let mut cache = fs::read(disk.cache()).unwrap();
    disk.write(&with_another_weight(), UNIX_EPOCH + LONG_AGO);
    let state = fs::metadata(disk.model()).unwrap();
    let changed = i128::from(state.ctime()) * 1_000_000_000 + i128::from(state.ctime_nsec());
    cache[40..56].copy_from_slice(&changed.to_le_bytes());
    let sealed = |cache: &mut Vec<u8>| {
        cache.truncate(16 + 88 + 64);
        let checksum = blake3::derive_key("muser 2026 digest cache, version 2", cache);
        cache.extend_from_slice(&checksum);
    };
    sealed(&mut cache);
    fs::write(disk.cache(), &cache).unwrap();
    assert_eq!(disk.digest(), (digest_of(with_another_weight()), DigestSource::Computed));
    // With the right samples it would be believed, so that it was they that told.
    cache[16 + 88..][..32].copy_from_slice(samples(&with_another_weight()).as_bytes());
    sealed(&mut cache);
    fs::write(disk.cache(), &cache).unwrap();
    assert_eq!(disk.digest(), (digest, DigestSource::Cache));
}

#[test]
fn a_damaged_cache_is_not_believed_but_replaced() {
    let disk = OnDisk::new();
    let (digest, _) = disk.digest();
    let whole = fs::read(disk.cache()).unwrap();
    let not_believed = |content: &[u8], what: String| {
        fs::write(disk.cache(), content).unwrap();
        assert_eq!(disk.digest(), (digest, DigestSource::Computed), "{what}");
        assert_eq!(fs::read(disk.cache()).unwrap(), whole, "{what}");
    };
    for byte in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[byte] ^= 1 << (byte % 8);
        not_believed(&damaged, format!("byte {byte}"));
    }
    for length in 0..whole.len() {
        not_believed(&whole[..length], format!("{length} bytes"));
    }
    not_believed(&[whole.as_slice(), &[0]].concat(), "a byte too many".into());
}

#[test]
fn where_no_cache_can_be_written_the_digest_is_only_computed() {
    let disk = OnDisk::new();
    // A directory in the cache's place cannot be read, written or renamed over, whoever runs the test.
    fs::create_dir(disk.cache()).unwrap();
    fs::write(disk.cache().join("occupied"), b"").unwrap();
    let expected = (digest_of(everything()), DigestSource::Computed);
    assert_eq!(disk.digest(), expected);
    assert_eq!(disk.digest(), expected);
    assert_eq!(disk.files(), [disk.model(), disk.cache()], "no temporary file is left");
}

#[test]
fn a_file_modified_just_now_is_not_cached_because_its_time_could_not_tell_the_next_change() {
    let disk = OnDisk::new();
    disk.write(&everything(), SystemTime::now());
    assert_eq!(disk.digest_at(SystemTime::now()).1, DigestSource::Computed);
    assert_eq!(disk.files(), [disk.model()]);
    // It says that it was modified long ago, but it was not.
    disk.write(&everything(), UNIX_EPOCH);
    assert_eq!(disk.digest_at(SystemTime::now()).1, DigestSource::Computed);
    assert_eq!(disk.files(), [disk.model()]);
    disk.write(&everything(), SystemTime::now() + Duration::from_secs(1000));
    assert_eq!(disk.digest().1, DigestSource::Computed);
    assert_eq!(disk.files(), [disk.model()]);
}

#[test]
fn a_file_replaced_while_it_was_read_is_not_cached() {
    let disk = OnDisk::new();
    let files = ModelFiles::open(&disk.model()).unwrap();
    fs::remove_file(disk.model()).unwrap();
    disk.write(&everything(), UNIX_EPOCH + LONG_AGO + Duration::from_secs(1));
    assert_eq!(
        FileDigest::load_or_compute(&files, later()).unwrap(),
        (digest_of(everything()), DigestSource::Computed)
    );
    assert!(!disk.cache().exists());
}

#[test]
fn a_model_in_memory_leaves_no_cache() {
    let files = ModelFiles::from_bytes(everything()).unwrap();
    assert_eq!(FileDigest::load_or_compute(&files, later()).unwrap().1, DigestSource::Computed);
    assert!(!Path::new(".muser-digest").exists());
}

#[test]
fn a_digest_is_shown_in_hexadecimal() {
    let mut bytes = [0; 32];
    bytes[0] = 0xab;
    assert_eq!(Digest(bytes).to_string(), format!("ab{}", "0".repeat(62)));
}
