//! The sampler's fields: llama.cpp's names, and OpenAI's where they differ.

use muser_engine::{
    AliasRule, FieldAlias, LogitBias, SAMPLER_SETTINGS, SAMPLER_STAGES, SamplerSetting, SamplingSettings, SettingRange,
    SettingValue,
};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, FromField};
use crate::logit_bias::Biases;
use crate::service::Service;

/// Takes the sampler's fields.
///
/// # Errors
/// If one has a wrong type, or asks for what the sampler does not have. Ranges are the engine's to check.
pub fn take_sampling(fields: &mut Fields<'_>, service: &Service) -> Result<SamplingSettings, ApiError> {
    let mut settings = service.settings.sampling.clone();
    for setting in SAMPLER_SETTINGS {
        take_setting(fields, setting, &mut settings)?;
    }
    // Nothing is drawn at temperature 0, so the stage does not matter, and agents send both.
    if settings.temperature == 0.0 && settings.top_p == 0.0 {
        settings.top_p = 1.0;
    }
    let seed = fields.take_within("seed", -1, i64::MAX)?;
    settings.seed = seed.and_then(|seed| u64::try_from(seed).ok()).unwrap_or_else(|| fastrand::u64(..=SEED_MAX));
    if let Some(names) = fields.take::<Value>("samplers")? {
        leave_out_stages(&mut settings, &names)?;
    }
    let mut biases = Biases::default();
    if let Some(raw) = fields.raw("logit_bias") {
        let read = Biases::read(raw, service.tokenizer());
        biases = read.map_err(|wrong| ApiError::invalid(format!("logit_bias: {wrong}")))?;
    }
    settings.logit_bias.drain(..).for_each(|bias| biases.add(bias));
    if fields.take("ignore_eos")?.unwrap_or(false) {
        let ends = service.end_of_generation.iter();
        ends.for_each(|&token| biases.add(LogitBias { token, bias: f32::NEG_INFINITY }));
    }
    settings.logit_bias = biases.merged();
    take_neutral(fields)?;
    Ok(settings)
}

/// Takes the field of one setting, by any of its names.
fn take_setting(
    fields: &mut Fields<'_>,
    setting: &SamplerSetting,
    settings: &mut SamplingSettings,
) -> Result<(), ApiError> {
    match setting.value {
        SettingValue::Number { range, set, .. } => {
            let given = fields.take(setting.name)?;
            let alias = setting.alias.as_ref();
            let other = alias.map_or(Ok(None), |alias| take_alias(fields, alias, setting.name, given, range))?;
            if let Some(number) = other.or(given) {
                set(settings, number);
            }
        }
        SettingValue::Whole { minimum, set, .. } => {
            if let Some(number) = fields.take_within(setting.name, minimum.unwrap_or(i64::MIN), i64::MAX)? {
                set(settings, number);
            }
        }
    }
    Ok(())
}

/// Takes a number by its second name, where the field `name` has the value `given`.
fn take_alias(
    fields: &mut Fields<'_>,
    alias: &FieldAlias,
    name: &str,
    given: Option<f32>,
    range: SettingRange,
) -> Result<Option<f32>, ApiError> {
    let Some(number) = fields.take::<f32>(alias.name)? else { return Ok(None) };
    if alias.rule == AliasRule::Overrides {
        return Ok(Some(number));
    }
    if let Some(bound) = range.above.filter(|bound| number <= *bound) {
        return Err(ApiError::invalid(format!("{}: needs to be above {bound}, and is {number}", alias.name)));
    }
    if let Some(other) = given.filter(|other| *other != number) {
        let message = format!("{}: is {number}, and {name} is {other}: which one?", alias.name);
        return Err(ApiError::invalid(message));
    }
    Ok(Some(number))
}

/// The settings by the names of the request's fields.
pub fn sampling_settings(settings: &SamplingSettings) -> Value {
    let mut values = json!({"seed": settings.seed});
    for setting in SAMPLER_SETTINGS {
        values[setting.name] = match setting.value {
            SettingValue::Number { get, .. } => json!(get(settings)),
            SettingValue::Whole { get, .. } => json!(get(settings)),
        };
    }
    values
}

/// The largest seed that every client can read back exactly: above it, JSON readers with one type of number round.
const SEED_MAX: u64 = (1 << 53) - 1;

/// Samplers that there are elsewhere: their neutral values are taken, others refused.
fn take_neutral(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let zero = |value: &Value| value.as_f64() == Some(0.0);
    for name in ["dynatemp_range", "xtc_probability", "dry_multiplier", "mirostat", "min_keep", "adaptive_target"] {
        fields.unsupported(name, |value| value.as_f64().is_some_and(|x| x <= 0.0))?;
    }
    fields.unsupported("top_n_sigma", |value| value.as_f64().is_some_and(|x| x <= 0.0))?;
    fields.unsupported("backend_sampling", |value| *value == Value::Bool(false))?;
    fields.unsupported("n_indent", zero)?;
    fields.unsupported("t_max_predict_ms", |value| value.as_f64().is_some_and(|x| x <= 0.0))?;
    // They only shape what the refused ones above switch on.
    fields.accept(&[
        "dynatemp_exponent",
        "xtc_threshold",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "mirostat_tau",
        "mirostat_eta",
        "adaptive_decay",
    ])
}

/// Makes the stages neutral that the list does not name. Its order must be the sampler's.
fn leave_out_stages(settings: &mut SamplingSettings, names: &Value) -> Result<(), ApiError> {
    let names = Vec::<String>::from_field(names.clone());
    let names = names.ok_or_else(|| ApiError::invalid("samplers: needs an array of names of samplers"))?;
    let mut left = SAMPLER_STAGES.iter().map(|stage| stage.name);
    let mut out = Vec::new();
    for name in &names {
        loop {
            match left.next() {
                Some(stage) if stage == name => break,
                Some(stage) => out.push(stage),
                None => {
                    let order: Vec<&str> = SAMPLER_STAGES.iter().map(|stage| stage.name).collect();
                    let is_known = order.contains(&name.as_str());
                    let why = if is_known { "stands in another order or twice" } else { "is unknown" };
                    return Err(ApiError::invalid(format!(
                        "samplers: {name:?} {why}; the order is {}",
                        order.join(", ")
                    )));
                }
            }
        }
    }
    out.into_iter().chain(left).for_each(|stage| settings.leave_out(stage));
    Ok(())
}
