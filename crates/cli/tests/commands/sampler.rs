//! The sampler's flags, which `run` and `chat` share.

use crate::common::{Ended, muser, token};

const PROMPT: &str = "Once upon a time there was a";

fn run(more: &[&str]) -> Ended {
    muser(&[&["run", PROMPT, "-s", "5"][..], more].concat())
}

fn text(more: &[&str]) -> String {
    run(more).done().stdout
}

#[test]
fn each_flag_that_leaves_one_token_makes_the_text_greedy_at_any_temperature() {
    let greedy = text(&["-n", "6", "--temp", "0"]);
    assert_ne!(text(&["-n", "6", "--temp", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0"]), greedy);
    for one_left in [["--top-k", "1"], ["--top-p", "0.0001"], ["--min-p", "1"]] {
        assert_eq!(text(&[&["-n", "6", "--temp", "3"], &one_left[..]].concat()), greedy, "{one_left:?}");
    }
}

#[test]
fn the_defaults_are_those_of_llama_cpp() {
    let spelled = ["--temp", "0.8", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.05", "--typical", "1"];
    let neutral = ["--repeat-penalty", "1", "--presence-penalty", "0", "--frequency-penalty", "0"];
    let all = [&["-n", "30", "--repeat-last-n", "64"], &spelled[..], &neutral].concat();
    assert_eq!(text(&all), text(&["-n", "30"]));
    let hot = ["-n", "30", "--temp", "3"];
    assert_ne!(text(&[&hot[..], &["--top-k", "0", "--top-p", "1", "--min-p", "0"]].concat()), text(&hot));
}

#[test]
fn penalties_keep_the_text_from_repeating_itself() {
    for penalty in ["--repeat-penalty", "--presence-penalty", "--frequency-penalty"] {
        // Strong enough that no token of the last 200 comes again.
        let text = text(&["-n", "60", "--temp", "0", "--repeat-last-n", "200", penalty, "1000"]);
        let ids = muser(&["tokenize", "--no-bos", "--ids", text.trim_end()]).done().stdout;
        let ids: Vec<u32> = serde_json::from_str(&ids).unwrap();
        let mut different = ids.clone();
        different.sort_unstable();
        different.dedup();
        // Words of one letter may be cut otherwise than they were generated.
        assert!(ids.len() - different.len() <= 3, "{penalty}: {text:?}");
    }
}

#[test]
fn a_bias_bans_a_token_or_makes_it_certain() {
    let (great, ship) = (token(" great"), token(" ship"));
    let one = |flags: &[&str]| text(&[&["-n", "1", "--temp", "0"], flags].concat());
    assert_eq!(one(&[]), format!("{PROMPT} great\n"));
    let banned = one(&["-l", &format!("{great}-inf")]);
    assert_ne!(banned, one(&[]));
    assert_eq!(one(&["--logit-bias", &format!("{great}-1000")]), banned);
    assert_eq!(one(&["-l", &format!("{great}-100"), "-l", &format!("{ship}+1000.5")]), format!("{PROMPT} ship\n"));
    for (bias, part) in [("4096+1", "4096"), ("5+inf", "inf"), ("5+nan", "NaN")] {
        let line = run(&["-l", bias]).refused(2);
        assert!(line.contains(part) && line.contains("bias"), "{line}");
    }
}

#[test]
fn the_end_of_the_text_can_be_banned() {
    let end = format!("{}+1000", token("<|im_end|>"));
    let ended = run(&["-n", "5", "--temp", "0", "-l", &end]);
    assert!(ended.stderr.contains("1 generated; the model ended the text"), "{}", ended.stderr);
    assert_eq!(ended.done().stdout, format!("{PROMPT}\n"));
    let goes_on = run(&["-n", "5", "--temp", "0", "-l", &end, "--ignore-eos"]);
    assert!(goes_on.stderr.contains("the limit of tokens was reached"), "{}", goes_on.stderr);
    assert_eq!(goes_on.done().stdout, text(&["-n", "5", "--temp", "0"]));
}

#[test]
fn settings_out_of_range_are_wrong_usage() {
    for flags in [["--top-p", "3"], ["--min-p", "-1"], ["--repeat-penalty", "0"], ["--typical", "0"]] {
        run(&flags).refused(2);
    }
}
