//! Requests through the engine's host: answers, pages exported from one engine, and pages installed into another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use muser_engine::engine::{Installation, Job, PrefixReuse, RequestEvent};
use muser_host::{EngineHost, Refused};
use muser_kv::{Maker, Untrusted, Voucher};

use crate::world::{greedy, isolated, request, runtime, start};

/// The tokens of an answer, and how many of the prompt's were there already.
async fn tokens(mut answer: muser_host::Answer) -> (usize, Vec<u32>) {
    let (mut found, mut tokens) = (0, Vec::new());
    while let Some(timed) = answer.next().await {
        match timed.event {
            RequestEvent::Started { reused, .. } => found = reused,
            RequestEvent::Token(token) => tokens.push(token.token),
            RequestEvent::Finished(_) => break,
            RequestEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    (found, tokens)
}

/// Has the pages computed that the installation lacks, and puts each into it as it comes.
async fn bring(producer: &EngineHost, installation: &mut Installation) {
    let wanted = installation.tokens().to_vec();
    let mut answer = producer.submit(Job::export(wanted, PrefixReuse::Share, installation.held_pages())).await.unwrap();
    while let Some(timed) = answer.next().await {
        match timed.event {
            RequestEvent::Progress { pages, .. } => {
                for ready in pages {
                    installation.install(ready.layer, ready.page, ready.bytes.as_ref()).unwrap();
                }
            }
            RequestEvent::Finished(_) => break,
            RequestEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

#[test]
fn pages_go_from_one_engine_to_another_and_the_answer_is_the_same() {
    let (producer, producing) = start(128);
    let (decoder, decoding) = start(128);
    runtime().block_on(async {
        let mut random = fastrand::Rng::with_seed(8);
        let whole: Vec<u32> = (0..700).map(|_| random.u32(3..4096)).collect();
        for length in [2, 65, 300, 301, 700] {
            let prompt = whole[..length].to_vec();
            let mut installation = decoder.begin_installation(prompt.clone(), PrefixReuse::Share).await.unwrap();
            bring(&producer, &mut installation).await;
            let installed = installation.finish().unwrap();
            let answer = decoder.submit(Job::generate_from(installed, prompt[length - 1], greedy(20))).await.unwrap();
            let (reused, remote) = tokens(answer).await;
            let isolated = isolated(prompt, 20);
            let (_, local) = tokens(producer.submit(isolated).await.unwrap()).await;
            assert_eq!((reused, remote), (length - 1, local), "{length} tokens");
        }
        let refused = decoder.begin_installation(vec![5], PrefixReuse::Share).await.unwrap_err();
        assert!(matches!(refused, Refused::NotInstallable(_)));
    });
    drop((producer, decoder));
    producing.join().unwrap();
    decoding.join().unwrap();
}

#[test]
fn an_answer_that_nobody_reads_delays_no_other_and_is_whole_afterwards() {
    let (host, thread) = start(128);
    runtime().block_on(async {
        let wanted = || isolated(vec![7; 100], 100);
        let unread = host.submit(wanted()).await.unwrap();
        for first in 3..7 {
            assert_eq!(tokens(host.submit(isolated(vec![first; 40], 10)).await.unwrap()).await.1.len(), 10);
        }
        let alone = tokens(host.submit(wanted()).await.unwrap()).await;
        // The same work came later, and is done: all of the unread answer waits for its reader.
        assert_eq!(host.status().totals.ended, 6);
        assert_eq!(tokens(unread).await, alone);
    });
    drop(host);
    thread.join().unwrap();
}

#[test]
fn a_producer_whose_pages_nobody_wants_any_more_stops_computing() {
    let (host, thread) = start(128);
    runtime().block_on(async {
        let mut watched = host.clone();
        for round in 0..20 {
            let mut installation = host.begin_installation(vec![7; 900], PrefixReuse::Isolate).await.unwrap();
            let mut answer = host.submit(Job::export([7; 899], PrefixReuse::Isolate, 0)).await.unwrap();
            let first = answer.next().await.unwrap();
            assert!(matches!(first.event, RequestEvent::Started { .. }));
            if let Some(RequestEvent::Progress { pages, .. }) = answer.next().await.map(|timed| timed.event) {
                let first = &pages[0];
                installation.install(first.layer, first.page, first.bytes.as_ref()).unwrap();
            }
            drop((answer, installation));
            while watched.status().totals.ended == round {
                assert!(watched.changed().await);
            }
        }
        // The status is of the end of a step, and the last pages may have been freed after the last one.
        tokens(host.submit(isolated(vec![7], 1)).await.unwrap()).await;
        let status = host.status();
        // On a busy machine some may have been computed before this thread came to leave them.
        let totals = status.totals;
        assert!(totals.cancelled > 0 && totals.prompt_tokens < 20 * 899, "{totals:?}");
        assert_eq!((totals.ended, status.memory.live_bytes), (21, 0));
    });
    drop(host);
    thread.join().unwrap();
}

#[test]
fn pages_that_may_not_be_used_any_more_are_refused_by_the_engine() {
    let ((producer, producing), (decoder, decoding)) = (start(128), start(128));
    runtime().block_on(async {
        let (prompt, maker) = (vec![7; 300], Maker([1; 32]));
        for is_taken_back in [true, false] {
            let mut installation = decoder.begin_installation(prompt.clone(), PrefixReuse::Share).await.unwrap();
            let is_trusted = Arc::new(AtomicBool::new(true));
            let asked = Arc::clone(&is_trusted);
            let answer = move || if asked.load(Ordering::SeqCst) { Ok(()) } else { Err("it is revoked".into()) };
            installation.comes_from(maker, Voucher::new(answer));
            bring(&producer, &mut installation).await;
            let installed = installation.finish().unwrap();
            match is_taken_back {
                true => decoder.take_back(maker),
                false => is_trusted.store(false, Ordering::SeqCst),
            }
            let refused = decoder.submit(Job::generate_from(installed, prompt[299], greedy(3))).await.unwrap_err();
            let words = if is_taken_back { Untrusted::TakenBack.to_string() } else { "it is revoked".into() };
            assert!(matches!(&refused, Refused::Untrusted(_)) && refused.to_string() == words, "{refused:?}");
        }
        assert_eq!(tokens(decoder.submit(request(prompt, 3)).await.unwrap()).await.0, 0);
    });
    drop((producer, decoder));
    producing.join().unwrap();
    decoding.join().unwrap();
}
