//! The environment: the one place that reads it.

#![expect(clippy::disallowed_methods, reason = "configuration enters here")]

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::error::ConfigSourceError;
use super::{Entry, Given, Origin};

/// Prefix of variables that set flags.
const PREFIX: &str = "MUSER_ARG_";

/// The flag that names the configuration file, and so cannot be set in it.
const CONFIG: &str = "MUSER_ARG_CONFIG";

/// All flags that the environment sets, in the order of their names: `MUSER_ARG_CTX_SIZE` stands for `--ctx-size`.
pub fn entries() -> Result<Vec<Entry>, ConfigSourceError> {
    let mut entries = Vec::new();
    for (name, value) in env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX) && *name != CONFIG) else { continue };
        let written = &name[PREFIX.len()..];
        let key = written.to_ascii_lowercase().replace('_', "-");
        let origin = Arc::new(Origin::Environment { variable: name.to_owned() });
        if key.to_ascii_uppercase().replace('-', "_") != written {
            return Err(ConfigSourceError::UnknownFlag { origin, flag: written.to_owned(), command: String::new() });
        }
        entries.push(Entry { scope: Vec::new(), key, given: Given::Variable(value), origin });
    }
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(entries)
}

/// The configuration file that the environment names.
pub fn config_file() -> Option<PathBuf> {
    env::var_os(CONFIG).map(PathBuf::from)
}

/// Default path of the configuration file, which need not exist.
pub fn default_config_file() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    // A relative path counts for nothing here, by the XDG specification.
    let folder = set("XDG_CONFIG_HOME").filter(|folder| folder.is_absolute());
    Some(folder.or_else(|| Some(set("HOME")?.join(".config")))?.join("muser/config.toml"))
}
