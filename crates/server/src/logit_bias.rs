//! Biases as clients write them: an array of `[token, bias]` or an object of `"token": bias`, merged to one for each token.
//!
//! A token is an id, or a text whose tokens all get the bias; the bias `false` bans it. Several biases of one token add up,
//! here and not at every token of the answer.

use std::collections::BTreeMap;
use std::fmt;

use muser_engine::LogitBias;
use muser_text::{Specials, Tokenizer};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::limits::{BIAS_TEXT_BYTES_MAX, BIAS_TEXTS_BYTES_MAX};
use crate::tree;

const NEEDS: &str = "needs an array of [token, bias] or an object of \"token\": bias";
const NEEDS_BIAS: &str = "a bias needs to be a number or false";

/// Biases of tokens, each token once.
#[derive(Debug, Default)]
pub struct Biases(BTreeMap<u32, f64>);

impl Biases {
    /// Reads the field.
    ///
    /// # Errors
    /// In words, if it is something else, a token or a bias is none, or there are too many.
    pub fn read(raw: &RawValue, tokenizer: &Tokenizer) -> Result<Self, String> {
        let mut biases = Self::default();
        let mut reading = Reading { tokenizer, into: &mut biases, entries: 0, text_bytes: 0 };
        tree::read(raw, All(&mut reading))?;
        Ok(biases)
    }

    /// Adds to a token's bias.
    pub fn add(&mut self, LogitBias { token, bias }: LogitBias) {
        *self.0.entry(token).or_default() += f64::from(bias);
    }

    /// One bias for each token. A sum beyond what a bias can be is the largest there is.
    pub fn merged(self) -> Vec<LogitBias> {
        let bias = |(token, sum): (u32, f64)| {
            #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted")]
            let bias =
                if sum == f64::NEG_INFINITY { f32::NEG_INFINITY } else { (sum as f32).clamp(f32::MIN, f32::MAX) };
            LogitBias { token, bias }
        };
        self.0.into_iter().map(bias).collect()
    }
}

/// The biases read so far, and their counts.
struct Reading<'a> {
    tokenizer: &'a Tokenizer,
    into: &'a mut Biases,
    entries: usize,
    text_bytes: usize,
}

impl Reading<'_> {
    fn add<E: Error>(&mut self, token: &Token, bias: f32) -> Result<(), E> {
        let vocab = self.tokenizer.token_count();
        self.entries += 1;
        if self.entries > vocab {
            return Err(E::custom(format!("has more than {vocab} biases, as many as there are tokens")));
        }
        let ids = match token {
            Token::Id(id) => {
                vec![u32::try_from(*id).ok().filter(|id| (*id as usize) < vocab).ok_or_else(|| no_id(id, vocab))?]
            }
            Token::Text(text) => {
                self.text_bytes += text.len();
                if text.len() > BIAS_TEXT_BYTES_MAX || self.text_bytes > BIAS_TEXTS_BYTES_MAX {
                    let most =
                        format!("{BIAS_TEXT_BYTES_MAX} bytes of a text, and {BIAS_TEXTS_BYTES_MAX} of all of them");
                    return Err(E::custom(format!("has more than {most}")));
                }
                self.tokenizer.encode(text, Specials::Parse)
            }
        };
        ids.into_iter().for_each(|token| self.into.add(LogitBias { token, bias }));
        Ok(())
    }
}

fn no_id<E: Error>(shown: &dyn fmt::Display, vocab: usize) -> E {
    E::custom(format!("{shown} is no token id; ids are whole numbers from 0 to {}", vocab.saturating_sub(1)))
}

/// The whole field.
struct All<'r, 'a>(&'r mut Reading<'a>);

impl<'de> DeserializeSeed<'de> for All<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for All<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NEEDS)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<(), A::Error> {
        while pairs.next_element_seed(Pair(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut names = std::collections::HashSet::new();
        while let Some(name) = entries.next_key::<String>()? {
            let Bias(bias) = entries.next_value()?;
            // The names of an object are strings: those of digits are ids.
            let token = name.parse().map_or_else(|_| Token::Text(name.clone()), Token::Id);
            self.0.add(&token, bias)?;
            if let Some(name) = names.replace(name) {
                return Err(tree::twice(&name));
            }
        }
        Ok(())
    }
}

/// One `[token, bias]`.
struct Pair<'r, 'a>(&'r mut Reading<'a>);

impl<'de> DeserializeSeed<'de> for Pair<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pair<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NEEDS)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let needs = || A::Error::custom(NEEDS);
        let vocab = self.0.tokenizer.token_count();
        let token = items.next_element_seed(TokenSeed(vocab))?.ok_or_else(needs)?;
        let Bias(bias) = items.next_element()?.ok_or_else(needs)?;
        if items.next_element::<serde::de::IgnoredAny>()?.is_some() {
            return Err(needs());
        }
        self.0.add(&token, bias)
    }
}

enum Token {
    Id(u64),
    Text(String),
}

/// A token, by id or by text; holds the size of the vocabulary for the refusal.
struct TokenSeed(usize);

impl<'de> DeserializeSeed<'de> for TokenSeed {
    type Value = Token;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Token, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TokenSeed {
    type Value = Token;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token id or a text")
    }

    fn visit_u64<E>(self, id: u64) -> Result<Token, E> {
        Ok(Token::Id(id))
    }

    fn visit_i64<E: Error>(self, id: i64) -> Result<Token, E> {
        Err(no_id(&id, self.0))
    }

    fn visit_f64<E: Error>(self, id: f64) -> Result<Token, E> {
        Err(no_id(&id, self.0))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Token, E> {
        // A longer one is refused, whatever is in it.
        let end = text.len().min(BIAS_TEXT_BYTES_MAX + 1);
        let end = (end..=text.len()).find(|end| text.is_char_boundary(*end)).unwrap_or(text.len());
        Ok(Token::Text(text[..end].to_owned()))
    }
}

/// A number that is one, or minus infinity for `false`.
struct Bias(f32);

impl<'de> serde::Deserialize<'de> for Bias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BiasVisitor).map(Bias)
    }
}

struct BiasVisitor;

impl Visitor<'_> for BiasVisitor {
    type Value = f32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or false")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<f32, E> {
        if value { Err(E::custom(NEEDS_BIAS)) } else { Ok(f32::NEG_INFINITY) }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<f32, E> {
        #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted")]
        let rounded = value as f32;
        if rounded.is_finite() { Ok(rounded) } else { Err(E::custom(NEEDS_BIAS)) }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<f32, E> {
        self.visit_f64(value as f64)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<f32, E> {
        self.visit_f64(value as f64)
    }
}
