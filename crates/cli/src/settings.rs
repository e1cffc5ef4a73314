//! What the user asked for, parsed and checked once. Everything below the command line receives plain values.

use std::ffi::OsString;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use muser_kernels::attention::KvLayout;

/// Spells out llama.cpp's flags of several letters behind one dash, which the parser would read as several flags.
pub fn with_long_spellings(args: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    args.into_iter().map(|arg| match arg.to_str() {
        Some("-ctk") => "--cache-type-k".into(),
        Some("-ctv") => "--cache-type-v".into(),
        _ => arg,
    })
}

/// LLM inference: prefill where the FLOPs are, decode where the memory is.
#[derive(Debug, Parser)]
#[command(name = "muser", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a prompt; text goes to stdout, statistics to stderr.
    Run(RunArgs),
    /// Print what a GGUF file holds, its identity, and whether muser can run it.
    Inspect(InspectArgs),
    /// Write a GGUF file with other weight types.
    Quantize(QuantizeArgs),
    /// Write the full logits of every position: the tool by which anyone compares bits.
    Logits(LogitsArgs),
    /// Measure prefill and decode, tokens per second.
    Bench(BenchArgs),
}

/// How the machine is used; shared by the commands that run a model. None of these change a result.
#[derive(Args, Clone, Debug)]
pub struct MachineArgs {
    /// Threads that compute [default: one per core].
    #[arg(short, long)]
    pub threads: Option<NonZeroUsize>,
    /// Instruction set to use, by name: scalar, avx2, avx512 [default: the best this CPU has].
    #[arg(long, value_name = "NAME")]
    pub kernels: Option<String>,
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvType {
    /// 8-bit codes with one scale per head vector.
    #[value(alias = "q8_0")]
    Q8,
    /// 16-bit floats.
    F16,
}

impl From<KvType> for KvLayout {
    fn from(value: KvType) -> Self {
        match value {
            KvType::Q8 => Self::Q8,
            KvType::F16 => Self::F16,
        }
    }
}

/// `muser run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Model file [default: the model that ships with muser].
    #[arg(short, long)]
    pub model: Option<PathBuf>,
    /// Text to continue.
    pub prompt: String,
    /// Tokens to generate at most; -1 goes on until the model ends or the context is full.
    #[arg(short = 'n', long = "predict", default_value_t = -1, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(-1..))]
    pub predict: i64,
    /// Temperature; 0 always takes the most likely token.
    #[arg(long, alias = "temperature", default_value_t = 0.8, allow_negative_numbers = true)]
    pub temp: f32,
    /// Seed of the random choice [default: a new one each time, printed with the statistics].
    #[arg(short, long)]
    pub seed: Option<u64>,
    /// Positions to make room for [default: what the model was trained for].
    #[arg(short, long = "ctx-size")]
    pub ctx_size: Option<NonZeroU32>,
    /// Layout of cached keys.
    #[arg(long = "cache-type-k", value_enum, default_value_t = KvType::Q8)]
    pub cache_type_k: KvType,
    /// Layout of cached values; must equal that of the keys.
    #[arg(long = "cache-type-v", value_enum, default_value_t = KvType::Q8)]
    pub cache_type_v: KvType,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// `muser inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    /// GGUF file; of a split model, its first part [default: the model that ships with muser].
    pub model: Option<PathBuf>,
    /// Machine-readable output.
    #[arg(long)]
    pub json: bool,
}

/// Types that `muser quantize` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QuantizeTo {
    /// 8.5 bits per weight.
    #[value(name = "Q8_0")]
    Q8_0,
    /// 4.5 bits per weight.
    #[value(name = "Q4_0")]
    Q4_0,
    /// 4.5 bits per weight, with finer scales; Q5_0 where rows are not whole blocks of 256.
    #[value(name = "Q4_K")]
    Q4K,
    /// 6.56 bits per weight; Q8_0 where rows are not whole blocks of 256.
    #[value(name = "Q6_K")]
    Q6K,
}

/// `muser quantize`.
#[derive(Args, Debug)]
pub struct QuantizeArgs {
    /// GGUF file to read.
    pub input: PathBuf,
    /// GGUF file to write; must not exist.
    pub output: PathBuf,
    /// Type of the matrices.
    #[arg(value_enum, ignore_case = true)]
    pub weight_type: QuantizeTo,
    /// Also read types that have lost precision already.
    #[arg(long)]
    pub allow_requantize: bool,
    /// Threads that compute [default: one per core].
    #[arg(short, long)]
    pub threads: Option<NonZeroUsize>,
}

/// `muser logits`.
#[derive(Args, Debug)]
pub struct LogitsArgs {
    /// Model file [default: the model that ships with muser].
    pub model: Option<PathBuf>,
    /// Prompts: one per line, token ids in decimal separated by spaces.
    #[arg(long, value_name = "FILE")]
    pub ids: PathBuf,
    /// Rows per forward pass.
    #[arg(long, default_value = "512")]
    pub chunk: NonZeroUsize,
    /// Layout of cached keys and values.
    #[arg(long, value_enum, default_value_t = KvType::Q8)]
    pub kv: KvType,
    /// Where to write [position, vocabulary] little-endian f32, prompts in file order.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// How `muser bench` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchFormat {
    /// A table.
    Md,
    /// A JSON array.
    Json,
}

/// `muser bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Model file [default: the model that ships with muser].
    #[arg(short, long)]
    pub model: Option<PathBuf>,
    /// Tokens of the prefill test; 0 leaves it out.
    #[arg(short = 'p', long, default_value_t = 512)]
    pub n_prompt: usize,
    /// Tokens of the decode test; 0 leaves it out.
    #[arg(short = 'n', long, default_value_t = 128)]
    pub n_gen: usize,
    /// Counted repetitions, after one that is not counted.
    #[arg(short, long, default_value = "5")]
    pub repetitions: NonZeroUsize,
    /// Positions already held when a test starts.
    #[arg(short = 'd', long, default_value_t = 0)]
    pub n_depth: usize,
    /// Layout of cached keys and values.
    #[arg(long, value_enum, default_value_t = KvType::Q8)]
    pub kv: KvType,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t = BenchFormat::Md)]
    pub output: BenchFormat,
    #[command(flatten)]
    pub machine: MachineArgs,
}
