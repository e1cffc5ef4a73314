//! Pulls against a server on the loopback interface that behaves, misbehaves, or breaks.

#[path = "../support/mod.rs"]
mod support;

mod addresses;
mod hostile;
mod repositories;
mod together;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muser_hub::{Error, Hub, PullEvent, PullRequest, Pulled, Settings};
use tempfile::TempDir;

/// A user with an empty home.
struct Home {
    folder: TempDir,
    settings: Settings,
}

impl Home {
    fn new(endpoint: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            endpoint: endpoint.parse().unwrap(),
            token: None,
            hub_cache: folder.path().join("hub"),
            downloads: folder.path().join("downloads"),
            http_proxy: None,
            https_proxy: None,
            connect_timeout: Duration::from_secs(20),
            stall_timeout: Duration::from_secs(20),
            retry_pauses: vec![Duration::ZERO; 3],
        };
        Self { folder, settings }
    }

    fn hub(&self) -> Hub {
        Hub::new(self.settings.clone()).unwrap()
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn pull(&self, request: &PullRequest) -> Result<Pulled, Error> {
        self.hub().pull(request, &mut |_| ControlFlow::Continue(()))
    }

    /// The bytes of the one file that a pull brings.
    #[track_caller]
    fn bytes(&self, request: &PullRequest) -> Vec<u8> {
        let pulled = self.pull(request).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(pulled.files.len(), 1);
        let bytes = fs::read(&pulled.files[0].path).unwrap();
        assert_eq!(pulled.files[0].bytes, bytes.len() as u64);
        assert_eq!(self.partial_files(), [""; 0], "of a whole file nothing partial is left");
        bytes
    }

    /// The error of a pull, which must not have named any file.
    #[track_caller]
    fn refused(&self, request: &PullRequest) -> Error {
        let Err(error) = self.pull(request) else { panic!("the pull was accepted") };
        assert_eq!(self.whole_files(), [""; 0], "{error}");
        error
    }

    /// The files with a final name, below the home, sorted.
    fn whole_files(&self) -> Vec<String> {
        let mut files = self.files();
        files.retain(|name| !name.ends_with(".incomplete"));
        files
    }

    /// The names of partial files, below the home.
    fn partial_files(&self) -> Vec<String> {
        let mut files = self.files();
        files.retain(|name| name.ends_with(".incomplete"));
        files
    }

    /// The one partial file's path and content.
    fn partial(&self) -> (PathBuf, Vec<u8>) {
        let names = self.partial_files();
        assert_eq!(names.len(), 1, "{names:?}");
        let path = self.path().join(&names[0]);
        let content = fs::read(&path).unwrap();
        (path, content)
    }

    /// Every file but locks and notes.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        gather(self.path(), "", &mut found);
        found.retain(|name| !name.contains(".notes/") && !name.contains(".locks/"));
        found.sort();
        found
    }
}

fn gather(folder: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            gather(&entry.path(), &format!("{name}/"), found);
        } else {
            found.push(name);
        }
    }
}

fn request(reference: &str) -> PullRequest {
    PullRequest::new(reference.parse().unwrap())
}

/// Bytes that no two places of a file share.
fn content(bytes: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    (0..bytes).map(|_| random.u8(..)).collect()
}

/// The name of an event, for comparing what happened.
fn name_of(event: &PullEvent<'_>) -> &'static str {
    match event {
        PullEvent::Waiting { .. } => "waiting",
        PullEvent::Began { .. } => "began",
        PullEvent::Received { .. } => "received",
        PullEvent::Retrying { .. } => "retrying",
        PullEvent::Idle => "idle",
    }
}
