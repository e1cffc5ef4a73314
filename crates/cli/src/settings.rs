//! What the user asked for, parsed and checked once. Everything below the command line receives plain values.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Parser, Subcommand, ValueEnum};
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::Kernels;
use muser_kernels::pool::Pool;

use crate::failure::Failure;

/// Gives a flag of one dash and several letters, as llama.cpp has them, the two dashes that the parser needs to see one
/// flag instead of a short one with a value. What follows `--` is left alone.
///
/// This changes no value: the parser never takes an argument that begins with a dash and a letter as one.
pub fn with_two_dashes(args: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut only_values = false;
    args.into_iter().map(move |arg| {
        only_values |= arg == "--";
        let name = arg.to_str().and_then(|text| text.strip_prefix('-')).unwrap_or_default();
        let has_letters = name.len() > 1 && name.bytes().all(|byte| byte.is_ascii_lowercase());
        if has_letters && !only_values { format!("--{name}").into() } else { arg }
    })
}

/// Shown by `--help`.
const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed while running, 2 wrong usage, 3 model file damaged or not supported, 4 does not fit in memory, \
141 the reader of standard output left before the end.\n";

/// LLM inference: prefill where the FLOPs are, decode where the memory is.
#[derive(Debug, Parser)]
#[command(name = "muser", version, arg_required_else_help = true, after_help = EXIT_CODES)]
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
    /// Talk with a model through its chat template: a line in, an answer out, until the input ends.
    Chat(ChatArgs),
    /// Print what a GGUF file holds, its identity, and whether muser can run it.
    Inspect(InspectArgs),
    /// Write a GGUF file with other weight types.
    Quantize(QuantizeArgs),
    /// Write the full logits of every position: the tool by which anyone compares bits.
    Logits(LogitsArgs),
    /// Measure prefill and decode, tokens per second.
    Bench(BenchArgs),
    /// Print the token ids of a text.
    Tokenize(TokenizeArgs),
    /// Print what this machine offers: processors, kernels, memory and its bandwidth.
    Doctor(DoctorArgs),
    /// Print a shell's completion script.
    Completions(CompletionsArgs),
}

/// How the machine is used; shared by the commands that run a model. None of these change a result.
#[derive(Args, Clone, Debug)]
pub struct MachineArgs {
    /// Threads that compute [default: one per core].
    #[arg(short, long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<NonZeroUsize>,
    /// Instruction set to use, by name: scalar, avx2, avx512 [default: the best this CPU has].
    #[arg(long, value_name = "NAME", value_parser = kernels)]
    pub kernels: Option<Kernels>,
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

/// The layout's name on the command line.
impl std::fmt::Display for KvType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Q8 => "q8",
            Self::F16 => "f16",
        })
    }
}

/// Where the random numbers of a text start.
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

/// The text to continue, given in one of three ways.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct PromptArgs {
    /// Text to continue.
    #[arg(value_name = "PROMPT")]
    pub text: Option<String>,
    /// Text to continue, as a flag.
    #[arg(short = 'p', long = "prompt", value_name = "PROMPT")]
    pub flag: Option<String>,
    /// File with the text to continue; one line break at its end does not count.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `muser run`.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct RunArgs {
    /// Model file [default: the model that ships with muser].
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub generation: GenerationArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// What to generate; shared by the commands that do.
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
}

impl GenerationArgs {
    /// The one layout of keys and values.
    pub fn kv(&self) -> Result<KvLayout, Failure> {
        if self.cache_type_k == self.cache_type_v {
            return Ok(self.cache_type_k.into());
        }
        Err(Failure::Usage(format!(
            "-ctk is {} and -ctv is {}: keys and values are kept in one layout, so give both flags the same value",
            self.cache_type_k, self.cache_type_v
        )))
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

/// Which tokens a random choice is left with.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct SamplerArgs {
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Keeps the likeliest tokens up to this probability in sum; 1 keeps all.
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub top_p: f32,
    /// Keeps tokens at least this likely, measured by the likeliest; 0 keeps all.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub min_p: f32,
    /// Keeps the tokens whose surprise is closest to the expected one, up to this probability in sum; 1 keeps all.
    #[arg(long, alias = "typical-p", value_name = "P", default_value_t = 1.0)]
    pub typical: f32,
    /// Divides the logits of tokens that occurred; 1 changes nothing.
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repeat_penalty: f32,
    /// Subtracted from the logit of a token that occurred.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time it occurred.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub frequency_penalty: f32,
    /// How many of the last tokens the penalties look at; 0 looks at none, -1 at all.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(i64).range(-1..))]
    pub repeat_last_n: i64,
}

/// `muser chat`.
#[derive(Args, Debug)]
pub struct ChatArgs {
    /// Model file [default: the model that ships with muser].
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// What the conversation begins with; -sys for short.
    #[arg(long, alias = "sys", value_name = "TEXT")]
    pub system_prompt: Option<String>,
    #[command(flatten)]
    pub generation: GenerationArgs,
    #[command(flatten)]
    pub sampler: SamplerArgs,
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

/// `muser tokenize`.
#[derive(Args, Debug)]
pub struct TokenizeArgs {
    /// Model file [default: the model that ships with muser].
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Print the ids alone, as a JSON array.
    #[arg(long, conflicts_with = "json")]
    pub ids: bool,
    /// Print ids and pieces as a JSON array of objects; a piece that is not UTF-8 is an array of bytes.
    #[arg(long)]
    pub json: bool,
    /// Read control tokens that are spelled in the text as text.
    #[arg(long)]
    pub no_parse_special: bool,
    /// Leave out the token that the model wants at the beginning.
    #[arg(long)]
    pub no_bos: bool,
}

/// `muser doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Machine-readable output.
    #[arg(long)]
    pub json: bool,
}

/// `muser completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
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
#[command(allow_negative_numbers = true)]
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
    #[arg(short, long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<NonZeroUsize>,
}

/// `muser logits`.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
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
#[command(allow_negative_numbers = true)]
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

fn thread_count(text: &str) -> Result<NonZeroUsize, String> {
    let count = text.parse().ok().filter(|count: &NonZeroUsize| count.get() <= Pool::THREADS_MAX);
    count.ok_or_else(|| format!("needs a number from 1 to {}", Pool::THREADS_MAX))
}

fn kernels(name: &str) -> Result<Kernels, String> {
    let available = || Kernels::available().iter().map(|kernels| kernels.name).collect::<Vec<_>>().join(", ");
    Kernels::named(name).ok_or_else(|| format!("this CPU can run: {}", available()))
}

fn temperature(text: &str) -> Result<f32, String> {
    let temperature = text.parse().ok().filter(|value: &f32| value.is_finite() && *value >= 0.0);
    temperature.ok_or_else(|| "needs a finite number that is not negative".into())
}
