//! Input of a forward pass, and its errors.

use std::ops::Range;

use muser_kv::{AppendError, SequenceCache};

use crate::device::DeviceError;

/// Selection of the rows whose logits a step returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsWanted {
    /// None: the rows only fill the cache.
    None,
    /// The last row's.
    Last,
    /// Every row's.
    All,
}

/// The part of a step that belongs to one sequence: `tokens` follow what its cache holds.
#[derive(Debug)]
pub struct SequenceInput<'a> {
    /// Grows by `tokens.len()` rows if `outcome` is `Ok`, and is as before otherwise. After
    /// [`Executor::forward_pending`](crate::Executor::forward_pending) these rows are pending.
    pub cache: &'a mut SequenceCache,
    /// At least one.
    pub tokens: &'a [u32],
    /// Rows whose logits are wanted.
    pub logits: LogitsWanted,
    /// Result for this sequence: an error here concerns it alone.
    pub outcome: Result<(), ForwardError>,
    /// Its first row among the step's rows: set when the step begins.
    first_row: usize,
}

impl<'a> SequenceInput<'a> {
    /// A sequence's part of a step.
    pub fn new(cache: &'a mut SequenceCache, tokens: &'a [u32], logits: LogitsWanted) -> Self {
        Self { cache, tokens, logits, outcome: Ok(()), first_row: 0 }
    }

    /// First of its rows among the rows of the step that was begun with it.
    pub fn first_row(&self) -> usize {
        self.first_row
    }

    /// Absolute positions of its rows in the step.
    pub(crate) fn positions(&self) -> Range<usize> {
        self.cache.rows()..self.cache.rows() + self.tokens.len()
    }

    pub(crate) fn set_first_row(&mut self, row: usize) {
        self.first_row = row;
    }

    /// Rows whose logits are wanted.
    pub(crate) fn logits_rows(&self) -> usize {
        match self.logits {
            LogitsWanted::None => 0,
            LogitsWanted::Last => 1,
            LogitsWanted::All => self.tokens.len(),
        }
    }
}

/// A NaN or an infinity in a sequence's computation. The sequence's rows of this step are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value is not finite at position {position}, {place}")]
pub struct ForwardError {
    /// Absolute position of the first row concerned.
    pub position: usize,
    /// Part of the graph that noticed it.
    pub place: Place,
}

/// A place in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a layer.
    Layer(usize),
    /// In the output head.
    Head,
}

impl Place {
    /// Number of the place in a graph of `layers` layers: ascends in the order in which a step reaches the places.
    pub(crate) fn site(self, layers: usize) -> u32 {
        let index = match self {
            Self::Layer(layer) => layer,
            Self::Head => layers,
        };
        u32::try_from(index).expect("layers are far fewer than 2^32")
    }

    /// The place with number `site` in a graph of `layers` layers.
    pub(crate) fn of_site(site: u32, layers: usize) -> Self {
        let site = site as usize;
        if site < layers { Self::Layer(site) } else { Self::Head }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Layer(layer) => write!(f, "layer {layer}"),
            Self::Head => f.write_str("output head"),
        }
    }
}

/// A step that was refused before anything was computed, or given up because the device failed; no cache has changed.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// More rows than the executor was made for.
    #[error("a step of {rows} rows was asked for, the executor is made for {max}")]
    TooManyRows {
        /// Rows asked for.
        rows: usize,
        /// The executor's limit.
        max: usize,
    },
    /// A sequence without tokens.
    #[error("sequence {sequence} of the step has no tokens")]
    NoTokens {
        /// Its index in the step.
        sequence: usize,
    },
    /// No such token.
    #[error("token {token} does not exist: the vocabulary has {vocab}")]
    UnknownToken {
        /// Token of the step.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// More positions than the model was made for.
    #[error("position {position} is past the model's context of {context}")]
    PastContext {
        /// First position that does not exist.
        position: usize,
        /// The model's context.
        context: usize,
    },
    /// No such layer.
    #[error("layer {layer} does not exist: the model has {layers}")]
    NoSuchLayer {
        /// Index asked for.
        layer: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A residual stream of the wrong size.
    #[error("a residual stream of {got} values was given, the step needs {want}")]
    HiddenLength {
        /// Values given.
        got: usize,
        /// Rows of the step times the model's width.
        want: usize,
    },
    /// Layers after the first, without the first: their rows are not pending.
    #[error("{pending} rows are pending, the step has {rows}: a step begins with layer 0")]
    NotBegun {
        /// Rows pending in the cache.
        pending: usize,
        /// Rows of the step.
        rows: usize,
    },
    /// The cache was made for another model.
    #[error("the cache's geometry is not this model's")]
    ForeignCache,
    /// The cache cannot grow.
    #[error(transparent)]
    Cache(#[from] AppendError),
    /// The device failed while it computed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
