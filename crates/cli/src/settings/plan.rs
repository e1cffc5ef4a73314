//! The flags of `muser plan`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{HubArgs, KvType};

/// `muser plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Tokens of the prompt.
    #[arg(value_name = "PROMPT_TOKENS")]
    pub prompt_tokens: usize,
    /// Model file, of which only the head is read [default: the model that ships with muser].
    #[arg(short, long, value_name = "MODEL", conflicts_with = "geometry")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    /// Model that is known by name, instead of a file.
    #[arg(long, value_enum, conflicts_with = "hf_repo")]
    pub geometry: Option<Geometry>,
    /// Tokens of the prompt that the decoder holds; only whole pages of 64 count.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub held_tokens: usize,
    /// Layout of cached keys and values; -ctk for short.
    #[arg(long, alias = "ctk", value_enum, default_value_t = KvType::Q8)]
    pub kv: KvType,
    /// Cluster folder of a server with measured rates: adds the expected time of each machine.
    #[arg(long, value_name = "FOLDER")]
    pub cluster: Option<PathBuf>,
    /// Machine-readable output.
    #[arg(long)]
    pub json: bool,
}

/// Models whose layers are known without a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Geometry {
    /// 39 layers with a window of 2048 and 13 without, 2 heads of 128, 131,072 positions.
    #[value(name = "muse-glimmer-30b")]
    MuseGlimmer30b,
}
