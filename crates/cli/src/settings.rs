//! Command-line arguments, parsed and checked once. Everything below the command line receives plain values.

pub mod cluster;
pub mod cluster_member;
pub mod conformance;
pub mod enroll;
mod generation;
pub mod plan;
mod sampler;
pub mod serve;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::Kernels;
use muser_kernels::pool::Pool;

pub use generation::{GenerationArgs, Seed};
use muser_hub::{FileName, Reference};
pub use sampler::SamplerArgs;

use crate::commands::pull::PullArgs;

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
5 the server cannot listen where it should or a cluster's files have the wrong permissions, 75 the producer cannot serve as it was told, 130 \
interrupted (SIGINT), 141 the reader of standard output left before the end, 143 terminated (SIGTERM). A second signal \
ends the program at once.\n";

/// Shown by `--help`.
const CONFIGURATION: &str = "\
Every flag --some-flag can be set in the configuration file, for all commands or in a command's table, and by the environment \
variable MUSER_ARG_SOME_FLAG; muser config check shows who sets what.";

/// LLM inference: prefill where the FLOPs are, decode where the memory is.
#[derive(Debug, Parser)]
#[command(name = "muser", version, arg_required_else_help = true, after_help = format!("{CONFIGURATION}\n\n{EXIT_CODES}"))]
pub struct Cli {
    /// TOML file that sets flags [default: muser/config.toml in $XDG_CONFIG_HOME or ~/.config].
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Command to run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a prompt; text goes to stdout, statistics to stderr.
    Run(RunArgs),
    /// Talk with a model through its chat template: a line in, an answer out, until the input ends.
    Chat(ChatArgs),
    /// Serve the model over HTTP, by llama.cpp's and OpenAI's routes.
    Serve(Box<serve::ServeArgs>),
    /// Compute long prompts for the servers of a cluster, and send them the keys and values.
    Produce(cluster_member::ProduceArgs),
    /// Enrol another machine by a ticket, or join with one; both test the link and compare bits.
    Enroll(enroll::EnrollArgs),
    /// Start a producer beside this process, answer a prompt with and without it, and compare the bits.
    Demo(cluster_member::DemoArgs),
    /// Print the bytes that a handoff of a prompt would move, and the machine that is expected to compute it first.
    Plan(plan::PlanArgs),
    /// Print the contents of a GGUF file, its identity, and whether muser can run it.
    Inspect(InspectArgs),
    /// Write a GGUF file with other weight types.
    Quantize(QuantizeArgs),
    /// Write a model of a published size with random weights, for measurements without the real ones.
    MakeModel(MakeModelArgs),
    /// Write the full logits of every position, to compare machines bit by bit.
    Logits(LogitsArgs),
    /// Measure prefill and decode, tokens per second.
    Bench(BenchArgs),
    /// Print the token ids of a text.
    Tokenize(TokenizeArgs),
    /// Get a model file by its address, or out of a Hugging Face repository; its path goes to stdout.
    Pull(PullArgs),
    /// Compare every operation and whole models of a device with the scalar references, by bits.
    Conformance(conformance::ConformanceArgs),
    /// Print this machine's processors, kernels, memory and memory bandwidth.
    Doctor(DoctorArgs),
    /// Create and maintain the folders by which machines of one cluster admit each other.
    Cluster(cluster::ClusterArgs),
    /// Inspect the settings of the configuration file and the environment.
    Config(ConfigArgs),
    /// Print a shell's completion script.
    Completions(CompletionsArgs),
}

/// A model from elsewhere; shared by the commands that open one.
#[derive(Args, Clone, Debug)]
pub struct HubArgs {
    /// Model of a Hugging Face repository, `user/repo[:QUANT]`, or the address of a file; downloaded if it is not cached;
    /// -hf for short.
    #[arg(long, alias = "hf", value_name = "REFERENCE", conflicts_with = "model")]
    pub hf_repo: Option<Reference>,
    /// File in the repository; -hff for short.
    #[arg(long, alias = "hff", value_name = "NAME", requires = "hf_repo")]
    pub hf_file: Option<FileName>,
    /// Do not use the network: the model must be cached.
    #[arg(long, requires = "hf_repo")]
    pub offline: bool,
}

/// Use of the machine; shared by the commands that run a model. None of these change a result.
#[derive(Args, Clone, Debug)]
pub struct MachineArgs {
    /// Threads that compute on the CPU [default: one per core].
    #[arg(short, long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<NonZeroUsize>,
    /// CPU instruction set to use, by name: scalar, avx2, avx512 [default: the best this CPU has].
    #[arg(long, value_name = "NAME", value_parser = kernels)]
    pub kernels: Option<Kernels>,
    /// Device that computes: cpu, cuda, or auto, which is the GPU where this build, the machine and its memory allow it.
    #[arg(long, value_enum, value_name = "DEVICE", default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
}

/// Device that computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// The GPU if there is one that has room for the model, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// Layout of cached keys and values.
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
    pub hub: HubArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub generation: GenerationArgs,
    #[command(flatten)]
    pub sampler: SamplerArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// `muser chat`.
#[derive(Args, Debug)]
pub struct ChatArgs {
    /// Model file [default: the model that ships with muser].
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    /// System prompt at the start of the conversation; -sys for short.
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
    #[command(flatten)]
    pub hub: HubArgs,
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
    pub hub: HubArgs,
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
    /// Leave out the token that begins a context (BOS).
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

/// `muser config`.
#[derive(Args, Debug)]
pub struct ConfigArgs {
    /// Command to run.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// Subcommands of `muser config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check it, and print the value of every flag and its source.
    Check(ConfigCheckArgs),
}

/// `muser config check`.
#[derive(Args, Debug)]
pub struct ConfigCheckArgs {
    /// Only the flags of this command and of those below it.
    pub command: Option<String>,
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

/// `muser make-model`.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct MakeModelArgs {
    /// GGUF file to write; must not exist.
    pub output: PathBuf,
    /// Model whose sizes and tensor types the file has.
    #[arg(long, value_enum, value_name = "MODEL")]
    pub like: LikeModel,
    /// Seed of the weights: the same one gives the same file; -1 takes a new one and prints it.
    #[arg(short, long, default_value = "1")]
    pub seed: Seed,
    /// Threads that compute [default: one per core].
    #[arg(short, long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<NonZeroUsize>,
}

/// Model that a random one is made like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LikeModel {
    /// Muse Glimmer 30B: 16.8 GB.
    #[value(name = "muse-30b")]
    Muse30b,
    /// The model that ships with muser: 19 MB.
    GlimmerMini,
}

/// `muser logits`.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct LogitsArgs {
    /// Model file [default: the model that ships with muser].
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    /// Prompts: one per line, token ids in decimal separated by spaces.
    #[arg(long, value_name = "FILE")]
    pub ids: PathBuf,
    /// Rows per forward pass.
    #[arg(long, default_value = "512")]
    pub chunk: NonZeroUsize,
    /// Layout of cached keys and values.
    #[arg(long, value_enum, default_value_t = KvType::Q8)]
    pub kv: KvType,
    /// File to write: [position, vocabulary] little-endian f32, prompts in file order.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// Output format of `muser bench`.
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
    #[command(flatten)]
    pub hub: HubArgs,
    /// Tokens of a prefill test, or several numbers with commas; 0 leaves it out.
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512")]
    pub n_prompt: Vec<usize>,
    /// Tokens of a decode test, or several numbers; 0 leaves it out.
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128")]
    pub n_gen: Vec<usize>,
    /// Counted repetitions, after one that is not counted.
    #[arg(short, long, default_value = "5")]
    pub repetitions: NonZeroUsize,
    /// Positions already held when a test starts, or several numbers: every test runs at each.
    #[arg(short = 'd', long, value_delimiter = ',', default_value = "0")]
    pub n_depth: Vec<usize>,
    /// Sequences that decode together, or several numbers: every decode test runs with each; -np for short.
    #[arg(long, alias = "np", value_name = "N", value_delimiter = ',', default_value = "1")]
    pub parallel: Vec<NonZeroUsize>,
    /// Layout of cached keys and values.
    #[arg(long, value_enum, default_value_t = KvType::Q8)]
    pub kv: KvType,
    /// Output format.
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
    let available = || Kernels::available().iter().map(Kernels::name).collect::<Vec<_>>().join(", ");
    Kernels::named(name).ok_or_else(|| format!("this CPU can run: {}", available()))
}
