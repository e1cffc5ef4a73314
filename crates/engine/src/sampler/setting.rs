//! Description of one numeric setting: the columns of the table in `stages`.

use std::fmt;

use super::stages::{SAMPLER_SETTINGS, SamplingSettings};

/// One numeric setting: a row of [`SAMPLER_SETTINGS`].
#[derive(Debug)]
pub struct SamplerSetting {
    /// Name of the request's field, as in llama.cpp.
    pub name: &'static str,
    /// Second name of the field, if other clients have one.
    pub alias: Option<FieldAlias>,
    /// Stage without which the setting has its neutral value.
    pub stage: Option<&'static str>,
    /// Its type, its bounds, and its field of [`SamplingSettings`].
    pub value: SettingValue,
    /// Effect of the setting, one sentence.
    pub says: &'static str,
    /// Second sentence, of the request's field only.
    pub note: Option<&'static str>,
    /// The flag of the command line.
    pub flag: Option<SettingFlag>,
}

/// Type and bounds of a setting, and the way to its field.
#[derive(Debug)]
pub enum SettingValue {
    /// A number.
    Number {
        /// Name in messages.
        label: &'static str,
        /// Values that are accepted.
        range: SettingRange,
        /// Reads the field.
        get: fn(&SamplingSettings) -> f32,
        /// Writes the field, unchecked.
        set: fn(&mut SamplingSettings, f32),
    },
    /// A number of tokens.
    Whole {
        /// Least value that is accepted; `None` takes any in requests, and a negative one as 0.
        minimum: Option<i64>,
        /// Reads the field.
        get: fn(&SamplingSettings) -> i64,
        /// Writes the field.
        set: fn(&mut SamplingSettings, i64),
    },
}

/// Second name of a request's field.
#[derive(Debug)]
pub struct FieldAlias {
    /// The name.
    pub name: &'static str,
    /// Meaning of a request with both names.
    pub rule: AliasRule,
    /// Description of the field.
    pub says: &'static str,
}

/// Meaning of a request that has a field by both of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AliasRule {
    /// The alias counts.
    Overrides,
    /// Both have the same value, or the request is refused.
    Agrees,
}

/// SettingFlag of the commands that generate.
#[derive(Debug)]
pub struct SettingFlag {
    /// Long name, without dashes.
    pub long: &'static str,
    /// Second long name, not shown in `--help`.
    pub alias: Option<&'static str>,
    /// Placeholder of the value in `--help`.
    pub value_name: &'static str,
    /// Value without the flag, llama.cpp's default.
    pub default: &'static str,
}

/// Finite numbers between bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SettingRange {
    /// Lower bound, itself excluded.
    pub above: Option<f32>,
    /// Lower bound, itself included.
    pub from: Option<f32>,
    /// Upper bound, itself included.
    pub to: Option<f32>,
}

impl SettingRange {
    /// All finite numbers.
    pub const FINITE: Self = Self { above: None, from: None, to: None };

    /// Finite numbers greater than `bound`.
    pub const fn above(bound: f32) -> Self {
        Self { above: Some(bound), ..Self::FINITE }
    }

    /// Finite numbers not less than `bound`.
    pub const fn from(bound: f32) -> Self {
        Self { from: Some(bound), ..Self::FINITE }
    }

    /// Of these, the numbers not greater than `bound`.
    pub const fn to(self, bound: f32) -> Self {
        Self { to: Some(bound), ..self }
    }

    /// True if `value` is in range.
    pub fn contains(&self, value: f32) -> bool {
        value.is_finite()
            && self.above.is_none_or(|bound| value > bound)
            && self.from.is_none_or(|bound| value >= bound)
            && self.to.is_none_or(|bound| value <= bound)
    }
}

impl fmt::Display for SettingRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { above: Some(above), to: Some(to), .. } => write!(f, "above {above} and at most {to}"),
            Self { from: Some(from), to: Some(to), .. } => write!(f, "from {from} to {to}"),
            Self { to: Some(to), .. } => write!(f, "a finite number <= {to}"),
            Self { above: Some(above), .. } => write!(f, "a finite number > {above}"),
            Self { from: Some(from), .. } => write!(f, "a finite number >= {from}"),
            Self::FINITE => f.write_str("a finite number"),
        }
    }
}

impl SamplerSetting {
    /// Gives the setting its neutral value.
    fn reset(&self, settings: &mut SamplingSettings) {
        let neutral = SamplingSettings::default();
        match self.value {
            SettingValue::Number { get, set, .. } => set(settings, get(&neutral)),
            SettingValue::Whole { get, set, .. } => set(settings, get(&neutral)),
        }
    }
}

impl SamplingSettings {
    /// Gives the settings of the stage `name` their neutral values, so that it does nothing.
    pub fn leave_out(&mut self, name: &str) {
        SAMPLER_SETTINGS.iter().filter(|setting| setting.stage == Some(name)).for_each(|setting| setting.reset(self));
    }
}
