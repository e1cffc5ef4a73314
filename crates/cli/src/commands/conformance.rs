//! `muser conformance`: compares a device with the scalar references by bits, operation by operation and by whole models.

mod report;

use muser_conformance::backend::{Backend, Comparison, CpuVariant};
use muser_conformance::deferred::{DeferredBackend, DeferredVariant};
use muser_conformance::models::{ARCHITECTURES, FLOATS, MIXES, file_of_architecture};
use muser_conformance::operations::FAMILIES;
use muser_conformance::suite::cases;
use muser_conformance::suite::ways::{Effort, compare_model};
use muser_kernels::cpu::Kernels;
use muser_weights::gguf::ModelFiles;

use crate::failure::Failure;
use crate::settings::DeviceChoice;
use crate::settings::conformance::ConformanceArgs;
use crate::{gpu, model};

pub use report::{Report, ReportPart};

/// Positions of the random models.
const CONTEXT: u32 = 640;
/// Tokens of the prompts on the CPU, past two windows of the random models.
const CPU_TOKENS: usize = 231;
/// Copies of pages that the deferred CPU keeps: fewer than some steps need, so that they are dropped and made again.
const COPIES_MAX: usize = 16;

/// Runs the command.
pub fn run(args: &ConformanceArgs) -> Result<(), Failure> {
    let on_gpu = match args.device {
        DeviceChoice::Cuda => true,
        DeviceChoice::Cpu => false,
        DeviceChoice::Auto => gpu::is_there(),
    };
    // Before hours of work.
    let named = args.models.iter().map(|path| Ok((path.display().to_string(), ModelFiles::open(path)?)));
    let named = named.collect::<Result<Vec<_>, Failure>>()?;
    let mut report = Report::new(args);
    if on_gpu {
        gpu::conform(args, named, &mut report)?
    } else {
        on_cpu(args, named, &mut report)?
    }
    report.finish(args)
}

/// Every instruction set against the references, then the deferred CPU against the CPU.
fn on_cpu(args: &ConformanceArgs, named: Vec<(String, ModelFiles)>, report: &mut Report) -> Result<(), Failure> {
    let levels = Kernels::available().iter().map(|kernels| kernels.name().to_owned()).collect();
    report.begin("cpu", levels);
    let seeds = args.repeats.map_or(2, Into::into);
    for family in FAMILIES {
        report.measure(ReportPart::Operations, family.name, |tally| {
            (family.run)(seeds, tally);
            Ok::<(), Failure>(())
        })?;
    }
    let cpu = CpuVariant { kernels: Kernels::detected(), threads: model::threads(args.threads) };
    let backend = DeferredBackend::of(vec![DeferredVariant { cpu, copies_max: COPIES_MAX }]);
    let effort = Effort { tokens: CPU_TOKENS, rounds: args.rounds.map_or(1, Into::into) };
    compare_models(&Comparison { backend, baseline: cpu }, effort, named, report)
}

/// The cases of the suite, then the shipped model, random ones and those named in every way.
pub fn compare_models<B: Backend>(
    comparison: &Comparison<B>,
    effort: Effort,
    named: Vec<(String, ModelFiles)>,
    report: &mut Report,
) -> Result<(), Failure> {
    for case in cases::<B>() {
        report.measure(ReportPart::Suite, &case.name.replace('_', " "), |tally| (case.run)(comparison, tally))?;
    }
    let mut compare = |name: &str, files: &dyn Fn() -> Result<ModelFiles, Failure>| {
        report.measure(ReportPart::Models, name, |tally| {
            let subject = comparison.load(name, &files()?)?;
            Ok::<_, Failure>(compare_model(&subject, effort, tally)?)
        })
    };
    compare("glimmer-mini", &|| Ok(ModelFiles::from_bytes(model::SHIPPED.to_vec())?))?;
    for mix in MIXES.iter().chain([&FLOATS]) {
        for (architecture, name) in ARCHITECTURES.into_iter().enumerate() {
            let file = || Ok(ModelFiles::from_bytes(file_of_architecture(architecture, mix, CONTEXT))?);
            compare(&format!("{name}, {}", mix.name), &file)?;
        }
    }
    for (name, files) in named {
        report.measure(ReportPart::Models, &name, |tally| {
            let subject = comparison.load(name.as_str(), &files)?;
            Ok::<_, Failure>(compare_model(&subject, effort, tally)?)
        })?;
    }
    Ok(())
}
