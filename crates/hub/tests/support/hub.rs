//! A hub with one repository, as the real one answers: a list of files, and redirects to storage on another port.

use std::sync::{Arc, Mutex};

use muser_hub::Sha256;

use super::{Asked, Reply, Server};

/// The commit that the repository is at.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Reply of the storage in place of the file, if any.
pub type Trouble = dyn Fn(&Asked, &[u8]) -> Option<Reply> + Send + Sync;

/// The two servers.
pub struct FakeHub {
    /// Serves the metadata of the files; the endpoint.
    pub hub: Server,
    /// Serves their bytes.
    pub storage: Server,
    trouble: Arc<Mutex<Box<Trouble>>>,
}

impl FakeHub {
    /// The hub with the repository `user/repo`, which holds these files.
    pub fn start(files: &[(&str, &[u8])]) -> Self {
        let files: Vec<(String, Vec<u8>)> =
            files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let files = Arc::new(files);
        let trouble: Arc<Mutex<Box<Trouble>>> = Arc::new(Mutex::new(Box::new(|_, _| None)));
        let (of_storage, stored) = (trouble.clone(), files.clone());
        let storage = Server::start(move |asked| {
            let content = stored.iter().map(|(_, content)| content);
            let found = content.into_iter().find(|content| asked.path == format!("/{}", Sha256::of(content)));
            let Some(content) = found else { return Reply::status(404) };
            let troubled = (of_storage.lock().unwrap())(asked, content);
            troubled.unwrap_or_else(|| Reply::file(asked, content, &format!("\"{}\"", Sha256::of(content))))
        });
        let at_storage = storage.url.clone();
        let hub = Server::start(move |asked| {
            if asked.path.starts_with("/api/models/user/repo/revision/") {
                return Reply::ok(listing(files.iter().map(|(name, _)| name.as_str())));
            }
            let Some(name) = asked.path.strip_prefix(&format!("/user/repo/resolve/{COMMIT}/")) else {
                return Reply::status(404);
            };
            let Some((_, content)) = files.iter().find(|(known, _)| known == name) else { return Reply::status(404) };
            let digest = Sha256::of(content);
            Reply::redirect(format!("{at_storage}/{digest}"))
                .with("X-Repo-Commit", COMMIT)
                .with("X-Linked-Etag", format!("\"{digest}\""))
                .with("X-Linked-Size", content.len().to_string())
                .with("ETag", "\"of-the-pointer\"")
        });
        Self { hub, storage, trouble }
    }

    /// From now on, the storage answers what `trouble` says.
    pub fn trouble(&self, trouble: impl Fn(&Asked, &[u8]) -> Option<Reply> + Send + Sync + 'static) {
        *self.trouble.lock().unwrap() = Box::new(trouble);
    }
}

/// The hub's answer about a repository with these files.
pub fn listing<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let siblings: Vec<String> = names.into_iter().map(|name| format!(r#"{{"rfilename":"{name}"}}"#)).collect();
    format!(r#"{{"id":"user/repo","sha":"{COMMIT}","siblings":[{}],"likes":1}}"#, siblings.join(","))
}
