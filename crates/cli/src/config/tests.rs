//! Kinds of flags that no command has yet.

use clap::{Arg, ArgAction, Command};

use super::*;

fn root() -> Command {
    let key = Arg::new("key").long("api-key").value_parser(["long", "longer"]);
    let token = Arg::new("token").long("hf-token");
    let key = key.requires("tokens");
    let tokens = Arg::new("tokens").long("tokens").action(ArgAction::Append).required(true);
    let serve = Command::new("serve").args([key, token, tokens]);
    Command::new("muser").subcommand(Command::new("node").subcommand(serve))
}

fn configuration(entries: &[(&str, &str, &str)]) -> Result<Configuration, ConfigSourceError> {
    let entry = |(line, (scope, key, value)): (usize, &(&str, &str, &str))| Entry {
        scope: scope.split_whitespace().map(str::to_owned).collect(),
        key: (*key).to_owned(),
        given: Given::Single(value.into()),
        origin: Arc::new(Origin::File {
            path: Path::new("file").into(),
            line,
            table: (*scope).to_owned(),
            key: (*key).to_owned(),
        }),
    };
    let configuration = Configuration { root: root(), path: None, entries: (1..).zip(entries).map(entry).collect() };
    configuration.check().map(|()| configuration)
}

#[test]
fn a_secret_is_neither_listed_nor_repeated_by_an_error() {
    let configuration = configuration(&[("", "api-key", "longer"), ("", "hf-token", "s3cret"), ("", "tokens", "5")]);
    let listed: Vec<(String, Vec<String>)> =
        configuration.unwrap().effective().unwrap().into_iter().map(|line| (line.flag, line.values)).collect();
    let hidden = || vec!["(hidden)".to_owned()];
    assert_eq!(
        listed,
        [("api-key".into(), hidden()), ("hf-token".into(), hidden()), ("tokens".into(), vec!["5".into()])]
    );
    let error = super::tests::configuration(&[("", "api-key", "s3cret")]).err().unwrap().to_string();
    assert!(error.contains("--api-key") && !error.contains("s3cret"), "{error}");
}

#[test]
fn a_command_s_table_holds_for_its_parts_and_theirs_is_stronger() {
    let value = |entries: &[_]| {
        let effective = configuration(entries).unwrap().effective().unwrap();
        effective.into_iter().find(|line| line.flag == "tokens").unwrap().values
    };
    let (top, table, part) = (("", "tokens", "1"), ("node", "tokens", "2"), ("node serve", "tokens", "3"));
    assert_eq!(value(&[part, table, top]), ["3"]);
    assert_eq!(value(&[top, table]), ["2"]);
    assert_eq!(value(&[table, top]), ["2"]);
    assert!(value(&[]).is_empty());
}

#[test]
fn what_is_configured_need_not_be_given() {
    let args = |given: &[&str]| {
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        let matches = flags::without_requirements(root()).try_get_matches_from(&given).unwrap();
        configuration(&[("", "tokens", "-x")]).unwrap().arguments(&matches).unwrap()
    };
    assert_eq!(args(&["muser", "node", "serve"]), ["--tokens=-x"]);
    assert_eq!(args(&["muser", "node", "serve", "--tokens", "1"]), [""; 0]);
    // A flag that requires what is configured.
    assert_eq!(args(&["muser", "node", "serve", "--api-key", "long"]), ["--tokens=-x"]);
}
