//! Audits of what another engine sent: honest pages pass, and whatever is not what is computed here is found and named.

use std::ops::Range;
use std::sync::Arc;

use muser_engine::engine::{
    Audit, Installed, Job, Mismatch, NotAuditable, NotInstallable, PageBytes, PrefixReuse, ReadyPage, RequestId,
    SubmitError, Verdict,
};
use muser_engine::{ChunkRows, EngineSettings};
use muser_kv::{KvLayout, PAGE_ROWS, PageLayout, PageSet};
use muser_model::Model;

use crate::installation::{computed_elsewhere, install, models, receiver};
use crate::world::{
    LAYOUTS, Solo, World, assert_same_answer, glimmer, greedy, llama, non_zero, pages, random_tokens, roomy,
};

/// A prompt, and the pages that another engine sends for it.
struct Sent {
    prompt: Vec<u32>,
    pages: Vec<ReadyPage>,
}

impl Sent {
    fn of(world: &mut World, model: &Arc<Model>, prompt: Vec<u32>) -> Self {
        let installation = world.engine.begin_installation(&prompt, PrefixReuse::Share).unwrap();
        let pages = computed_elsewhere(model, world.engine.settings().kv, &installation);
        Self { prompt, pages }
    }

    fn install(&self, world: &mut World) -> Installed {
        let mut installation = world.engine.begin_installation(&self.prompt, PrefixReuse::Share).unwrap();
        install(&mut installation, &self.pages);
        installation.finish().unwrap()
    }

    /// The same with one bit flipped, which lies in a row that is used.
    fn flipped(&self, layout: PageLayout, index: usize, random: &mut fastrand::Rng) -> (Self, Flip) {
        let mut pages = self.pages.clone();
        let ReadyPage { layer, page, ref mut bytes } = pages[index];
        let rows = (self.prompt.len() - 1 - page * PAGE_ROWS).min(PAGE_ROWS);
        let mut changed = bytes.as_ref().to_vec();
        let byte = std::iter::repeat_with(|| random.usize(..changed.len()))
            .find(|byte| layout.place_of(*byte).row < rows)
            .unwrap();
        changed[byte] ^= 1 << random.u32(..8);
        let flip = Flip { layer, page, byte, now: changed[byte] };
        *bytes = PageBytes::Partial(changed);
        (Self { prompt: self.prompt.clone(), pages }, flip)
    }
}

#[derive(Clone, Copy, Debug)]
struct Flip {
    layer: usize,
    page: usize,
    byte: usize,
    now: u8,
}

/// An audit of `pages`, which goes on from what was installed, or else from the window's pages that come again.
fn audit(world: &mut World, model: &Arc<Model>, installed: &Installed, pages: Range<usize>) -> Audit {
    let mut base = installed.beginning(pages.start);
    if base.first_lacking().is_some() {
        let mut installation = world.engine.begin_base(&base).unwrap();
        let ready = computed_elsewhere(model, world.engine.settings().kv, &installation);
        install(&mut installation, &ready);
        base = base.completed_by(&installation.finish().unwrap());
    }
    installed.audit(base, pages).unwrap()
}

fn verdict(world: &mut World, audit: Audit) -> Verdict {
    let id = world.engine.submit(Job::audit(audit)).unwrap();
    world.finish();
    world.stories[&id].verdict.unwrap()
}

/// Bytes of pages in use, of installed pages and of kept prefixes: the same again after an audit.
fn holdings(world: &World) -> (usize, usize, usize) {
    (world.engine.memory().live_bytes, world.engine.installed_memory().live_bytes, world.engine.prefix_bytes())
}

#[test]
fn honest_pages_pass_whatever_range_is_audited_and_nothing_is_left_of_it() {
    let mut random = fastrand::Rng::with_seed(51);
    for (index, model) in models().iter().enumerate() {
        for kv in LAYOUTS {
            let mut world = receiver(model, kv);
            for (tokens, before) in [(2, 0), (65, 0), (129, 0), (330, 0), (330, 130)] {
                let prompt = random_tokens(&mut random, tokens);
                if before > 0 {
                    world.run(greedy(&prompt[..before], 1));
                }
                let sent = Sent::of(&mut world, model, prompt);
                let installed = sent.install(&mut world);
                let held = holdings(&world);
                let received = installed.received_pages();
                assert_eq!(received, before / PAGE_ROWS..(tokens - 1).div_ceil(PAGE_ROWS));
                for start in received.clone() {
                    for end in start + 1..=received.end {
                        let audit = audit(&mut world, model, &installed, start..end);
                        let count = sent.pages.iter().filter(|sent| (start..end).contains(&sent.page)).count();
                        let rows = (end * PAGE_ROWS).min(tokens - 1) - start * PAGE_ROWS;
                        assert_eq!(audit.tokens(), rows);
                        let same = Verdict::Same { tokens: rows, pages: count };
                        assert_eq!(verdict(&mut world, audit), same, "model {index}, {kv:?}, {tokens}: {start}..{end}");
                        assert_eq!(holdings(&world), held);
                    }
                }
            }
        }
    }
}

#[test]
fn a_flipped_bit_in_the_range_is_found_where_it_is() {
    let mut random = fastrand::Rng::with_seed(52);
    for model in models() {
        for kv in LAYOUTS {
            let mut world = receiver(&model, kv);
            let layout = model.cache_spec(kv, 1024).unwrap().layout();
            let sent = Sent::of(&mut world, &model, random_tokens(&mut random, 330));
            for index in 0..sent.pages.len() {
                let (wrong, flip) = sent.flipped(layout, index, &mut random);
                let installed = wrong.install(&mut world);
                let (start, end) = (random.usize(..=flip.page), random.usize(flip.page + 1..=6));
                let audit = audit(&mut world, &model, &installed, start..end);
                let Verdict::Differs(found) = verdict(&mut world, audit) else { panic!("{flip:?} is not found") };
                let place = layout.place_of(flip.byte);
                let want = Mismatch {
                    layer: flip.layer,
                    page: flip.page,
                    position: flip.page * PAGE_ROWS + place.row,
                    place,
                    byte: flip.byte,
                    received: flip.now,
                    computed: found.computed,
                };
                assert_eq!(found, want);
                assert_eq!((found.received ^ found.computed).count_ones(), 1);
                drop(installed);
                assert_eq!(holdings(&world), (0, 0, 0));
            }
        }
    }
}

#[test]
fn a_flipped_bit_before_the_range_shows_in_the_layers_behind_it() {
    let mut random = fastrand::Rng::with_seed(53);
    let (model, kv) = (llama(), KvLayout::F16);
    let mut world = receiver(&model, kv);
    let layout = model.cache_spec(kv, 1024).unwrap().layout();
    let sent = Sent::of(&mut world, &model, random_tokens(&mut random, 200));
    let mut found = [0; 2];
    for index in (0..sent.pages.len()).filter(|&index| sent.pages[index].page < 2).cycle().take(40) {
        let (wrong, flip) = sent.flipped(layout, index, &mut random);
        let installed = wrong.install(&mut world);
        let audit = audit(&mut world, &model, &installed, 2..4);
        match verdict(&mut world, audit) {
            Verdict::Differs(mismatch) => {
                assert!(mismatch.layer > flip.layer && mismatch.position >= 128, "{flip:?}: {mismatch:?}");
                found[flip.layer] += 1;
            }
            // A value that is not a number may come of it as well; what is lost in rounding, or is of the last layer, is
            // in no page behind it.
            Verdict::NotFinite(_) => found[flip.layer] += 1,
            Verdict::Same { .. } => {}
        }
    }
    assert!(found[0] >= 10 && found[1] == 0, "{found:?}");
}

#[test]
fn the_first_position_is_named_and_there_the_first_layer() {
    let mut random = fastrand::Rng::with_seed(54);
    let (model, kv) = (llama(), KvLayout::Q8);
    let mut world = receiver(&model, kv);
    let prompt = random_tokens(&mut random, 300);
    let sent = Sent::of(&mut world, &model, prompt.clone());
    // Pages of other tokens from position 150 on.
    let others: Vec<u32> = prompt.iter().enumerate().map(|(at, &t)| if at < 150 { t } else { (t + 1) % 300 }).collect();
    let other = Sent::of(&mut world, &model, others);
    let installed = Sent { prompt: sent.prompt, pages: other.pages }.install(&mut world);
    for (pages, position) in [(0..5, 150), (2..3, 150), (3..5, 192), (4..5, 256)] {
        let audit = audit(&mut world, &model, &installed, pages.clone());
        let Verdict::Differs(found) = verdict(&mut world, audit) else { panic!("not found") };
        assert_eq!((found.position, found.page, found.layer), (position, position / 64, 0), "{pages:?}");
        assert!(found.to_string().starts_with(&format!("layer 0, position {position}, ")), "{found}");
    }
    let audit = audit(&mut world, &model, &installed, 0..2);
    assert_eq!(verdict(&mut world, audit), Verdict::Same { tokens: 128, pages: 4 });
}

#[test]
fn an_earlier_row_is_named_before_an_earlier_byte_and_an_earlier_layer() {
    let mut random = fastrand::Rng::with_seed(62);
    let (model, kv) = (llama(), KvLayout::Q8);
    let mut world = receiver(&model, kv);
    let layout = model.cache_spec(kv, 1024).unwrap().layout();
    let mut sent = Sent::of(&mut world, &model, random_tokens(&mut random, 300));
    let value = layout.v_rows(1, 3..4).start + 7;
    for (layer, byte) in [(0, layout.k_rows(0, 5..6).start), (1, layout.k_rows(0, 9..10).start), (1, value)] {
        let page = sent.pages.iter_mut().find(|sent| (sent.layer, sent.page) == (layer, 2)).unwrap();
        let mut wrong = page.bytes.as_ref().to_vec();
        wrong[byte] ^= 4;
        page.bytes = PageBytes::Partial(wrong);
    }
    let installed = sent.install(&mut world);
    let audit = audit(&mut world, &model, &installed, 1..4);
    let Verdict::Differs(found) = verdict(&mut world, audit) else { panic!("not found") };
    assert_eq!((found.layer, found.position, found.byte), (1, 131, value));
    assert_eq!(found.to_string(), "layer 1, position 131, values of head 1, element 7");
}

#[test]
fn a_window_that_did_not_come_comes_again_and_no_more_than_that() {
    let mut random = fastrand::Rng::with_seed(55);
    let (model, kv) = (glimmer(100, &[true, false]), KvLayout::Q8);
    let mut world = receiver(&model, kv);
    let spec = model.cache_spec(kv, 1024).unwrap();
    let sent = Sent::of(&mut world, &model, random_tokens(&mut random, 700));
    let installed = sent.install(&mut world);
    let base = installed.beginning(6);
    assert_eq!(base.first_lacking(), Some((0, 4)));
    let refused = installed.audit(base.clone(), 6..8).unwrap_err();
    assert_eq!(refused, NotAuditable::NothingToGoOnFrom { rows: 384, layer: 0, page: 4 });
    let installation = world.engine.begin_base(&base).unwrap();
    assert_eq!((installation.tokens().len(), installation.held_pages()), (384, 4));
    let window = spec.pages_at(0, 384, PageSet::Window);
    assert_eq!((installation.missing_pages(0), installation.missing_pages(1)), (window.clone(), window));
    // From the first row on, nothing has to come.
    let from_the_beginning = installed.audit(installed.beginning(0), 6..8).unwrap();
    assert_eq!(from_the_beginning.tokens(), 512);
    assert_eq!(verdict(&mut world, from_the_beginning), Verdict::Same { tokens: 512, pages: 8 });
}

#[test]
fn a_wrong_window_does_not_make_honest_pages_pass() {
    let mut random = fastrand::Rng::with_seed(56);
    let (model, kv) = (glimmer(100, &[true, true, false]), KvLayout::F16);
    let mut world = receiver(&model, kv);
    let sent = Sent::of(&mut world, &model, random_tokens(&mut random, 500));
    let installed = sent.install(&mut world);
    let base = installed.beginning(4);
    let mut installation = world.engine.begin_base(&base).unwrap();
    let mut ready = computed_elsewhere(&model, kv, &installation);
    for page in ready.iter_mut().filter(|ready| ready.layer == 0) {
        let mut wrong = page.bytes.as_ref().to_vec();
        wrong.iter_mut().for_each(|byte| *byte ^= 1);
        page.bytes = PageBytes::Partial(wrong);
    }
    install(&mut installation, &ready);
    let base = base.completed_by(&installation.finish().unwrap());
    let audit = installed.audit(base, 4..6).unwrap();
    let Verdict::Differs(found) = verdict(&mut world, audit) else { panic!("not found") };
    assert!(found.position >= 256 && found.layer > 0, "{found:?}");
}

#[test]
fn ranges_that_did_not_come_are_refused() {
    let mut random = fastrand::Rng::with_seed(57);
    let (model, kv) = (llama(), KvLayout::Q8);
    let mut world = receiver(&model, kv);
    let prompt = random_tokens(&mut random, 330);
    world.run(greedy(&prompt[..130], 1));
    let installed = Sent::of(&mut world, &model, prompt).install(&mut world);
    for pages in [0..1, 1..3, 3..3, 5..7, 7..8] {
        let refused = installed.audit(installed.beginning(0), pages.clone()).unwrap_err();
        assert_eq!(refused, NotAuditable::Range { pages, received: 2..6 });
    }
}

#[test]
fn without_room_there_is_no_audit_and_nothing_is_left_of_the_attempt() {
    let mut random = fastrand::Rng::with_seed(58);
    let (model, kv) = (glimmer(100, &[true, false]), KvLayout::Q8);
    // Eight pages of the global layer and three of the window, and one page besides.
    let installed_bytes_max = pages(&model, kv, 12);
    let settings = EngineSettings { installed_bytes_max, budget_bytes: pages(&model, kv, 12), ..roomy(kv) };
    let mut world = World::new(&model, EngineSettings { waiting_max: 1, ..settings });
    let installed = Sent::of(&mut world, &model, random_tokens(&mut random, 513)).install(&mut world);
    let held = holdings(&world);
    let refused = world.engine.begin_base(&installed.beginning(4)).unwrap_err();
    assert!(matches!(refused, NotInstallable::NoRoom { .. }), "{refused}");
    assert_eq!(holdings(&world), held);
    let refused = world.engine.submit(Job::audit(installed.audit(installed.beginning(0), 7..8).unwrap())).unwrap_err();
    assert!(matches!(refused, SubmitError::NeverFits { .. }), "{refused}");
    world.submit(greedy(&[1, 2, 3], 1));
    let refused = world.engine.submit(Job::audit(installed.audit(installed.beginning(0), 0..2).unwrap())).unwrap_err();
    assert_eq!(refused, SubmitError::QueueFull { waiting: 1, max: 1 });
    world.finish();
    drop(installed);
    assert_eq!(world.engine.installed_memory().live_bytes, 0);
}

#[test]
fn company_interruptions_and_cancellations_change_no_verdict_and_no_answer() {
    let mut random = fastrand::Rng::with_seed(59);
    for (model, kv, budget) in [(llama(), KvLayout::F16, 34), (glimmer(32, &[true, false]), KvLayout::Q8, 24)] {
        let layout = model.cache_spec(kv, 1024).unwrap().layout();
        let settings = EngineSettings {
            budget_bytes: pages(&model, kv, budget),
            prefix_bytes_max: pages(&model, kv, 4),
            installed_bytes_max: 1 << 28,
            chunk: ChunkRows { alone: non_zero(96), while_decoding: non_zero(1) },
            ..roomy(kv)
        };
        let (mut world, mut alone) = (World::new(&model, settings), Solo::new(&model, kv));
        let sent = Sent::of(&mut world, &model, random_tokens(&mut random, 500));
        let flipped = sent.pages.iter().position(|sent| (sent.layer, sent.page) == (1, 6)).unwrap();
        let (wrong, flip) = sent.flipped(layout, flipped, &mut random);
        let (honest, wrong) = (sent.install(&mut world), wrong.install(&mut world));
        let (mut audits, mut requests): (Vec<(RequestId, bool)>, Vec<_>) = (Vec::new(), Vec::new());
        for round in 0..24 {
            if round % 8 < 3 {
                let request = greedy(&random_tokens(&mut random, 20 + 4 * round), 330);
                requests.push((world.submit(request.clone()), request));
            }
            let installed = if round % 2 == 0 { &honest } else { &wrong };
            let audit = audit(&mut world, &model, installed, 2 + round % 3..7);
            audits.push((world.engine.submit(Job::audit(audit)).unwrap(), round % 2 == 0));
            for _ in 0..random.usize(..60) {
                world.step();
            }
            if round % 5 == 4 {
                world.engine.cancel(audits.remove(random.usize(..audits.len())).0);
            }
        }
        world.finish();
        // They outgrow the memory long before the audit, which gets a row a step, is done.
        for _ in 0..3 {
            let request = greedy(&random_tokens(&mut random, 20), 330);
            requests.push((world.submit(request.clone()), request));
        }
        world.step();
        let audit = audit(&mut world, &model, &honest, 2..7);
        audits.push((world.engine.submit(Job::audit(audit)).unwrap(), true));
        world.finish();
        for (id, is_honest) in &audits {
            match world.stories[id].verdict.unwrap() {
                Verdict::Same { .. } => assert!(is_honest),
                Verdict::Differs(found) => {
                    assert_eq!((found.layer, found.page, found.byte), (flip.layer, flip.page, flip.byte));
                    assert!(!is_honest);
                }
                Verdict::NotFinite(error) => panic!("{error}"),
            }
        }
        let interrupted = audits.iter().filter(|(id, _)| world.stories[id].preempted > 0).count();
        assert!(interrupted > 0, "no audit was interrupted");
        for (id, request) in &requests {
            assert_same_answer(&world.stories[id], &alone.run(request), "a request beside audits");
        }
        drop((honest, wrong));
        let (live, installed, kept) = holdings(&world);
        assert_eq!((live, installed), (kept, 0));
    }
}

#[test]
fn what_an_audit_computes_is_not_reused_and_what_was_kept_stays_kept() {
    let mut random = fastrand::Rng::with_seed(60);
    let (model, kv) = (llama(), KvLayout::Q8);
    let mut world = receiver(&model, kv);
    let kept = random_tokens(&mut random, 200);
    world.run(greedy(&kept, 1));
    let prompt = random_tokens(&mut random, 400);
    let installed = Sent::of(&mut world, &model, prompt.clone()).install(&mut world);
    let audit = audit(&mut world, &model, &installed, 0..6);
    verdict(&mut world, audit);
    drop(installed);
    assert_eq!(world.run(greedy(&prompt, 1)).reused, Some(0));
    assert_eq!(world.run(greedy(&kept, 1)).reused, Some(192));
}

#[test]
fn after_a_wrong_page_nothing_that_was_there_before_is_reused() {
    let mut random = fastrand::Rng::with_seed(63);
    let (model, kv) = (glimmer(100, &[true, false]), KvLayout::Q8);
    let (mut world, mut alone) = (receiver(&model, kv), Solo::new(&model, kv));
    let (kept, prompt) = (random_tokens(&mut random, 200), random_tokens(&mut random, 300));
    world.run(greedy(&kept, 1));
    let installed = Sent::of(&mut world, &model, prompt.clone()).install(&mut world);
    let running = greedy(&random_tokens(&mut random, 130), 70);
    let id = world.submit(running.clone());
    world.step();
    let installed = world.engine.submit(greedy(&prompt, 70).job_from(installed)).unwrap();
    world.engine.forget_prefixes();
    assert_eq!(world.engine.prefix_bytes(), 0);
    world.finish();
    assert_eq!(holdings(&world), (0, 0, 0));
    assert_same_answer(&world.stories[&id], &alone.run(&running), "a request under way");
    assert!(world.stories[&installed].outcome.is_some());
    for prompt in [kept, prompt, running.prompt] {
        let request = greedy(&prompt, 1);
        assert_eq!(world.run(request.clone()).reused, Some(0));
        assert_eq!(world.run(request).reused, Some((prompt.len() - 1) / 64 * 64));
    }
}

#[test]
fn an_audit_yields_to_who_decodes() {
    let mut random = fastrand::Rng::with_seed(61);
    let (model, kv) = (llama(), KvLayout::Q8);
    let settings = EngineSettings { running_max: non_zero(2), installed_bytes_max: 1 << 28, ..roomy(kv) };
    let mut world = World::new(&model, settings);
    let installed = Sent::of(&mut world, &model, random_tokens(&mut random, 400)).install(&mut world);
    let decoder = world.submit(greedy(&[4, 5, 6], 100));
    world.step();
    let audit = audit(&mut world, &model, &installed, 1..5);
    let id = world.engine.submit(Job::audit(audit)).unwrap();
    for _ in 0..16 {
        let before = world.stories[&decoder].tokens.len();
        assert_eq!(world.step().prefill_rows, 16);
        assert_eq!(world.stories[&decoder].tokens.len(), before + 1);
    }
    assert_eq!(world.stories[&id].verdict, Some(Verdict::Same { tokens: 256, pages: 8 }));
    world.finish();
}
