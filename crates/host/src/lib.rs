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

use muser_engine::engine::{
    Audit, Beginning, Export, Installation, Installed, NotInstallable, PrefixReuse, ReadyPage, Request, RequestError,
    SubmitError, Verdict,
};
use muser_engine::{Engine, Outcome, TokenLogprob};
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
    news: mpsc::UnboundedReceiver<News>,
    /// Keeps the engine's thread alive: it ends with the last sender.
    _orders: Sender<Order>,
}

/// An event of one request with its time.
#[derive(Clone, Debug)]
pub struct News {
    /// Time at which the engine's thread delivered the event.
    pub at: Instant,
    /// The event.
    pub what: What,
}

/// Event of one request, in the order the engine emits them.
#[derive(Clone, Debug)]
pub enum What {
    /// The request left the queue.
    Started {
        /// Prompt tokens whose keys and values were cached or installed.
        reused: usize,
        /// Index of the slot in which it runs.
        slot: usize,
    },
    /// Prefill progress: more tokens have their keys and values.
    Progress {
        /// Tokens that have them, the reused ones included.
        computed: usize,
        /// Tokens that need them before the next token.
        total: usize,
        /// Pages that are complete and were asked for; see [`EngineHost::submit_exported`].
        pages: Vec<ReadyPage>,
    },
    /// A token was sampled.
    Token(ChosenToken),
    /// The request is complete.
    Finished(Outcome),
    /// The computation failed.
    Failed(String),
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenToken {
    /// Its id.
    pub token: u32,
    /// True if it is a stop token, which ends the text and is not part of it.
    pub is_stop: bool,
    /// Log-probabilities at its position, if the request asked for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// Log-probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: TokenLogprob,
    /// Of the likeliest, likeliest first.
    pub top: Vec<TokenLogprob>,
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
        request: Box<Request>,
        extra: Extra,
        news: mpsc::UnboundedSender<News>,
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
    Audit {
        audit: Box<Audit>,
        reply: oneshot::Sender<Result<Verdict, Refused>>,
    },
    ForgetPrefixes,
    TakeBack(Maker),
    /// Refuses new requests, and ends those under way.
    Stop,
}

/// Pages that a submitted request brings with it, or exports.
#[derive(Debug)]
enum Extra {
    Nothing,
    /// The request begins with these installed keys and values.
    Installed(Box<Installed>),
    /// Pages of the request to hand out as they become complete, for another machine.
    Export(Export),
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

    /// Hands a request to the engine, which answers between two steps.
    ///
    /// # Errors
    /// [`Refused`]; nothing of the request remains then.
    pub async fn submit(&self, request: Request) -> Result<Answer, Refused> {
        self.hand_over(request, Extra::Nothing).await
    }

    /// As [`Self::submit`], for a request whose keys and values came from elsewhere, all but those of the last token.
    ///
    /// # Errors
    /// [`Refused`]; the installed pages are dropped then. [`Refused::Untrusted`] is decided on the engine's thread when
    /// it takes the order, whatever was known before.
    ///
    /// # Panics
    /// The engine does if the prompt is not what was installed and one token more.
    pub async fn submit_installed(&self, request: Request, installed: Installed) -> Result<Answer, Refused> {
        // Here, where waiting is allowed; the engine then answers by what was read.
        installed.renew_trust().await;
        self.hand_over(request, Extra::Installed(Box::new(installed))).await
    }

    /// As [`Self::submit`], for a request whose pages are wanted elsewhere: they come with [`What::Progress`], each once.
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn submit_exported(&self, request: Request, export: Export) -> Result<Answer, Refused> {
        self.hand_over(request, Extra::Export(export)).await
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
        let (reply, replied) = oneshot::channel();
        let order = Order::Audit { audit: Box::new(audit), reply };
        self.orders.send(order).map_err(|_| Refused::Stopped)?;
        replied.await.map_err(|_| Refused::Stopped)?
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

    async fn hand_over(&self, request: Request, extra: Extra) -> Result<Answer, Refused> {
        let (sender, news) = mpsc::unbounded_channel();
        let (reply, replied) = oneshot::channel();
        let order = Order::Submit { request: Box::new(request), extra, news: sender, reply };
        self.orders.send(order).map_err(|_| Refused::Stopped)?;
        replied.await.map_err(|_| Refused::Stopped)??;
        Ok(Answer { news, _orders: self.orders.clone() })
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
    pub async fn next(&mut self) -> Option<News> {
        self.news.recv().await
    }
}
