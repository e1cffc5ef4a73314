//! The flags of machines that work together.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use muser_cluster::handoff::Compress;
use muser_trust::Address;

use super::serve::MemoryArgs;
use super::{HubArgs, KvType, MachineArgs};

/// `muser produce`.
#[derive(Args, Debug)]
pub struct ProduceArgs {
    /// Model file [default: the model that ships with muser].
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    /// This machine's folder of the cluster: its certificate and keys.
    #[arg(long, value_name = "FOLDER")]
    pub cluster: PathBuf,
    /// Address to listen on; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9932")]
    pub listen: Address,
    /// Positions of a prompt at most; 0 takes as many as the model was made for.
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub ctx_size: u32,
    /// Prompts that are computed at once; -np for short.
    #[arg(long, alias = "np", value_name = "N", default_value = "2")]
    pub parallel: NonZeroUsize,
    /// Idle timeout of a decoder's connection, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    pub stall_seconds: NonZeroU32,
    /// Time for handoffs under way to end after a signal, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_seconds: u32,
    /// Highest sending rate, all decoders together, in Gbit/s [default: unlimited].
    #[arg(long, value_name = "GBIT_PER_S", value_parser = bytes_per_s)]
    pub pace: Option<NonZeroU64>,
    /// Lossless compression of pages.
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub compress: CompressWhen,
    /// Lets decoders reuse prefixes that were computed for others [default: each decoder has its own]. Only decoders with
    /// --share-prefixes take part, since only they compute in one realm. A client can then detect, by trying, what clients
    /// of other decoders asked.
    #[arg(long)]
    pub share_prefixes: bool,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// Compression of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressWhen {
    /// If measured rates show that it saves time.
    Auto,
    /// Never.
    Never,
    /// Always.
    Always,
}

impl From<CompressWhen> for Compress {
    fn from(when: CompressWhen) -> Self {
        match when {
            CompressWhen::Auto => Self::Auto,
            CompressWhen::Never => Self::Never,
            CompressWhen::Always => Self::Always,
        }
    }
}

/// `muser demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Model file [default: the model that ships with muser].
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    /// File with the prompt [default: a passage, repeated].
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Tokens of the prompt, if no file is given.
    #[arg(long, value_name = "N", default_value = "1500")]
    pub tokens: NonZeroUsize,
    /// Tokens to generate.
    #[arg(short = 'n', long, value_name = "N", default_value = "16")]
    pub predict: NonZeroUsize,
    /// Layout of cached keys and values.
    #[arg(long, value_enum, default_value_t = KvType::Q8)]
    pub kv: KvType,
    /// With --device cuda the producer computes on the GPU, and the decoder on the CPU.
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// Place that computes long prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Prefill {
    /// This machine or a producer: the one with the least expected time, by measured rates.
    Cheapest,
    /// The producer with the least expected time, never this machine.
    Producer,
}

/// Fallback if the chosen producer fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FallbackTo {
    /// Compute here at once.
    Local,
    /// Ask the other producers, the quickest first, and compute here when none is left.
    OtherProducer,
    /// Refuse the request with 503.
    Fail,
}

/// Producers of a server.
#[derive(Args, Debug)]
pub struct ProducerArgs {
    /// This machine's folder of the cluster: its certificate, keys, ledger, and measured rates of producers.
    #[arg(long, value_name = "FOLDER", requires = "producer")]
    pub cluster: Option<PathBuf>,
    /// Producer that may compute long prompts. May be given several times. Received pages may take as much memory again as
    /// --kv-memory.
    #[arg(long, value_name = "ADDRESS", requires = "cluster")]
    pub producer: Vec<Address>,
    /// Prompts with fewer uncached tokens are always computed here. Machines without a recent measurement are tried with
    /// prompts that have four times as many.
    #[arg(long, value_name = "N", default_value_t = 64, requires = "producer")]
    pub producer_min_tokens: usize,
    /// Place that computes longer prompts.
    #[arg(long, value_enum, default_value = "cheapest", requires = "producer")]
    pub prefill: Prefill,
    /// Fallback if the chosen producer fails.
    #[arg(long, value_enum, default_value = "local", requires = "producer")]
    pub fallback: FallbackTo,
    /// Timeout of a handoff, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "600", requires = "producer")]
    pub handoff_seconds: NonZeroU32,
    /// Idle timeout of a producer's connection, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "30", requires = "producer")]
    pub producer_stall_seconds: NonZeroU32,
    /// Share of handoffs, 0 to 1, of which some pages are recomputed here and compared before the answer begins. A wrong
    /// bit voids the handoff and quarantines the producer until muser cluster readmit.
    #[arg(long, value_name = "RATE", default_value_t = 0.0, value_parser = share, requires = "producer")]
    pub audit: f64,
    /// Tokens that an audit recomputes at most, in whole pages of 64; where the pages before them are not cached, up to as
    /// many more.
    #[arg(long, value_name = "N", default_value = "512", requires = "producer")]
    pub audit_tokens: NonZeroUsize,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "needs a number from 0 to 1".into())
}

/// Bytes a second of a rate in Gbit/s.
fn bytes_per_s(gbit_per_s: &str) -> Result<NonZeroU64, String> {
    let rate: f64 = gbit_per_s.parse().map_err(|_| "not a number".to_owned())?;
    let bytes = rate * 1e9 / 8.0;
    if !(1.0..=1e15).contains(&bytes) {
        return Err("a rate is at least a byte a second, and at most 8000000 Gbit/s".into());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be from 1 to 10^15")]
    let bytes = bytes.round() as u64;
    NonZeroU64::new(bytes).ok_or_else(|| "a rate is above 0".to_owned())
}
