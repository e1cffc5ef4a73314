//! Flags of generation that `run` and `chat` share.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
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

pub(super) fn temperature(text: &str) -> Result<f32, String> {
    let temperature = text.parse().ok().filter(|value: &f32| value.is_finite() && *value >= 0.0);
    temperature.ok_or_else(|| "needs a finite number that is not negative".into())
}
