//! Stop strings, however the text is divided.

use fastrand::Rng;
use muser_text::{EmptyStopString, StopStrings};

/// Few different characters, of one to four bytes, so that strings overlap each other and themselves.
fn text(random: &mut Rng, characters_max: usize) -> String {
    let characters = ["a", "a", "b", "é", "è", "🦙", "🦘"];
    (0..random.usize(..=characters_max)).map(|_| random.choice(characters).unwrap()).collect()
}

/// The text before the stop string whose end comes first, and which it is; of several with the same end, the longest.
fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
    let ends = |end: &usize| stops.iter().any(|stop| text.as_bytes()[..*end].ends_with(stop.as_bytes()));
    let Some(end) = (1..=text.len()).find(ends) else { return (text.to_owned(), None) };
    let length = |stop: &String| if text[..end].ends_with(stop) { stop.len() } else { 0 };
    let longest = stops.iter().map(length).max().unwrap();
    let first = stops.iter().position(|stop| length(stop) == longest).unwrap();
    (text[..end - longest].to_owned(), Some(first))
}

/// Length of the longest end of `text` that a later character could still make `stop`, bytes.
fn may_grow_into(text: &str, stop: &str) -> usize {
    (1..stop.len()).filter(|length| text.as_bytes().ends_with(&stop.as_bytes()[..*length])).max().unwrap_or(0)
}

#[test]
fn text_in_any_parts_is_cut_where_the_whole_text_is_cut() {
    let mut cut = 0;
    for seed in 0..40_000 {
        let mut random = Rng::with_seed(seed);
        let stops: Vec<String> =
            (0..random.usize(..=3)).map(|_| text(&mut random, 5)).filter(|stop| !stop.is_empty()).collect();
        let whole = text(&mut random, 30);
        let (expected, expected_stop) = naive(&whole, &stops);
        let case = format!("seed {seed}: {stops:?} in {whole:?}");

        let part_max = random.usize(1..=6);
        let mut stream = StopStrings::new(stops.clone()).unwrap();
        let (mut given, mut stop, mut pushed, mut rest) = (String::new(), None, String::new(), whole.as_str());
        while !rest.is_empty() {
            let characters = random.usize(0..=part_max);
            let bytes = rest.char_indices().nth(characters).map_or(rest.len(), |(at, _)| at);
            let (part, after) = rest.split_at(bytes);
            let (certain, matched) = stream.push(part);
            given += &certain;
            pushed += part;
            assert!(stop.is_none() || (certain.is_empty() && matched == stop), "{case}");
            stop = matched;
            if stop.is_none() {
                // Nothing of a possible stop string is shown, and nothing else is held back.
                let held = stops.iter().map(|stop| may_grow_into(&pushed, stop)).max().unwrap_or(0);
                assert_eq!(given, pushed[..pushed.len() - held], "{case}");
            }
            rest = after;
        }
        given += &stream.finish();
        assert_eq!((given, stop), (expected, expected_stop), "{case}");
        cut += usize::from(stop.is_some());
        assert_eq!(stream.push("c"), ("c".to_owned(), None), "{case}");
    }
    assert!((5_000..35_000).contains(&cut), "{cut} texts were cut");
}

#[test]
fn a_stop_string_over_several_pieces_is_never_seen_and_one_that_does_not_come_is_not_lost() {
    let mut stream = StopStrings::new(vec!["E F".into()]).unwrap();
    assert_eq!(stream.push("A D"), ("A D".into(), None));
    assert_eq!(stream.push(" E"), (" ".into(), None));
    assert_eq!(stream.push(" "), ("".into(), None));
    assert_eq!(stream.push("F G"), ("".into(), Some(0)));
    assert_eq!(stream.push("more"), ("".into(), Some(0)));
    assert_eq!(stream.finish(), "");

    let mut stream = StopStrings::new(vec!["E FZ".into()]).unwrap();
    assert_eq!(stream.push("A D E F"), ("A D ".into(), None));
    assert_eq!(stream.push(" G E"), ("E F G ".into(), None));
    assert_eq!(stream.finish(), "E");
}

#[test]
fn the_string_that_is_complete_first_counts_and_of_two_at_once_the_longer() {
    let whole = |stops: &[&str], text: &str| {
        StopStrings::new(stops.iter().map(|stop| (*stop).to_owned()).collect()).unwrap().push(text)
    };
    // "bc" ends before "abcd" does, though it starts later.
    assert_eq!(whole(&["abcd", "bc"], "xabcd"), ("xa".into(), Some(1)));
    assert_eq!(whole(&["c", "abc", "bc"], "xabcd"), ("x".into(), Some(1)));
    assert_eq!(whole(&["b", "b"], "ab"), ("a".into(), Some(0)));
}

#[test]
fn an_empty_stop_string_is_refused_by_its_place() {
    let refused = StopStrings::new(vec!["a".into(), String::new()]);
    assert_eq!(refused.unwrap_err(), EmptyStopString { index: 1 });
}

#[test]
fn long_strings_that_agree_with_the_text_almost_to_their_end_take_no_long_time() {
    // Comparing anew at every byte would take 10^12 steps here.
    let bytes = 1_000_000;
    let stop = "a".repeat(bytes) + "b";
    let mut stream = StopStrings::new(vec![stop]).unwrap();
    let mut given = 0;
    for _ in 0..2 * bytes / 100 {
        given += stream.push(&"a".repeat(100)).0.len();
    }
    assert_eq!(given, bytes);
    assert_eq!(stream.push("b"), (String::new(), Some(0)));
}
