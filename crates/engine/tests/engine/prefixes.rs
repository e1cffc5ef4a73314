//! Reuse of prefixes: how much is reused is exactly what the window allows, is counted truthfully, and changes no answer.

use std::sync::Arc;

use muser_engine::EngineSettings;
use muser_engine::engine::PrefixReuse;
use muser_kv::{KvIdentity, KvLayout, Realm};
use muser_model::Model;

use crate::world::{
    LAYOUTS, Request, Solo, Story, World, assert_same_answer, glimmer, greedy, llama, pages, random_tokens, roomy,
};

/// An engine whose answers are compared with those given alone.
struct Conversation {
    world: World,
    alone: Solo,
}

impl Conversation {
    fn new(model: &Arc<Model>, settings: EngineSettings) -> Self {
        let alone = Solo::new(model, settings.kv);
        Self { world: World::new(model, settings), alone }
    }

    /// Runs a request that must reuse `reused` tokens and give the answer it gives alone.
    fn ask(&mut self, request: &Request, reused: usize, what: &str) -> Story {
        let id = self.world.submit(request.clone());
        let mut computed = 0;
        while self.world.engine.has_work() {
            let report = self.world.step();
            assert!(report.prefill_rows + report.decode_rows > 0, "{what}: a step without rows");
            computed += report.prefill_rows + report.decode_rows;
        }
        let story = self.world.stories[&id].clone();
        assert_same_answer(&story, &self.alone.run(request), what);
        assert_eq!(story.reused, Some(reused), "{what}: reused tokens");
        assert_eq!(story.outcome.unwrap().reused, reused, "{what}");
        // Truthful: what was not reused was computed, each row once, but for the last token, which no token follows.
        let rows = request.prompt.len() + story.tokens.len().saturating_sub(1);
        assert_eq!(computed, rows - reused, "{what}: computed rows");
        story
    }
}

/// The first `count` of `tokens`, and then something else.
fn branch(tokens: &[u32], count: usize, seed: u64) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    // Not the token that follows in the original, nor the one of another branch.
    let seventh = u32::try_from(seed % 7).unwrap();
    let other = (tokens.get(count).map_or(0, |token| token + 1) + seventh) % 300;
    [&tokens[..count], &[other], &random_tokens(&mut random, 9)].concat()
}

#[test]
fn a_prompt_that_was_there_is_reused_up_to_its_last_whole_page_but_never_whole() {
    for (model, layers) in [(llama(), 2), (glimmer(32, &[true, false]), 2), (glimmer(100, &[true, true]), 2)] {
        for kv in LAYOUTS {
            for length in [1, 63, 64, 65, 127, 128, 129, 300, 320, 321] {
                let prompt = random_tokens(&mut fastrand::Rng::with_seed(1), length);
                let mut conversation = Conversation::new(&model, roomy(kv));
                let what = format!("{layers} layers, {kv:?}, {length} tokens");
                conversation.ask(&greedy(&prompt, 3), 0, &what);
                conversation.ask(&greedy(&prompt, 3), (length - 1) / 64 * 64, &what);
                conversation.ask(&greedy(&prompt, 0), (length - 1) / 64 * 64, &what);
            }
        }
    }
}

#[test]
fn a_conversation_resumes_behind_its_last_answer() {
    for model in [llama(), glimmer(32, &[true, false]), glimmer(100, &[true, true, false])] {
        let mut conversation = Conversation::new(&model, roomy(KvLayout::Q8));
        let mut text = random_tokens(&mut fastrand::Rng::with_seed(2), 90);
        let mut held = 0;
        for turn in 0..6 {
            let story = conversation.ask(&greedy(&text, 40), held / 64 * 64, &format!("turn {turn}"));
            text.extend(&story.tokens);
            // The last token of an answer has no keys and values.
            held = text.len() - 1;
            text.extend(random_tokens(&mut fastrand::Rng::with_seed(turn), 30));
        }
    }
}

/// After a prompt of 700 tokens, windowed layers hold the window that a query behind the prompt's last whole page sees.
#[test]
fn a_branch_is_reused_exactly_where_the_window_is_still_held() {
    let text = random_tokens(&mut fastrand::Rng::with_seed(3), 700);
    for kv in LAYOUTS {
        for (model, window) in [(glimmer(100, &[true, false]), 100), (glimmer(32, &[true, false]), 32)] {
            for cut in [5, 64, 130, 320, 500, 575, 576, 600, 639, 640, 641, 690, 700] {
                let mut conversation = Conversation::new(&model, roomy(kv));
                let what = format!("window {window}, {kv:?}, branch at {cut}");
                conversation.ask(&greedy(&text, 1), 0, &what);
                // Kept: all pages of the global layer, and those that the window of the query at 640 touches.
                let whole = cut / 64 * 64;
                let reused = if whole == 640 { 640 } else { 0 };
                let prompt = branch(&text, cut, 4);
                conversation.ask(&greedy(&prompt, 4), reused, &what);
                // Once computed again, the place where the two part is kept: a third branch resumes there.
                conversation.ask(&greedy(&branch(&text, cut, 5), 4), whole, &format!("{what}, again"));
                // The first text can still be resumed at its end.
                conversation.ask(&greedy(&branch(&text, 695, 6), 4), 640, &format!("{what}, first text"));
            }
        }
        let model = llama();
        for cut in [5, 64, 130, 500, 700] {
            let mut conversation = Conversation::new(&model, roomy(kv));
            conversation.ask(&greedy(&text, 1), 0, "no window");
            conversation.ask(&greedy(&branch(&text, cut, 4), 4), cut / 64 * 64, "no window");
        }
    }
}

#[test]
fn every_turn_of_a_conversation_can_be_branched_from() {
    for model in [llama(), glimmer(32, &[true, false]), glimmer(100, &[true, true, false])] {
        let mut conversation = Conversation::new(&model, roomy(KvLayout::F16));
        let mut text = random_tokens(&mut fastrand::Rng::with_seed(7), 130);
        let mut turns = Vec::new();
        for turn in 0..5 {
            let request = greedy(&text, 70);
            let id = conversation.world.submit(request);
            conversation.world.finish();
            let story = &conversation.world.stories[&id];
            turns.push(text.clone());
            text.extend(&story.tokens);
            text.extend(random_tokens(&mut fastrand::Rng::with_seed(turn), 50));
        }
        for (turn, text) in turns.iter().enumerate().rev() {
            let prompt = branch(text, text.len(), turn as u64);
            conversation.ask(&greedy(&prompt, 6), text.len() / 64 * 64, &format!("branch from turn {turn}"));
        }
    }
}

#[test]
fn requests_with_one_beginning_that_arrive_together_compute_it_once() {
    let text = random_tokens(&mut fastrand::Rng::with_seed(8), 200);
    for model in [llama(), glimmer(32, &[true, false])] {
        let mut world = World::new(&model, roomy(KvLayout::Q8));
        let prompts: Vec<Vec<u32>> = (0..6).map(|seed| branch(&text, 200, seed)).collect();
        let ids: Vec<_> = prompts.iter().map(|prompt| world.submit(greedy(prompt, 5))).collect();
        world.finish();
        let mut alone = Solo::new(&model, KvLayout::Q8);
        for (index, (id, prompt)) in ids.iter().zip(&prompts).enumerate() {
            let story = &world.stories[id];
            assert_eq!(story.reused, Some(if index == 0 { 0 } else { 192 }));
            assert_same_answer(story, &alone.run(&greedy(prompt, 5)), &format!("request {index}"));
        }
    }
}

#[test]
fn an_isolated_request_neither_takes_nor_leaves_anything() {
    let model = llama();
    let prompt = random_tokens(&mut fastrand::Rng::with_seed(9), 200);
    let isolated = Request { reuse: PrefixReuse::Isolate, ..greedy(&prompt, 3) };
    let mut conversation = Conversation::new(&model, roomy(KvLayout::Q8));
    conversation.ask(&isolated, 0, "isolated");
    assert_eq!(conversation.world.engine.prefix_bytes(), 0);
    conversation.ask(&greedy(&prompt, 3), 0, "after an isolated one");
    conversation.ask(&isolated, 0, "isolated, after a shared one");
    conversation.ask(&greedy(&prompt, 3), 192, "shared");
}

#[test]
fn a_prefix_is_reused_within_its_realm_and_is_not_there_for_another() {
    for model in [llama(), glimmer(32, &[true, false])] {
        let prompt = random_tokens(&mut fastrand::Rng::with_seed(14), 200);
        let (ours, theirs) = (Realm::from_secret([1; 32]), Realm::from_secret([2; 32]));
        let within = |realm| Request { reuse: PrefixReuse::Within(realm), ..greedy(&prompt, 3) };
        let settings = EngineSettings { installed_bytes_max: 1 << 28, ..roomy(KvLayout::Q8) };
        let mut conversation = Conversation::new(&model, settings);
        conversation.ask(&within(ours), 0, "the first of a realm");
        for other in [within(theirs), within(ours.divided_by(b"salt")), greedy(&prompt, 3)] {
            let installation = conversation.world.engine.begin_installation(&prompt, other.reuse).unwrap();
            assert_eq!((installation.held_pages(), installation.held_name()), (0, None));
            conversation.ask(&other, 0, "the first of another realm");
            conversation.ask(&other, 192, "the second of another realm");
        }
        conversation.ask(&within(ours), 192, "the second of the first realm");
        let names = [PrefixReuse::Within(ours), PrefixReuse::Within(theirs), PrefixReuse::Share].map(|reuse| {
            let installation = conversation.world.engine.begin_installation(&prompt, reuse).unwrap();
            assert_eq!(installation.held_pages(), 3);
            installation.held_name().unwrap()
        });
        // What a producer is told is of the tokens, which it is told as well, and of no realm.
        assert!(
            names
                .iter()
                .all(|name| Some(*name) == muser_kv::names_of(&KvIdentity::from_digest([7; 32]), &prompt).last())
        );
    }
}

#[test]
fn nobody_waits_for_the_first_page_of_another_realm() {
    let model = llama();
    let prompt = random_tokens(&mut fastrand::Rng::with_seed(15), 300);
    let within = |realm| Request { reuse: PrefixReuse::Within(realm), ..greedy(&prompt, 1) };
    let mut world = World::new(&model, roomy(KvLayout::Q8));
    let realms = [Realm::from_secret([1; 32]), Realm::from_secret([2; 32])];
    let ids = realms.map(|realm| world.submit(within(realm)));
    assert_eq!(world.step().running, 2);
    let third = world.submit(within(realms[0]));
    assert_eq!(world.step().running, 2, "this one reuses what the first is computing");
    world.finish();
    assert_eq!(ids.map(|id| world.stories[&id].reused), [Some(0); 2]);
    assert_eq!(world.stories[&third].reused, Some(256));
}

#[test]
fn a_cancelled_request_leaves_what_it_has_computed() {
    let model = glimmer(100, &[true, false]);
    let text = random_tokens(&mut fastrand::Rng::with_seed(10), 400);
    let mut conversation = Conversation::new(&model, roomy(KvLayout::Q8));
    let id = conversation.world.submit(greedy(&text, 5));
    for _ in 0..3 {
        conversation.world.step();
    }
    assert!(conversation.world.engine.cancel(id));
    conversation.world.finish();
    // Three chunks of 96 are 288 rows, four pages and a half.
    conversation.ask(&greedy(&text, 5), 256, "after a cancelled one");
}

#[test]
fn another_identity_or_another_first_token_shares_nothing() {
    let model = llama();
    let text = random_tokens(&mut fastrand::Rng::with_seed(11), 200);
    let mut conversation = Conversation::new(&model, roomy(KvLayout::Q8));
    conversation.ask(&greedy(&text, 1), 0, "first");
    let mut other = text.clone();
    other[0] = (other[0] + 1) % 300;
    conversation.ask(&greedy(&other, 3), 0, "another first token");
    let mut late = text.clone();
    late[70] = (late[70] + 1) % 300;
    conversation.ask(&greedy(&late, 3), 64, "another token on the second page");
}

#[test]
fn what_was_used_longest_ago_is_forgotten_first_and_computed_again_correctly() {
    for (model, layers) in [(llama(), 2), (glimmer(100, &[true, false]), 2), (glimmer(32, &[true, true, false]), 3)] {
        let kv = KvLayout::Q8;
        // Room for two texts of five pages per layer, not for three.
        let settings = EngineSettings { prefix_bytes_max: pages(&model, kv, 12 * layers), ..roomy(kv) };
        let texts: Vec<Vec<u32>> =
            (20..23).map(|seed| random_tokens(&mut fastrand::Rng::with_seed(seed), 330)).collect();
        let mut conversation = Conversation::new(&model, settings.clone());
        let whole = |conversation: &mut Conversation, text: usize, reused, what: &str| {
            conversation.ask(&greedy(&texts[text], 2), reused, what);
            assert!(conversation.world.engine.prefix_bytes() <= settings.prefix_bytes_max);
        };
        whole(&mut conversation, 0, 0, "first");
        whole(&mut conversation, 1, 0, "second");
        whole(&mut conversation, 0, 320, "first, used again");
        let before = conversation.world.engine.prefix_bytes();
        // Both kept texts share the budget, so that the third pushes out the second, wholly or in part.
        whole(&mut conversation, 2, 0, "third");
        whole(&mut conversation, 0, 320, "first, still there");
        let id = conversation.world.submit(greedy(&texts[1], 2));
        conversation.world.finish();
        let story = conversation.world.stories[&id].clone();
        if before + before / 2 > settings.prefix_bytes_max {
            assert!(story.reused < Some(320), "{layers} layers: {:?}", story.reused);
        }
        assert_same_answer(&story, &conversation.alone.run(&greedy(&texts[1], 2)), "second, after it was pushed out");
    }
}

#[test]
fn pages_that_several_prefixes_share_are_counted_once() {
    let (model, kv) = (llama(), KvLayout::Q8);
    let text = random_tokens(&mut fastrand::Rng::with_seed(12), 320);
    let mut conversation = Conversation::new(&model, roomy(kv));
    conversation.ask(&greedy(&text, 1), 0, "first");
    assert_eq!(conversation.world.engine.prefix_bytes(), pages(&model, kv, 2 * 5));
    for (branches, seed) in (1..).zip(0..4) {
        // 320 shared tokens, 10 of its own, and one page more when the answer fills it.
        conversation.ask(&greedy(&branch(&text, 320, seed), 60), 320, "branch");
        assert_eq!(conversation.world.engine.prefix_bytes(), pages(&model, kv, 2 * (5 + branches)));
    }
    let memory = conversation.world.engine.memory();
    assert_eq!(memory.live_bytes, conversation.world.engine.prefix_bytes());
}

#[test]
fn an_engine_that_keeps_nothing_reuses_nothing() {
    let model = llama();
    let text = random_tokens(&mut fastrand::Rng::with_seed(13), 200);
    let settings = EngineSettings { prefix_bytes_max: 0, ..roomy(KvLayout::Q8) };
    let mut conversation = Conversation::new(&model, settings);
    for _ in 0..2 {
        conversation.ask(&greedy(&text, 3), 0, "nothing is kept");
        assert_eq!(conversation.world.engine.memory().live_bytes, 0);
    }
}
