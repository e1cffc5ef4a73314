//! Prompts as clients write them: text, token ids, both in a row, or several prompts.
//!
//! Tokens and texts beyond the context are counted and not kept, so that a prompt costs no more than one that fits.

use std::fmt;

use muser_text::{ControlTokens, Specials, Tokenizer};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits::{DETOKENIZED_MAX, TEXT_BYTES_MAX};
use crate::service::Service;
use crate::tree;

/// Size limits of one request's prompts.
#[derive(Clone, Copy, Debug)]
pub struct PromptLimits {
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Positions of a sequence.
    pub context: usize,
    /// The most bytes whose tokens can fit the context.
    pub text_bytes: usize,
    /// Prompts of a request.
    pub prompts: usize,
}

impl PromptLimits {
    /// Refuses a text of so many bytes whose tokens cannot fit the context.
    ///
    /// # Errors
    /// If it is so long.
    pub fn check_text(&self, bytes: usize) -> Result<(), ApiError> {
        let Self { context, text_bytes, .. } = *self;
        if bytes <= text_bytes {
            return Ok(());
        }
        let message = format!(
            "a prompt has {bytes} bytes of text, and no text of more than {text_bytes} fits the context of {context} tokens"
        );
        Err(ApiError::exceeds_context(message, context))
    }
}

/// A prompt of a request.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Text as the client wrote it: strings unchanged, whatever the tokenizer made of them, ids decoded, and the BOS
    /// that was put before.
    pub written: String,
}

/// Takes the prompts of `field`: a string, an array of ids, an array of ids and strings, or an array of such prompts. An
/// array of strings alone is several prompts.
///
/// Control tokens that are spelled in a text count as such: this is the raw route, and the caller writes the whole text.
/// The vocabulary's BOS comes before a prompt that begins with text, if the vocabulary wants it.
///
/// # Errors
/// If it is something else, an id is no token, there is no prompt, or one cannot fit the context.
pub fn take_prompts(fields: &mut Fields<'_>, service: &Service) -> Result<Vec<Prompt>, ApiError> {
    const FIELD: &str = "prompt";
    let Some(raw) = fields.raw(FIELD) else { return Err(fields.missing(FIELD, NEEDS)) };
    let limits = service.prompt_limits();
    let written = read(raw, &limits).map_err(|wrong| ApiError::invalid(format!("{FIELD}: {wrong}")))?;
    written.prompts().into_iter().map(|prompt| prompt_of(service.tokenizer(), prompt, &limits)).collect()
}

/// Takes the token ids of `field`.
///
/// # Errors
/// If it is something else, an id is no token, or there are too many.
pub fn take_ids(fields: &mut Fields<'_>, field: &'static str, vocab: usize) -> Result<Vec<u32>, ApiError> {
    const NEEDS: &str = "an array of token ids";
    let Some(raw) = fields.raw(field) else { return Err(fields.missing(field, NEEDS)) };
    let wrong = |wrong: String| ApiError::invalid(format!("{field}: {wrong}"));
    if !raw.get().starts_with('[') {
        return Err(wrong(format!("needs {NEEDS}")));
    }
    let limits = PromptLimits { vocab, context: DETOKENIZED_MAX, text_bytes: 0, prompts: 1 };
    let Sequence { mut parts, ids, texts, sequences, .. } = read(raw, &limits).map_err(wrong)?;
    if texts > 0 || !sequences.is_empty() {
        return Err(wrong(format!("needs {NEEDS}, and has a text or an array, which is no token id")));
    }
    if ids > DETOKENIZED_MAX {
        return Err(wrong(format!("has {ids} ids, at most {DETOKENIZED_MAX} are taken at once")));
    }
    match parts.pop() {
        Some(Part::Ids(ids)) => Ok(ids),
        _ => Ok(Vec::new()),
    }
}

const NEEDS: &str = "a string, an array of token ids and strings, or an array of such prompts";

/// A prompt, or several, as written.
#[derive(Debug, Default)]
struct Sequence {
    parts: Vec<Part>,
    /// Ids, those that are not kept included.
    ids: usize,
    /// Texts.
    texts: usize,
    /// Bytes of the texts, those that are not kept included.
    text_bytes: usize,
    /// Arrays, each of which is a prompt.
    sequences: Vec<Sequence>,
}

#[derive(Debug)]
enum Part {
    Ids(Vec<u32>),
    Text(String),
}

impl Sequence {
    /// Checks that can be made of an array before its end: no mix of prompts with ids or texts, at most
    /// `limits.prompts`.
    fn check<E: Error>(&self, limits: &PromptLimits) -> Result<(), E> {
        if self.sequences.is_empty() {
            return Ok(());
        }
        if self.ids > 0 || self.texts > 0 {
            return Err(E::custom("an array is no token id, and prompts do not stand among ids and texts"));
        }
        let most = limits.prompts;
        if self.sequences.len() > most { Err(E::custom(format!("has more than {most} prompts"))) } else { Ok(()) }
    }

    /// The prompts: all arrays, all texts if there is nothing else, or all of it in a row.
    fn prompts(mut self) -> Vec<Self> {
        if !self.sequences.is_empty() {
            return self.sequences;
        }
        if self.ids > 0 || self.texts < 2 {
            return vec![self];
        }
        let one = |part| {
            let text_bytes = if let Part::Text(text) = &part { text.len() } else { 0 };
            Self { parts: vec![part], texts: 1, text_bytes, ..Self::default() }
        };
        self.parts.drain(..).map(one).collect()
    }
}

fn prompt_of(tokenizer: &Tokenizer, prompt: Sequence, limits: &PromptLimits) -> Result<Prompt, ApiError> {
    limits.check_text(prompt.text_bytes)?;
    let context = limits.context;
    if prompt.ids > context {
        // Not all of them were kept.
        return Err(ApiError::prompt_too_long(prompt.ids, context));
    }
    let spelled = |ids: &[u32]| tokenizer.decode(ids, ControlTokens::Show).unwrap_or_default();
    let (mut ids, mut written) = (Vec::new(), Vec::new());
    for (index, part) in prompt.parts.into_iter().enumerate() {
        match part {
            Part::Ids(part) => {
                written.extend(spelled(&part));
                ids.extend(part);
            }
            Part::Text(text) if index == 0 => {
                ids = tokenizer.encode_prompt(&text, Specials::Parse);
                if let Some(bos) = ids.first().filter(|id| tokenizer.bos() == Some(**id)) {
                    let bos = spelled(&[*bos]);
                    // Unless the client put it there.
                    written.extend(if text.as_bytes().starts_with(&bos) { Vec::new() } else { bos });
                }
                written.extend(text.into_bytes());
            }
            Part::Text(text) => {
                ids.extend(tokenizer.encode(&text, Specials::Parse));
                written.extend(text.into_bytes());
            }
        }
    }
    Ok(Prompt { ids, written: String::from_utf8_lossy(&written).into_owned() })
}

fn read(raw: &RawValue, limits: &PromptLimits) -> Result<Sequence, String> {
    let mut written = Sequence::default();
    let mut text_bytes_left = TEXT_BYTES_MAX;
    tree::read(raw, Element { into: &mut written, limits, text_bytes_left: &mut text_bytes_left, depth: 0 })?;
    Ok(written)
}

/// A part of a prompt: at depth 0 the whole field, at depth 1 what is in its array, at depth 2 what is in an array there.
struct Element<'s> {
    into: &'s mut Sequence,
    limits: &'s PromptLimits,
    text_bytes_left: &'s mut usize,
    depth: u8,
}

impl Element<'_> {
    fn no_id<E: Error>(&self, shown: &dyn fmt::Display) -> E {
        if self.depth == 0 {
            return E::custom(format!("needs {NEEDS}"));
        }
        let last = self.limits.vocab.saturating_sub(1);
        E::custom(format!("{shown} is no token id; ids are whole numbers from 0 to {last}"))
    }

    fn text<E: Error>(self, text: &str) -> Result<(), E> {
        let left = self.text_bytes_left.checked_sub(text.len());
        let too_much = || E::custom(format!("has more than {TEXT_BYTES_MAX} bytes of text"));
        *self.text_bytes_left = left.ok_or_else(too_much)?;
        let texts_max = self.limits.context.saturating_add(self.limits.prompts);
        if self.into.texts >= texts_max {
            return Err(E::custom(format!("has more than {texts_max} texts")));
        }
        self.into.texts += 1;
        self.into.text_bytes += text.len();
        self.into.parts.push(Part::Text(text.to_owned()));
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Element<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NEEDS)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        let known = u32::try_from(value).ok().filter(|id| (*id as usize) < self.limits.vocab);
        let id = known.filter(|_| self.depth > 0).ok_or_else(|| self.no_id(&value))?;
        self.into.ids += 1;
        if self.into.ids > self.limits.context {
            return Ok(());
        }
        match self.into.parts.last_mut() {
            Some(Part::Ids(ids)) => ids.push(id),
            _ => self.into.parts.push(Part::Ids(vec![id])),
        }
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        Err(self.no_id(&value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        Err(self.no_id(&value))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        Err(self.no_id(&value))
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Err(self.no_id(&"null"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.text(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { into, limits, text_bytes_left, depth } = self;
        if depth > 1 {
            return Err(A::Error::custom(format!("needs {NEEDS}")));
        }
        let mut nested = Sequence::default();
        let sequence = if depth == 0 { &mut *into } else { &mut nested };
        loop {
            let (into, text_bytes_left) = (&mut *sequence, &mut *text_bytes_left);
            if items.next_element_seed(Element { into, limits, text_bytes_left, depth: depth + 1 })?.is_none() {
                break;
            }
            sequence.check(limits)?;
        }
        if depth == 1 {
            into.sequences.push(nested);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        Err(self.no_id(&"an object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PromptLimits = PromptLimits { vocab: 100, context: 4, text_bytes: 30, prompts: 3 };

    fn read_text(text: &str) -> Result<Vec<Sequence>, String> {
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        read(&raw, &LIMITS).map(Sequence::prompts)
    }

    /// Ids and texts of each prompt, in a row.
    fn prompts(text: &str) -> Vec<String> {
        let part = |part: &Part| match part {
            Part::Ids(ids) => format!("{ids:?}"),
            Part::Text(text) => format!("{text:?}"),
        };
        let one = |prompt: Sequence| prompt.parts.iter().map(part).collect::<Vec<_>>().join(" ");
        read_text(text).unwrap().into_iter().map(one).collect()
    }

    #[test]
    fn a_prompt_is_read_in_each_of_its_forms() {
        assert_eq!(prompts(r#""a""#), [r#""a""#]);
        assert_eq!(prompts("[1,2]"), ["[1, 2]"]);
        assert_eq!(prompts(r#"[1,2,"a","b",3]"#), [r#"[1, 2] "a" "b" [3]"#]);
        assert_eq!(prompts(r#"["a","b"]"#), [r#""a""#, r#""b""#]);
        assert_eq!(prompts(r#"[[1],["a",2],[]]"#), ["[1]", r#""a" [2]"#, ""]);
        assert_eq!(prompts("[]"), [""]);
    }

    #[test]
    fn ids_that_cannot_fit_are_counted_and_not_kept() {
        let many = read_text("[1,2,3,4,5,6,7]").unwrap();
        assert_eq!((many[0].ids, prompts("[1,2,3,4,5,6,7]")), (7, vec!["[1, 2, 3, 4]".to_owned()]));
    }

    #[test]
    fn what_is_no_prompt_or_too_much_of_one_is_refused_in_words() {
        let wrong = |text: &str| read_text(text).unwrap_err();
        for text in ["7", "null", "true", "{}", "1.5", "[[[1]]]"] {
            assert_eq!(wrong(text), format!("needs {NEEDS}"), "{text}");
        }
        for text in ["[100]", "[-1]", "[1.5]", "[null]", "[[1],[true]]", "[18446744073709551616]", "[{}]"] {
            assert!(
                wrong(text).ends_with("no token id; ids are whole numbers from 0 to 99"),
                "{text}: {}",
                wrong(text)
            );
        }
        for text in ["[[1],2]", r#"["a",[1]]"#, "[1,[2]]"] {
            assert!(wrong(text).contains("an array is no token id"), "{text}: {}", wrong(text));
        }
        assert_eq!(wrong("[[1],[2],[3],[4]]"), "has more than 3 prompts");
        assert_eq!(wrong(&format!("[{}]", [r#""""#; 8].join(","))), "has more than 7 texts");
        let long = "x".repeat(TEXT_BYTES_MAX / 2 + 1);
        assert!(wrong(&format!(r#"["{long}","{long}"]"#)).contains("bytes of text"));
    }
}
