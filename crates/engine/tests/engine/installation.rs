//! Keys and values that another engine computed: whole or not at all, and then as if they had been computed here.

use std::sync::Arc;

use muser_engine::EngineSettings;
use muser_engine::engine::{Installation, Job, NotInstallable, PrefixReuse, ReadyPage, RequestEvent};
use muser_kv::{InstallError, KvLayout};
use muser_model::Model;

use crate::world::{
    LAYOUTS, Request, Solo, World, assert_same_answer, engine, glimmer, greedy, llama, non_zero, pages, qwen2, qwen3,
    random_tokens, roomy,
};

/// An engine that takes pages.
pub fn receiver(model: &Arc<Model>, kv: KvLayout) -> World {
    World::new(model, EngineSettings { installed_bytes_max: 1 << 28, ..roomy(kv) })
}

/// The pages that another engine computes for an installation, in the order in which they are ready.
pub fn computed_elsewhere(model: &Arc<Model>, kv: KvLayout, installation: &Installation) -> Vec<ReadyPage> {
    let mut engine = engine(model, roomy(kv));
    engine.submit(Job::export(installation.tokens(), PrefixReuse::Share, installation.held_pages())).unwrap();
    let mut ready = Vec::new();
    while engine.has_work() {
        engine
            .step(&mut |_, event| {
                if let RequestEvent::Progress { pages, .. } = event {
                    ready.extend(pages);
                }
            })
            .unwrap();
    }
    let layers = 0..installation.spec().layers().len();
    assert_eq!(ready.len(), layers.map(|layer| installation.missing_pages(layer).len()).sum::<usize>());
    // The engine is gone when the pages are used.
    ready
}

pub fn install(installation: &mut Installation, ready: &[ReadyPage]) {
    for ReadyPage { layer, page, bytes } in ready {
        installation.install(*layer, *page, bytes.as_ref()).unwrap();
    }
}

/// Brings the prompt's keys and values into the world, and answers.
fn run_installed(world: &mut World, model: &Arc<Model>, request: Request) -> (usize, crate::world::Story) {
    let kv = world.engine.settings().kv;
    let mut installation = world.engine.begin_installation(&request.prompt, request.reuse).unwrap();
    let held = installation.held_pages();
    let ready = computed_elsewhere(model, kv, &installation);
    install(&mut installation, &ready);
    let id = world.engine.submit(request.job_from(installation.finish().unwrap())).unwrap();
    world.finish();
    (held, world.stories[&id].clone())
}

pub fn models() -> Vec<Arc<Model>> {
    vec![llama(), qwen2(), qwen3(), glimmer(100, &[true, false]), glimmer(32, &[true, true, false])]
}

#[test]
fn what_was_computed_elsewhere_answers_with_the_bits_of_what_is_computed_here() {
    let mut random = fastrand::Rng::with_seed(31);
    for (index, model) in models().iter().enumerate() {
        for kv in LAYOUTS {
            let (mut world, mut alone) = (receiver(model, kv), Solo::new(model, kv));
            for length in [2, 3, 64, 65, 66, 128, 129, 130, 193, 500] {
                let request = greedy(&random_tokens(&mut random, length), 70);
                let (held, story) = run_installed(&mut world, model, request.clone());
                assert_eq!((held, story.reused), (0, Some(length - 1)));
                assert_same_answer(&story, &alone.run(&request), &format!("model {index}, {kv:?}, {length} tokens"));
            }
            let (live, kept) = (world.engine.installed_memory().live_bytes, world.engine.prefix_bytes());
            assert!(live <= kept, "{live} bytes are held and {kept} are kept");
        }
    }
}

#[test]
fn only_pages_that_are_not_held_have_to_come() {
    let mut random = fastrand::Rng::with_seed(32);
    for model in models() {
        for kv in LAYOUTS {
            let mut alone = Solo::new(&model, kv);
            let whole = random_tokens(&mut random, 400);
            for before in [0, 1, 63, 64, 65, 200, 398, 399, 400] {
                let mut world = receiver(&model, kv);
                if before > 0 {
                    world.run(greedy(&whole[..before], 1));
                }
                let request = greedy(&whole, 70);
                let (held, story) = run_installed(&mut world, &model, request.clone());
                assert_eq!(held, before / 64, "{before}");
                assert_same_answer(&story, &alone.run(&request), &format!("{kv:?}, {before} held"));
            }
        }
    }
}

#[test]
fn company_changes_nothing_and_neither_does_an_interruption() {
    let mut random = fastrand::Rng::with_seed(33);
    let (model, kv) = (glimmer(32, &[true, false]), KvLayout::Q8);
    let budget_bytes = pages(&model, kv, 17 * 2);
    let settings = EngineSettings {
        budget_bytes,
        prefix_bytes_max: budget_bytes,
        installed_bytes_max: 1 << 28,
        running_max: non_zero(8),
        ..roomy(kv)
    };
    let (mut world, mut alone) = (World::new(&model, settings), Solo::new(&model, kv));
    let mut requests = Vec::new();
    for round in 0..8 {
        let request = greedy(&random_tokens(&mut random, 20 + 10 * round), 330);
        let id = if round % 2 == 0 {
            world.submit(request.clone())
        } else {
            let mut installation = world.engine.begin_installation(&request.prompt, request.reuse).unwrap();
            let ready = computed_elsewhere(&model, kv, &installation);
            install(&mut installation, &ready);
            world.engine.submit(request.job_from(installation.finish().unwrap())).unwrap()
        };
        world.step();
        requests.push((id, request));
    }
    world.finish();
    let mut interrupted = 0;
    for (index, (id, request)) in requests.iter().enumerate() {
        let story = &world.stories[id];
        interrupted += usize::from(index % 2 == 1 && story.preempted > 0);
        assert_same_answer(story, &alone.run(request), &format!("request {index}"));
    }
    assert!(interrupted > 0, "no installed sequence was interrupted");
}

#[test]
fn an_installation_that_is_not_whole_leaves_nothing_behind() {
    let (model, kv) = (glimmer(100, &[true, false]), KvLayout::F16);
    let mut world = receiver(&model, kv);
    let prompt = random_tokens(&mut fastrand::Rng::with_seed(34), 300);
    world.run(greedy(&prompt[..100], 1));
    let before = (world.engine.memory(), world.engine.installed_memory().live_bytes, world.engine.prefix_bytes());
    let begin = |world: &mut World| world.engine.begin_installation(&prompt, PrefixReuse::Share).unwrap();
    let ready = computed_elsewhere(&model, kv, &begin(&mut world));
    for left_out in 0..ready.len() {
        let mut installation = begin(&mut world);
        let mut pages = ready.clone();
        pages.remove(left_out);
        install(&mut installation, &pages);
        assert!(matches!(installation.finish(), Err(InstallError::Missing { missing: 1, .. })));
    }
    let mut abandoned = begin(&mut world);
    install(&mut abandoned, &ready[..3]);
    drop(abandoned);
    let after = (world.engine.memory(), world.engine.installed_memory().live_bytes, world.engine.prefix_bytes());
    assert_eq!(before, after);
}

#[test]
fn installations_have_room_of_their_own_and_are_refused_beyond_it() {
    let (model, kv) = (llama(), KvLayout::Q8);
    let mut random = fastrand::Rng::with_seed(35);
    let installed_bytes_max = pages(&model, kv, 2 * 10);
    let mut world = World::new(&model, EngineSettings { installed_bytes_max, ..roomy(kv) });
    let mut begin = |world: &mut World, tokens: usize| {
        world.engine.begin_installation(&random_tokens(&mut random, tokens), PrefixReuse::Share)
    };
    assert_eq!(begin(&mut world, 0).unwrap_err(), NotInstallable::TooShort { tokens: 0 });
    assert_eq!(begin(&mut world, 1).unwrap_err(), NotInstallable::TooShort { tokens: 1 });
    assert_eq!(begin(&mut world, 1024).unwrap_err(), NotInstallable::TooLong { tokens: 1024, context: 1024 });
    let wanted_bytes = pages(&model, kv, 2 * 11);
    let refused = NotInstallable::NoRoom { wanted_bytes, free_bytes: installed_bytes_max };
    assert_eq!(begin(&mut world, 64 * 10 + 2).unwrap_err(), refused);
    // What was installed before, and is only kept, makes way.
    for seed in 0..5 {
        let request = greedy(&random_tokens(&mut fastrand::Rng::with_seed(seed), 64 * 10 + 1), 1);
        let (_, story) = run_installed(&mut world, &model, request);
        assert!(story.outcome.is_some());
    }
    assert!(world.engine.installed_memory().live_bytes > 0);
}

#[test]
fn pages_that_somebody_outside_shares_stop_no_request_and_change_no_answer() {
    for (model, layers) in [(llama(), 2), (glimmer(100, &[true, false]), 2)] {
        for kv in LAYOUTS {
            let mut random = fastrand::Rng::with_seed(36);
            let budget_bytes = pages(&model, kv, 10 * layers);
            let settings = EngineSettings {
                budget_bytes,
                prefix_bytes_max: budget_bytes,
                installed_bytes_max: 1 << 28,
                ..roomy(kv)
            };
            let (mut world, mut alone) = (World::new(&model, settings), Solo::new(&model, kv));
            let kept = random_tokens(&mut random, 450);
            world.run(greedy(&kept[..400], 0));
            // An installation that shares kept pages, and pages that are on their way to a receiver.
            let installation = world.engine.begin_installation(&kept, PrefixReuse::Share).unwrap();
            assert_eq!(installation.held_pages(), 6);
            let exported = random_tokens(&mut random, 300);
            let mut on_their_way = Vec::new();
            world.engine.submit(Job::export(exported, PrefixReuse::Share, 0)).unwrap();
            while world.engine.has_work() {
                let mut take = |_, event| {
                    if let RequestEvent::Progress { pages, .. } = event {
                        on_their_way.extend(pages);
                    }
                };
                world.engine.step(&mut take).unwrap();
            }
            let shared = world.engine.memory().live_bytes;
            let requests: Vec<Request> = (0..3).map(|_| greedy(&random_tokens(&mut random, 380), 70)).collect();
            let ids: Vec<_> = requests.iter().map(|request| world.submit(request.clone())).collect();
            let mut most = 0;
            while world.engine.has_work() {
                world.step();
                most = most.max(world.engine.memory().live_bytes);
            }
            for (id, request) in ids.iter().zip(&requests) {
                assert_same_answer(&world.stories[id], &alone.run(request), &format!("{layers} layers, {kv:?}"));
            }
            assert!(most > budget_bytes && most <= budget_bytes + shared, "{most} of {budget_bytes}, {shared} shared");
            drop((installation, on_their_way));
            world.run(greedy(&random_tokens(&mut random, 100), 1));
            let memory = world.engine.memory();
            assert!(memory.live_bytes + memory.free_bytes <= budget_bytes, "{memory:?}");
        }
    }
}
