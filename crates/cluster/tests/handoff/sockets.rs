//! Many handoffs need few connections.

use muser_cluster::handoff::{BringError, HandoffError};
use muser_engine::engine::PrefixReuse;
use muser_kernels::attention::KvLayout;
use muser_wire::RefuseCode;

use crate::world::{Cluster, machine, random_tokens, run};

/// Connections of a port, those that linger after their end included.
fn connections(port: u16) -> usize {
    let end = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    // The third word is the other end; that of what listens is port 0.
    table.lines().filter(|line| line.split_whitespace().nth(2).is_some_and(|other| other.ends_with(&end))).count()
}

#[test]
fn hundreds_of_handoffs_in_a_row_and_as_many_refused_ones_use_the_same_lane() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine(KvLayout::Q8);
        let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
        let port = producing.address.port();
        let bring = async || {
            let prompt = random_tokens(1, 20);
            let mut installation = decoder.host.begin_installation(prompt, PrefixReuse::Isolate).await.unwrap();
            remote.bring(&mut installation).await
        };
        for number in 0..200 {
            bring().await.unwrap();
            let open = connections(port);
            assert!(open == 1, "{open} connections after {number} handoffs");
        }
        let mut folder = cluster.folder("producer").load_keys().unwrap();
        folder.revoke(1).unwrap();
        cluster.folder("producer").save_keys(&folder).unwrap();
        for number in 0..100 {
            let refused = bring().await.unwrap_err();
            let revoked = matches!(&refused, BringError::Handoff(HandoffError::Refused(refuse)) if refuse.code == RefuseCode::RevokedKey);
            assert!(revoked, "{refused}");
            let open = connections(port);
            assert!(open == 1, "{open} connections after {number} refused handoffs");
        }
    });
}
