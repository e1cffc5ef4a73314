//! The sampler's table: its stages in the order in which they run, and the settings that they read.
//!
//! A new stage is a file in `stages/`, a row of [`SAMPLER_STAGES`], and for each setting a field of [`SamplingSettings`] with its
//! neutral value and a row of [`SAMPLER_SETTINGS`]. The fields of requests, their bounds and descriptions, the settings that answers
//! show, and the flags of the command line derive from those rows.

mod min_p;
mod penalties;
mod temperature;
mod top_k;
mod top_p;
mod typical;

use super::SamplerWorkspace;
use super::setting::{AliasRule, FieldAlias, SamplerSetting, SettingFlag, SettingRange, SettingValue};
use super::settings::LogitBias;

/// Narrows or reweights the candidates of a workspace, given the sequence's tokens so far.
type Apply = fn(&mut SamplerWorkspace, &SamplingSettings, &[u32]);

/// One stage between the biases and the draw: a row of [`SAMPLER_STAGES`].
#[derive(Debug)]
pub struct SamplerStage {
    /// Its name in a request's `samplers`, as in llama.cpp.
    pub name: &'static str,
    /// `None` for a stage of llama.cpp that this engine lacks: neutral in llama.cpp's own default, and here always.
    pub(super) apply: Option<Apply>,
}

/// All stages in the order in which they run, llama.cpp's default order.
pub const SAMPLER_STAGES: &[SamplerStage] = &[
    SamplerStage { name: "penalties", apply: Some(penalties::apply) },
    SamplerStage { name: "dry", apply: None },
    SamplerStage { name: "top_n_sigma", apply: None },
    SamplerStage { name: "top_k", apply: Some(top_k::apply) },
    SamplerStage { name: "typ_p", apply: Some(typical::apply) },
    SamplerStage { name: "top_p", apply: Some(top_p::apply) },
    SamplerStage { name: "min_p", apply: Some(min_p::apply) },
    SamplerStage { name: "xtc", apply: None },
    SamplerStage { name: "temperature", apply: Some(temperature::apply) },
];

/// Settings of the sampler stages. The default is neutral: a draw from the plain softmax with seed 0.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingSettings {
    /// Seeds the random numbers; not used when greedy.
    pub seed: u64,
    /// Logits are divided by this before the softmax; 0 takes the most likely of what the other stages leave. Finite,
    /// not negative, 1 by default.
    pub temperature: f32,
    /// Added to the logits of single tokens before everything else; several of one token add up.
    pub logit_bias: Vec<LogitBias>,
    /// The logit of a token that occurred is divided by this where it is positive and multiplied where it is not. Finite,
    /// above 0; 1, the default, is neutral.
    pub repeat_penalty: f32,
    /// Subtracted from the logit of a token for each time it occurred. Finite; 0, the default, is neutral.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of a token that occurred. Finite; 0, the default, is neutral.
    pub presence_penalty: f32,
    /// Number of last tokens, the prompt's included, that the three penalties look at. 64 by default, 0 for none,
    /// `usize::MAX` for all.
    pub penalty_tokens: usize,
    /// Keeps this many of the likeliest tokens; 0, the default, keeps all.
    pub top_k: usize,
    /// Keeps the tokens whose surprise is closest to the expected one, up to this probability in sum. Above 0 and at most 1;
    /// 1, the default, keeps all.
    pub typical_p: f32,
    /// Keeps the likeliest tokens up to this probability in sum. Above 0 and at most 1; 1, the default, keeps all.
    pub top_p: f32,
    /// Keeps the tokens at least this likely, measured by the likeliest. From 0, the default, which keeps all, to 1.
    pub min_p: f32,
}

impl Default for SamplingSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            temperature: 1.0,
            logit_bias: Vec::new(),
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_tokens: 64,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
        }
    }
}

/// All numeric settings, in the order in which descriptions, answers and `--help` list them.
pub const SAMPLER_SETTINGS: &[SamplerSetting] = &[
    SamplerSetting {
        name: "temperature",
        alias: None,
        stage: Some("temperature"),
        value: SettingValue::Number {
            label: "temperature",
            range: SettingRange::from(0.0),
            get: |settings| settings.temperature,
            set: |settings, value| settings.temperature = value,
        },
        says: "Divides the logits before the softmax; above 1 the choice is more even, 0 takes the likeliest token.",
        note: None,
        // The commands declare `--temp` themselves, each with its own help.
        flag: None,
    },
    SamplerSetting {
        name: "top_k",
        alias: None,
        stage: Some("top_k"),
        value: SettingValue::Whole {
            minimum: None,
            get: |settings| i64::try_from(settings.top_k).unwrap_or(i64::MAX),
            set: |settings, value| settings.top_k = usize::try_from(value).unwrap_or(0),
        },
        says: "Keeps this many of the likeliest tokens; 0 keeps all.",
        note: Some("Negative numbers count as 0."),
        flag: Some(SettingFlag { long: "top-k", alias: None, value_name: "K", default: "40" }),
    },
    SamplerSetting {
        name: "top_p",
        alias: None,
        stage: Some("top_p"),
        value: SettingValue::Number {
            label: "top-p",
            range: SettingRange::above(0.0).to(1.0),
            get: |settings| settings.top_p,
            set: |settings, value| settings.top_p = value,
        },
        says: "Keeps the likeliest tokens up to this probability in sum; 1 keeps all.",
        note: Some("With temperature 0 it may be 0 as well."),
        flag: Some(SettingFlag { long: "top-p", alias: None, value_name: "P", default: "0.95" }),
    },
    SamplerSetting {
        name: "min_p",
        alias: None,
        stage: Some("min_p"),
        value: SettingValue::Number {
            label: "min-p",
            range: SettingRange::from(0.0).to(1.0),
            get: |settings| settings.min_p,
            set: |settings, value| settings.min_p = value,
        },
        says: "Keeps tokens that have at least this share of the likeliest token's probability; 0 keeps all.",
        note: None,
        flag: Some(SettingFlag { long: "min-p", alias: None, value_name: "P", default: "0.05" }),
    },
    SamplerSetting {
        name: "typical_p",
        alias: Some(FieldAlias {
            name: "typ_p",
            rule: AliasRule::Overrides,
            says: "Another name of typical_p, which it overrides.",
        }),
        stage: Some("typ_p"),
        value: SettingValue::Number {
            label: "typical-p",
            range: SettingRange::above(0.0).to(1.0),
            get: |settings| settings.typical_p,
            set: |settings, value| settings.typical_p = value,
        },
        says: "Keeps the tokens whose surprise is closest to the expected one, up to this probability in sum; 1 keeps all.",
        note: None,
        flag: Some(SettingFlag { long: "typical", alias: Some("typical-p"), value_name: "P", default: "1" }),
    },
    SamplerSetting {
        name: "repeat_penalty",
        alias: Some(FieldAlias {
            name: "repetition_penalty",
            rule: AliasRule::Agrees,
            says: "Another name of repeat_penalty; if both are given, they must agree.",
        }),
        stage: Some("penalties"),
        value: SettingValue::Number {
            label: "repeat penalty",
            range: SettingRange::above(0.0),
            get: |settings| settings.repeat_penalty,
            set: |settings, value| settings.repeat_penalty = value,
        },
        says: "Divides the logits of tokens that occurred, and multiplies negative ones; 1 changes nothing.",
        note: None,
        flag: Some(SettingFlag { long: "repeat-penalty", alias: None, value_name: "R", default: "1" }),
    },
    SamplerSetting {
        name: "repeat_last_n",
        alias: None,
        // Without effect alone: it keeps its value where the penalties are left out.
        stage: None,
        value: SettingValue::Whole {
            minimum: Some(-1),
            get: |settings| i64::try_from(settings.penalty_tokens).unwrap_or(-1),
            set: |settings, value| settings.penalty_tokens = usize::try_from(value).unwrap_or(usize::MAX),
        },
        says: "Number of last tokens that the penalties look at; 0 looks at none, -1 at all.",
        note: None,
        flag: Some(SettingFlag { long: "repeat-last-n", alias: None, value_name: "N", default: "64" }),
    },
    SamplerSetting {
        name: "presence_penalty",
        alias: None,
        stage: Some("penalties"),
        value: SettingValue::Number {
            label: "presence penalty",
            range: SettingRange::FINITE,
            get: |settings| settings.presence_penalty,
            set: |settings, value| settings.presence_penalty = value,
        },
        says: "Subtracted from the logit of a token that occurred.",
        note: None,
        flag: Some(SettingFlag { long: "presence-penalty", alias: None, value_name: "X", default: "0" }),
    },
    SamplerSetting {
        name: "frequency_penalty",
        alias: None,
        stage: Some("penalties"),
        value: SettingValue::Number {
            label: "frequency penalty",
            range: SettingRange::FINITE,
            get: |settings| settings.frequency_penalty,
            set: |settings, value| settings.frequency_penalty = value,
        },
        says: "Subtracted from the logit of a token for each time it occurred.",
        note: None,
        flag: Some(SettingFlag { long: "frequency-penalty", alias: None, value_name: "X", default: "0" }),
    },
];
