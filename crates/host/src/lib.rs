//! The engine in a thread of its own, and the only door to it.
//!
//! The engine computes; it must neither wait for a client nor be touched by two at once. So it lives in one thread, takes
//! orders between two steps, and tells each request's owner what happens through a channel that never blocks it. Dropping
//! an [`Answer`] is how a request is cancelled: whoever lets go of it, because the client left or because a stop string was
//! found, ends the work at the next step, which finds its channel closed. That holds for whoever leaves before there is an
//! answer, too.

#![forbid(unsafe_code)]

mod status;
mod work;

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use muser_engine::engine::{
    Audit, Beginning, Export, Installation, Installed, NotInstallable, PrefixReuse, ReadyPage, Request, RequestError,
    SubmitError, Untrusted, Verdict,
};
use muser_engine::{Engine, Outcome, TokenLogprob};
use muser_kv::Maker;
use tokio::sync::{mpsc, oneshot, watch};

pub use status::{EngineStatus, Slot, Task, Totals};

/// The door to the engine; clones lead to the same one.
#[derive(Clone, Debug)]
pub struct EngineHost {
    orders: Sender<Order>,
    status: watch::Receiver<EngineStatus>,
}

/// A request under way. Dropped, it is cancelled.
#[derive(Debug)]
pub struct Answer {
    news: mpsc::UnboundedReceiver<News>,
    /// Keeps the engine.
    _orders: Sender<Order>,
}

/// Something that happened to a request, and when.
#[derive(Clone, Debug)]
pub struct News {
    /// When the engine told of it.
    pub at: Instant,
    /// What happened.
    pub what: What,
}

/// What happened to a request.
#[derive(Clone, Debug)]
pub enum What {
    /// It left the queue.
    Started {
        /// Tokens of the prompt that were there already.
        reused: usize,
        /// Where it runs.
        slot: usize,
    },
    /// More of its tokens have their keys and values.
    Progress {
        /// Tokens that have them.
        computed: usize,
        /// Tokens that need them before the next token.
        total: usize,
        /// Pages that are complete and were asked for; see [`EngineHost::submit_exported`].
        pages: Vec<ReadyPage>,
    },
    /// A token was chosen.
    Token(ChosenToken),
    /// It is done.
    Finished(Outcome),
    /// The computation failed.
    Failed(String),
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenToken {
    /// The token.
    pub token: u32,
    /// Whether it ends the text.
    pub is_stop: bool,
    /// Its probability and those of others, if they were asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: TokenLogprob,
    /// Of the likeliest, likeliest first.
    pub top: Vec<TokenLogprob>,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The engine does not take it.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The engine takes no pages for this prompt.
    #[error(transparent)]
    NotInstallable(#[from] NotInstallable),
    /// What was brought for the request may not be used any more.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The audit was taken, and could not be computed.
    #[error(transparent)]
    Failed(#[from] RequestError),
    /// There is no engine any more.
    #[error("the engine has stopped")]
    Stopped,
}

/// What the engine is told between two steps.
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
    /// No more requests, and an end to those under way.
    Stop,
}

/// What is special about a request.
#[derive(Debug)]
enum Extra {
    Nothing,
    /// It begins with these keys and values.
    Installed(Box<Installed>),
    /// These pages of it are wanted elsewhere.
    Export(Export),
}

impl EngineHost {
    /// Moves the engine into a thread. The thread ends when the last door and the last answer are dropped.
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
    /// [`Refused`]; what was installed is gone then. [`Refused::Untrusted`] is the answer in the engine's turn, whatever was
    /// known before.
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

    /// Ends all requests at the next step, which tells their owners; after it there is no engine any more.
    pub fn stop(&self) {
        // Without an engine there is nothing to stop.
        let _ = self.orders.send(Order::Stop);
    }

    /// What the engine is doing.
    pub fn status(&self) -> EngineStatus {
        self.status.borrow().clone()
    }

    /// Waits until something about the status changes; false once there is no engine any more.
    pub async fn changed(&mut self) -> bool {
        self.status.changed().await.is_ok()
    }
}

impl Answer {
    /// What happens next; `None` after the end, and if the engine stops before it.
    pub async fn next(&mut self) -> Option<News> {
        self.news.recv().await
    }
}
