//! A request, from what the user wrote to the files on this machine.

use std::path::{Path, PathBuf};

use crate::address::HttpAddress;
use crate::cache::RepoCache;
use crate::client::Client;
use crate::digest::{Sha256, sha256_of_file};
use crate::download::{Done, Job, Naming, fetch};
use crate::error::Error;
use crate::file_name::FileName;
use crate::listing::{FileChoice, Listing};
use crate::place::{Place, begins_with};
use crate::reference::{Quant, Reference, ReferenceError, RepoId, Revision};
use crate::retry::{Watch, with_retries};
use crate::settings::{Settings, SettingsError};

/// Client of a model hub, with its cache folders.
pub struct Hub {
    client: Client,
}

/// One pull: the model, and options that select and verify its files.
#[derive(Clone, Debug)]
pub struct PullRequest {
    /// The model.
    pub reference: Reference,
    /// The file in the repository; chosen by quantisation otherwise.
    pub file: Option<FileName>,
    /// The repository's revision; `main` otherwise.
    pub revision: Option<Revision>,
    /// The digest that the file must have.
    pub sha256: Option<Sha256>,
    /// Path of the file; in a cache otherwise.
    pub output: Option<PathBuf>,
    /// First bytes that each file must have; empty for any. An HTML page or error message fails this check and never
    /// gets the final name.
    pub magic: &'static [u8],
    /// Trust in cached files.
    pub cached: CachedContent,
}

/// Trust in a file of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedContent {
    /// Taken for the content that its name stands for.
    Believed,
    /// Hashed again, and downloaded again unless its digest is right.
    Doubted,
}

/// One file of a repository at a commit.
#[derive(Clone, Copy)]
struct RepoFile<'a> {
    repo: &'a RepoId,
    commit: &'a str,
    name: &'a FileName,
}

/// The files of a model, in order; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The files.
    pub files: Vec<PulledFile>,
}

/// One file on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledFile {
    /// Path on this machine.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Its digest, if known: computed during the download, or stated by the hub.
    pub sha256: Option<Sha256>,
    /// True if it was in place before, so that no bytes were fetched.
    pub from_cache: bool,
}

impl PullRequest {
    /// A request without any of the options.
    pub fn new(reference: Reference) -> Self {
        let (magic, cached) = (&[], CachedContent::Believed);
        Self { reference, file: None, revision: None, sha256: None, output: None, magic, cached }
    }
}

impl Hub {
    /// A client with `settings`.
    ///
    /// # Errors
    /// If the endpoint or a proxy is no usable address.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        Ok(Self { client: Client::new(settings)? })
    }

    /// Downloads the files that are not in place. `watch` receives the progress events and may cancel.
    ///
    /// # Errors
    /// If the request is wrong, or the files cannot be downloaded or written. Bytes received are kept for the next pull.
    pub fn pull(&self, request: &PullRequest, watch: &mut Watch<'_>) -> Result<Pulled, Error> {
        match &request.reference {
            Reference::Address(address) => self.pull_address(address, request, watch),
            Reference::Repo { id, quant } => self.pull_repo(id, wanted(quant.as_ref(), request)?, request, watch),
        }
    }

    /// The files, if all of them are in place; no request is sent.
    ///
    /// # Errors
    /// If the request is wrong, a file is not here, or is not the one with the digest asked for.
    pub fn cached(&self, request: &PullRequest) -> Result<Pulled, Error> {
        if let Some(output) = &request.output {
            return cached_output(output, request);
        }
        let pulled = match &request.reference {
            Reference::Address(address) => self.cached_address(address, request)?,
            Reference::Repo { id, quant } => self.cached_repo(id, wanted(quant.as_ref(), request)?, request)?,
        };
        check_one_file(request, pulled.len())?;
        if let Some(other) = pulled.iter().find(|path| !begins_with(path, request.magic)) {
            let folder = other.parent().unwrap_or(other).to_owned();
            return Err(Error::NotCached { wanted: other.display().to_string(), folder });
        }
        let files = pulled.into_iter().map(|path| cached_file(path, request)).collect::<Result<_, _>>()?;
        Ok(Pulled { files })
    }

    /// The files, downloaded only if the caches lack them. Later changes on the server are not looked for.
    ///
    /// The hub's list is fetched where the file would be chosen as the first by name: the cache may lack an earlier one.
    ///
    /// # Errors
    /// As [`Self::pull`].
    pub fn cached_or_pull(&self, request: &PullRequest, watch: &mut Watch<'_>) -> Result<Pulled, Error> {
        let mut certain = request.clone();
        if let PullRequest { reference: Reference::Repo { quant, .. }, file: None, .. } = &mut certain {
            quant.get_or_insert_with(Quant::default_choice);
        }
        match self.cached(&certain) {
            Err(Error::NotCached { .. } | Error::Choice { .. } | Error::Digest { .. }) => self.pull(request, watch),
            found => found,
        }
    }

    fn pull_address(
        &self,
        address: &HttpAddress,
        request: &PullRequest,
        watch: &mut Watch<'_>,
    ) -> Result<Pulled, Error> {
        let mut files = Vec::new();
        for (name, path) in self.address_files(address, request)? {
            let place = self.place(request, |downloads| Place::in_cache(&path, None, downloads))?;
            let address = match &name {
                Some(name) => address.beside(name).map_err(ReferenceError::from)?,
                None => address.clone(),
            };
            let shown = address.to_string();
            let job = Job {
                file: name.as_ref().map_or(shown.as_str(), FileName::as_str),
                address: &address,
                place: &place,
                bytes: None,
                sha256: request.sha256,
                magic: request.magic,
                naming: if request.cached == CachedContent::Believed { Naming::ByPlace } else { Naming::Doubted },
            };
            files.push(PulledFile::new(place.path.clone(), fetch(&self.client, &job, watch)?));
        }
        Ok(Pulled { files })
    }

    fn pull_repo(
        &self,
        repo: &RepoId,
        wanted: FileChoice<'_>,
        request: &PullRequest,
        watch: &mut Watch<'_>,
    ) -> Result<Pulled, Error> {
        let revision = request.revision.clone().unwrap_or_default();
        let pauses = &self.client.settings.retry_pauses;
        let listing = with_retries(pauses, watch, || self.client.listing(repo, &revision))?;
        let chosen = choose(&listing, wanted, repo, &revision)?;
        check_one_file(request, chosen.len())?;
        let cache = RepoCache::new(&self.client.settings.hub_cache, repo);
        let mut files = Vec::new();
        for name in &chosen {
            let file = RepoFile { repo, commit: &listing.commit, name };
            files.push(self.pull_file(file, &cache, request, watch)?);
        }
        // Last, so that whoever finds the commit here finds the files.
        if request.output.is_none() {
            cache.set_ref(&revision, &listing.commit)?;
        }
        Ok(Pulled { files })
    }

    fn pull_file(
        &self,
        file: RepoFile<'_>,
        cache: &RepoCache,
        request: &PullRequest,
        watch: &mut Watch<'_>,
    ) -> Result<PulledFile, Error> {
        let RepoFile { repo, commit, name } = file;
        let address = self.client.file_address(repo, commit, name)?;
        let fault = |reason| Error::Answer { address: address.to_string(), reason };
        let located = with_retries(&self.client.settings.retry_pauses, watch, || self.client.locate(&address))?;
        located.facts.check_commit(commit).map_err(fault)?;
        let (etag, stated) = located.facts.blob().map_err(fault)?;
        if let Some((expected, found)) = request.sha256.zip(stated).filter(|(expected, found)| expected != found) {
            return Err(Error::Digest { file: name.to_string(), expected, found });
        }
        let blob = cache.blob(&etag);
        let lock = cache.lock(&etag);
        let place = self.place(request, |downloads| Place::in_cache(&blob, Some(lock), downloads))?;
        let job = Job {
            file: name.as_str(),
            address: &address,
            place: &place,
            bytes: located.bytes,
            sha256: request.sha256.or(stated),
            magic: request.magic,
            naming: match request.cached {
                CachedContent::Doubted => Naming::Doubted,
                // A digest that the hub does not confirm has to be computed.
                _ if request.output.is_some() || request.sha256.is_some_and(|asked| Some(asked) != stated) => {
                    Naming::ByPlace
                }
                CachedContent::Believed => Naming::ByContent,
            },
        };
        let done = fetch(&self.client, &job, watch)?;
        let path = match request.output {
            Some(_) => place.path,
            None => cache.link(commit, name, &etag)?,
        };
        Ok(PulledFile::new(path, done))
    }

    /// Location of the file: the user's output path, or else the one that `in_cache` gives.
    fn place(
        &self,
        request: &PullRequest,
        in_cache: impl FnOnce(&Path) -> Result<Place, Error>,
    ) -> Result<Place, Error> {
        let downloads = &self.client.settings.downloads;
        match &request.output {
            Some(output) => Place::of_user(output, downloads),
            None => in_cache(downloads),
        }
    }

    /// The files at an address, all parts of a split model, with their paths here; without names if the user gave the path.
    fn address_files(
        &self,
        address: &HttpAddress,
        request: &PullRequest,
    ) -> Result<Vec<(Option<FileName>, PathBuf)>, ReferenceError> {
        if request.file.is_some() {
            return Err(ReferenceError::OnlyForRepositories("file name"));
        }
        if request.revision.is_some() {
            return Err(ReferenceError::OnlyForRepositories("revision"));
        }
        let names = address.file_name().map(|name| name.all_parts()).unwrap_or_default();
        check_one_file(request, names.len())?;
        if let Some(output) = &request.output {
            return Ok(vec![(None, output.clone())]);
        }
        if names.is_empty() {
            return Err(ReferenceError::NoFileName(address.to_string()));
        }
        // Files of the same name from elsewhere go elsewhere; parts of one model stay together.
        let digest = Sha256::of(address.folder().as_bytes()).to_string();
        let folder = self.client.settings.downloads.join(&digest[..32]);
        Ok(names.into_iter().map(|name| (Some(name.clone()), folder.join(name.to_path()))).collect())
    }

    fn cached_address(&self, address: &HttpAddress, request: &PullRequest) -> Result<Vec<PathBuf>, Error> {
        let paths: Vec<PathBuf> = self.address_files(address, request)?.into_iter().map(|(_, path)| path).collect();
        match paths.iter().find(|path| !path.is_file()) {
            Some(path) => {
                Err(Error::NotCached { wanted: address.to_string(), folder: path.parent().unwrap_or(path).to_owned() })
            }
            None => Ok(paths),
        }
    }

    fn cached_repo(&self, repo: &RepoId, wanted: FileChoice<'_>, request: &PullRequest) -> Result<Vec<PathBuf>, Error> {
        let revision = request.revision.clone().unwrap_or_default();
        let cache = RepoCache::new(&self.client.settings.hub_cache, repo);
        let name = format!("{repo} at {}", revision.as_str());
        let commit = cache.commit_of(&revision).ok_or_else(|| not_cached(name.clone(), &cache))?;
        let listing = Listing { files: cache.files(&commit), commit };
        if listing.files.is_empty() {
            return Err(not_cached(name, &cache));
        }
        let chosen = choose(&listing, wanted, repo, &revision)?;
        let snapshot = cache.snapshot(&listing.commit);
        Ok(chosen.iter().map(|file| snapshot.join(file.to_path())).collect())
    }
}

impl PulledFile {
    fn new(path: PathBuf, done: Done) -> Self {
        Self { path, bytes: done.bytes, sha256: done.sha256, from_cache: done.from_cache }
    }
}

fn not_cached(wanted: String, cache: &RepoCache) -> Error {
    Error::NotCached { wanted, folder: cache.folder.clone() }
}

/// Selection rule of a request; a quantisation together with a file name is an error.
fn wanted<'a>(quant: Option<&'a Quant>, request: &'a PullRequest) -> Result<FileChoice<'a>, ReferenceError> {
    match (quant, &request.file) {
        (Some(quant), Some(file)) => Err(ReferenceError::QuantAndFile { quant: quant.clone(), file: file.to_string() }),
        (Some(quant), None) => Ok(FileChoice::Quant(quant)),
        (None, Some(file)) => Ok(FileChoice::File(file)),
        (None, None) => Ok(FileChoice::Default),
    }
}

fn choose(
    listing: &Listing,
    wanted: FileChoice<'_>,
    repo: &RepoId,
    revision: &Revision,
) -> Result<Vec<FileName>, Error> {
    let refused = |reason| Error::Choice { repo: repo.to_string(), revision: revision.as_str().into(), reason };
    listing.choose(wanted).map_err(refused)
}

/// A path or a digest is one file's.
fn check_one_file(request: &PullRequest, parts: usize) -> Result<(), ReferenceError> {
    let only = |what| Err(ReferenceError::OnlyForOneFile { parts, what });
    match request {
        _ if parts <= 1 => Ok(()),
        PullRequest { output: Some(_), .. } => only("the output path"),
        PullRequest { sha256: Some(_), .. } => only("the SHA-256 digest"),
        _ => Ok(()),
    }
}

/// The file at the user's path. Only a digest can prove that it is the requested one.
fn cached_output(output: &Path, request: &PullRequest) -> Result<Pulled, Error> {
    if request.sha256.is_none() || !output.is_file() {
        return Err(Error::NotCached { wanted: "a file of known digest".into(), folder: output.into() });
    }
    Ok(Pulled { files: vec![cached_file(output.into(), request)?] })
}

/// A file that is here, with the digest that is asked for.
fn cached_file(path: PathBuf, request: &PullRequest) -> Result<PulledFile, Error> {
    let bytes = path.metadata().map_err(Error::disk("read", &path))?.len();
    if let Some(expected) = request.sha256 {
        let found = sha256_of_file(&path).map_err(Error::disk("read", &path))?;
        if found != expected {
            return Err(Error::Digest { file: path.display().to_string(), expected, found });
        }
    }
    Ok(PulledFile { path, bytes, sha256: request.sha256, from_cache: true })
}
