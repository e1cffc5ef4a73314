//! Pulls that are stopped, that meet each other, and that find the disk full.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::thread;

use muser_hub::{Error, PullEvent};

use crate::support::hub::FakeHub;
use crate::support::{Body, Gate, Reply, Server};
use crate::{Home, content, name_of, request};

#[test]
fn of_two_pulls_of_one_file_one_waits_and_then_has_it() {
    let whole = content(300_000);
    let fake = FakeHub::start(&[("m.gguf", &whole)]);
    let gate = Arc::new(Gate::default());
    let at_storage = gate.clone();
    fake.trouble(move |_, content| Some(Reply::new(200, Body::Gated(content.into(), at_storage.clone()))));
    let home = Home::new(&fake.hub.url);
    let second_may_begin = Gate::default();
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            home.hub().pull(&request("user/repo"), &mut |event| {
                // By now it holds the lock, and cannot end before the other one waits.
                if name_of(&event) == "received" {
                    second_may_begin.open();
                }
                ControlFlow::Continue(())
            })
        });
        second_may_begin.wait();
        let mut events = Vec::new();
        let second = home.hub().pull(&request("user/repo"), &mut |event| {
            events.push(name_of(&event));
            if let PullEvent::Waiting { file } = event {
                assert_eq!(file, "m.gguf");
                gate.open();
            }
            ControlFlow::Continue(())
        });
        let (first, second) = (first.join().unwrap().unwrap(), second.unwrap());
        assert_eq!(first.files[0].path, second.files[0].path);
        assert!(!first.files[0].from_cache && second.files[0].from_cache);
        assert_eq!(events.iter().filter(|name| **name == "waiting").count(), 1, "{events:?}");
        assert!(!events.contains(&"began"), "{events:?}");
    });
    assert_eq!(home.bytes(&request("user/repo")), whole);
    assert_eq!(fake.storage.asked().len(), 1);
}

#[test]
fn who_waits_for_another_pull_can_be_stopped() {
    let gate = Arc::new(Gate::default());
    let at_server = gate.clone();
    let server = Server::start(move |_| Reply::new(200, Body::Gated(content(1000), at_server.clone())));
    let home = Home::new(&server.url);
    let wanted = request(&format!("{}/m.gguf", server.url));
    let second_may_begin = Gate::default();
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            home.hub().pull(&wanted, &mut |event| {
                if name_of(&event) == "received" {
                    second_may_begin.open();
                }
                ControlFlow::Continue(())
            })
        });
        second_may_begin.wait();
        for stop_at in ["waiting", "idle"] {
            let second = home.hub().pull(&wanted, &mut |event| {
                if name_of(&event) == stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(matches!(second, Err(Error::Stopped)));
        }
        gate.open();
        first.join().unwrap().unwrap();
    });
    assert_eq!(home.bytes(&wanted), content(1000));
}

#[test]
fn a_stopped_pull_keeps_what_came_and_the_next_goes_on() {
    let whole = content(1_000_000);
    let served = whole.clone();
    let server = Server::start(move |asked| Reply::file(asked, &served, "\"e\""));
    let home = Home::new(&server.url);
    let wanted = request(&format!("{}/m.gguf", server.url));
    let mut had = 0;
    let stopped = home.hub().pull(&wanted, &mut |event| match event {
        PullEvent::Received { have } if have >= 300_000 => {
            had = have;
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(Error::Stopped)));
    let (_, kept) = home.partial();
    assert_eq!((kept.len() as u64, &kept[..]), (had, &whole[..kept.len()]));
    let began = Mutex::new(Vec::new());
    let pulled = home.hub().pull(&wanted, &mut |event| {
        if let PullEvent::Began { bytes, have, .. } = event {
            began.lock().unwrap().push((bytes, have));
        }
        ControlFlow::Continue(())
    });
    assert_eq!(std::fs::read(&pulled.unwrap().files[0].path).unwrap(), whole);
    assert_eq!(*began.lock().unwrap(), [(Some(1_000_000), had)]);
}

#[test]
fn a_pause_before_another_attempt_can_be_ended() {
    let server = Server::start(|_| Reply::status(503));
    let mut home = Home::new(&server.url);
    home.settings.retry_pauses = vec![std::time::Duration::from_secs(3600)];
    let mut idle = 0;
    let stopped = home.hub().pull(&request(&format!("{}/m.gguf", server.url)), &mut |event| {
        idle += usize::from(name_of(&event) == "idle");
        if idle == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(Error::Stopped)));
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let server = Server::start(|_| Reply::ok("x"));
    let home = Home::new(&server.url);
    // A file where the folder should be.
    std::fs::write(home.path().join("downloads"), "").unwrap();
    let error = home.pull(&request(&format!("{}/m.gguf", server.url))).unwrap_err();
    assert!(matches!(&error, Error::Disk { .. }) && error.to_string().contains("downloads"), "{error}");
}
