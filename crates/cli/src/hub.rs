//! Model downloads, configured by the environment: hub, access token, proxy and cache folders.

use std::env;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use muser_hub::{CachedContent, Error, Hub, Proxy, PullRequest, Pulled, Reference, Settings, Token};
use muser_weights::gguf::ModelFiles;

use crate::failure::Failure;
use crate::output::tell;
use crate::progress::{DownloadProgress, Shown};
use crate::settings::HubArgs;
use crate::usage::UsageError;

/// Default hub.
const ENDPOINT: &str = "https://huggingface.co";
/// Magic bytes of a model file.
pub const MAGIC: &[u8] = b"GGUF";
/// Timeout of name resolution and connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Idle timeout of a download.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Seconds to wait before each further attempt that is in vain.
const RETRY_PAUSES_S: [u64; 5] = [1, 2, 4, 8, 16];

/// Permitted use of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Fetches files that are missing or may have changed.
    Current,
    /// Fetches only missing files.
    IfAbsent,
    /// Uses only local files.
    Offline,
}

/// The files that `request` is about, brought if need be, and found to be a model.
///
/// A signal may end the process at any moment: what came until then is kept, and the next pull goes on from there.
pub fn model_files(request: &PullRequest, network: Network, shown: Shown) -> Result<Pulled, Failure> {
    let hub = Hub::new(settings()?).map_err(Error::from)?;
    let network = if is_set("HF_HUB_OFFLINE") { Network::Offline } else { network };
    let mut progress = DownloadProgress::new(shown);
    let mut watch = |event: muser_hub::PullEvent<'_>| {
        progress.hear(&event);
        ControlFlow::Continue(())
    };
    let pulled = match network {
        Network::Current => hub.pull(request, &mut watch),
        Network::IfAbsent => hub.cached_or_pull(request, &mut watch),
        Network::Offline => hub.cached(request),
    }?;
    // Its header alone is read.
    match ModelFiles::open(&pulled.files[0].path) {
        Ok(_) => Ok(pulled),
        Err(reason) if network != Network::Offline && pulled.files.iter().any(|file| file.from_cache) => {
            tell(format_args!("{reason}; it is asked for again"));
            let doubting = PullRequest { cached: CachedContent::Doubted, ..request.clone() };
            let pulled = hub.pull(&doubting, &mut watch)?;
            ModelFiles::open(&pulled.files[0].path)?;
            Ok(pulled)
        }
        Err(reason) => Err(reason.into()),
    }
}

/// The model that a flag names: the cached file, downloaded first if it is absent.
pub fn model_from_hub(reference: &Reference, args: &HubArgs) -> Result<PathBuf, Failure> {
    let request = PullRequest {
        reference: reference.clone(),
        file: args.hf_file.clone(),
        revision: None,
        sha256: None,
        output: None,
        magic: MAGIC,
        cached: CachedContent::Believed,
    };
    let network = if args.offline { Network::Offline } else { Network::IfAbsent };
    let mut pulled = model_files(&request, network, Shown::Progress)?;
    // A model has at least one file.
    Ok(pulled.files.swap_remove(0).path)
}

/// The exit code of a pull that failed.
pub fn exit_code(reason: &Error) -> u8 {
    match reason {
        Error::Reference(_)
        | Error::Settings(_)
        | Error::Choice { .. }
        | Error::NotFound { .. }
        | Error::Denied { .. } => 2,
        Error::Digest { .. } | Error::Magic { .. } => 3,
        _ => 1,
    }
}

/// The hub's own variables and folders, so that its own client and muser share what they know.
fn settings() -> Result<Settings, Failure> {
    let home = variable("HOME")?.map(PathBuf::from);
    // By the XDG specification a relative path does not count.
    let xdg = variable("XDG_CACHE_HOME")?.map(PathBuf::from).filter(|folder| folder.is_absolute());
    let cache = xdg.or_else(|| home.map(|home| home.join(".cache"))).ok_or(UsageError::NoDownloadFolder)?;
    let hf_home = variable("HF_HOME")?.map_or_else(|| cache.join("huggingface"), PathBuf::from);
    let endpoint = variable("HF_ENDPOINT")?.unwrap_or_else(|| ENDPOINT.into());
    let token = match variable("HF_TOKEN")? {
        Some(token) => Some(token.trim().parse().map_err(UsageError::HubToken)?),
        None => token_in_file(&hf_home.join("token"))?,
    };
    Ok(Settings {
        endpoint: endpoint.parse().map_err(UsageError::HubEndpoint)?,
        token,
        hub_cache: variable("HF_HUB_CACHE")?.map_or_else(|| hf_home.join("hub"), PathBuf::from),
        downloads: cache.join("muser").join("downloads"),
        http_proxy: proxy(&["http_proxy", "all_proxy", "ALL_PROXY"])?,
        https_proxy: proxy(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])?,
        connect_timeout: CONNECT_TIMEOUT,
        stall_timeout: STALL_TIMEOUT,
        retry_pauses: RETRY_PAUSES_S.map(Duration::from_secs).into(),
    })
}

/// The token that the hub's own client keeps in a file, if it does.
fn token_in_file(path: &std::path::Path) -> Result<Option<Token>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => {
            let wrong = |reason| UsageError::HubTokenFile { path: path.to_owned(), reason };
            Ok(Some(text.trim().parse().map_err(wrong)?))
        }
        Err(reason) if reason.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(reason) => Err(Failure::io(path)(reason)),
    }
}

fn proxy(names: &[&str]) -> Result<Option<Proxy>, Failure> {
    for name in names {
        if let Some(address) = variable(name)? {
            let exceptions = variable("no_proxy")?.map_or_else(|| variable("NO_PROXY"), |list| Ok(Some(list)))?;
            return Ok(Some(Proxy { address, exceptions }));
        }
    }
    Ok(None)
}

/// The value of an environment variable; an empty one is as good as none.
#[expect(clippy::disallowed_methods, reason = "the command line is where configuration enters")]
fn variable(name: &str) -> Result<Option<String>, Failure> {
    match env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(UsageError::Variable(name.to_owned()).into()),
    }
}

fn is_set(name: &str) -> bool {
    let value = variable(name).ok().flatten().unwrap_or_default();
    ["1", "on", "yes", "true"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
}
