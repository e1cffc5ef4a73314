//! Tests of reading and changing files, alone and by many at a time.

use std::process::Command;
use std::thread;

use super::*;

fn names_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_created_file_is_never_overwritten_and_a_replaced_one_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    create(&path, "first", Secrecy::Secret).unwrap();
    assert!(matches!(create(&path, "second", Secrecy::Secret), Err(FileError::Exists { .. })));
    assert_eq!(read(&path, Secrecy::Secret).unwrap(), "first");
    replace(&path, "third", Secrecy::Secret).unwrap();
    assert_eq!(read(&path, Secrecy::Secret).unwrap(), "third");
    assert_eq!(names_in(folder.path()), [".lock", "a"]);
    assert!(matches!(read(&folder.path().join("b"), Secrecy::Public), Err(FileError::Missing { .. })));
    let long = "x".repeat(usize::try_from(BYTES_MAX).unwrap() + 1);
    assert!(matches!(replace(&path, &long, Secrecy::Secret), Err(FileError::TooLong { .. })));
    assert_eq!(read(&path, Secrecy::Secret).unwrap(), "third");
}

#[test]
fn of_many_changes_at_a_time_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list");
    create(&path, "", Secrecy::Public).unwrap();
    thread::scope(|scope| {
        for number in 0..32 {
            let path = &path;
            scope.spawn(move || {
                let held = hold(path, Secrecy::Public).unwrap();
                let text = held.read().unwrap();
                held.replace(&format!("{text}{number}\n")).unwrap();
            });
        }
    });
    let mut lines: Vec<u32> = read(&path, Secrecy::Public).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    lines.sort_unstable();
    assert!(lines.iter().copied().eq(0..32), "{lines:?}");
}

#[test]
fn a_lock_that_is_never_let_go_is_waited_for_until_its_limit_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let held = hold(&path, Secrecy::Public).unwrap();
    let refused = held::hold_within(&path, Secrecy::Public, Duration::ZERO).unwrap_err();
    assert!(matches!(&refused, FileError::Busy { path, .. } if path.ends_with(".lock")), "{refused}");
    drop(held);
    held::hold_within(&path, Secrecy::Public, Duration::ZERO).unwrap();
}

#[test]
fn what_a_killed_process_left_half_written_is_removed_by_the_next_that_writes_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.toml");
    for left in [".a.toml.7.new", ".b.toml.7.new"] {
        fs::write(folder.path().join(left), "ha").unwrap();
    }
    replace(&path, "whole", Secrecy::Public).unwrap();
    assert_eq!(names_in(folder.path()), [".b.toml.7.new", ".lock", "a.toml"]);
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_secret_that_others_may_read_and_any_file_that_others_may_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        create(&path, "s", Secrecy::Secret).unwrap();
        for mode in 0..=0o777 {
            set_mode(&path, mode);
            if mode & 0o400 == 0 {
                continue;
            }
            match read(&path, Secrecy::Secret) {
                Ok(_) => assert_eq!(mode & 0o037, 0, "{mode:o}"),
                Err(FileError::TooOpen { mode: found, .. }) => assert!(mode & 0o037 != 0 && found == mode, "{mode:o}"),
                Err(error) => panic!("{error}"),
            }
            match read(&path, Secrecy::Public) {
                Ok(_) => assert_eq!(mode & 0o022, 0, "{mode:o}"),
                Err(FileError::Writable { mode: found, .. }) => assert!(mode & 0o022 != 0 && found == mode, "{mode:o}"),
                Err(error) => panic!("{error}"),
            }
        }
        // Neither is it replaced: what is in it now may be anybody's.
        set_mode(&path, 0o666);
        assert!(matches!(replace(&path, "t", Secrecy::Public), Err(FileError::Writable { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "s");
    }

    #[test]
    fn a_file_in_a_folder_that_others_may_write_is_refused_unless_they_cannot_exchange_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        create(&path, "s", Secrecy::Public).unwrap();
        for (mode, allowed) in [(0o755, true), (0o777, false), (0o770, false), (0o1777, true), (0o700, true)] {
            set_mode(folder.path(), mode);
            let found = read(&path, Secrecy::Public);
            match &found {
                Ok(_) => assert!(allowed, "{mode:o}"),
                Err(FileError::Writable { path, .. }) => assert!(!allowed && path == folder.path(), "{mode:o}"),
                Err(error) => panic!("{error}"),
            }
        }
        // Nor does a link from a safe folder help.
        let safe = tempfile::tempdir().unwrap();
        let link = safe.path().join("a");
        symlink(&path, &link).unwrap();
        assert_eq!(read(&link, Secrecy::Public).unwrap(), "s");
        set_mode(folder.path(), 0o777);
        assert!(matches!(read(&link, Secrecy::Public), Err(FileError::Writable { .. })));
        set_mode(folder.path(), 0o700);
    }

    #[test]
    fn a_pipe_a_folder_and_a_device_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [pipe.as_path(), folder.path(), Path::new("/dev/zero")] {
            let refused = read(path, Secrecy::Public).unwrap_err();
            assert!(matches!(refused, FileError::NotAFile { .. }), "{refused}");
        }
        assert!(matches!(replace(&pipe, "text", Secrecy::Public), Err(FileError::NotAFile { .. })));
    }

    #[test]
    fn a_file_keeps_its_mode_and_a_link_still_leads_to_the_same_file() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let keys = folder.path().join("keys");
        create(&keys, "one", Secrecy::Secret).unwrap();
        assert_eq!(mode_of(&keys), 0o600);
        for mode in [0o640, 0o400, 0o600] {
            set_mode(&keys, mode);
            replace(&keys, "two", Secrecy::Secret).unwrap();
            assert_eq!(mode_of(&keys), mode);
        }
        let (shared, link) = (elsewhere.path().join("list"), folder.path().join("list"));
        create(&shared, "one", Secrecy::Public).unwrap();
        symlink(&shared, &link).unwrap();
        replace(&link, "two", Secrecy::Public).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(read(&shared, Secrecy::Public).unwrap(), "two");
        // A link to nowhere is not taken for a file that is not there yet.
        let lost = folder.path().join("lost");
        symlink(elsewhere.path().join("none"), &lost).unwrap();
        assert!(replace(&lost, "text", Secrecy::Public).is_err() && create(&lost, "text", Secrecy::Public).is_err());
    }
}
