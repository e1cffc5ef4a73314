//! Long work that is not the engine's runs in the pool; without room there, a request is refused.

use std::time::Duration;

use muser_server::ConnectionLimits;
use serde_json::{Value, json};

use crate::client::begin;
use crate::world::{Setup, World, shipped};

/// A server whose pool has no threads: what needs one is refused at once.
fn without_threads() -> World {
    let mut setup = Setup::of(shipped());
    let pool_patience = Duration::from_millis(1);
    setup.server.limits = ConnectionLimits { pool_threads: 0, pool_patience, ..ConnectionLimits::default() };
    World::start(setup)
}

#[test]
fn large_bodies_and_templates_are_left_to_the_pool_and_small_bodies_are_not() {
    let world = without_threads();
    let large = "a ".repeat(40_000);
    let in_the_pool: [(&str, Value); 6] = [
        ("/completion", json!({"prompt": large})),
        ("/v1/completions", json!({"prompt": large})),
        ("/tokenize", json!({"content": large})),
        ("/detokenize", json!({"tokens": vec![300; 40_000]})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "Hi"}]})),
        ("/apply-template", json!({"messages": [{"role": "user", "content": "Hi"}]})),
    ];
    for (path, body) in in_the_pool {
        let answer = world.post(path, &body);
        assert!(answer.refused(503, "unavailable_error").contains("busy"), "{path}");
        assert_eq!(answer.header("retry-after"), Some("1"), "{path}");
    }
    let inline = [
        ("/completion", json!({"prompt": "Once", "n_predict": 1})),
        ("/v1/completions", json!({"prompt": "Once", "max_tokens": 1})),
        ("/tokenize", json!({"content": "Once"})),
        ("/detokenize", json!({"tokens": [300]})),
    ];
    for (path, body) in inline {
        world.post(path, &body).ok();
    }
    assert_eq!(begin(world.address, "GET", "/health", &[], b"").finish().status, 200);
}
