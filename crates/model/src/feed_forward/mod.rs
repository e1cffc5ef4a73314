//! The feed-forward half of a layer: its norms, and the network between them.
//!
//! A network of one kind is one file: its configuration, its tensors and their names, its operations and its cost. `dense.rs`
//! is the only kind so far. Experts would be a file beside it, and an enum of the two kinds in the places below that name
//! [`DenseNetwork`] and [`DenseConfig`]; graph, loading and cost ask the network and need no change.

mod dense;

pub(crate) use dense::DenseProducts;
pub use dense::{Activation, DenseConfig, DenseNetwork};

use crate::layer::{Form, Norm, Reform};

/// The feed-forward half of a layer.
#[derive(Debug)]
pub struct FeedForward<F: Form> {
    /// Before the network.
    pub norm: Norm<F::Vector>,
    /// `[rows, hidden]` to `[rows, hidden]`.
    pub network: DenseNetwork<F>,
    /// On the output, before it joins the residual stream.
    pub post_norm: Option<Norm<F::Vector>>,
}

impl<F: Form> FeedForward<F> {
    /// The same in another form.
    pub(crate) fn reform<R: Reform<From = F>>(self, to: &mut R) -> Result<FeedForward<R::To>, R::Error> {
        let Self { norm, network, post_norm } = self;
        Ok(FeedForward {
            norm: to.norm(norm)?,
            network: network.reform(to)?,
            post_norm: post_norm.map(|norm| to.norm(norm)).transpose()?,
        })
    }
}
