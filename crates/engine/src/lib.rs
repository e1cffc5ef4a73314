//! Scheduling of requests: chunked prefill, decode, prefix reuse and sampling.

#![forbid(unsafe_code)]

pub mod engine;
mod policy;
mod prefix;
mod sampler;
mod templates;
mod vocabulary;

pub use engine::{Engine, EngineSettings, Finish, Outcome};
pub use policy::{ChunkRows, WorkClass};
pub use sampler::{
    AliasRule, FieldAlias, LogitBias, Logprobs, LogprobsStage, LogprobsWanted, SAMPLER_SETTINGS, SAMPLER_STAGES,
    Sampler, SamplerSetting, SamplerStage, SamplerWorkspace, SamplingError, SamplingSettings, SettingFlag,
    SettingRange, SettingValue, TokenLogprob, TokenLogprobs,
};
pub use templates::{TemplatesLoadError, load_templates, main_template};
pub use vocabulary::{VocabularyLoadError, load_tokenizer};
