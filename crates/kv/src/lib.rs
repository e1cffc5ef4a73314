//! KV pages: layout, names, and the per-sequence cache that holds them.
