//! `muser serve`: the model over HTTP, until a signal or an admin ends it.
//!
//! The port is taken before the model is loaded, so that who asks meanwhile is told to wait. The first signal lets requests
//! under way end; a second one, or one while the model is loaded, ends the process at once.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use muser_engine::Sampler;
use muser_engine::engine::SubmitError;
use muser_kernels::attention::KvLayout;
use muser_server::{
    Access, App, Exposure, Keys, Log, Origins, PageVisibility, Phase, Realms, RequestRecord, Scope, Scopes, ServeError,
    Server, ServerSettings, Service, ServiceSettings, ShortageLog, Tls, TlsError, Words,
};
use muser_trust::random;
use tokio::runtime::{self, Runtime};

use crate::cluster_member::Membership;
use crate::descriptors;
use crate::failure::Failure;
use crate::input::{read_file, read_text};
use crate::model;
use crate::node::{Exchange, Node, NodeSettings, PageMemory};
use crate::output::tell;
use crate::settings::serve::{AccessArgs, ConnectionArgs, ServeArgs};
use crate::signals::Signals;
use crate::usage::UsageError;

/// Prompts of one request, times answers to each, at most.
const ANSWERS_MAX: usize = 16;

/// Runs the command.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let kv = args.memory.kv()?;
    let access = access(&args.access)?;
    let tls = tls(&args.connections)?;
    let server = Server::open(&args.connections.host, args.connections.port, &access)?;
    let server = match tls {
        Some(tls) => server.with_tls(tls),
        None => server,
    };
    let url = server.url();
    let keys = key_state(&access);
    let settings = server_settings(args, access);
    let connections_max = settings.limits.connections_max;
    if connections_max < args.connections.max_connections.get() {
        tell(format_args!("muser: at most {connections_max} connections: the limit of descriptors (ulimit -n) is low"));
    }
    let app = Arc::new(App::with_server(service_settings(args), settings));
    let runtime =
        runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(ServeError::Runtime)?;
    let drain = Duration::from_secs(args.connections.drain_seconds.into());
    let serving = serve(runtime, server, Arc::clone(&app), drain)?;
    let started = start(args, kv, &app);
    match &started {
        Ok((_, about)) => announce(&url, about, &keys),
        // Requests that wait for the model are released.
        Err(_) => app.stop(),
    }
    let ended = serving.join().map_err(|_| ServeError::Engine("the server has panicked".into()))?;
    drop(app);
    // The engine ends with the last who could ask it; if it has panicked, that was reported.
    let joined = started.map(|(engine, _)| engine.join());
    ended?;
    joined.map(drop)
}

/// Serves in a thread of its own.
fn serve(
    runtime: Runtime,
    server: Server,
    app: Arc<App>,
    drain: Duration,
) -> Result<JoinHandle<Result<(), ServeError>>, Failure> {
    // The engine's thread ends with the last who holds the app, so the signals' thread does not hold it.
    let held = Arc::downgrade(&app);
    let is_loading = move || held.upgrade().is_some_and(|app| app.phase() == Phase::Loading);
    let mut signals = Signals::listen(is_loading).map_err(ServeError::Runtime)?;
    let serving = move || {
        let stop = async {
            signals.first().await;
            tell("muser: stopping once the requests under way have ended; a second signal stops at once");
        };
        let ended = runtime.block_on(server.run(app, stop, drain));
        // Connections that are still open have had their time.
        runtime.shutdown_background();
        ended
    };
    Ok(thread::Builder::new().name("server".into()).spawn(serving).map_err(ServeError::Runtime)?)
}

/// Facts about a started server, printed at its start.
struct About {
    model: String,
    context: usize,
    slots: usize,
    queue: usize,
    budget_bytes: usize,
    prefix_bytes: usize,
}

/// Loads the model, and lets the server answer.
fn start(args: &ServeArgs, kv: KvLayout, app: &App) -> Result<(JoinHandle<()>, About), Failure> {
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let executor = model::executor(Arc::clone(&files), &args.machine, model::CHUNK_ROWS)?;
    let config = executor.spec().config();
    let (vocab, context) = (config.vocab, args.context(config.context));
    let words = Words::load(&files.metadata(), vocab)?;
    let sampling = args.sampler.settings(args.temp, 0, words.tokenizer.end_of_generation_ids());
    // Settings that every request would be refused for fail at the start.
    Sampler::new(sampling.clone(), vocab).map_err(SubmitError::Sampling)?;
    let defaults = ServiceSettings { sampling, ..app.settings.clone() };
    let settings = NodeSettings {
        kv,
        context,
        memory: PageMemory::Flags(&args.memory),
        running_max: args.parallel,
        waiting_max: args.queue,
    };
    let (node, remote) = match args.producers.cluster.as_deref() {
        None => (Node::alone(executor, &settings)?, None),
        Some(folder) => {
            let membership = Membership::load(folder)?;
            let (node, handoffs) = Node::exchanging(executor, &settings, &files, Exchange::Receive)?;
            (node, Some(membership.remote_prefill(&args.producers, &handoffs)?))
        }
    };
    let Node { engine, budget_bytes, prefix_bytes } = node;
    let (mut service, engine) = Service::start(engine, words, defaults).map_err(ServeError::Runtime)?;
    if let Some(remote) = remote {
        service = service.with_pages(remote);
    }
    let facts = &service.model;
    let about = About {
        model: format!(
            "{}, {:.1} M weights in {}",
            app.settings.alias,
            facts.parameters as f64 / 1e6,
            size(facts.bytes)
        ),
        context,
        slots: args.parallel.get(),
        queue: args.queue,
        budget_bytes,
        prefix_bytes,
    };
    app.ready(service);
    Ok((engine, about))
}

fn announce(url: &str, about: &About, keys: &str) {
    let About { model, context, slots, queue, budget_bytes, prefix_bytes } = about;
    tell(format_args!("muser: listening on {url}"));
    tell(format_args!("model    {model}"));
    tell(format_args!("context  {context} tokens for each request"));
    tell(format_args!("slots    {slots}; {queue} more requests may wait"));
    tell(format_args!(
        "memory   {} for keys and values, of which {} for reuse",
        size(*budget_bytes),
        size(*prefix_bytes)
    ));
    tell(format_args!("keys     {keys}"));
}

fn size(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn service_settings(args: &ServeArgs) -> ServiceSettings {
    let stem = args.model.as_deref().and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
    let stem = stem.or_else(|| args.hub.hf_repo.as_ref().map(ToString::to_string));
    ServiceSettings {
        alias: args.alias.clone().or(stem).unwrap_or_else(|| "glimmer-mini".into()),
        model_path: args.model.clone(),
        // Each request brings its own seed, or gets a new one; the tokens that end a text are known with the model.
        sampling: args.sampler.settings(args.temp, 0, &[]),
        tokens_max: args.tokens_max(),
        build: concat!("muser ", env!("CARGO_PKG_VERSION")).into(),
        ping: Duration::from_secs(args.connections.sse_ping_interval.get().into()),
        answers_max: ANSWERS_MAX,
    }
}

fn server_settings(args: &ServeArgs, access: Access) -> ServerSettings {
    let page = |hidden| if hidden { PageVisibility::Hidden } else { PageVisibility::Shown };
    ServerSettings {
        access,
        limits: args.connections.limits(descriptors::for_connections()),
        metrics: page(args.no_metrics),
        slots: page(args.no_slots),
        log: Log(Some(Arc::new(|record: &RequestRecord| tell(line_of(record))))),
        shortage_log: ShortageLog(Some(Arc::new(|error: &io::Error| {
            tell(format_args!("muser: no connection can be taken: {error}"));
        }))),
    }
}

/// Log line of a request, without prompts, answers and other text that the client controls.
fn line_of(record: &RequestRecord) -> String {
    let RequestRecord { method, route, status, complete, elapsed, tokens } = record;
    let route = route.as_deref().unwrap_or("(no such path)");
    let mut line = format!("{method} {route} {status} {} ms", elapsed.as_millis());
    if tokens.prompt > 0 {
        line += &format!(", {} tokens read, {} generated", tokens.prompt, tokens.generated);
    }
    if !complete {
        line += ", the client left";
    }
    line
}

fn access(args: &AccessArgs) -> Result<Access, Failure> {
    let mut keys = Keys::default();
    let given = [
        ("--api-key", &args.api_key, Scope::Use),
        ("--metrics-key", &args.metrics_key, Scope::Metrics),
        ("--admin-key", &args.admin_key, Scope::Admin),
    ];
    for (flag, values, scope) in given {
        for key in values {
            keys.add(key, Scopes::NONE.with(scope)).map_err(|reason| UsageError::Key { flag, reason })?;
        }
    }
    for path in &args.api_key_file {
        let text = read_text(path)?;
        let wrong = |error: muser_server::ApiKeyFileError| Failure::Input {
            path: path.clone(),
            line: error.line,
            reason: error.reason.to_string(),
        };
        let before = keys.len();
        keys.add_file(&text).map_err(wrong)?;
        if keys.len() == before {
            // An empty file would leave the server open to all, which nobody means by it.
            return Err(UsageError::NoKeys(path.clone()).into());
        }
        if fs::metadata(path).map_err(Failure::io(path))?.permissions().mode() & 0o004 != 0 {
            tell(format_args!("muser: every user of this machine can read the keys in {path:?} (chmod 600 helps)"));
        }
    }
    let mut origins = Origins::default();
    for origin in &args.cors_origins {
        origins.add(origin).map_err(UsageError::Origin)?;
    }
    let exposure = if args.insecure_public { Exposure::Public } else { Exposure::Local };
    let realms = match args.share_prefixes {
        true => Realms::COMMON,
        false => {
            let secret = random::secret().map_err(|error| ServeError::Runtime(io::Error::other(error)))?;
            Realms::by_key(secret)
        }
    };
    Ok(Access { keys, origins, exposure, realms })
}

fn key_state(access: &Access) -> String {
    match (access.keys.len(), access.exposure) {
        (0, Exposure::Local) => "none: everybody on this machine may ask".into(),
        (0, Exposure::Public) => "none: EVERYBODY WHO REACHES THIS ADDRESS MAY ASK".into(),
        (1, _) => "1 key".into(),
        (count, _) => format!("{count} keys"),
    }
}

fn tls(args: &ConnectionArgs) -> Result<Option<Tls>, Failure> {
    let (Some(certificates), Some(key)) = (&args.ssl_cert_file, &args.ssl_key_file) else { return Ok(None) };
    let read = |path: &PathBuf| read_file(path).map_err(Failure::io(path));
    let made = Tls::from_pem(&read(certificates)?, &read(key)?).map_err(|reason| {
        let path = if matches!(reason, TlsError::Key(_)) { key } else { certificates };
        Failure::Tls { path: path.clone(), reason }
    });
    made.map(Some)
}
