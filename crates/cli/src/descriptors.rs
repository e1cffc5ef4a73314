//! File descriptors that the system gives this process, and the connections that they are enough for.
//!
//! Strangers can open as many connections as a server accepts. Where the limit of the process is low, fewer are accepted, so
//! that files, threads and connections to other machines still have descriptors.

use std::num::NonZeroUsize;

use rustix::process::{Resource, getrlimit};

/// Descriptors kept for everything that is no connection of a client: standard streams, event queues, listener, model,
/// ledger, watched files, lanes to producers.
const OTHERS: usize = 32;
/// Connections that are accepted however low the limit is.
const CONNECTIONS_MIN: usize = 8;

/// Connections that clients may have at once under the soft limit of this process.
pub fn for_connections() -> NonZeroUsize {
    let limit =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    connections_of(limit)
}

fn connections_of(limit: usize) -> NonZeroUsize {
    NonZeroUsize::new(limit.saturating_sub(OTHERS)).map_or(MIN, |left| left.max(MIN))
}

const MIN: NonZeroUsize = NonZeroUsize::new(CONNECTIONS_MIN).unwrap();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_leaves_descriptors_for_files_and_some_connections_in_any_case() {
        let connections = |limit| connections_of(limit).get();
        assert_eq!([0, 32, 40, 64, 1024].map(connections), [8, 8, 8, 32, 992]);
        assert_eq!(connections(usize::MAX), usize::MAX - OTHERS);
    }
}
