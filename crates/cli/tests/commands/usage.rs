//! Command lines that are wrong, and help.

use muser_engine::SAMPLER_SETTINGS;

use crate::common::muser;

#[track_caller]
fn wrong(args: &[&str], expected: &[&str]) {
    let message = muser(args).wrong_usage();
    for part in expected {
        assert!(message.contains(part), "{args:?}: {message:?} does not name {part:?}");
    }
}

#[test]
fn an_instruction_set_is_refused_for_a_gpu() {
    let refused = muser(&["run", "--device", "cuda", "--kernels", "scalar", "x"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("--kernels") && refused.stderr.contains("--device cuda"), "{}", refused.stderr);
}

#[test]
fn a_wrong_setting_is_refused_with_what_is_right() {
    for temperature in ["nan", "inf", "-0.1", "warm", ""] {
        wrong(&["run", "--temp", temperature, "x"], &["--temp", "not negative"]);
    }
    for threads in ["0", "513", "-1", "many"] {
        wrong(&["run", "-t", threads, "x"], &["--threads", "1 to 512"]);
    }
    wrong(&["run", "--kernels", "avx9", "x"], &["--kernels", "this CPU can run: scalar"]);
    wrong(&["run", "-s", "-2", "x"], &["--seed", "-1 or a number"]);
    wrong(&["run", "-n", "-2", "x"], &["--predict"]);
    wrong(&["run", "-c", "-1", "x"], &["--ctx-size"]);
    wrong(&["run", "-ctk", "q4_0", "x"], &["--cache-type-k", "q8, f16"]);
    wrong(&["logits", "--ids", "i", "--out", "o", "--chunk", "0"], &["--chunk"]);
    wrong(&["logits", "--ids", "i", "--out", "o", "--kv", "q5"], &["--kv", "q8, f16"]);
    wrong(&["quantize", "a", "b", "Q3_K"], &["Q3_K", "Q8_0, Q4_0, Q4_K, Q6_K"]);
    for bias in ["5", "5+", "+1", "5+-1", "x+1", "-5+1", "5+one"] {
        wrong(&["run", &format!("--logit-bias={bias}"), "x"], &["--logit-bias", "15043+1"]);
    }
    wrong(&["bench", "-r", "0"], &["--repetitions"]);
    wrong(&["bench", "-p", "-1"], &["--n-prompt"]);
    wrong(&["bench", "-o", "xml"], &["md, json"]);
    for name in ["", "Desk", "a b", "a/b", &"a".repeat(64)] {
        wrong(&["cluster", "begin", "f", "--name", name], &["--name", "1 to 63 of a-z, 0-9 and -"]);
        wrong(&["cluster", "grant", "f", name, "--roles", "both", "--out", "o"], &["1 to 63 of a-z, 0-9 and -"]);
    }
    wrong(&["cluster", "grant", "f", "a", "--out", "o", "--roles", "reader"], &["--roles", "decoder, producer, both"]);
    for days in ["0", "367", "x"] {
        wrong(&["cluster", "renew", "f", "--days", days], &["--days"]);
    }
    for digits in ["", "12", &"g".repeat(64), &"a".repeat(33)] {
        wrong(&["cluster", "revoke", "f", digits], &["64 hexadecimal digits of a node id, or 32 of a serial"]);
    }
    wrong(&["cluster", "revoke-key", "f", "0"], &["<ID>"]);
}

#[test]
fn keys_and_values_in_different_layouts_are_refused_by_name() {
    for args in [&["-ctk", "f16"][..], &["-ctv", "f16"], &["-ctk", "q8", "-ctv", "f16"]] {
        let line = muser(&[&["run", "x"], args].concat()).refused(2);
        assert!(line.contains("-ctk") && line.contains("-ctv") && line.contains("f16"), "{line}");
    }
}

#[test]
fn a_flag_that_does_not_exist_is_refused_by_its_name() {
    for (flag, shown) in [("-ngl", "'--ngl'"), ("-fa", "'--fa'"), ("--top-j", "'--top-j'"), ("-x", "'-x'")] {
        wrong(&["run", flag, "1", "x"], &["unexpected argument", shown]);
    }
    wrong(&["inspect", "--jsn"], &["--json"]);
}

#[test]
fn a_prompt_is_given_once() {
    wrong(&["run"], &["required", "PROMPT"]);
    wrong(&["run", "x", "-p", "y"], &["cannot be used with"]);
    wrong(&["run", "-p", "x", "-f", "y"], &["cannot be used with"]);
    wrong(&["run", "x", "y"], &["unexpected argument 'y'"]);
    wrong(&["logits", "--ids", "x"], &["required", "--out"]);
}

#[test]
fn an_unknown_command_is_answered_with_the_nearest() {
    wrong(&["rum"], &["'rum'", "'run'"]);
    wrong(&["inspct", "x"], &["'inspect'"]);
    wrong(&["quantise"], &["'quantize'"]);
}

/// That a command's help names these flags and no other, and that the help above it names the command.
#[track_caller]
fn help_is_complete(command: &str, own: &[&str], shared: &[&str]) {
    let mut words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
    let help = muser(&words).done().stdout;
    let name = words.remove(words.len() - 2);
    let overview = muser(&words).done().stdout;
    assert!(overview.contains(&format!("\n  {name} ")), "{command}");
    for flag in own.iter().chain(shared) {
        assert!(help.contains(flag), "{command}: {flag}");
    }
    // A flag that this test does not know begins a line.
    let listed = help
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("--") || line.starts_with("-"))
        .filter(|line| !line.starts_with("- "));
    let known =
        |line: &str| own.iter().chain(shared).chain(&["-h, --help", "--config"]).any(|flag| line.starts_with(flag));
    let unknown: Vec<&str> = listed.filter(|line| !known(line)).collect();
    assert!(unknown.is_empty(), "{command}: {unknown:?}");
}

#[test]
fn help_of_the_cluster_commands_names_every_flag_and_says_that_a_granted_key_travels() {
    let flags: [(&str, &[&str]); 10] = [
        ("begin", &["<FOLDER>", "--name", "--node", "--days"]),
        ("grant", &["<FOLDER>", "<NAME>", "--roles", "--out", "--days", "decoder", "private key is made here"]),
        ("show", &["<FOLDER>", "--json"]),
        ("rotate-keys", &["<FOLDER>", "keys.toml"]),
        ("revoke", &["<FOLDER>", "<NODE_ID_OR_SERIAL>", "revoked.toml"]),
        ("revoke-key", &["<FOLDER>", "<ID>"]),
        ("activate-key", &["<FOLDER>", "<ID>"]),
        ("import", &["<FOLDER>", "--revoked", "--keys", "--instead"]),
        ("prune", &["<FOLDER>"]),
        ("renew", &["<FOLDER>", "--for", "--days"]),
    ];
    for (command, own) in flags {
        help_is_complete(&format!("cluster {command}"), own, &[]);
    }
}

#[test]
fn help_names_every_flag_and_the_exit_codes() {
    let machine = ["-t, --threads", "--kernels", "--device"];
    let generation = [
        "-n, --predict",
        "--temp",
        "-s, --seed",
        "-c, --ctx-size",
        "--cache-type-k",
        "-ctk",
        "--cache-type-v",
        "-ctv",
        "-r, --reverse-prompt",
        "-e, --escape",
    ];
    let bench = [
        "-m, --model",
        "-p, --n-prompt",
        "-n, --n-gen",
        "-r, --repetitions",
        "-d, --n-depth",
        "--parallel",
        "--kv",
        "-o, --output",
    ];
    let of_settings = SAMPLER_SETTINGS.iter().filter_map(|setting| setting.flag.as_ref());
    let of_settings: Vec<String> = of_settings.map(|flag| format!("--{}", flag.long)).collect();
    let mut sampler: Vec<&str> = of_settings.iter().map(String::as_str).collect();
    sampler.extend(["-l, --logit-bias", "--ignore-eos"]);
    let hub = ["--hf-repo", "--hf-file", "--offline"];
    let machine = [&machine[..], &hub].concat();
    let generation = [&generation[..], &sampler[..], &machine].concat();
    let flags: [(&str, &[&str], &[&str]); 7] = [
        ("run", &["-m, --model", "[PROMPT]", "-p, --prompt", "-f, --file"], &generation),
        ("chat", &["-m, --model", "--system-prompt", "-sys"], &generation),
        ("inspect", &["[MODEL]", "--json"], &hub),
        (
            "quantize",
            &["<INPUT>", "<OUTPUT>", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "--allow-requantize", "-t, --threads"],
            &[],
        ),
        ("make-model", &["<OUTPUT>", "--like", "muse-30b", "glimmer-mini", "-s, --seed", "-t, --threads"], &[]),
        ("logits", &["[MODEL]", "--ids", "--chunk", "--kv", "--out"], &machine),
        ("bench", &bench, &machine),
    ];
    for (command, own, shared) in flags {
        help_is_complete(command, own, shared);
    }
    let overview = muser(&["--help"]).done().stdout;
    assert!(overview.contains("MUSER_ARG_SOME_FLAG") && overview.contains("--config"));
    for code in [
        "0 done",
        "1 failed",
        "2 wrong usage",
        "3 model file",
        "not fit in memory",
        "5 the server",
        "130",
        "141",
        "143",
    ] {
        assert!(overview.contains(code), "{code}");
    }
    assert_eq!(muser(&["--version"]).done().stdout, format!("muser {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_command_and_flag_of_the_readme_is_in_the_help() {
    const README: &str = include_str!("../../../../README.md");
    let in_blocks = README.split("```sh\n").skip(1).flat_map(|rest| rest.split("```").next().unwrap().lines());
    let in_tables = README.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut seen = 0;
    for line in in_blocks.chain(in_tables) {
        let line = line.split('#').next().unwrap();
        let Some((_, line)) = line.split_once("muser-cli -- ").or_else(|| line.split_once("muser ")) else { continue };
        let mut words = line.split_whitespace();
        let mut command = vec![words.next().unwrap()];
        if ["config", "cluster"].contains(&command[0]) {
            command.extend(words.next());
        }
        let help = muser(&[&command[..], &["--help"]].concat()).done().stdout;
        for flag in words.map(|word| word.trim_matches(['[', ']'])).filter(|word| word.starts_with("-") && *word != "-")
        {
            assert!(help.contains(flag), "{flag} of `muser {line}`");
        }
        seen += 1;
    }
    assert!(seen > 25, "{seen} lines of README name commands");
}
