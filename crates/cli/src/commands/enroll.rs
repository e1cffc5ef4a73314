//! `muser enroll`: lets another machine into the cluster by a ticket, or joins with one.
//!
//! Both sides run the engine, because both compute the qualification prompt. Each ends with a line for every test and
//! with a configuration file in its folder, by which `muser produce` and `muser serve` need no further flags.
//!
//! - `issue` is the side that prints the ticket, `join` the side that has it.
//! - `node_config` is the configuration file, `outcome` is what is printed.

mod issue;
mod join;
mod node_config;
mod outcome;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use muser_cluster::enrol::{EnrolError, Machine, Progress};
use muser_host::EngineHost;
use muser_kernels::attention::KvLayout;
use muser_trust::identity::NodeName;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::interrupt::Signal;
use crate::member_error::MemberError;
use crate::model;
use crate::node::{Exchange, Node, NodeSettings, PageMemory};
use crate::output::tell;
use crate::settings::enroll::EnrollArgs;
use crate::usage::UsageError;

/// Runs the command.
pub fn run(args: &EnrollArgs) -> Result<(), Failure> {
    match join::ticket(args)? {
        None => issue::run(args),
        Some(ticket) => join::run(args, &ticket),
    }
}

/// An engine that computes the qualification prompt and nothing else.
struct Computing {
    machine: Machine,
    engine: JoinHandle<()>,
}

impl Computing {
    fn start(args: &EnrollArgs) -> Result<Self, Failure> {
        let files = model::open(args.model.as_deref(), &args.hub)?;
        let executor = model::executor(std::sync::Arc::clone(&files), &args.machine, model::CHUNK_ROWS)?;
        let config = executor.spec().config();
        let (vocab, trained) = (u32::try_from(config.vocab).unwrap_or(u32::MAX), config.context);
        let kv = KvLayout::from(args.kv);
        let prompt_tokens = args.tokens.get().min(trained.saturating_sub(1));
        if prompt_tokens < 2 {
            return Err(UsageError::NothingToBring { tokens: prompt_tokens }.into());
        }
        let context = prompt_tokens + 1;
        let settings = NodeSettings {
            kv,
            context,
            // The pages to compare, and two sequences.
            memory: PageMemory::Sequences { count: 3, kept: 0 },
            running_max: NonZeroUsize::MIN,
            waiting_max: 4,
        };
        let (node, shape) = Node::exchanging(executor, &settings, &files, Exchange::Receive)?;
        let started = EngineHost::start(node.engine);
        let (host, engine) = started.map_err(MemberError::System)?;
        Ok(Self { machine: Machine { host, shape, vocab, prompt_tokens }, engine })
    }

    /// Ends the engine and all that still uses it.
    fn end(self, runtime: Runtime) {
        self.machine.host.stop();
        drop(self.machine);
        runtime.shutdown_background();
        // If it has panicked, that was told.
        let _ = self.engine.join();
    }
}

fn runtime() -> Result<Runtime, Failure> {
    let made = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    Ok(made.map_err(MemberError::System)?)
}

/// Does the work unless a signal comes first; what was under way is then undone as after a failure.
async fn unless_interrupted<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let (mut interrupted, mut terminated) = (
        signal(SignalKind::interrupt()).map_err(Failure::Signals)?,
        signal(SignalKind::terminate()).map_err(Failure::Signals)?,
    );
    tokio::select! {
        done = work => done,
        _ = interrupted.recv() => Err(Failure::Interrupted(Signal::Interrupt)),
        _ = terminated.recv() => Err(Failure::Interrupted(Signal::Terminate)),
    }
}

/// The name asked for, or that of the folder.
fn name_of(args: &EnrollArgs, folder: &Path) -> Result<NodeName, Failure> {
    let of_folder = || {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(NodeName::new(&name).map_err(UsageError::FolderName)?)
    };
    args.name.clone().map_or_else(of_folder, Ok)
}

/// The folder's path from the root, for a configuration that is used from anywhere.
fn absolute(path: &Path) -> Result<std::path::PathBuf, Failure> {
    std::path::absolute(path).map_err(Failure::io(path))
}

/// Tells how an enrolment goes on; of many attempts of strangers, some.
#[derive(Default)]
struct Talk {
    refused: AtomicUsize,
}

impl Talk {
    /// Refused attempts that are told one by one.
    const EACH: usize = 10;

    fn tell(&self, progress: &Progress<'_>) {
        match progress {
            Progress::Refused(error) => {
                let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
                if refused <= Self::EACH {
                    tell(format_args!("muser: an attempt was refused: {error}"));
                } else if refused.is_power_of_two() {
                    tell(format_args!("muser: {refused} attempts were refused so far, the last one: {error}"));
                }
            }
            Progress::LetIn(node) => tell(format_args!("muser: {} has the ticket, and is tested now", node.name)),
            Progress::Tested(..) | Progress::Granting(_) => {}
        }
    }
}

/// The failure for an error during an enrolment.
fn failed(error: impl Into<EnrolError>) -> Failure {
    Failure::Enrol(Box::new(error.into()))
}
