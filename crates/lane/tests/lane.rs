//! Lanes over real sockets: two nodes that admit each other, and everyone else.

#[path = "lane/cluster.rs"]
mod cluster;
#[path = "lane/refusals.rs"]
mod refusals;
#[path = "lane/strangers.rs"]
mod strangers;
