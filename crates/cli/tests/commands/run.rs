//! `muser run`.

use muser_kernels::cpu::Kernels;
use muser_kernels::formats::WeightType;

use crate::common::{Ended, Folder, float_model, llama_spec, muser};

const PROMPT: &str = "Once upon a time there was a";
/// Greedy continuation by the shipped model.
const GREEDY: &str = " great deal of talk about the business of the Navy";

/// Runs the shipped model on [`PROMPT`].
fn run(more: &[&str]) -> Ended {
    muser(&[&["run", PROMPT][..], more].concat())
}

/// Text printed behind `prompt`, without the final line break.
#[track_caller]
fn continuation(ended: Ended, prompt: &str) -> String {
    let text = ended.done().stdout;
    let text = text.strip_prefix(prompt).and_then(|text| text.strip_suffix('\n'));
    text.expect("the prompt, its continuation, a line break").to_owned()
}

/// The number before `words` in the figures on standard error.
#[track_caller]
fn figure(ended: &Ended, words: &str) -> u64 {
    let before = ended.stderr.split(words).next().filter(|before| before.len() < ended.stderr.len());
    let number = before.and_then(|before| before.split(|c: char| !c.is_ascii_digit()).next_back());
    number.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no {words:?}: {}", ended.stderr))
}

/// Each of the machine's kernels with some numbers of threads, as flags.
fn machines() -> Vec<[&'static str; 4]> {
    // The portable kernels are slow, and compared with themselves by the tests below this crate.
    let threads = |name| if name == "scalar" { &["2"][..] } else { &["1", "2", "3"] };
    let flags = |name| threads(name).iter().map(move |threads| ["--kernels", name, "-t", *threads]);
    Kernels::available().into_iter().flat_map(|kernels| flags(kernels.name())).collect()
}

#[test]
fn greedy_text_is_the_same_with_any_threads_and_kernels() {
    for machine in machines() {
        let ended = run(&[&["--temp", "0", "-n", "12"], &machine[..]].concat());
        assert_eq!(continuation(ended, PROMPT), GREEDY, "{machine:?}");
    }
}

#[test]
fn a_seed_gives_one_text_with_any_threads_and_kernels() {
    let text = |more: &[&str]| continuation(run(&[&["--temp", "1.2", "-n", "12"], more].concat()), PROMPT);
    let seven = text(&["-s", "7"]);
    for machine in machines() {
        assert_eq!(text(&[&["--seed", "7"], &machine[..]].concat()), seven, "{machine:?}");
    }
    assert_ne!(text(&["-s", "8"]), seven);
    assert_ne!(text(&["-s", "18446744073709551615"]), seven);
}

#[test]
fn a_seed_nobody_chose_is_new_each_time_and_printed_so_that_the_text_can_be_had_again() {
    let seed = |ended: &Ended| {
        let after = ended.stderr.split(" seed ").nth(1).unwrap();
        after.lines().next().unwrap().to_owned()
    };
    let args = ["--temp", "1.5", "-n", "16"];
    let (first, second) = (run(&args), run(&[&args[..], &["-s", "-1"]].concat()));
    assert_ne!(seed(&first), seed(&second));
    let again = run(&[&args[..], &["-s", &seed(&first)]].concat());
    assert_eq!(again.stdout, first.stdout);
}

#[test]
fn as_many_tokens_are_generated_as_asked_for() {
    let longest = continuation(run(&["--temp", "0", "-n", "6"]), PROMPT);
    let mut before = String::new();
    for (count, name) in [(0, "-n"), (1, "--predict"), (2, "--n-predict"), (3, "-n"), (5, "-n")] {
        let ended = run(&["--temp", "0", name, &count.to_string()]);
        assert_eq!((figure(&ended, " generated"), figure(&ended, " tokens in")), (count, 8));
        assert!(ended.stderr.contains("the limit of tokens was reached"), "{}", ended.stderr);
        let text = continuation(ended, PROMPT);
        assert!(longest.starts_with(&text) && text.len() > before.len() || count == 0 && text.is_empty(), "{text:?}");
        before = text;
    }
    // The first three tokens of the known text.
    assert_eq!(continuation(run(&["--temp", "0", "-n", "3"]), PROMPT), " great deal of");
}

#[test]
fn without_a_limit_the_end_of_the_context_is_the_end() {
    for more in [&["-c", "40"][..], &["-c", "40", "-n", "-1"], &["--ctx-size", "40", "-n", "1000"]] {
        let ended = run(&[&["--temp", "0"], more].concat());
        assert!(ended.stderr.contains("the context is full"), "{}", ended.stderr);
        assert_eq!(figure(&ended, " tokens in") + figure(&ended, " generated"), 40);
        assert!(continuation(ended, PROMPT).starts_with(GREEDY));
    }
    // 0 is what the model was made for.
    assert_eq!(run(&["--temp", "0", "-n", "2", "-c", "0"]).done().stdout, run(&["--temp", "0", "-n", "2"]).stdout);
}

#[test]
fn a_context_that_cannot_be_is_refused_with_the_numbers() {
    let line = run(&["-c", "4096"]).refused(2);
    assert!(line.contains("4096") && line.contains("2048"), "{line}");
    let line = run(&["-c", "8"]).refused(2);
    assert!(line.contains("8 tokens") && line.contains("at most 7"), "{line}");
    let line = muser(&["run", &"word ".repeat(3000)]).refused(2);
    assert!(line.contains("2048"), "{line}");
    let line = muser(&["run", ""]).refused(2);
    assert!(line.contains("no tokens"), "{line}");
}

#[test]
fn both_layouts_of_the_cache_run_and_say_so() {
    for (ty, shown) in [("q8", "Q8"), ("q8_0", "Q8"), ("f16", "F16")] {
        for names in [["-ctk", "-ctv"], ["--cache-type-k", "--cache-type-v"]] {
            let ended = run(&["--temp", "0", "-n", "4", names[0], ty, names[1], ty]);
            assert!(ended.stderr.contains(&format!("bytes of {shown} KV")), "{}", ended.stderr);
            assert!(continuation(ended, PROMPT).starts_with(" great"));
        }
    }
}

#[test]
fn a_prompt_is_the_same_as_argument_as_flag_and_from_a_file() {
    let folder = Folder::new();
    let model = folder.write("noise.gguf", float_model(&llama_spec(64), WeightType::F16));
    let text = |count: &str, prompt: &[&str]| {
        let args = ["run", "-m", &model, "--temp", "0", "-n", count];
        muser(&[&args[..], prompt].concat()).done().stdout
    };
    let expected = text("5", &[PROMPT]);
    let file = folder.write("prompt", format!("{PROMPT}\n"));
    let bare = folder.write("bare", PROMPT);
    for prompt in
        [["-p", PROMPT], ["--prompt", PROMPT], ["-f", &file], ["--file", &file], ["-f", &bare], ["--", PROMPT]]
    {
        assert_eq!(text("5", &prompt), expected, "{prompt:?}");
    }
    // Only one line break is the file's own.
    assert_eq!(text("0", &["-f", &folder.write("two", "Once\n\n")]), "Once\n\n");
    // What begins with a dash is a prompt behind two of them, whatever it looks like.
    for prompt in ["-ctk", "- one", "--temp", "-1"] {
        assert_eq!(text("0", &["--", prompt]), format!("{prompt}\n"));
        assert_eq!(text("0", &[&format!("-p={prompt}")]), format!("{prompt}\n"));
    }
}

#[test]
fn a_prompt_file_that_cannot_be_read_is_named() {
    let folder = Folder::new();
    let line = muser(&["run", "-f", &folder.at("absent")]).refused(1);
    assert!(line.contains("absent") && line.contains("No such file"), "{line}");
    let line = muser(&["run", "-f", &folder.write("bytes", b"one\ntwo\n\xff\n")]).refused(2);
    assert!(line.contains("bytes") && line.contains("line 3") && line.contains("UTF-8"), "{line}");
    let line = muser(&["run", "-f", &folder.write("empty", "")]).refused(2);
    assert!(line.contains("no tokens"), "{line}");
}

#[test]
fn a_character_cut_by_the_limit_is_shown_as_such_and_never_as_half_of_it() {
    // Noise speaks in single bytes, so nearly every text has bytes that are no characters.
    let folder = Folder::new();
    let model = folder.write("noise.gguf", float_model(&llama_spec(64), WeightType::F16));
    let (mut shown, mut cut) = (0, 0);
    for seed in 0..40 {
        // Reading the output fails if it is not UTF-8.
        let ended = muser(&["run", "-m", &model, "--temp", "9", "-s", &seed.to_string(), "-n", "1", "é"]);
        let at_limit = ended.stderr.contains("the limit of tokens was reached");
        let text = continuation(ended, "é");
        // One byte is a character, or the start of one that nothing follows: something is shown for it.
        assert_eq!(text.is_empty(), !at_limit, "seed {seed}");
        shown += u32::from(text.is_ascii() && at_limit);
        cut += u32::from(text == "\u{fffd}");
    }
    assert!(shown > 3 && cut > 3, "{shown} whole characters, {cut} cut ones");
}

#[test]
fn text_goes_to_standard_output_and_figures_to_standard_error() {
    let ended = run(&["--temp", "0", "-n", "2"]).done();
    assert_eq!(ended.stdout, format!("{PROMPT} great deal\n"));
    for words in ["kernels", "threads", "bytes of Q8 KV", "seed", "load", "prompt 8 tokens", "2 generated"] {
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
}
