//! Flags that are set by a file or by the environment instead of the command line.
//!
//! Keys are long flags. At the top level of the file they hold for every command that has such a flag, in a command's table
//! for that command; `MUSER_ARG_<FLAG>` holds for every command too. An argument beats the environment, the environment a
//! command's table, that the top level, and that the built-in default. What excludes something stronger is left out. Where flags of several
//! commands share a name and not a kind, as a switch and one with a value may, a key holds for those of its kind.
//!
//! The parser is the only one that knows what flags there are and what they take: values found here are asked of it one by
//! one, and those that hold are put among the arguments.

mod environment;
mod error;
mod file;
mod flags;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

pub use error::ConfigSourceError;
use flags::{CommandFlags, FlagRefusal};

/// Origin of a configured value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the configuration file.
    File {
        /// The file.
        path: Arc<Path>,
        /// Line, from 1.
        line: usize,
        /// The table's name; empty for the top level.
        table: String,
        /// The key.
        key: String,
    },
    /// In the environment.
    Environment {
        /// The variable.
        variable: String,
    },
}

/// Everything that was configured, checked against all commands.
pub struct Configuration {
    root: Command,
    path: Option<PathBuf>,
    entries: Vec<Entry>,
}

/// A flag of a command, and its values if no argument sets it.
pub struct Effective {
    /// The command, as one types it after `muser`.
    pub command: String,
    /// The flag's long name.
    pub flag: String,
    /// Its values; none if it is unset, `true` or `false` for a switch, `(hidden)` for a secret.
    pub values: Vec<String>,
    /// Origin of the values; `None` for the built-in default.
    pub origin: Option<Arc<Origin>>,
}

/// A value that was found, for the commands whose names begin with `scope`.
#[derive(Debug)]
struct Entry {
    scope: Vec<String>,
    key: String,
    given: Given,
    origin: Arc<Origin>,
}

/// A value before it is known what its flag takes.
#[derive(Debug)]
enum Given {
    /// A table was named.
    Nothing,
    Boolean(bool),
    Single(OsString),
    List(Vec<OsString>),
    /// From the environment, where everything is text.
    Variable(OsString),
}

/// The strongest of the values for one flag of one command.
struct Chosen<'a> {
    flag: &'a str,
    arg: &'a Arg,
    values: Vec<OsString>,
    entry: &'a Entry,
}

/// `args` with what was configured for the command they name. Arguments that the parser refuses anyway stay as they are.
pub fn with_configured(root: Command, args: Vec<OsString>) -> Result<Vec<OsString>, ConfigSourceError> {
    let Ok(matches) = flags::without_requirements(root.clone()).try_get_matches_from(&args) else { return Ok(args) };
    let named = matches.get_one::<PathBuf>("config").cloned();
    let configuration = Configuration::read(root, named)?;
    let (mut before, after) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (args[..at].to_vec(), &args[at..]),
        None => (args.clone(), &[][..]),
    };
    before.extend(configuration.arguments(&matches)?);
    Ok([&before, after].concat())
}

impl Configuration {
    /// Reads the file at `named`, or the one that the environment names, or the one at the usual place if there is one; and
    /// the environment. Everything in them is checked, for all commands.
    pub fn read(root: Command, named: Option<PathBuf>) -> Result<Self, ConfigSourceError> {
        let usual = || environment::default_config_file().filter(|path| path.exists());
        let path = named.or_else(environment::config_file).or_else(usual);
        let mut entries = environment::entries()?;
        if let Some(path) = &path {
            entries.extend(file::entries(path)?);
        }
        let configuration = Self { root, path, entries };
        configuration.check()?;
        Ok(configuration)
    }

    /// The file that was read.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Every flag of every command.
    pub fn effective(&self) -> Result<Vec<Effective>, ConfigSourceError> {
        let mut all = Vec::new();
        for command in flags::commands(&self.root) {
            let chosen = self.chosen(&command)?;
            for (flag, arg) in command.flags() {
                let found = chosen.iter().find(|chosen| chosen.flag == flag);
                let values = found.map_or_else(|| flags::default_values(arg), |chosen| chosen.values.clone());
                let show = |value: &OsString| match flags::is_secret(flag) {
                    true => "(hidden)".to_owned(),
                    false => value.to_string_lossy().into_owned(),
                };
                all.push(Effective {
                    command: command.path.join(" "),
                    flag: flag.to_owned(),
                    values: values.iter().map(show).collect(),
                    origin: found.map(|chosen| chosen.entry.origin.clone()),
                });
            }
        }
        Ok(all)
    }

    /// Arguments configured for the command in `matches`, without those that are given there or conflict with those
    /// given.
    fn arguments(&self, matches: &ArgMatches) -> Result<Vec<OsString>, ConfigSourceError> {
        let (mut path, mut matches) = (Vec::new(), matches);
        while let Some((name, below)) = matches.subcommand() {
            path.push(name.to_owned());
            matches = below;
        }
        let commands = flags::commands(&self.root);
        let Some(command) = commands.iter().find(|command| command.path == path) else { return Ok(Vec::new()) };
        let given = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        let mut stronger: Vec<&Arg> = command.command.get_arguments().filter(given).collect();
        let mut arguments = Vec::new();
        for Chosen { arg, values, .. } in self.chosen(command)? {
            let holds = |other: &&Arg| other.get_id() != arg.get_id() && !command.exclude_each_other(arg, other);
            if stronger.iter().all(holds) {
                let added = flags::as_arguments(arg, &values);
                if !added.is_empty() {
                    stronger.push(arg);
                }
                arguments.extend(added);
            }
        }
        Ok(arguments)
    }

    /// The strongest value of each flag of `command` that has one, the strongest first.
    fn chosen<'a>(&'a self, command: &CommandFlags<'a>) -> Result<Vec<Chosen<'a>>, ConfigSourceError> {
        let mut chosen = Vec::new();
        for (flag, arg) in command.flags() {
            let meant = |entry: &&Entry| entry.key == flag && command.path.starts_with(&entry.scope);
            let values = |entry: &'a Entry| match entry.accepted_by(arg) {
                Err(ConfigSourceError::Kind { .. }) => None,
                values => Some((entry, values)),
            };
            let holding = self.entries.iter().filter(meant).filter_map(values);
            if let Some((entry, values)) = holding.max_by_key(|(entry, _)| entry.strength()) {
                chosen.push(Chosen { flag, arg, values: values?, entry });
            }
        }
        chosen.sort_by_key(|chosen| std::cmp::Reverse(chosen.entry.strength()));
        Ok(chosen)
    }

    fn check(&self) -> Result<(), ConfigSourceError> {
        let commands = flags::commands(&self.root);
        for entry in &self.entries {
            let in_scope = || commands.iter().filter(|command| command.path.starts_with(&entry.scope));
            let scope = entry.scope.join(" ");
            if in_scope().next().is_none() {
                return Err(ConfigSourceError::UnknownCommand { origin: entry.origin.clone(), command: scope });
            }
            if matches!(entry.given, Given::Nothing) {
                continue;
            }
            let accepted =
                in_scope().filter_map(|command| Some(entry.accepted_by(command.flag(&entry.key)?).map(|_| ())));
            // That some flag accepts it counts for more than that another is of another kind, and less than a wrong value.
            let weight = |result: &Result<(), ConfigSourceError>| match result {
                Err(ConfigSourceError::Kind { .. }) => 0,
                Ok(()) => 1,
                Err(_) => 2,
            };
            let (origin, flag) = (entry.origin.clone(), entry.key.clone());
            let unknown = || Err(ConfigSourceError::UnknownFlag { origin, flag, command: scope });
            accepted.max_by_key(weight).unwrap_or_else(unknown)?;
        }
        commands.iter().try_for_each(|command| self.check_choices(command))
    }

    /// Of what excludes each other only one may be set, unless something stronger decides.
    fn check_choices(&self, command: &CommandFlags<'_>) -> Result<(), ConfigSourceError> {
        let chosen = self.chosen(command)?;
        let set = |chosen: &&Chosen<'_>| !flags::as_arguments(chosen.arg, &chosen.values).is_empty();
        for (index, one) in chosen.iter().enumerate().filter(|(_, one)| set(one)) {
            let as_strong = |other: &&Chosen<'_>| other.entry.strength() == one.entry.strength();
            let excluded = |other: &&Chosen<'_>| command.exclude_each_other(one.arg, other.arg);
            if let Some(other) = chosen[..index].iter().filter(set).filter(as_strong).find(excluded) {
                return Err(ConfigSourceError::Conflict {
                    origin: one.entry.origin.clone(),
                    flag: one.flag.to_owned(),
                    other: other.flag.to_owned(),
                    other_origin: other.entry.origin.clone(),
                    command: command.path.join(" "),
                });
            }
        }
        Ok(())
    }
}

impl Entry {
    /// The environment beats tables, and a command's table that of what it is a part of.
    fn strength(&self) -> usize {
        match *self.origin {
            Origin::Environment { .. } => usize::MAX,
            Origin::File { .. } => self.scope.len(),
        }
    }

    fn accepted_by(&self, arg: &Arg) -> Result<Vec<OsString>, ConfigSourceError> {
        let (origin, flag) = (|| self.origin.clone(), self.key.clone());
        flags::accept(arg, &self.given).map_err(|refused| match refused {
            FlagRefusal::Kind { takes, given } => ConfigSourceError::Kind { origin: origin(), flag, takes, given },
            FlagRefusal::Value(reason) => ConfigSourceError::Value { origin: origin(), reason },
        })
    }
}

/// For messages.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, key, .. } => write!(f, "{path:?}, line {line}, {key:?}"),
            Self::Environment { variable } => write!(f, "the environment variable {variable}"),
        }
    }
}
