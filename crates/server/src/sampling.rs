//! The sampler's fields: llama.cpp's names, and OpenAI's where they differ.

use muser_engine::{LogitBias, SamplingSettings};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Fields, FromField};
use crate::logit_bias::Biases;
use crate::service::Service;

/// Makes a stage do nothing.
type Neutralise = fn(&mut SamplingSettings);

/// Names of the sampler's stages in the order in which they run, as `samplers` lists them, with the change that leaving
/// one out makes. Stages without a setting here are neutral in llama.cpp's own default, and in this server always.
const STAGES: &[(&str, Option<Neutralise>)] = &[
    ("penalties", Some(|s| (s.repeat_penalty, s.frequency_penalty, s.presence_penalty) = (1.0, 0.0, 0.0))),
    ("dry", None),
    ("top_n_sigma", None),
    ("top_k", Some(|s| s.top_k = 0)),
    ("typ_p", Some(|s| s.typical_p = 1.0)),
    ("top_p", Some(|s| s.top_p = 1.0)),
    ("min_p", Some(|s| s.min_p = 0.0)),
    ("xtc", None),
    ("temperature", Some(|s| s.temperature = 1.0)),
];

/// Takes the sampler's fields.
///
/// # Errors
/// If one has a wrong type, or asks for what the sampler does not have. Ranges are the engine's to check.
pub fn take_sampling(fields: &mut Fields<'_>, service: &Service) -> Result<SamplingSettings, ApiError> {
    let mut settings = service.settings.sampling.clone();
    let numbers: [(&'static str, &mut f32); 7] = [
        ("temperature", &mut settings.temperature),
        ("top_p", &mut settings.top_p),
        ("min_p", &mut settings.min_p),
        ("typical_p", &mut settings.typical_p),
        ("repeat_penalty", &mut settings.repeat_penalty),
        ("presence_penalty", &mut settings.presence_penalty),
        ("frequency_penalty", &mut settings.frequency_penalty),
    ];
    let mut repeat_penalty = None;
    for (name, setting) in numbers {
        if let Some(number) = fields.take(name)? {
            *setting = number;
            repeat_penalty = repeat_penalty.or(Some(number).filter(|_| name == "repeat_penalty"));
        }
    }
    // Nothing is drawn at temperature 0, so the stage does not matter, and agents send both.
    if settings.temperature == 0.0 && settings.top_p == 0.0 {
        settings.top_p = 1.0;
    }
    take_repetition_penalty(fields, repeat_penalty, &mut settings)?;
    // The short name that the list of samplers has.
    if let Some(p) = fields.take("typ_p")? {
        settings.typical_p = p;
    }
    if let Some(k) = fields.take_within("top_k", i64::MIN, i64::MAX)? {
        // As in llama.cpp, 0 and below keep all.
        settings.top_k = usize::try_from(k).unwrap_or(0);
    }
    if let Some(n) = fields.take_within("repeat_last_n", -1, i64::MAX)? {
        settings.penalty_tokens = usize::try_from(n).unwrap_or(usize::MAX);
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

/// vLLM's name of the penalty. Where both names are, they say the same.
fn take_repetition_penalty(
    fields: &mut Fields,
    repeat_penalty: Option<f32>,
    settings: &mut SamplingSettings,
) -> Result<(), ApiError> {
    let Some(penalty) = fields.take::<f32>("repetition_penalty")? else { return Ok(()) };
    if penalty <= 0.0 {
        return Err(ApiError::invalid(format!("repetition_penalty: needs to be above 0, and is {penalty}")));
    }
    if let Some(other) = repeat_penalty.filter(|other| *other != penalty) {
        let message = format!("repetition_penalty: is {penalty}, and repeat_penalty is {other}: which one?");
        return Err(ApiError::invalid(message));
    }
    settings.repeat_penalty = penalty;
    Ok(())
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
    let mut left = STAGES.iter();
    let mut out = Vec::new();
    for name in &names {
        let place = STAGES.iter().any(|(stage, _)| stage == name);
        loop {
            match left.next() {
                Some((stage, _)) if stage == name => break,
                Some((_, leave_out)) => out.extend(*leave_out),
                None => {
                    let order: Vec<&str> = STAGES.iter().map(|(stage, _)| *stage).collect();
                    let why = if place { "stands in another order or twice" } else { "is unknown" };
                    return Err(ApiError::invalid(format!(
                        "samplers: {name:?} {why}; the order is {}",
                        order.join(", ")
                    )));
                }
            }
        }
    }
    out.extend(left.filter_map(|(_, leave_out)| *leave_out));
    out.iter().for_each(|leave_out| leave_out(settings));
    Ok(())
}
