//! Commands and flags, derived from the parser's definitions.

use std::ffi::{OsStr, OsString};

use clap::builder::Resettable;
use clap::{Arg, ArgAction, Command};

use super::Given;

/// A command, with the names that lead to it.
pub struct CommandFlags<'a> {
    /// `["config", "check"]` for `muser config check`.
    pub path: Vec<String>,
    /// Its flags, and which of them exclude each other.
    pub command: &'a Command,
}

/// Reason for which a flag refuses a value.
pub enum FlagRefusal {
    /// A value of the wrong kind.
    Kind {
        /// Kind of value that the flag takes.
        takes: &'static str,
        /// Kind of value given.
        given: &'static str,
    },
    /// The flag parser's message.
    Value(String),
}

/// All commands below `root`.
pub fn commands(root: &Command) -> Vec<CommandFlags<'_>> {
    fn add<'a>(parent: &'a Command, path: &[String], found: &mut Vec<CommandFlags<'a>>) {
        for command in parent.get_subcommands() {
            let path = [path, &[command.get_name().to_owned()]].concat();
            found.push(CommandFlags { path: path.clone(), command });
            add(command, &path, found);
        }
    }
    let mut found = Vec::new();
    add(root, &[], &mut found);
    found
}

/// The root with every command able to do without what it requires: what is missing may be configured.
pub fn without_requirements(root: Command) -> Command {
    let groups: Vec<String> = root.get_groups().map(|group| group.get_id().to_string()).collect();
    let root = groups.into_iter().fold(root, |root, group| root.mut_group(group, |group| group.required(false)));
    let free = |arg: Arg| arg.required(false).requires(Resettable::Reset);
    root.mut_args(free).mut_subcommands(without_requirements)
}

impl<'a> CommandFlags<'a> {
    /// The flags that can be configured, by their long names.
    pub fn flags(&self) -> impl Iterator<Item = (&'a str, &'a Arg)> + use<'a> {
        let configurable =
            |arg: &&Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue);
        self.command.get_arguments().filter(configurable).filter_map(|arg| Some((arg.get_long()?, arg)))
    }

    /// The flag of this long name.
    pub fn flag(&self, name: &str) -> Option<&'a Arg> {
        self.flags().find(|(flag, _)| *flag == name).map(|(_, arg)| arg)
    }

    /// True if only one of two arguments may be given.
    pub fn exclude_each_other(&self, one: &Arg, other: &Arg) -> bool {
        let conflicts = |one, other: &Arg| {
            self.command.get_arg_conflicts_with(one).iter().any(|found| found.get_id() == other.get_id())
        };
        let share_a_choice = self.command.get_groups().any(|group| {
            let has = |arg: &Arg| group.get_args().any(|id| id == arg.get_id());
            !group.clone().is_multiple() && has(one) && has(other)
        });
        one.get_id() != other.get_id() && (share_a_choice || conflicts(one, other) || conflicts(other, one))
    }
}

/// True for a flag without a value.
pub fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Values of a flag that is not set.
pub fn default_values(arg: &Arg) -> Vec<OsString> {
    if is_switch(arg) {
        vec!["false".into()]
    } else {
        arg.get_default_values().iter().map(|value| value.into()).collect()
    }
}

/// Command-line arguments that give a flag these values.
pub fn as_arguments(arg: &Arg, values: &[OsString]) -> Vec<OsString> {
    let name = format!("--{}", arg.get_long().unwrap_or_default());
    if is_switch(arg) {
        return if values == ["true"] { vec![name.into()] } else { Vec::new() };
    }
    let with_value = |value: &OsString| [OsStr::new(&name), OsStr::new("="), value].into_iter().collect();
    values.iter().map(with_value).collect()
}

/// The values that the flag takes from what it was given, if it accepts them; `"true"` or `"false"` for a switch.
pub fn accept(arg: &Arg, given: &Given) -> Result<Vec<OsString>, FlagRefusal> {
    let several = matches!(arg.get_action(), ArgAction::Append);
    let refuse = |takes, given| Err(FlagRefusal::Kind { takes, given });
    let values = match given {
        Given::Nothing => Vec::new(),
        Given::Boolean(value) if is_switch(arg) => vec![value.to_string().into()],
        Given::Boolean(_) => return refuse("a value", "a boolean"),
        Given::Variable(value) if is_switch(arg) && (value == "true" || value == "false") => vec![value.clone()],
        Given::Variable(_) | Given::Single(_) | Given::List(_) if is_switch(arg) => {
            return refuse("true or false", "a value");
        }
        Given::Single(value) | Given::Variable(value) => vec![value.clone()],
        Given::List(values) if several => values.clone(),
        Given::List(_) => return refuse("one value", "an array"),
    };
    if !is_switch(arg) {
        ask_the_parser(arg, &values).map_err(FlagRefusal::Value)?
    }
    Ok(values)
}

/// Parses the values with the flag's own parser; the parser's message if it refuses one.
fn ask_the_parser(arg: &Arg, values: &[OsString]) -> Result<(), String> {
    let name = arg.get_long().unwrap_or_default();
    // Not a copy of the argument: what it requires and excludes is unknown here.
    let mut alone = Arg::new("flag")
        .long(name.to_owned())
        .action(arg.get_action().clone())
        .value_parser(arg.get_value_parser().clone())
        .ignore_case(arg.is_ignore_case_set());
    if let Some(names) = arg.get_value_names() {
        alone = alone.value_names(names.to_vec());
    }
    if let Some(delimiter) = arg.get_value_delimiter() {
        alone = alone.value_delimiter(delimiter);
    }
    let parser = Command::new("muser").no_binary_name(true).arg(alone);
    let Err(error) = parser.try_get_matches_from(as_arguments(arg, values)) else { return Ok(()) };
    if is_secret(name) {
        return Err(format!("--{name} does not take this value"));
    }
    let text = error.to_string();
    let lines = text.trim_start_matches("error: ").lines().take_while(|line| !line.trim().is_empty());
    Err(lines.map(str::trim).collect::<Vec<_>>().join(" "))
}

/// True if the flag's value is a secret that must not be printed.
pub fn is_secret(name: &str) -> bool {
    name.ends_with("api-key") || name.ends_with("token")
}
