//! The layer graph: configuration, tensors and one forward pass for prefill and decode.
