//! The engine of a process, by the settings of its command: positions, memory of pages, places, and exchange of pages.

use std::num::NonZeroUsize;

use muser_cluster::handoff::Shape;
use muser_engine::{Engine, EngineSettings};
use muser_kernels::attention::KvLayout;
use muser_kv::KvIdentity;
use muser_model::Forward;
use muser_weights::gguf::ModelFiles;

use crate::cluster_member::shape;
use crate::commands::doctor::memory;
use crate::failure::Failure;
use crate::model;
use crate::settings::serve::{MemoryArgs, mib};

/// All that differs between the engines of commands.
pub struct NodeSettings<'a> {
    /// Layout of keys and values.
    pub kv: KvLayout,
    /// Positions of a sequence, prompt and answer together.
    pub context: usize,
    /// Memory of pages.
    pub memory: PageMemory<'a>,
    /// Sequences that run at once.
    pub running_max: NonZeroUsize,
    /// Requests that wait.
    pub waiting_max: usize,
}

/// Memory of pages.
pub enum PageMemory<'a> {
    /// Bytes that so many sequences of full length need.
    Sequences {
        /// Sequences.
        count: usize,
        /// Sequences of these whose bytes are kept for prompts that begin alike.
        kept: usize,
    },
    /// By flags; without them what `running_max` sequences of full length need, but at most half of the machine's memory.
    Flags(&'a MemoryArgs),
}

/// Direction in which pages leave or enter a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// Pages are computed for other nodes.
    Send,
    /// Pages of other nodes are installed, too: as many bytes besides as the node's own by [`PageMemory::Flags`], and
    /// otherwise those of one sequence.
    Receive,
}

/// An engine, and its memory of pages.
pub struct Node {
    /// The engine.
    pub engine: Engine,
    /// Bytes of all pages.
    pub budget_bytes: usize,
    /// Of these, bytes kept for prompts that begin alike.
    pub prefix_bytes: usize,
}

impl Node {
    /// A node whose pages never leave the process, and so belong to one model.
    ///
    /// # Errors
    /// If the settings do not fit the executor.
    pub fn alone(executor: Box<dyn Forward>, settings: &NodeSettings<'_>) -> Result<Self, Failure> {
        Self::new(executor, settings, (KvIdentity::PROCESS_LOCAL, None))
    }

    /// A node that exchanges pages with others that have the same model; `files` are those of the executor.
    ///
    /// # Errors
    /// If the digest of the files cannot be computed, or the settings do not fit the executor.
    pub fn exchanging(
        executor: Box<dyn Forward>,
        settings: &NodeSettings<'_>,
        files: &ModelFiles,
        exchange: Exchange,
    ) -> Result<(Self, Shape), Failure> {
        let shape = shape(files, executor.spec(), settings.kv, settings.positions(&*executor))?;
        Ok((Self::new(executor, settings, (shape.identity().kv(), Some(exchange)))?, shape))
    }

    fn new(
        executor: Box<dyn Forward>,
        settings: &NodeSettings<'_>,
        (identity, exchange): (KvIdentity, Option<Exchange>),
    ) -> Result<Self, Failure> {
        let NodeSettings { kv, context, running_max, waiting_max, .. } = *settings;
        let positions = settings.positions(&*executor);
        let spec = executor.spec().cache_spec(kv, positions)?;
        let sequence_bytes = spec.most_pages(positions, executor.rows_max()) * spec.layout().page_bytes();
        let (budget_bytes, prefix_bytes) = settings.memory.bytes(sequence_bytes, running_max);
        let installed_bytes_max = match &settings.memory {
            _ if exchange != Some(Exchange::Receive) => 0,
            PageMemory::Flags(_) => budget_bytes,
            PageMemory::Sequences { .. } => sequence_bytes,
        };
        let settings = EngineSettings {
            context,
            kv,
            identity,
            budget_bytes,
            prefix_bytes_max: prefix_bytes,
            installed_bytes_max,
            running_max,
            waiting_max,
            chunk: model::chunk(&*executor),
        };
        Ok(Self { engine: Engine::new(executor, settings)?, budget_bytes, prefix_bytes })
    }
}

impl NodeSettings<'_> {
    /// Positions that a sequence can fill. The engine refuses a context above that of the model, with both numbers.
    fn positions(&self, executor: &dyn Forward) -> usize {
        self.context.min(executor.spec().config().context)
    }
}

impl PageMemory<'_> {
    /// Bytes of all pages, and of those that are kept, where a sequence of full length needs `sequence` bytes.
    fn bytes(&self, sequence: usize, running_max: NonZeroUsize) -> (usize, usize) {
        match self {
            Self::Sequences { count, kept } => (sequence.saturating_mul(*count), sequence.saturating_mul(*kept)),
            Self::Flags(args) => {
                let half = memory("MemTotal").and_then(|bytes| usize::try_from(bytes / 2).ok()).unwrap_or(usize::MAX);
                let needed = || sequence.saturating_mul(running_max.get()).min(half);
                let budget = args.kv_memory.map_or_else(needed, |count| mib(count.get()));
                (budget, args.cache_ram.map_or(budget / 2, mib).min(budget))
            }
        }
    }
}
