//! A server of its own for each test, on a port of its own.

use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use muser_engine::{ChunkRows, Engine, EngineSettings, SamplingSettings};
use muser_host::EngineStatus;
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::Kernels;
use muser_kv::KvIdentity;
use muser_model::testing::{Faults, Faulty};
use muser_model::{Executor, Model};
use muser_server::{App, RemotePrefill, ServeError, Server, ServerSettings, Service, ServiceSettings, Words};
use muser_weights::gguf::ModelFiles;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::client::{Answer, Pending, begin, send};

pub static SHIPPED: &[u8] = include_bytes!("../../../../models/glimmer-mini/glimmer-mini-Q4_K_M.gguf");

/// Settings of a test's server.
#[derive(Clone)]
pub struct Setup {
    pub model: Arc<Loaded>,
    pub context: usize,
    pub slots: usize,
    pub waiting_max: usize,
    pub service: ServiceSettings,
    pub server: ServerSettings,
    pub drain: Duration,
    /// Identity of its pages, if they may come from producers.
    pub identity: Option<KvIdentity>,
    /// Faults of its device, by step.
    pub faults: Faults,
}

/// A running server; stopped when dropped.
pub struct World {
    pub address: SocketAddr,
    /// Weak, because the engine's thread ends with the last owner of the service.
    app: Weak<App>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<Result<(), ServeError>>>,
    engine: Option<JoinHandle<()>>,
}

/// The model that ships with the program.
pub fn shipped() -> Arc<Loaded> {
    static MODEL: OnceLock<Arc<Loaded>> = OnceLock::new();
    Arc::clone(MODEL.get_or_init(|| load(SHIPPED.to_vec())))
}

/// A model, and the file it was loaded from.
pub struct Loaded {
    model: Arc<Model>,
    /// Metadata and tensors.
    pub files: Arc<ModelFiles>,
}

impl std::ops::Deref for Loaded {
    type Target = Arc<Model>;

    fn deref(&self) -> &Arc<Model> {
        &self.model
    }
}

/// The model in a file's bytes.
pub fn load(bytes: Vec<u8>) -> Arc<Loaded> {
    let files = Arc::new(ModelFiles::from_bytes(bytes).unwrap());
    let model = Arc::new(Model::load(Arc::clone(&files), NonZeroUsize::MIN).unwrap());
    Arc::new(Loaded { model, files })
}

impl Setup {
    /// A small server on `model`: two slots, a context of 512.
    pub fn of(model: Arc<Loaded>) -> Self {
        let service = ServiceSettings {
            alias: "test-model".into(),
            model_path: None,
            sampling: SamplingSettings { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Default::default() },
            tokens_max: None,
            build: "test".into(),
            ping: Duration::from_secs(30),
            answers_max: 16,
        };
        let (server, drain) = (ServerSettings::default(), Duration::from_secs(10));
        Self {
            model,
            context: 512,
            slots: 2,
            waiting_max: 8,
            service,
            server,
            drain,
            identity: None,
            faults: Arc::new(|_| None),
        }
    }
}

impl World {
    /// A small server on the shipped model.
    pub fn shipped() -> Self {
        Self::start(Setup::of(shipped()))
    }

    /// A server.
    pub fn start(setup: Setup) -> Self {
        Self::start_with(setup, |server| server)
    }

    /// A server, changed before it runs.
    pub fn start_with(setup: Setup, change: impl FnOnce(Server) -> Server) -> Self {
        Self::start_holding(setup, change).0
    }

    /// A server, changed before it runs, and its state.
    pub fn start_holding(setup: Setup, change: impl FnOnce(Server) -> Server) -> (Self, Arc<App>) {
        let app = Arc::new(App::with_server(setup.service.clone(), setup.server.clone()));
        let mut world = Self::run(change(bind()), Arc::clone(&app), setup.drain);
        let (service, engine) = service(setup);
        app.ready(service);
        world.engine = Some(engine);
        (world, app)
    }

    /// A server that has prompts computed by producers.
    pub fn start_remote(setup: Setup, remote: RemotePrefill) -> Self {
        let app = Arc::new(App::with_server(setup.service.clone(), setup.server.clone()));
        let mut world = Self::run(bind(), Arc::clone(&app), setup.drain);
        let (service, engine) = service(setup);
        app.ready(service.with_pages(remote));
        world.engine = Some(engine);
        world
    }

    /// A server whose model does not come by itself.
    pub fn start_loading(app: Arc<App>) -> (Self, Arc<App>) {
        (Self::run(bind(), Arc::clone(&app), Duration::from_secs(10)), app)
    }

    fn run(server: Server, app: Arc<App>, drain: Duration) -> Self {
        let (address, (stop, stopped)) = (server.address(), oneshot::channel::<()>());
        let held = Arc::downgrade(&app);
        let served = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let stop = async move { drop(stopped.await) };
            runtime.block_on(server.run(app, stop, drain))
        });
        Self { address, app: held, stop: Some(stop), served: Some(served), engine: None }
    }

    /// Asks the server to stop, as a signal does.
    pub fn ask_to_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for the end of a server that was asked to stop, or stops by itself, and of its engine.
    pub fn ended(&mut self) -> Result<(), ServeError> {
        let ended = self.served.take().unwrap().join().unwrap();
        self.engine.take().map_or(Ok(()), JoinHandle::join).unwrap();
        ended
    }

    pub fn send(&self, method: &str, path: &str, body: &Value) -> TcpStream {
        send(self.address, method, path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        begin(self.address, method, path, headers, b"").finish()
    }

    /// The value of a sample of `/metrics`.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    pub fn begin(&self, method: &str, path: &str, body: &Value) -> Pending {
        Pending::read_head(self.send(method, path, body))
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.begin("POST", path, body).finish()
    }

    pub fn get(&self, path: &str) -> Answer {
        begin(self.address, "GET", path, &[], b"").finish()
    }
}

impl World {
    /// The loaded model. The engine's thread ends with its last owner: it must be dropped before the world.
    pub fn service(&self) -> Arc<Service> {
        self.app.upgrade().unwrap().service().unwrap()
    }

    /// Connections that the server has accepted and not closed.
    pub fn connections(&self) -> usize {
        self.app.upgrade().unwrap().counters.connections()
    }

    /// The engine's status.
    pub fn status(&self) -> EngineStatus {
        self.service().host.status()
    }

    /// Waits until `holds` is true of the engine's status.
    #[track_caller]
    pub fn wait_until(&self, what: &str, holds: impl Fn(&EngineStatus) -> bool) -> EngineStatus {
        let began = Instant::now();
        loop {
            let status = self.status();
            if holds(&status) {
                return status;
            }
            // Far beyond what any test takes.
            assert!(began.elapsed() < Duration::from_secs(60), "never {what}: {status:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until nothing runs or waits.
    #[track_caller]
    pub fn wait_until_idle(&self) -> EngineStatus {
        self.wait_until("idle", |status| status.running() == 0 && status.waiting == 0)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.ask_to_stop();
        let served = self.served.take().map(JoinHandle::join);
        let engine = self.engine.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(served.is_none_or(|served| served.is_ok_and(|ended| ended.is_ok())), "the server failed");
            assert!(engine.is_none_or(|engine| engine.is_ok()), "the engine panicked");
        }
    }
}

fn bind() -> Server {
    Server::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

/// Waits for something that must come, and fails if it does not for far longer than it can take.
#[track_caller]
pub fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A loaded model, and its engine's thread, which ends when it is dropped.
pub fn service(setup: Setup) -> (Service, JoinHandle<()>) {
    let rows = NonZeroUsize::new(128).unwrap();
    let executor = Executor::new(Arc::clone(&**setup.model), Kernels::detected(), NonZeroUsize::MIN, rows).unwrap();
    let executor = Faulty::new(executor, setup.faults);
    let words = Words::load(&setup.model.files.metadata(), setup.model.config().vocab).unwrap();
    let settings = EngineSettings {
        context: setup.context,
        kv: KvLayout::Q8,
        identity: setup.identity.unwrap_or(KvIdentity::PROCESS_LOCAL),
        budget_bytes: 256 << 20,
        prefix_bytes_max: 64 << 20,
        installed_bytes_max: setup.identity.map_or(0, |_| 64 << 20),
        running_max: NonZeroUsize::new(setup.slots).unwrap(),
        waiting_max: setup.waiting_max,
        chunk: ChunkRows::DEFAULT,
    };
    Service::start(Engine::new(executor, settings).unwrap(), words, setup.service).unwrap()
}
