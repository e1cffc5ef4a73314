//! Flags of the sampler, most of them from the table of its settings.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use muser_engine::{LogitBias, SAMPLER_SETTINGS, SamplingSettings, SettingValue};

/// Sampling settings: filters, penalties and biases.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct SamplerArgs {
    #[command(flatten)]
    pub numbers: NumberArgs,
    /// Added to the logit of a token: 15043+1 makes token 15043 likelier, 15043-1 less likely, 15043-inf bans it. May be
    /// given several times.
    #[arg(short, long, value_name = "TOKEN+BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<LogitBias>,
    /// Bans the tokens with which the model ends a text.
    #[arg(long)]
    pub ignore_eos: bool,
}

/// The flags of [`SAMPLER_SETTINGS`]. Ranges of numbers are checked by the engine.
#[derive(Debug)]
pub struct NumberArgs(SamplingSettings);

impl SamplerArgs {
    /// Sampling settings for a model whose end-of-generation tokens are `ends`.
    pub fn settings(&self, temperature: f32, seed: u64, ends: &[u32]) -> SamplingSettings {
        let banned = if self.ignore_eos { ends } else { &[] };
        let ban = |&token| LogitBias { token, bias: f32::NEG_INFINITY };
        let logit_bias = self.logit_bias.iter().copied().chain(banned.iter().map(ban)).collect();
        SamplingSettings { seed, temperature, logit_bias, ..self.numbers.0.clone() }
    }
}

impl Args for NumberArgs {
    fn augment_args(command: Command) -> Command {
        let flags = SAMPLER_SETTINGS.iter().filter_map(|setting| {
            let flag = setting.flag.as_ref()?;
            // Like the help of all flags, without the full stop.
            let help = setting.says.trim_end_matches('.');
            let arg = Arg::new(setting.name).long(flag.long).value_name(flag.value_name).help(help);
            let arg = arg.default_value(flag.default).aliases(flag.alias);
            Some(match setting.value {
                SettingValue::Number { .. } => arg.value_parser(value_parser!(f32)),
                SettingValue::Whole { minimum, .. } => {
                    arg.value_parser(value_parser!(i64).range(minimum.unwrap_or(0)..))
                }
            })
        });
        command.args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for NumberArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut numbers = Self(SamplingSettings::default());
        numbers.update_from_arg_matches(matches)?;
        Ok(numbers)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in SAMPLER_SETTINGS.iter().filter(|setting| setting.flag.is_some()) {
            match setting.value {
                SettingValue::Number { set, .. } => {
                    matches.get_one(setting.name).into_iter().for_each(|number| set(&mut self.0, *number));
                }
                SettingValue::Whole { set, .. } => {
                    matches.get_one(setting.name).into_iter().for_each(|number| set(&mut self.0, *number));
                }
            }
        }
        Ok(())
    }
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
