//! A device that fails or has no room: each request that waits gets the reason as its error.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use muser_engine::engine::RequestEvent;
use muser_host::Refused;
use muser_model::testing::{Fault, Faults};

use crate::world::{isolated, runtime, start_faulty};

/// The last event of a request.
async fn last_event(mut answer: muser_host::Answer) -> Option<RequestEvent> {
    let mut last = None;
    while let Some(timed) = answer.next().await {
        last = Some(timed.event);
    }
    last
}

#[test]
fn everybody_who_waits_when_the_device_fails_is_told_and_the_status_says_why_the_engine_is_gone() {
    let steps = AtomicUsize::new(0);
    let faults: Faults = Arc::new(move |_| (steps.fetch_add(1, Ordering::Relaxed) == 3).then(Fault::lost));
    let (host, thread) = start_faulty(128, faults);
    runtime().block_on(async {
        let mut answers = Vec::new();
        // Two run and two wait.
        for token in 5..9 {
            answers.push(host.submit(isolated(vec![token; 900], 10)).await.unwrap());
        }
        for answer in answers {
            match last_event(answer).await {
                Some(RequestEvent::Failed(error)) => {
                    assert_eq!(error.to_string(), "the faulty device failed: it was taken away")
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(host.status().failure.as_deref(), Some("the faulty device failed: it was taken away"));
        assert_eq!((host.status().running(), host.status().waiting), (0, 0));
        assert_eq!(host.submit(isolated(vec![5], 1)).await.unwrap_err(), Refused::Stopped);
    });
    thread.join().unwrap();
}

#[test]
fn an_answer_that_the_device_cannot_hold_fails_and_the_next_one_is_given() {
    let faults: Faults =
        Arc::new(|batch| batch.iter().any(|input| input.cache.rows() >= 128).then(|| Fault::out_of_memory(4096)));
    let (host, thread) = start_faulty(128, faults);
    runtime().block_on(async {
        let short = || isolated(vec![6; 20], 10);
        let long = host.submit(isolated(vec![5; 900], 10)).await.unwrap();
        let beside = host.submit(short()).await.unwrap();
        match last_event(long).await {
            Some(RequestEvent::Failed(error)) => {
                assert!(error.to_string().contains("no 4096 bytes of memory"), "{error}")
            }
            other => panic!("{other:?}"),
        }
        for answer in [beside, host.submit(short()).await.unwrap()] {
            assert!(matches!(last_event(answer).await, Some(RequestEvent::Finished(_))));
        }
        assert_eq!(host.status().failure, None);
    });
    drop(host);
    thread.join().unwrap();
}
