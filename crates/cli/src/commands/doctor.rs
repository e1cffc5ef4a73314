//! `muser doctor`: what this machine offers, as muser sees it.

use std::fs;
use std::hint::black_box;
use std::io::{self, Write};
use std::thread;
use std::time::Instant;

use muser_kernels::arena::ArenaPlan;
use muser_kernels::cpu::Kernels;
use serde::Serialize;

use crate::failure::Failure;
use crate::model;
use crate::settings::DoctorArgs;

/// Bytes that each thread reads: far more than any cache holds for it.
const BYTES_PER_THREAD: usize = 256 << 20;
/// Passes over the memory; the best counts, because others only ever slow one down.
const PASSES: usize = 5;

/// Everything the command says.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    processor: Option<String>,
    threads: usize,
    /// Slowest first; a model runs on the last.
    kernels: Vec<&'static str>,
    /// Name and memory of the GPU, or the reason why none can be used.
    gpu: String,
    memory_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
    /// The system's mode of transparent huge pages: `always`, `madvise` or `never`.
    huge_pages: Option<String>,
    /// Bytes per second that all threads together read; decode cannot be faster than this over the model's size.
    read_bandwidth: Option<f64>,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let threads = model::threads(None).get();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        processor: processor(),
        threads,
        kernels: Kernels::available().iter().map(Kernels::name).collect(),
        gpu: crate::gpu::describe(),
        memory_bytes: memory("MemTotal"),
        memory_available_bytes: memory("MemAvailable"),
        huge_pages: huge_pages(),
        read_bandwidth: read_bandwidth(threads),
    };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(|error| Failure::Stdout(error.into()))?;
        return writeln!(out).map_err(Failure::Stdout);
    }
    print(&report, &mut out).map_err(Failure::Stdout)
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let unknown = || "unknown".to_owned();
    let gigabytes = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| format!("{:.1} GB", bytes as f64 / 1e9));
    writeln!(out, "muser       {}", report.version)?;
    writeln!(out, "processor   {}", report.processor.clone().unwrap_or_else(unknown))?;
    writeln!(out, "threads     {}", report.threads)?;
    // The one in use first.
    let kernels: Vec<&str> = report.kernels.iter().rev().copied().collect();
    writeln!(out, "kernels     {}", kernels.join(", "))?;
    writeln!(out, "GPU         {}", report.gpu)?;
    writeln!(
        out,
        "memory      {}, {} available",
        gigabytes(report.memory_bytes),
        gigabytes(report.memory_available_bytes)
    )?;
    writeln!(out, "huge pages  {}", report.huge_pages.clone().unwrap_or_else(unknown))?;
    let speed = report.read_bandwidth.map_or_else(unknown, |speed| format!("{:.1} GB/s, all threads", speed / 1e9));
    writeln!(out, "reading     {speed}")
}

/// Reads memory laid out as a model's weights are. `None` if there is not enough of it.
fn read_bandwidth(threads: usize) -> Option<f64> {
    let mut plan = ArenaPlan::new();
    let ranges: Vec<_> = (0..threads).map(|_| plan.add(BYTES_PER_THREAD)).collect();
    let mut builder = plan.allocate().ok()?;
    // Untouched memory is one shared page of zeros.
    thread::scope(|scope| {
        for slice in builder.slices_mut() {
            scope.spawn(|| slice.fill(1));
        }
    });
    let arena = builder.freeze();
    let pass = || {
        let start = Instant::now();
        thread::scope(|scope| {
            for range in &ranges {
                scope.spawn(|| black_box(sum(arena.bytes(*range))));
            }
        });
        (threads * BYTES_PER_THREAD) as f64 / start.elapsed().as_secs_f64()
    };
    (0..PASSES).map(|_| pass()).reduce(f64::max)
}

/// Eight sums at once, so that memory and not the additions is the limit.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for line in bytes.as_chunks::<64>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

/// The first value of `key` in a file of `key : value` lines, where there is such a file.
fn field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = |line: &str| Some(line.split_once(':').filter(|(name, _)| name.trim() == key)?.1.trim().to_owned());
    text.lines().find_map(value)
}

/// Name of the processor, where the system tells it.
pub fn processor() -> Option<String> {
    field("/proc/cpuinfo", "model name")
}

/// Bytes that the system tells under `key`, where it does.
pub fn memory(key: &str) -> Option<u64> {
    let kilobytes: u64 = field("/proc/meminfo", key)?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// The word in brackets is the one in force.
fn huge_pages() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}
