//! Jobs as they are submitted: tokens, the origin of their keys and values, and a goal.

use std::sync::Arc;

use muser_kv::Realm;

use super::audit::{Audit, Comparison};
use super::beginning::Beginning;
use super::install::Installed;
use super::scope::{Flow, PrefixReuse};
use crate::sampler::{LogprobsWanted, SamplingSettings};

/// Work of one sequence. Its constructors are the combinations of origin and goal that there are.
#[derive(Debug)]
pub struct Job {
    pub(super) tokens: Arc<[u32]>,
    pub(super) origin: Origin,
    pub(super) goal: Goal,
    pub(super) flow: Flow,
}

/// Limits, sampler and stop tokens of generated tokens.
#[derive(Clone, Debug)]
pub struct Generate {
    /// Tokens to generate at most; `None` goes on until a stop token or the end of the context. With 0 the prompt's keys and
    /// values are computed and nothing else.
    pub tokens_max: Option<usize>,
    /// Positions of prompt and generated tokens together; at most the engine's.
    pub context: usize,
    /// Tokens that end the text.
    pub stop_tokens: Arc<[u32]>,
    /// Sampler settings.
    pub sampling: SamplingSettings,
    /// If present, each token comes with its probability and those of the likeliest tokens.
    pub logprobs: Option<LogprobsWanted>,
}

/// Origin of a job's first keys and values. What is missing is computed.
#[derive(Debug)]
pub(super) enum Origin {
    /// None are there, and the job's own are left to no other.
    Empty,
    /// Pages kept in this realm, as many as begin its tokens; its own are kept there.
    Kept(Realm),
    /// A handoff: those of all tokens but the last. Its own are kept in the realm that the handoff was brought for.
    Installed(Box<Installed>),
    /// Whole pages that no other job sees, and the job's own are left to no other.
    Base(Beginning),
}

/// Goal of a job.
#[derive(Debug)]
pub(super) enum Goal {
    /// Tokens after the given ones.
    Generate(Generate),
    /// Pages of the given tokens, for a receiver that holds the first `held_pages`.
    Export { held_pages: usize },
    /// Comparison of received pages with those computed here.
    Audit(Comparison),
}

/// Names a job within its engine; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

impl Job {
    /// Generation after a prompt of at least one token. It resumes from kept pages, and leaves its own, as `reuse` says.
    pub fn generate(prompt: impl Into<Arc<[u32]>>, reuse: PrefixReuse, generate: Generate) -> Self {
        Self::new(prompt.into(), Origin::from(reuse), Goal::Generate(generate))
    }

    /// Generation after a prompt that was installed, all but its token `last`: it starts as if it had computed that itself.
    /// Should it have to give up its pages before its end, they are computed here; and so they are, and nothing of them is
    /// left to others, if they are not trusted ([`Engine::trusts`](super::Engine::trusts)) when it is submitted or started.
    pub fn generate_from(installed: Installed, last: u32, generate: Generate) -> Self {
        let tokens = installed.tokens().iter().copied().chain([last]).collect();
        Self::new(tokens, Origin::Installed(Box::new(installed)), Goal::Generate(generate))
    }

    /// Prefill of a prompt for a receiver that holds its first `held_pages` pages: the others come with
    /// [`RequestEvent::Progress`](super::RequestEvent::Progress), each once.
    pub fn export(prompt: impl Into<Arc<[u32]>>, reuse: PrefixReuse, held_pages: usize) -> Self {
        Self::new(prompt.into(), Origin::from(reuse), Goal::Export { held_pages })
    }

    /// An audit. [`RequestEvent::Audited`](super::RequestEvent::Audited) is its end, unless it is cancelled.
    pub fn audit(audit: Audit) -> Self {
        let Audit { base, tokens, comparison } = audit;
        Self::new(tokens.into(), Origin::Base(base), Goal::Audit(comparison))
    }

    /// The same job in the turns of `flow`; without, it is in those of client 0.
    #[must_use]
    pub fn in_turns_of(self, flow: Flow) -> Self {
        Self { flow, ..self }
    }

    /// The tokens that it is given.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The handoff that it starts from, if any.
    pub fn installed(&self) -> Option<&Installed> {
        self.origin.installed()
    }

    /// True for an audit.
    pub fn is_audit(&self) -> bool {
        matches!(self.goal, Goal::Audit(_))
    }

    fn new(tokens: Arc<[u32]>, origin: Origin, goal: Goal) -> Self {
        Self { tokens, origin, goal, flow: Flow::default() }
    }

    /// Tokens to generate at most, if there is a limit.
    pub(super) fn tokens_max(&self) -> Option<usize> {
        match &self.goal {
            Goal::Generate(generate) => generate.tokens_max,
            Goal::Export { .. } | Goal::Audit(_) => Some(0),
        }
    }

    /// Positions of given and generated tokens together, in an engine of `most`.
    pub(super) fn context(&self, most: usize) -> usize {
        match &self.goal {
            Goal::Generate(generate) => generate.context,
            Goal::Export { .. } | Goal::Audit(_) => most,
        }
    }

    /// Rows whose keys and values it comes to have at most, within `context` positions: the last token's are never computed,
    /// since no token follows it.
    pub(super) fn rows_most(&self, context: usize) -> usize {
        let given = self.tokens.len();
        let generated = self.tokens_max().map_or(context, |more| given.saturating_add(more));
        generated.min(context).saturating_sub(1).max(given)
    }
}

impl Origin {
    /// The realm whose kept pages it uses and adds to, if any.
    pub(super) fn realm(&self) -> Option<Realm> {
        match self {
            Self::Empty | Self::Base(_) => None,
            Self::Kept(realm) => Some(*realm),
            Self::Installed(installed) => installed.reuse().realm(),
        }
    }

    /// The handoff, if it is one.
    pub(super) fn installed(&self) -> Option<&Installed> {
        match self {
            Self::Installed(installed) => Some(installed),
            Self::Empty | Self::Kept(_) | Self::Base(_) => None,
        }
    }

    /// Has it leave nothing to others.
    pub(super) fn isolate(&mut self) {
        match self {
            Self::Empty | Self::Base(_) => {}
            Self::Kept(_) => *self = Self::Empty,
            Self::Installed(installed) => installed.isolate(),
        }
    }

    /// Takes the handoff out. What is computed again later is found in its realm, or not at all.
    pub(super) fn take_installed(&mut self) -> Option<Installed> {
        let later = self.realm().map_or(Self::Empty, Self::Kept);
        match std::mem::replace(self, later) {
            Self::Installed(installed) => Some(*installed),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl From<PrefixReuse> for Origin {
    fn from(reuse: PrefixReuse) -> Self {
        reuse.realm().map_or(Self::Empty, Self::Kept)
    }
}

impl RequestId {
    /// Number of jobs that the engine had accepted before.
    pub fn number(self) -> u64 {
        self.0
    }
}
