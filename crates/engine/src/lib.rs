//! Who runs next: requests, chunked prefill, decode and sampling.
