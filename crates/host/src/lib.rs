//! The engine on a thread of its own, driven through [`EngineHost`] only.
//!
//! The engine's step loop must neither block on a client nor be called from two threads at once. So it runs on one
//! thread, takes orders from a channel between two steps, and sends each request's events to its [`Answer`] over an
//! unbounded channel, which never blocks it. Dropping an [`Answer`] cancels its request, after a client's disconnect as
//! after a stop string: the next step finds the channel closed and ends the work. The same holds when the future of
//! [`EngineHost::submit`] is dropped before there is an answer.

#![forbid(unsafe_code)]

mod status;
mod work;

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use muser_engine::Engine;
use muser_engine::engine::{
    Audit, Beginning, Installation, Job, NotInstallable, PrefixReuse, RequestError, RequestEvent, SubmitError, Verdict,
};
use muser_kv::{Maker, Untrusted};
use tokio::sync::{mpsc, oneshot, watch};

pub use status::{EngineStatus, Slot, Task, Totals};

/// Handle to the engine's thread; clones lead to the same engine.
#[derive(Clone, Debug)]
pub struct EngineHost {
    orders: Sender<Order>,
    status: watch::Receiver<EngineStatus>,
}

/// Event stream of one submitted request. Dropped, it cancels the request.
#[derive(Debug)]
pub struct Answer {
    events: mpsc::UnboundedReceiver<TimedEvent>,
    /// Keeps the engine's thread alive: it ends with the last sender.
    _orders: Sender<Order>,
}

/// An event of one request with its time.
#[derive(Clone, Debug)]
pub struct TimedEvent {
    /// Time at which the engine's thread delivered the event.
    pub at: Instant,
    /// The event.
    pub event: RequestEvent,
}

/// Error of a request, an installation or an audit that the engine does not take or cannot finish.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The engine does not take it.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The engine takes no pages for this prompt.
    #[error(transparent)]
    NotInstallable(#[from] NotInstallable),
    /// The installed pages depend on a machine whose pages were revoked meanwhile.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The audit was taken, and could not be computed.
    #[error(transparent)]
    Failed(#[from] RequestError),
    /// The engine's thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// Order to the engine's thread, executed between two steps.
#[derive(Debug)]
enum Order {
    Submit {
        job: Box<Job>,
        events: mpsc::UnboundedSender<TimedEvent>,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    BeginInstallation {
        prompt: Vec<u32>,
        reuse: PrefixReuse,
        reply: oneshot::Sender<Result<Box<Installation>, NotInstallable>>,
    },
    BeginBase {
        beginning: Box<Beginning>,
        reply: oneshot::Sender<Result<Box<Installation>, NotInstallable>>,
    },
    ForgetPrefixes,
    TakeBack(Maker),
    /// Refuses new requests, and ends those under way.
    Stop,
}

impl EngineHost {
    /// Moves the engine into a thread. The thread ends when the last [`EngineHost`] and the last [`Answer`] are
    /// dropped.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(engine: Engine) -> io::Result<(Self, JoinHandle<()>)> {
        let (orders, received): (_, Receiver<Order>) = channel();
        let (publish, status) = watch::channel(EngineStatus::of(&engine));
        let thread = Builder::new().name("engine".into()).spawn(move || work::run(engine, &received, publish))?;
        Ok((Self { orders, status }, thread))
    }

    /// Hands a job to the engine, which answers between two steps. If it starts from a handoff, the lists by which that is
    /// trusted are read again first.
    ///
    /// # Errors
    /// [`Refused`]; nothing of the job remains then. [`Refused::Untrusted`] is decided on the engine's thread when it takes
    /// the order, whatever was known before.
    pub async fn submit(&self, job: Job) -> Result<Answer, Refused> {
        if let Some(installed) = job.installed() {
            // Here, where waiting is allowed; the engine then answers by what was read.
            installed.renew_trust().await;
        }
        let (sender, events) = mpsc::unbounded_channel();
        let (reply, replied) = oneshot::channel();
        let order = Order::Submit { job: Box::new(job), events: sender, reply };
        self.orders.send(order).map_err(|_| Refused::Stopped)?;
        replied.await.map_err(|_| Refused::Stopped)??;
        Ok(Answer { events, _orders: self.orders.clone() })
    }

    /// Begins to bring the keys and values of `prompt`, all but those of its last token, from elsewhere.
    ///
    /// # Errors
    /// [`Refused`]; then they have to be computed here.
    pub async fn begin_installation(&self, prompt: Vec<u32>, reuse: PrefixReuse) -> Result<Installation, Refused> {
        let (reply, replied) = oneshot::channel();
        let order = Order::BeginInstallation { prompt, reuse, reply };
        self.orders.send(order).map_err(|_| Refused::Stopped)?;
        Ok(*replied.await.map_err(|_| Refused::Stopped)??)
    }

    /// Begins to bring what going on from `beginning` needs and it lacks.
    ///
    /// # Errors
    /// [`Refused`]; then it cannot be brought.
    pub async fn begin_base(&self, beginning: Beginning) -> Result<Installation, Refused> {
        let (reply, replied) = oneshot::channel();
        let order = Order::BeginBase { beginning: Box::new(beginning), reply };
        self.orders.send(order).map_err(|_| Refused::Stopped)?;
        Ok(*replied.await.map_err(|_| Refused::Stopped)??)
    }

    /// Computes again what came from elsewhere, between other work, and compares. Dropping the future cancels it.
    ///
    /// # Errors
    /// [`Refused`]; then nothing is known.
    pub async fn audit(&self, audit: Audit) -> Result<Verdict, Refused> {
        let mut answer = self.submit(Job::audit(audit)).await?;
        while let Some(TimedEvent { event, .. }) = answer.next().await {
            match event {
                RequestEvent::Audited(verdict) => return Ok(verdict),
                RequestEvent::Failed(error) => return Err(Refused::Failed(error)),
                // Its progress, or its end because the engine's thread ends.
                _ => {}
            }
        }
        Err(Refused::Stopped)
    }

    /// Forgets every page that is kept for reuse, and what requests under way would leave.
    pub fn forget_prefixes(&self) {
        // Without an engine nothing is kept.
        let _ = self.orders.send(Order::ForgetPrefixes);
    }

    /// Takes back every page that depends on this machine, wherever it is.
    pub fn take_back(&self, maker: Maker) {
        let _ = self.orders.send(Order::TakeBack(maker));
    }

    /// Ends all requests at the next step, each with a last event, and then the engine's thread.
    pub fn stop(&self) {
        // Without an engine there is nothing to stop.
        let _ = self.orders.send(Order::Stop);
    }

    /// A snapshot of the engine's status after its last step.
    pub fn status(&self) -> EngineStatus {
        self.status.borrow().clone()
    }

    /// Waits until the status changes; false once the engine's thread has ended.
    pub async fn changed(&mut self) -> bool {
        self.status.changed().await.is_ok()
    }
}

impl Answer {
    /// The next event; `None` after the last one, and if the engine stops before it.
    pub async fn next(&mut self) -> Option<TimedEvent> {
        self.events.recv().await
    }
}
