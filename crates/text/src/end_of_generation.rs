//! Set of token ids that end a generation. Models stop at the end of a text, of a turn or of a message, and files name
//! only some of those ids. The rest are known by their spelling.

use crate::vocabulary::{TokenKind, VocabularyData};

/// Control tokens with which published models end a turn, a message, a tool call or a text.
const ENDINGS: [&str; 22] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<eos>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<｜end▁of▁sentence｜>",
];

/// Control tokens that separate or pad files in training data: text after them does not continue an answer.
const NEXT_FILE: [&str; 11] = [
    "<|file_sep|>",
    "<|repo_name|>",
    "<|fim_repo|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
];

/// True if a control token spelled `text` ends a text, turn, message or tool call.
pub(crate) fn is_ending(text: &str) -> bool {
    ENDINGS.contains(&text)
}

/// The ids that end a generation, ascending. Those that the file names always do; of the others only control tokens, so
/// that a plain word which looks like `<eos>` does not cut a text short.
pub(crate) fn end_of_generation_ids(data: &VocabularyData, kinds: &[TokenKind]) -> Vec<u32> {
    let named = [data.eos, data.eot, data.eom].into_iter().flatten();
    let control = || (0u32..).zip(&data.tokens).zip(kinds).filter(|(_, kind)| **kind == TokenKind::Control);
    let has = |spelling: &str| control().any(|((_, text), _)| text == spelling);
    let end_is_inner = ends_inside_a_turn(has);
    let not_an_end = |text: &str| text == "<|end|>" && end_is_inner;
    let spelled = control()
        .filter(|((_, text), _)| is_ending(text) || NEXT_FILE.contains(&text.as_str()))
        .filter(|((_, text), _)| !not_an_end(text))
        .map(|((id, _), _)| id);
    let mut ids: Vec<u32> = named.chain(spelled).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// True if `<|end|>` only closes one message of several in a turn, as in vocabularies that end the turn with
/// `<|return|>` or `<|flush|>` and hand over to a tool with `<|call|>` or `<|calls|>`.
fn ends_inside_a_turn(has: impl Fn(&str) -> bool) -> bool {
    (has("<|call|>") || has("<|calls|>")) && (has("<|return|>") || has("<|flush|>"))
}
