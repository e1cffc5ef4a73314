//! A server of its own for each test, on a port of its own.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use muser_engine::{ChunkRows, Engine, EngineSettings, SamplingSettings};
use muser_kernels::attention::KvLayout;
use muser_kernels::cpu::Kernels;
use muser_model::{Executor, Model};
use muser_server::{App, Server, Service, ServiceSettings, Words};
use muser_weights::gguf::ModelFiles;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::client::{Answer, Pending, begin};

static SHIPPED: &[u8] = include_bytes!("../../../../models/glimmer-mini/glimmer-mini-Q4_K_M.gguf");

/// How a test's server differs from others.
#[derive(Clone)]
pub struct Setup {
    pub model: Arc<Model>,
    pub context: usize,
    pub slots: usize,
    pub waiting_max: usize,
    pub service: ServiceSettings,
}

/// A running server; stopped when dropped.
pub struct World {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// The model that ships with the program.
pub fn shipped() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    Arc::clone(MODEL.get_or_init(|| load(SHIPPED.to_vec())))
}

/// The model in a file's bytes.
pub fn load(bytes: Vec<u8>) -> Arc<Model> {
    Arc::new(Model::load(Arc::new(ModelFiles::from_bytes(bytes).unwrap()), NonZeroUsize::MIN).unwrap())
}

impl Setup {
    /// A small server on `model`: two slots, a context of 512.
    pub fn of(model: Arc<Model>) -> Self {
        let service = ServiceSettings {
            alias: "test-model".into(),
            model_path: None,
            sampling: SamplingSettings { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Default::default() },
            tokens_max: None,
            build: "test".into(),
            ping: Duration::from_secs(30),
            answers_max: 16,
        };
        Self { model, context: 512, slots: 2, waiting_max: 8, service }
    }
}

impl World {
    /// A small server on the shipped model.
    pub fn shipped() -> Self {
        Self::start(Setup::of(shipped()))
    }

    /// A server.
    pub fn start(setup: Setup) -> Self {
        let app = Arc::new(App::new(setup.service.clone()));
        let (mut world, _) = Self::start_loading(Arc::clone(&app));
        let (service, thread) = service(setup);
        app.ready(service);
        world.threads.push(thread);
        world
    }

    /// A server whose model does not come by itself.
    pub fn start_loading(app: Arc<App>) -> (Self, Arc<App>) {
        let server = Server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, (stop, stopped)) = (server.address(), oneshot::channel());
        let served = Arc::clone(&app);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let stop = async move { drop(stopped.await) };
            runtime.block_on(server.run(served, stop, Duration::from_secs(10))).unwrap();
        });
        (Self { address, stop: Some(stop), threads: vec![thread] }, app)
    }

    pub fn begin(&self, method: &str, path: &str, body: &Value) -> Pending {
        let headers = [("Content-Type", "application/json")];
        begin(self.address, method, path, &headers, body.to_string().as_bytes())
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.begin("POST", path, body).finish()
    }

    pub fn get(&self, path: &str) -> Answer {
        begin(self.address, "GET", path, &[], b"").finish()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a thread of the server panicked");
        }
    }
}

/// What answers, and the thread that ends with it.
pub fn service(setup: Setup) -> (Service, JoinHandle<()>) {
    let rows = NonZeroUsize::new(128).unwrap();
    let executor = Executor::new(Arc::clone(&setup.model), Kernels::detected(), NonZeroUsize::MIN, rows).unwrap();
    let words = Words::load(&setup.model.files().metadata(), setup.model.config().vocab).unwrap();
    let settings = EngineSettings {
        context: setup.context,
        kv: KvLayout::Q8,
        identity: [0; 32],
        budget_bytes: 256 << 20,
        prefix_bytes_max: 64 << 20,
        running_max: NonZeroUsize::new(setup.slots).unwrap(),
        waiting_max: setup.waiting_max,
        chunk: ChunkRows::DEFAULT,
    };
    Service::start(Engine::new(executor, settings).unwrap(), words, setup.service).unwrap()
}
