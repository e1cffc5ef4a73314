//! The flags of `muser conformance`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{DeviceChoice, thread_count};

/// `muser conformance`.
#[derive(Args, Debug)]
pub struct ConformanceArgs {
    /// More model files to compare, beside the model that ships with muser and random ones.
    #[arg(value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    /// Device to compare with the scalar references: cpu, cuda, or auto, which is the GPU where there is one.
    #[arg(long, value_enum, value_name = "DEVICE", default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Times that each model is computed in every way, with other prompts each time [default: 1, on a GPU 2].
    #[arg(long, value_name = "N", value_parser = repetitions)]
    pub rounds: Option<NonZeroU64>,
    /// On a GPU, launches of each operation after the first, with others between; on the CPU, seeds of each operation
    /// [default: 20, on the CPU 2].
    #[arg(long, value_name = "N", value_parser = repetitions)]
    pub repeats: Option<NonZeroU64>,
    /// Only the rows of the table whose part or name holds this.
    #[arg(long, value_name = "WORD", default_value = "", hide_default_value = true)]
    pub only: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = ConformanceFormat::Md)]
    pub output: ConformanceFormat,
    /// Commit that the program was built from, for the JSON record.
    #[arg(long, value_name = "COMMIT")]
    pub commit: Option<String>,
    /// Threads that compute on the CPU [default: one per core].
    #[arg(short, long, value_name = "N", value_parser = thread_count)]
    pub threads: Option<NonZeroUsize>,
}

/// Output format of `muser conformance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConformanceFormat {
    /// A table that grows.
    Md,
    /// A JSON record at the end, in the shape of bench/records.
    Json,
}

/// Most rounds, and most repetitions of an operation.
const REPETITIONS_MAX: u64 = 100_000;

fn repetitions(text: &str) -> Result<NonZeroU64, String> {
    let count = text.parse().ok().filter(|count: &NonZeroU64| count.get() <= REPETITIONS_MAX);
    count.ok_or_else(|| format!("needs a number from 1 to {REPETITIONS_MAX}"))
}
