//! Flags of generation and sampling that `run` and `chat` share.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use muser_engine::{LogitBias, SamplingSettings};
use muser_kernels::attention::KvLayout;
use muser_text::StopStrings;

use super::KvType;
use crate::failure::Failure;
use crate::input::unescape;
use crate::usage::UsageError;

/// Seed of a text's random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    /// A new seed each time.
    Random,
    /// This one.
    Fixed(u64),
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "-1" {
            return Ok(Self::Random);
        }
        text.parse().map(Self::Fixed).map_err(|_| format!("needs -1 or a number from 0 to {}", u64::MAX))
    }
}

/// Generation settings; shared by the commands that generate.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct GenerationArgs {
    /// Tokens to generate at most; -1 goes on until the model ends or the context is full.
    #[arg(short = 'n', long, alias = "n-predict", value_name = "N", default_value_t = -1,
          value_parser = clap::value_parser!(i64).range(-1..))]
    pub predict: i64,
    /// Temperature; 0 always takes the most likely token.
    #[arg(long, alias = "temperature", value_name = "T", default_value_t = 0.8,
          value_parser = temperature)]
    pub temp: f32,
    /// Seed of the random choice; -1 takes a new one each time and prints it with the statistics.
    #[arg(short, long, default_value = "-1")]
    pub seed: Seed,
    /// Positions to make room for; 0 takes as many as the model was made for.
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub ctx_size: u32,
    /// Layout of cached keys; -ctk for short.
    #[arg(long, alias = "ctk", value_name = "TYPE", value_enum, default_value_t = KvType::Q8)]
    pub cache_type_k: KvType,
    /// Layout of cached values; must equal that of the keys; -ctv for short.
    #[arg(long, alias = "ctv", value_name = "TYPE", value_enum, default_value_t = KvType::Q8)]
    pub cache_type_v: KvType,
    /// Text that ends the answer where it appears in it, and is not shown. May be given several times.
    #[arg(short, long, value_name = "STRING", value_parser = NonEmptyStringValueParser::new())]
    pub reverse_prompt: Vec<String>,
    /// Reads \n, \r, \t, \", \', \\ and \xHH in the prompt and in stop strings as what they stand for.
    #[arg(short, long)]
    pub escape: bool,
}

impl GenerationArgs {
    /// The one layout of keys and values.
    pub fn kv(&self) -> Result<KvLayout, Failure> {
        one_layout(self.cache_type_k, self.cache_type_v)
    }

    /// The stop strings.
    pub fn stop_strings(&self) -> Result<StopStrings, Failure> {
        let strings = self.reverse_prompt.iter().map(|text| Ok(self.unescaped(text)?.into_owned()));
        Ok(StopStrings::new(strings.collect::<Result<_, Failure>>()?).map_err(UsageError::StopString)?)
    }

    /// `text` with its escapes read, if that is asked for.
    pub fn unescaped<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, Failure> {
        if !self.escape {
            return Ok(text.into());
        }
        Ok(unescape(text).map(Cow::Owned).map_err(UsageError::Escape)?)
    }

    /// Positions to make room for, of the `trained` ones that the model has.
    pub fn context(&self, trained: usize) -> usize {
        if self.ctx_size == 0 { trained } else { self.ctx_size as usize }
    }

    /// Tokens to generate at most.
    pub fn tokens_max(&self) -> Option<usize> {
        usize::try_from(self.predict).ok()
    }
}

/// Keys and values are kept in one layout.
pub(super) fn one_layout(keys: KvType, values: KvType) -> Result<KvLayout, Failure> {
    if keys == values {
        return Ok(keys.into());
    }
    Err(UsageError::Layouts { keys, values }.into())
}

impl Seed {
    /// The seed to use; a random one comes from the clock, and is printed, so that the text can be had again.
    pub fn value(self) -> u64 {
        match self {
            Self::Fixed(seed) => seed,
            Self::Random => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                since.as_secs().wrapping_mul(1_000_000_007).wrapping_add(u64::from(since.subsec_nanos()))
            }
        }
    }
}

/// Sampling settings: filters, penalties and biases.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct SamplerArgs {
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Keeps the likeliest tokens up to this probability in sum; 1 keeps all.
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub top_p: f32,
    /// Keeps tokens at least this likely, measured by the likeliest; 0 keeps all.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub min_p: f32,
    /// Keeps the tokens whose surprise is closest to the expected one, up to this probability in sum; 1 keeps all.
    #[arg(long, alias = "typical-p", value_name = "P", default_value_t = 1.0)]
    pub typical: f32,
    /// Divides the logits of tokens that occurred; 1 changes nothing.
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repeat_penalty: f32,
    /// Subtracted from the logit of a token that occurred.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time it occurred.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub frequency_penalty: f32,
    /// Number of last tokens that the penalties look at; 0 looks at none, -1 at all.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(i64).range(-1..))]
    pub repeat_last_n: i64,
    /// Added to the logit of a token: 15043+1 makes token 15043 likelier, 15043-1 less likely, 15043-inf bans it. May be
    /// given several times.
    #[arg(short, long, value_name = "TOKEN+BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<LogitBias>,
    /// Bans the tokens with which the model ends a text.
    #[arg(long)]
    pub ignore_eos: bool,
}

impl SamplerArgs {
    /// Sampling settings for a model whose end-of-generation tokens are `ends`.
    pub fn settings(&self, temperature: f32, seed: u64, ends: &[u32]) -> SamplingSettings {
        let banned = if self.ignore_eos { ends } else { &[] };
        let ban = |&token| LogitBias { token, bias: f32::NEG_INFINITY };
        SamplingSettings {
            seed,
            temperature,
            logit_bias: self.logit_bias.iter().copied().chain(banned.iter().map(ban)).collect(),
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            penalty_tokens: usize::try_from(self.repeat_last_n).unwrap_or(usize::MAX),
            top_k: self.top_k,
            typical_p: self.typical,
            top_p: self.top_p,
            min_p: self.min_p,
        }
    }
}

pub(super) fn temperature(text: &str) -> Result<f32, String> {
    let temperature = text.parse().ok().filter(|value: &f32| value.is_finite() && *value >= 0.0);
    temperature.ok_or_else(|| "needs a finite number that is not negative".into())
}

/// A token id, a sign and a number.
fn logit_bias(text: &str) -> Result<LogitBias, String> {
    let parse = || {
        let (token, bias) = text.split_at(text.find(['+', '-'])?);
        let (sign, magnitude) = bias.split_at(1);
        let bias: f32 = magnitude.parse().ok().filter(|_| !magnitude.starts_with(['+', '-']))?;
        Some(LogitBias { token: token.parse().ok()?, bias: if sign == "-" { -bias } else { bias } })
    };
    parse().ok_or_else(|| "needs a token id, + or -, and a number, as in 15043+1".into())
}
