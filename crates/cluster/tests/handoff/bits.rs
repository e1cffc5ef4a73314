//! Answers from pages brought over the wire have the bits of local answers.

use muser_cluster::handoff::Compress;
use muser_engine::engine::PrefixReuse;
use muser_kernels::attention::KvLayout;
use muser_kv::{PrefixScope, Realm};

use crate::world::{Cluster, SHIPPED, answer, answer_remotely, machine, machine_with, random_tokens, request, run};

#[test]
fn answers_have_the_bits_of_local_ones_in_both_layouts_whatever_is_held() {
    run(async {
        for kv in [KvLayout::Q8, KvLayout::F16] {
            let cluster = Cluster::new();
            let producing = cluster.produce("producer", machine(kv), None).await;
            let decoder = machine(kv);
            let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
            let whole = random_tokens(1, 1300);
            let mut held_pages = 0;
            for length in [2, 64, 65, 66, 300, 301, 1299, 1300] {
                let prompt = &whole[..length];
                let (handoff, reused, tokens) =
                    answer_remotely(&decoder, &remote, prompt, PrefixReuse::Share).await.unwrap();
                let local = decoder.host.submit(request(prompt, 6, PrefixReuse::Isolate)).await.unwrap();
                let (_, expected) = answer(local).await;
                assert_eq!(reused, length - 1, "{kv:?}, {length} tokens");
                assert!(tokens == expected, "{kv:?}, {length} tokens: other bits");
                assert_eq!((handoff.stats.rows as usize, handoff.producer.as_str()), (length - 1, "producer"));
                assert!(handoff.held_pages <= (length - 1) / 64);
                let (times, elapsed) = (handoff.stats.times, handoff.elapsed.as_micros());
                assert!(times.compute_us > 0, "{times:?}");
                assert_eq!(times.pack_us > 0, handoff.stats.pages > 0, "{times:?}");
                assert!(u128::from(times.queue_us + times.compute_us) <= elapsed, "{times:?} of {elapsed} us");
                assert!(u128::from(times.send_wall_us) <= elapsed, "{times:?} of {elapsed} us");
                if cfg!(target_os = "linux") {
                    assert!(times.send_busy_us.is_some_and(|busy_us| busy_us <= times.send_wall_us), "{times:?}");
                }
                held_pages += handoff.held_pages;
            }
            // What an earlier prompt left here was not sent again.
            assert!(held_pages >= 20, "{held_pages}");
        }
    });
}

#[test]
fn packed_pages_have_the_bits_of_others_in_both_layouts() {
    run(async {
        for kv in [KvLayout::Q8, KvLayout::F16] {
            let decoder = machine(kv);
            let prompt = random_tokens(7, 900);
            let local = decoder.host.submit(request(&prompt, 6, PrefixReuse::Isolate)).await.unwrap();
            let (_, expected) = answer(local).await;
            for compress in [Compress::Never, Compress::Always, Compress::Auto] {
                let mut cluster = Cluster::new();
                cluster.compress = compress;
                let producing = cluster.produce("producer", machine(kv), None).await;
                let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
                for _ in 0..2 {
                    let (handoff, _, tokens) =
                        answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Isolate).await.unwrap();
                    assert!(tokens == expected, "{kv:?}, {compress:?}: other bits");
                    let muser_wire::Stats { payload_bytes, stored_bytes, .. } = handoff.stats;
                    match compress {
                        Compress::Never => assert_eq!(stored_bytes, payload_bytes, "{kv:?}"),
                        Compress::Always => assert!(stored_bytes < payload_bytes, "{kv:?}: {stored_bytes}"),
                        Compress::Auto => assert!(stored_bytes <= payload_bytes, "{kv:?}"),
                    }
                }
            }
        }
    });
}

#[test]
fn several_at_once_do_not_mix_and_a_repeated_prompt_is_not_computed_again() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        // It keeps nothing itself, so that it asks for everything each time.
        let decoder = machine_with(SHIPPED.to_vec(), KvLayout::Q8, |settings| settings.prefix_bytes_max = 0);
        let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
        let prompts = [random_tokens(2, 700), random_tokens(3, 500)];
        let isolated = PrefixReuse::Isolate;
        for round in 0..3 {
            let (first, second) = tokio::join!(
                answer_remotely(&decoder, &remote, &prompts[0], PrefixReuse::Share),
                answer_remotely(&decoder, &remote, &prompts[1], PrefixReuse::Share),
            );
            for (prompt, remote) in prompts.iter().zip([first.unwrap(), second.unwrap()]) {
                let local = decoder.host.submit(request(prompt, 6, isolated)).await.unwrap();
                assert!(remote.2 == answer(local).await.1, "round {round}");
                let pages = (prompt.len() - 1) / 64 * 64;
                // The producer keeps whole pages of what it computed before, up to the one that its last token is in.
                let kept = if round == 0 { 0 } else { pages };
                assert_eq!(remote.0.stats.reused_rows as usize, kept, "round {round}, {} tokens", prompt.len());
            }
        }
    });
}

#[test]
fn what_a_producer_computed_for_one_node_or_realm_is_not_there_for_another() {
    run(async {
        let cluster = Cluster::new();
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine_with(SHIPPED.to_vec(), KvLayout::Q8, |settings| settings.prefix_bytes_max = 0);
        let remotes = ["one", "other"].map(|name| cluster.remote(name, &decoder, producing.address, &cluster.keys));
        let prompt = random_tokens(8, 300);
        let within = |secret| PrefixReuse::Within(Realm::from_secret([secret; 32]));
        let salted = PrefixReuse::Within(Realm::from_secret([1; 32]).divided_by(b"salt"));
        let cases =
            [(0, within(1)), (0, within(2)), (0, salted), (0, PrefixReuse::Share), (1, within(1)), (1, within(2))];
        let (_, expected) = answer(decoder.host.submit(request(&prompt, 6, PrefixReuse::Isolate)).await.unwrap()).await;
        // First nothing is there, for whomever it was computed before; then each finds its own.
        for reused in [0, 256] {
            for (node, reuse) in cases {
                let (handoff, _, tokens) = answer_remotely(&decoder, &remotes[node], &prompt, reuse).await.unwrap();
                assert_eq!(handoff.stats.reused_rows, reused, "node {node}, {reuse:?}");
                assert!(tokens == expected, "other bits");
            }
            // A request that shares nothing leaves nothing there, either.
            let isolated = answer_remotely(&decoder, &remotes[0], &prompt, PrefixReuse::Isolate).await.unwrap();
            assert_eq!(isolated.0.stats.reused_rows, 0);
        }
    });
}

#[test]
fn a_producer_that_shares_prefixes_reuses_them_for_other_nodes_that_name_the_same_realm() {
    run(async {
        let mut cluster = Cluster::new();
        cluster.prefixes = PrefixScope::Cluster;
        let producing = cluster.produce("producer", machine(KvLayout::Q8), None).await;
        let decoder = machine_with(SHIPPED.to_vec(), KvLayout::Q8, |settings| settings.prefix_bytes_max = 0);
        let remotes = ["one", "other"].map(|name| cluster.remote(name, &decoder, producing.address, &cluster.keys));
        let prompt = random_tokens(8, 300);
        let (_, expected) = answer(decoder.host.submit(request(&prompt, 6, PrefixReuse::Isolate)).await.unwrap()).await;
        let secret = PrefixReuse::Within(Realm::from_secret([1; 32]));
        let salted = PrefixReuse::Within(Realm::COMMON.divided_by(b"salt"));
        // A secret realm and a salt divide what nodes share, and a request without any leaves nothing.
        let cases = [
            (0, PrefixReuse::Isolate, 0),
            (0, PrefixReuse::Share, 0),
            (1, PrefixReuse::Share, 256),
            (1, secret, 0),
            (1, salted, 0),
            (0, salted, 256),
        ];
        for (node, reuse, reused) in cases {
            let (handoff, _, tokens) = answer_remotely(&decoder, &remotes[node], &prompt, reuse).await.unwrap();
            assert_eq!(handoff.stats.reused_rows, reused, "node {node}, {reuse:?}");
            assert!(tokens == expected, "node {node}, {reuse:?}: other bits");
        }
    });
}
