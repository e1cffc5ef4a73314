//! Audits through the engine's host: a verdict between other work, cancelled when its future is dropped, and nothing
//! left of either.

use std::sync::Arc;

use muser_engine::engine::{Audit, Installation, Installed, Job, PrefixReuse, RequestError, RequestEvent, Verdict};
use muser_host::{Answer, EngineHost, Refused};
use muser_model::testing::{Fault, Faults};

use crate::world::{isolated, runtime, start, start_faulty};

fn prompt(tokens: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(9);
    (0..tokens).map(|_| random.u32(3..4096)).collect()
}

/// Has the pages computed that the installation lacks, with a bit flipped in the page `wrong` names.
async fn bring(producer: &EngineHost, mut installation: Installation, wrong: Option<(usize, usize)>) -> Installed {
    let wanted = installation.tokens().to_vec();
    let mut answer =
        producer.submit(Job::export(wanted, PrefixReuse::Isolate, installation.held_pages())).await.unwrap();
    while let Some(timed) = answer.next().await {
        match timed.event {
            RequestEvent::Progress { pages, .. } => {
                for ready in pages {
                    let mut bytes = ready.bytes.as_ref().to_vec();
                    bytes[1000] ^= u8::from(wrong == Some((ready.layer, ready.page)));
                    installation.install(ready.layer, ready.page, &bytes).unwrap();
                }
            }
            RequestEvent::Finished(_) => break,
            RequestEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    installation.finish().unwrap()
}

/// An audit of a page, which has the window before it brought again if it must.
async fn audit_of(decoder: &EngineHost, producer: &EngineHost, installed: &Installed, page: usize) -> Audit {
    let mut base = installed.beginning(page);
    if base.first_lacking().is_some() {
        let installation = decoder.begin_base(base.clone()).await.unwrap();
        base = base.completed_by(&bring(producer, installation, None).await);
    }
    installed.audit(base, page..page + 1).unwrap()
}

async fn finish(mut answer: Answer) {
    while answer.next().await.is_some() {}
}

#[test]
fn a_verdict_comes_while_others_generate_and_names_the_wrong_page() {
    let (producer, producing) = start(128);
    let (decoder, decoding) = start(128);
    runtime().block_on(async {
        let begin = || decoder.begin_installation(prompt(1500), PrefixReuse::Share);
        let honest = bring(&producer, begin().await.unwrap(), None).await;
        let received = honest.received_pages();
        let layers =
            decoder.begin_installation(prompt(1500), PrefixReuse::Share).await.unwrap().spec().layers().to_vec();
        let global = layers.iter().rposition(|layer| layer.window.is_none()).unwrap();
        let wrong = bring(&producer, begin().await.unwrap(), Some((global, 5))).await;
        let other = decoder.submit(isolated(vec![5, 6, 7], 200)).await.unwrap();
        for page in [received.start, 5, received.end - 1] {
            let audit = audit_of(&decoder, &producer, &honest, page).await;
            let tokens = audit.tokens();
            match decoder.audit(audit).await.unwrap() {
                Verdict::Same { tokens: found, pages } => assert!(found == tokens && pages > 0),
                other => panic!("{other:?}"),
            }
        }
        let audit = audit_of(&decoder, &producer, &wrong, 5).await;
        match decoder.audit(audit).await.unwrap() {
            Verdict::Differs(found) => assert_eq!((found.layer, found.page, found.byte), (global, 5, 1000)),
            other => panic!("{other:?}"),
        }
        finish(other).await;
        // Only what was asked for counts as a request.
        assert_eq!(decoder.status().totals.ended, 1);
    });
    drop((producer, decoder));
    producing.join().unwrap();
    decoding.join().unwrap();
}

#[test]
fn an_audit_that_nobody_waits_for_ends_and_leaves_nothing() {
    let (producer, producing) = start(128);
    let (decoder, decoding) = start(16);
    runtime().block_on(async {
        let installation = decoder.begin_installation(prompt(1500), PrefixReuse::Share).await.unwrap();
        let installed = bring(&producer, installation, None).await;
        let mut watched = decoder.clone();
        for _ in 0..10 {
            let audit = installed.audit(installed.beginning(0), 20..23).unwrap();
            let mut running = Box::pin(decoder.audit(audit));
            // It runs once the door has seen it run.
            while watched.status().running() == 0 {
                tokio::select! {
                    biased;
                    verdict = &mut running => panic!("{verdict:?} before it was seen to run"),
                    changed = watched.changed() => assert!(changed),
                }
            }
            let task = watched.status().slots[0].task.unwrap();
            assert!(task.prompt_tokens == 23 * 64 && task.computed_tokens < 23 * 64, "{task:?}");
            drop(running);
            while watched.status().running() > 0 {
                assert!(watched.changed().await);
            }
        }
        finish(decoder.submit(isolated(vec![7], 1)).await.unwrap()).await;
        // All ten to their ends would be 92 steps each; on a busy machine some may end before this thread leaves them.
        let status = decoder.status();
        assert!(status.totals.steps < 10 * 92, "{:?}", status.totals);
        assert_eq!(status.memory.live_bytes, 0);
    });
    drop((producer, decoder));
    producing.join().unwrap();
    decoding.join().unwrap();
}

#[test]
fn an_audit_that_the_device_cannot_hold_has_no_verdict_and_blames_nobody() {
    let faults: Faults =
        Arc::new(|batch| batch.iter().any(|input| input.cache.rows() >= 128).then(|| Fault::out_of_memory(4096)));
    let (host, thread) = start_faulty(128, faults);
    let (producer, producing) = start(128);
    runtime().block_on(async {
        let installation = host.begin_installation(prompt(1500), PrefixReuse::Share).await.unwrap();
        let installed = bring(&producer, installation, None).await;
        let refused = host.audit(installed.audit(installed.beginning(0), 20..23).unwrap()).await.unwrap_err();
        assert!(matches!(refused, Refused::Failed(RequestError::DeviceMemory(_))), "{refused}");
        assert_eq!((host.status().running(), host.status().failure), (0, None));
    });
    drop((host, producer));
    thread.join().unwrap();
    producing.join().unwrap();
}

#[test]
fn an_audit_under_way_when_the_engine_is_stopped_has_no_verdict() {
    let (host, thread) = start(128);
    let (producer, producing) = start(128);
    runtime().block_on(async {
        let installation = host.begin_installation(prompt(1500), PrefixReuse::Share).await.unwrap();
        let installed = bring(&producer, installation, None).await;
        let audit = || installed.audit(installed.beginning(0), 20..23).unwrap();
        let under_way = host.audit(audit());
        tokio::pin!(under_way);
        // The order is given when the future is polled first.
        tokio::select! {
            biased;
            verdict = &mut under_way => panic!("{verdict:?}"),
            () = std::future::ready(()) => host.stop(),
        }
        assert!(matches!(under_way.await, Err(Refused::Stopped)));
        assert!(matches!(host.audit(audit()).await, Err(Refused::Stopped)));
    });
    drop((host, producer));
    thread.join().unwrap();
    producing.join().unwrap();
}
