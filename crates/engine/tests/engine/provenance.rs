//! Pages that a machine got wrong: taken back wherever they are, and nothing else with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use muser_engine::engine::{Installation, Installed, Job, PageBytes, PrefixReuse, ReadyPage, Verdict};
use muser_kv::{KvLayout, Maker, Untrusted, Voucher};
use muser_model::Model;

use crate::installation::{computed_elsewhere, install, receiver};
use crate::world::{Solo, World, assert_same_answer, glimmer, greedy, llama, random_tokens};

const CHEAT: Maker = Maker([1; 32]);
const HONEST: Maker = Maker([2; 32]);
const SHARE: PrefixReuse = PrefixReuse::Share;

fn vouched() -> Voucher {
    Voucher::new(|| Ok(()))
}

/// One bit of every page is flipped, in a row that is used.
fn wrong(pages: &[ReadyPage]) -> Vec<ReadyPage> {
    let flip = |ready: &ReadyPage| {
        let mut bytes = ready.bytes.as_ref().to_vec();
        bytes[5] ^= 0x40;
        ReadyPage { layer: ready.layer, page: ready.page, bytes: PageBytes::Partial(bytes) }
    };
    pages.iter().map(flip).collect()
}

/// The rest of an installation comes from `maker`: wrong, if that is who cheats.
fn bring(model: &Arc<Model>, mut installation: Installation, maker: Maker) -> Installed {
    let pages = computed_elsewhere(model, KvLayout::Q8, &installation);
    installation.comes_from(maker, vouched());
    install(&mut installation, &if maker == CHEAT { wrong(&pages) } else { pages });
    installation.finish().unwrap()
}

/// A prompt whose pages `maker` brought, and that was answered.
fn answered(world: &mut World, model: &Arc<Model>, prompt: &[u32], maker: Maker) {
    let installation = world.engine.begin_installation(prompt, SHARE).unwrap();
    let installed = bring(model, installation, maker);
    world.engine.submit(greedy(prompt, 1).job_from(installed)).unwrap();
    world.finish();
}

/// An order to take back, by name.
type Order = (&'static str, fn(&mut World));

/// Either order: one maker's pages, or everything.
fn orders() -> [Order; 2] {
    [("one maker", |world| world.engine.take_back(CHEAT)), ("everything", |world| world.engine.forget_prefixes())]
}

#[test]
fn an_installation_that_shares_wrong_pages_does_not_bring_them_back() {
    for (order, take_back) in orders() {
        let mut random = fastrand::Rng::with_seed(77);
        let model = llama();
        let (mut world, mut alone) = (receiver(&model, KvLayout::Q8), Solo::new(&model, KvLayout::Q8));
        let first = random_tokens(&mut random, 193);
        answered(&mut world, &model, &first, CHEAT);
        let second = [first.clone(), random_tokens(&mut random, 200)].concat();
        let under_way = world.engine.begin_installation(&second, SHARE).unwrap();
        assert_eq!(under_way.held_pages(), 3);
        take_back(&mut world);
        assert_eq!(world.engine.prefix_bytes(), 0, "{order}");
        let installed = bring(&model, under_way, HONEST);
        assert_eq!(world.engine.trusts(&installed), Err(Untrusted::TakenBack));
        let id = world.engine.submit(greedy(&second, 4).job_from(installed)).unwrap();
        world.finish();
        assert_eq!(world.stories[&id].reused, Some(0));
        assert_same_answer(&world.stories[&id], &alone.run(&greedy(&second, 4)), order);
        let third = greedy(&[first, vec![1, 2, 3]].concat(), 4);
        let story = world.run(third.clone());
        assert_eq!(story.reused, Some(0), "{order}: wrong pages were kept again");
        assert_same_answer(&story, &alone.run(&third), order);
    }
}

#[test]
fn wrong_pages_that_wait_or_run_are_computed_here_and_those_brought_before_are_not_used() {
    for (order, take_back) in orders() {
        // Steps between the submission and the order; with none, the order comes first.
        for steps in [None, Some(0), Some(1), Some(3)] {
            let mut random = fastrand::Rng::with_seed(78);
            let model = glimmer(100, &[true, false]);
            let (mut world, mut alone) = (receiver(&model, KvLayout::Q8), Solo::new(&model, KvLayout::Q8));
            let prompt = random_tokens(&mut random, 193);
            let installation = world.engine.begin_installation(&prompt, SHARE).unwrap();
            let installed = bring(&model, installation, CHEAT);
            let early = steps.is_none();
            if early {
                take_back(&mut world);
            }
            let id = world.engine.submit(greedy(&prompt, 8).job_from(installed)).unwrap();
            for _ in 0..steps.unwrap_or(0) {
                world.step();
            }
            if !early {
                take_back(&mut world);
            }
            world.finish();
            if steps.unwrap_or(0) == 0 {
                assert_same_answer(&world.stories[&id], &alone.run(&greedy(&prompt, 8)), order);
            }
            let again = greedy(&prompt, 4);
            let story = world.run(again.clone());
            assert_eq!(story.reused, Some(0), "{order} after {steps:?} steps: wrong pages are kept");
            assert_same_answer(&story, &alone.run(&again), order);
        }
    }
}

#[test]
fn what_others_made_stays_and_so_does_what_was_computed_before_the_wrong_pages() {
    let mut random = fastrand::Rng::with_seed(79);
    let model = llama();
    let (mut world, mut alone) = (receiver(&model, KvLayout::Q8), Solo::new(&model, KvLayout::Q8));
    let (ours, theirs) = (random_tokens(&mut random, 150), random_tokens(&mut random, 193));
    world.run(greedy(&ours, 1));
    answered(&mut world, &model, &theirs, HONEST);
    // Wrong pages behind ours and behind the honest node's, and computed ones behind the wrong ones.
    for before in [&ours, &theirs] {
        let longer = [before.clone(), random_tokens(&mut random, 150)].concat();
        answered(&mut world, &model, &longer, CHEAT);
        world.run(greedy(&[longer, random_tokens(&mut random, 100)].concat(), 1));
    }
    world.engine.take_back(CHEAT);
    for (before, reused) in [(ours, 128), (theirs, 192)] {
        let request = greedy(&[before, vec![4; 300]].concat(), 4);
        let story = world.run(request.clone());
        assert_eq!(story.reused, Some(reused));
        assert_same_answer(&story, &alone.run(&request), "what stays");
    }
}

#[test]
fn a_machine_that_is_readmitted_is_used_again() {
    let mut random = fastrand::Rng::with_seed(80);
    let model = llama();
    let mut world = receiver(&model, KvLayout::Q8);
    let prompt = random_tokens(&mut random, 193);
    world.engine.take_back(HONEST);
    answered(&mut world, &model, &prompt, HONEST);
    assert_eq!(world.run(greedy(&prompt, 1)).reused, Some(192));
}

#[test]
fn a_voucher_is_asked_when_pages_are_submitted_started_from_and_left_to_others() {
    // Steps after which it says no: before the submission, in the queue, and under way.
    for steps in [None, Some(0), Some(1)] {
        let mut random = fastrand::Rng::with_seed(81);
        let model = llama();
        let mut world = receiver(&model, KvLayout::Q8);
        let prompt = random_tokens(&mut random, 193);
        let mut installation = world.engine.begin_installation(&prompt, SHARE).unwrap();
        let pages = computed_elsewhere(&model, KvLayout::Q8, &installation);
        let is_trusted = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&is_trusted);
        let answer = move || if asked.load(Ordering::SeqCst) { Ok(()) } else { Err("revoked".into()) };
        installation.comes_from(HONEST, Voucher::new(answer));
        install(&mut installation, &pages);
        let installed = installation.finish().unwrap();
        if steps.is_none() {
            is_trusted.store(false, Ordering::SeqCst);
            assert_eq!(world.engine.trusts(&installed), Err(Untrusted::NotVouchedFor { reason: "revoked".into() }));
        }
        let id = world.engine.submit(greedy(&prompt, 70).job_from(installed)).unwrap();
        for _ in 0..steps.unwrap_or(0) {
            world.step();
        }
        let kept = world.engine.prefix_bytes();
        is_trusted.store(false, Ordering::SeqCst);
        world.finish();
        let started_from = if steps == Some(1) { 192 } else { 0 };
        assert_eq!(world.stories[&id].reused, Some(started_from), "{steps:?}");
        // What was visible before stays, and nothing came to it.
        assert_eq!(world.engine.prefix_bytes(), kept, "{steps:?}");
    }
}

#[test]
fn an_audit_from_the_first_row_finds_whose_page_is_wrong_behind_and_before_the_honest_ones() {
    let mut random = fastrand::Rng::with_seed(82);
    let model = llama();
    for makers in [[CHEAT, HONEST], [HONEST, CHEAT], [HONEST, HONEST]] {
        let mut world = receiver(&model, KvLayout::Q8);
        let first = random_tokens(&mut random, 193);
        answered(&mut world, &model, &first, makers[0]);
        let second = [first, random_tokens(&mut random, 200)].concat();
        let installation = world.engine.begin_installation(&second, SHARE).unwrap();
        assert_eq!(installation.held_pages(), 3);
        let installed = bring(&model, installation, makers[1]);
        let audit = installed.audit(installed.beginning(0), 4..6).unwrap();
        let id = world.engine.submit(Job::audit(audit)).unwrap();
        world.finish();
        let found = match world.stories[&id].verdict.unwrap() {
            Verdict::Differs(mismatch) => installed.makers(mismatch.layer, mismatch.page).only(),
            Verdict::Same { pages, .. } => {
                assert_eq!(pages, 6 * model.config().layers.len());
                None
            }
            other @ Verdict::NotFinite(_) => panic!("{other:?}"),
        };
        assert_eq!(found, makers.contains(&CHEAT).then_some(CHEAT));
    }
}
