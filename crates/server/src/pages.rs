//! Sources of a prompt's keys and values. Each begins a request with the pages that it can get; the engine computes the
//! rest.

use std::fmt;
use std::pin::Pin;

use muser_host::EngineHost;

use crate::error::ApiError;
use crate::generation::Plan;
use crate::remote::{Begun, ProgressListener, RemoteCounts, Source};

/// Source of a prompt's keys and values.
pub trait PageSource: fmt::Debug + Send + Sync {
    /// Begins the request at the engine, with the pages of this source. `listener` receives the progress until then.
    ///
    /// # Errors
    /// As of the engine; or that there are no pages, if that is to be an error.
    fn begin<'a>(
        &'a self,
        host: &'a EngineHost,
        plan: &'a Plan,
        listener: &'a mut ProgressListener<'a>,
    ) -> BeginFuture<'a>;

    /// Sums for the metrics, if pages come from other machines.
    fn remote_counts(&self) -> Option<RemoteCounts>;
}

/// Future of [`PageSource::begin`].
pub type BeginFuture<'a> = Pin<Box<dyn Future<Output = Result<Begun, ApiError>> + Send + 'a>>;

/// Pages that the engine has kept, in memory.
#[derive(Debug)]
pub struct KeptPages;

impl PageSource for KeptPages {
    fn begin<'a>(&'a self, host: &'a EngineHost, plan: &'a Plan, _: &'a mut ProgressListener<'a>) -> BeginFuture<'a> {
        Box::pin(
            async move { Ok(Begun { answer: host.submit(plan.job()).await?, source: Source::default(), watch: None }) },
        )
    }

    fn remote_counts(&self) -> Option<RemoteCounts> {
        None
    }
}
