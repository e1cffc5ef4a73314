//! The configuration file, the environment, and `muser config check`.

use std::process::Command;

use serde_json::Value;

use crate::common::{Ended, Folder, SHIPPED, command, muser};

/// A folder in which a configuration file is where muser looks for one.
fn home(config: &str) -> Folder {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("muser")).unwrap();
    folder.write("muser/config.toml", config);
    folder
}

fn at_home<'a>(command: &'a mut Command, folder: &Folder) -> &'a mut Command {
    command.env("XDG_CONFIG_HOME", folder.path())
}

fn run_at_home(folder: &Folder, args: &[&str], variables: &[(&str, &str)]) -> Ended {
    Ended::of(at_home(&mut command(args), folder).envs(variables.iter().copied()).output().unwrap())
}

/// Values and source of one flag of `muser run`, by `config check`.
fn checked(folder: &Folder, flag: &str, variables: &[(&str, &str)]) -> (Vec<String>, Value) {
    let ended = run_at_home(folder, &["config", "check", "run", "--json"], variables).done();
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let line = report["flags"].as_array().unwrap().iter().find(|line| line["flag"] == flag).unwrap();
    (serde_json::from_value(line["values"].clone()).unwrap(), line.clone())
}

/// The number of tokens that a run generated.
#[track_caller]
fn generated(ended: Ended) -> String {
    let ended = ended.done();
    let before = ended.stderr.split(" generated").next().unwrap();
    before.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn an_argument_beats_the_environment_that_the_command_s_table_that_the_top_level_and_that_the_default() {
    let both = home("predict = 2\n\n[run]\npredict = 3\n");
    let top = home("predict = 2\n[chat]\npredict = 9\n");
    let none = home("temp = 0\n");
    let environment = [("MUSER_ARG_PREDICT", "4")];
    let run = |folder, more: &[&str], variables| {
        generated(run_at_home(folder, &[&["run", "Once", "-c", "16"], more].concat(), variables))
    };
    let rest = run(&none, &[], &[]);
    assert!(rest.parse::<u32>().unwrap() > 5, "{rest}");
    assert_eq!(run(&top, &[], &[]), "2");
    assert_eq!(run(&both, &[], &[]), "3");
    assert_eq!(run(&both, &[], &environment), "4");
    for argument in [["-n", "5"], ["--n-predict", "5"]] {
        assert_eq!(run(&both, &argument, &environment), "5");
    }
    // The same by the words of `config check`.
    let source = |folder, variables: &[_]| {
        let (values, line) = checked(folder, "predict", variables);
        (values[0].clone(), line["source"].as_str().unwrap().to_owned(), line["line"].clone(), line["table"].clone())
    };
    let expected = |value: &str, source: &str| (value.to_owned(), source.to_owned(), Value::Null, Value::Null);
    assert_eq!(source(&none, &[]), expected("-1", "default"));
    assert_eq!(source(&top, &[]), ("2".into(), "file".into(), 1.into(), Value::Null));
    assert_eq!(source(&both, &[]), ("3".into(), "file".into(), 4.into(), "run".into()));
    assert_eq!(source(&both, &environment), expected("4", "environment"));
    assert_eq!(checked(&both, "predict", &environment).1["variable"], "MUSER_ARG_PREDICT");
}

#[test]
fn a_file_is_named_by_a_flag_or_by_the_environment_or_found_at_home() {
    let (folder, user) = (home("predict = 1"), Folder::new());
    let named = folder.write("named.toml", "predict = 2");
    let args = ["run", "Once", "-c", "16"];
    assert_eq!(generated(run_at_home(&folder, &args, &[])), "1");
    assert_eq!(generated(run_at_home(&folder, &args, &[("MUSER_ARG_CONFIG", &named)])), "2");
    for place in [[&args[..], &["--config", &named]].concat(), [&["--config", &named], &args[..]].concat()] {
        assert_eq!(generated(run_at_home(&folder, &place, &[("MUSER_ARG_CONFIG", "/nowhere/else")])), "2");
    }
    std::fs::create_dir_all(user.path().join(".config/muser")).unwrap();
    user.write(".config/muser/config.toml", "predict = 3");
    for xdg in [None, Some(""), Some("relative")] {
        let mut command = command(&args);
        command.env_remove("XDG_CONFIG_HOME").env("HOME", user.path());
        xdg.map(|xdg| command.env("XDG_CONFIG_HOME", xdg));
        assert_eq!(generated(Ended::of(command.output().unwrap())), "3", "{xdg:?}");
    }
    // One that was named must exist.
    let line = muser(&[&args[..], &["--config", "/nowhere/named.toml"]].concat()).refused(2);
    assert!(line.contains("/nowhere/named.toml") && line.contains("No such file"), "{line}");
}

#[test]
fn what_a_command_requires_may_be_configured() {
    let folder = home("[run]\nprompt = \"Once upon\"\npredict = 0\n[logits]\nchunk = 0x10\n");
    assert_eq!(run_at_home(&folder, &["run"], &[]).done().stdout, "Once upon\n");
    let (ids, out) = (folder.write("ids", "1 2 3"), folder.at("out"));
    let variables = [("MUSER_ARG_IDS", ids.as_str()), ("MUSER_ARG_OUT", &out)];
    run_at_home(&folder, &["logits", SHIPPED], &variables).done();
    assert_eq!(std::fs::metadata(&out).unwrap().len(), 3 * 4096 * 4);
    // `tokenize` has a switch of that name, which is not meant.
    assert!(!run_at_home(&folder, &["tokenize", "a"], &variables).done().stdout.starts_with('['));
    // What is still missing is asked for as ever.
    let message = run_at_home(&folder, &["logits"], &variables[..1]).wrong_usage();
    assert!(message.contains("--out"), "{message}");
}

#[test]
fn what_excludes_something_stronger_is_left_out() {
    let folder = home("prompt = \"top\"\njson = true\n[run]\npredict = 0\n[tokenize]\nfile = \"absent\"\n");
    let file = folder.write("file", "from the file");
    let run = |args: &[&str], variables: &[_]| run_at_home(&folder, args, variables).done().stdout;
    assert_eq!(run(&["run"], &[]), "top\n");
    assert_eq!(run(&["run", "argument"], &[]), "argument\n");
    assert_eq!(run(&["run", "-f", &file], &[]), "from the file\n");
    assert_eq!(run(&["run"], &[("MUSER_ARG_FILE", &file)]), "from the file\n");
    assert_eq!(run(&["run", "-p", "flag"], &[("MUSER_ARG_FILE", &file)]), "flag\n");
    // A command's table is stronger than the top level.
    let line = run_at_home(&folder, &["tokenize"], &[]).refused(1);
    assert!(line.contains("absent"), "{line}");
    assert!(run(&["tokenize", "a"], &[]).starts_with("[{"), "JSON by the top level");
    assert!(!run(&["tokenize", "a", "--ids"], &[]).contains("piece"));
    assert!(run(&["tokenize", "a"], &[("MUSER_ARG_JSON", "false")]).starts_with("  "));
}

#[test]
fn switches_lists_and_numbers_are_written_as_toml_has_them() {
    let folder = home(
        "temp = 0.0\nignore-eos = true\nseed = -1\n[run]\nlogit-bias = [\"5+1\", \"6-2.5\"]\nctx-size = 0x40\ntop-p = 1\n",
    );
    let values = |flag: &str| checked(&folder, flag, &[]).0;
    assert_eq!(values("temp"), ["0.0"]);
    assert_eq!(values("ignore-eos"), ["true"]);
    assert_eq!(values("seed"), ["-1"]);
    assert_eq!(values("logit-bias"), ["5+1", "6-2.5"]);
    assert_eq!(values("ctx-size"), ["64"]);
    assert_eq!(values("top-p"), ["1"]);
    assert_eq!(values("threads"), [""; 0]);
    let context = run_at_home(&folder, &["run", "x"], &[]);
    assert!(context.stderr.contains("the context is full"), "{}", context.stderr);
    let switched_off = run_at_home(&folder, &["tokenize", "a", "--ids"], &[("MUSER_ARG_NO_BOS", "yes")]);
    assert!(switched_off.refused(2).contains("true or false"));
}

#[test]
fn a_mistake_is_named_by_file_line_and_key_by_whatever_command() {
    let cases: [(&str, &str, &[&str]); 16] = [
        ("temp = 1\ntmp = 1", "line 2", &["\"tmp\"", "no flag --tmp"]),
        ("\n[run]\nchunk = 1", "line 3", &["\"chunk\"", "no flag --chunk of muser run"]),
        ("[ruun]", "line 1", &["no command \"ruun\""]),
        ("[run.fast]\ntemp = 1", "line 1", &["no command \"run fast\""]),
        ("[[run]]\ntemp = 1", "line 1", &["\"run\""]),
        ("config = \"other\"", "line 1", &["\"config\""]),
        ("help = true", "line 1", &["\"help\""]),
        ("n-predict = 1", "line 1", &["\"n-predict\""]),
        ("temp = \"warm\"", "line 1", &["\"temp\"", "'warm' for '--temp <T>'", "not negative"]),
        ("[bench]\noutput = \"xml\"", "line 2", &["\"output\"", "md, json"]),
        ("threads = [1, 2]", "line 1", &["\"threads\"", "one value, not an array"]),
        ("temp = true", "line 1", &["\"temp\"", "a value, not a boolean"]),
        ("json = \"true\"", "line 1", &["\"json\"", "true or false"]),
        ("seed = 1979-05-27", "line 1", &["\"seed\""]),
        ("[tokenize]\nids = true\njson = true", "line 2", &["--ids", "--json", "line 3", "cannot be used with"]),
        ("temp = 1\n\ntemp = 2", "line 3", &["duplicate"]),
    ];
    for (config, line_number, parts) in cases {
        let folder = home(config);
        for args in [&["config", "check"][..], &["doctor"], &["tokenize", "a"]] {
            let line = run_at_home(&folder, args, &[]).refused(2);
            for part in [&["/muser/config.toml\"", line_number], parts].concat() {
                assert!(line.contains(part), "{config:?}: {line:?} does not name {part:?}");
            }
        }
        // Help is what one needs then.
        run_at_home(&folder, &["config", "--help"], &[]).done();
    }
}

#[test]
fn a_variable_that_stands_for_no_flag_is_refused_by_its_name() {
    let folder = home("");
    for (variable, value) in [
        ("MUSER_ARG_TMEP", "1"),
        ("MUSER_ARG_Temp", "1"),
        ("MUSER_ARG_TOP-K", "1"),
        ("MUSER_ARG_", "1"),
        ("MUSER_ARG_TEMP", "warm"),
        ("MUSER_ARG_TEMP", ""),
        ("MUSER_ARG_JSON", "1"),
    ] {
        let line = run_at_home(&folder, &["tokenize", "a"], &[(variable, value)]).refused(2);
        assert!(line.contains(&format!("environment variable {variable}:")), "{line}");
    }
    run_at_home(&folder, &["tokenize", "a"], &[("MUSER_ARGS", "1"), ("MUSER_MODEL", "x")]).done();
}

#[test]
fn what_is_no_text_is_no_configuration() {
    let folder = home("");
    folder.write("muser/config.toml", b"temp = 1 # \xff");
    let line = run_at_home(&folder, &["doctor"], &[]).refused(2);
    assert!(line.contains("config.toml") && line.contains("UTF-8"), "{line}");
    let line = muser(&["doctor", "--config", folder.path().to_str().unwrap()]).refused(2);
    assert!(line.contains("directory"), "{line}");
}

#[test]
fn check_lists_every_flag_of_every_command_and_says_who_set_it() {
    let folder = home("threads = 2\n[chat]\nsystem-prompt = \"two\\nlines\"\n");
    let ended = run_at_home(&folder, &["config", "check"], &[("MUSER_ARG_SEED", "7")]).done();
    let path = folder.at("muser/config.toml");
    assert!(ended.stdout.starts_with(&format!("file  {path}\n\nrun\n")), "{}", ended.stdout);
    let mut command = "";
    let mut found = Vec::new();
    for line in ended.stdout.lines().skip(2).filter(|line| !line.is_empty()) {
        match line.strip_prefix("  ") {
            None => command = line,
            Some(line) => found.push((command, line.split_whitespace().collect::<Vec<_>>().join(" "))),
        }
    }
    for (command, line) in [
        ("run", format!("threads 2 file {path}:1")),
        ("logits", format!("threads 2 file {path}:1")),
        ("quantize", format!("threads 2 file {path}:1")),
        ("chat", format!("system-prompt two\\nlines file {path}:3 [chat]")),
        ("chat", "seed 7 environment MUSER_ARG_SEED".into()),
        ("run", "temp 0.8 default".into()),
        ("run", "model - default".into()),
        ("inspect", "json false default".into()),
        ("config check", "json false default".into()),
    ] {
        assert!(found.contains(&(command, line.clone())), "{command}: {line}\n{}", ended.stdout);
    }
    // Each command's help has the same flags, and three that are no settings.
    for name in ["run", "chat", "bench", "tokenize", "doctor"] {
        let help = muser(&[name, "--help"]).done().stdout;
        let long = |line: &str| Some(line.trim().split("--").nth(1)?.split([' ', '\n']).next()?.to_owned());
        let flags = help.lines().filter(|line| line.trim_start().starts_with('-')).filter_map(long);
        let flags: Vec<String> = flags.filter(|flag| flag != "help" && flag != "config").collect();
        let listed: Vec<&str> = found
            .iter()
            .filter(|(command, _)| *command == name)
            .map(|(_, line)| line.split(' ').next().unwrap())
            .collect();
        assert_eq!(listed, flags, "{name}");
    }
    let line = run_at_home(&folder, &["config", "check", "nothing"], &[]).refused(2);
    assert!(line.contains("nothing"), "{line}");
}
