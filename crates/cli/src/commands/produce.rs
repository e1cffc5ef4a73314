//! `muser produce`: computes the prompts of other machines of its cluster, until a signal ends it.
//!
//! The first signal lets handoffs under way end, for a time; a second one ends the process at once.
//! Any failure to serve as configured ends it with exit code 75, so that a supervisor starts it again.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use muser_cluster::handoff::{Port, Producer, ProducerNews, ProducerSettings};
use muser_host::EngineHost;
use muser_kv::PrefixScope;
use muser_lane::Acceptor;
use muser_lane::pacing::PacedBy;
use tokio::runtime::Builder;

use crate::cluster_member::Membership;
use crate::descriptors;
use crate::failure::Failure;
use crate::member_error::MemberError;
use crate::model;
use crate::node::{Exchange, Node, NodeSettings, PageMemory};
use crate::output::tell;
use crate::settings::cluster_member::ProduceArgs;
use crate::signals::Signals;

/// Lanes beyond those that compute: decoders keep some open.
const SPARE_LANES: usize = 64;
/// Connections that are not lanes yet.
const HANDSHAKES_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Runs the command.
pub fn run(args: &ProduceArgs) -> Result<(), Failure> {
    let kv = args.memory.kv()?;
    let membership = Membership::load(&args.cluster).map_err(cannot)?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(cannot)?;
    // The address first: a model takes its time.
    let port = runtime.block_on(Port::open(args.listen)).map_err(cannot)?;
    let address = port.address().map_err(cannot)?;
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let executor = model::executor(Arc::clone(&files), &args.machine, model::CHUNK_ROWS)?;
    let trained = executor.spec().config().context;
    let context = if args.ctx_size == 0 { trained } else { args.ctx_size as usize };
    let settings = NodeSettings {
        kv,
        context,
        memory: PageMemory::Flags(&args.memory),
        running_max: args.parallel,
        waiting_max: args.parallel.get(),
    };
    let (node, shape) = Node::exchanging(executor, &settings, &files, Exchange::Send)?;
    let (host, engine) = EngineHost::start(node.engine).map_err(cannot)?;
    let half = half_of_connections();
    let settings = ProducerSettings {
        concurrent_max: u32::try_from(args.parallel.get()).unwrap_or(u32::MAX),
        context: u32::try_from(context).unwrap_or(u32::MAX),
        lanes_max: args.parallel.get().saturating_add(SPARE_LANES).min(half.get()),
        handshakes_max: HANDSHAKES_MAX.min(half),
        stall_limit: Duration::from_secs(args.stall_seconds.get().into()),
        pace: args.pace.map(|bytes_per_s| (bytes_per_s, PacedBy::Kernel)),
        compress: args.compress.into(),
        prefixes: if args.share_prefixes { PrefixScope::Cluster } else { PrefixScope::Node },
    };
    let acceptor = Arc::new(membership.acceptor().map_err(cannot)?);
    let producer =
        Arc::new(Producer::new(host.clone(), shape.clone(), membership.member(&shape).map_err(cannot)?, settings));
    tell(format_args!("muser: producing on {address} as {}", membership.name()));
    let drain = Duration::from_secs(args.drain_seconds.into());
    let ended = runtime.block_on(serve(producer, (port, acceptor), host.clone(), drain));
    host.stop();
    drop(host);
    runtime.shutdown_background();
    // If it has panicked, that was told.
    let _ = engine.join();
    ended
}

/// Half of the connections that the limit of descriptors is enough for: lanes have one half, handshakes the other.
fn half_of_connections() -> NonZeroUsize {
    NonZeroUsize::new(descriptors::for_connections().get() / 2).unwrap_or(NonZeroUsize::MIN)
}

/// Serves until the first signal, and then until the handoffs under way have ended or had their time.
async fn serve(
    producer: Arc<Producer>,
    (port, acceptor): (Port, Arc<Acceptor>),
    mut host: EngineHost,
    drain: Duration,
) -> Result<(), Failure> {
    let mut signals = Signals::listen(|| false).map_err(cannot)?;
    let mut failure = None;
    let stop = async {
        tokio::select! {
            () = signals.first() => {}
            reason = engine_failure(&mut host) => failure = Some(reason),
        }
    };
    Arc::clone(&producer).serve(port, acceptor, stop, tell_of).await;
    if let Some(reason) = failure {
        return Err(cannot(ProduceError::Engine(reason)));
    }
    tell("muser: stopping once the handoffs under way have ended; a second signal stops at once");
    tokio::select! {
        () = producer.drained() => Ok(()),
        () = tokio::time::sleep(drain) => {
            tell(format_args!("muser: handoffs that are given up: {}", producer.busy()));
            Ok(())
        }
        reason = engine_failure(&mut host) => Err(cannot(ProduceError::Engine(reason))),
    }
}

/// A line about what happened, and another one if the pace was not kept.
fn tell_of(news: ProducerNews) {
    match news {
        ProducerNews::LaneRefused(error) => tell(format_args!("muser: a lane was refused: {error}")),
        ProducerNews::NoConnection(error) => tell(format_args!("muser: no connection can be taken: {error}")),
        ProducerNews::Untrusted(error) => tell(format_args!("muser: a handoff was refused: {error}")),
        ProducerNews::Sent(report) => {
            tell(format_args!("muser: {report}"));
            if let Some(part) = report.deviation() {
                let wrong = if part < 1.0 { "the link takes less than" } else { "more was sent than" };
                let percent = part * 100.0;
                tell(format_args!("muser: {wrong} the pace: {percent:.0} % of it to {}", report.decoder));
            }
        }
    }
}

/// Failure of a producer that cannot serve as configured.
#[derive(Debug, thiserror::Error)]
pub enum ProduceError {
    /// The cluster's folder cannot be used.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// The port cannot be taken, or the system refuses threads or signals.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The engine ended.
    #[error("{0}")]
    Engine(String),
}

fn cannot(reason: impl Into<ProduceError>) -> Failure {
    Failure::Produce(Box::new(reason.into()))
}

/// Waits for the engine to end, and returns the reason.
async fn engine_failure(host: &mut EngineHost) -> String {
    loop {
        if let Some(reason) = host.status().failure {
            return reason;
        }
        if !host.changed().await {
            return host.status().failure.unwrap_or_else(|| "the engine has stopped".into());
        }
    }
}
