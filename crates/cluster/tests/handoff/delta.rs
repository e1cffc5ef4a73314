//! Whatever is held, exactly the rest travels, and every row is there once: with other requests in both engines.

use muser_engine::engine::PrefixReuse;
use muser_kernels::attention::KvLayout;
use muser_kv::PAGE_ROWS;

use crate::models::{Attention, WINDOW, company, small, tokens};
use crate::world::{Cluster, Machine, answer, answer_remotely, request, run};

/// Pages to transfer so that a decoder with `held_pages` pages can continue after `rows` rows.
fn pages_to_bring(attention: Attention, rows: usize, held_pages: usize) -> u64 {
    let all = rows.div_ceil(PAGE_ROWS);
    let first = |is_local: bool| if is_local { (rows + 1).saturating_sub(WINDOW) / PAGE_ROWS } else { 0 };
    attention.local_layers().iter().map(|local| all.saturating_sub(first(*local).max(held_pages)) as u64).sum()
}

/// Lets the decoder hold the first `count` tokens of `prompt`.
async fn hold(decoder: &Machine, prompt: &[u32], count: usize) {
    if count > 0 {
        let held = decoder.host.submit(request(&prompt[..count], 1, PrefixReuse::Share)).await.unwrap();
        answer(held).await;
    }
}

/// Prompts of two lengths with every interesting number of tokens held: the bits, the rows and the pages.
async fn every_held_prefix(attention: Attention, kv: KvLayout) {
    let cluster = Cluster::new();
    let producing = cluster.produce("producer", small(attention, kv), None).await;
    let decoder = small(attention, kv);
    let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
    let busy = [company(&producing.machine.host, 1), company(&decoder.host, 2), company(&decoder.host, 3)];
    let mut seed = 100;
    // The rows before the last token end inside a page, or with one.
    for length in [400, 7 * PAGE_ROWS + 1] {
        for held in [0, 1, 63, 64, 65, length - 2, length - 1, length] {
            seed += 1;
            let (prompt, what) =
                (tokens(seed, length), format!("{attention:?} {kv:?}, {held} of {length} tokens held"));
            hold(&decoder, &prompt, held).await;
            let shared = answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Share).await;
            let (handoff, reused, tokens) = shared.unwrap_or_else(|error| panic!("{what}: {error}"));
            let local = decoder.host.submit(request(&prompt, 6, PrefixReuse::Isolate)).await.unwrap();
            let (none, expected) = answer(local).await;
            assert_eq!(none, 0, "{what}: computed alone");
            assert!(tokens == expected, "{what}: other bits");
            let (rows, held_pages) = (handoff.stats.rows as usize, handoff.held_pages);
            assert_eq!(held_pages, held.min(length - 1) / PAGE_ROWS, "{what}");
            // Held here, brought, computed here: together the prompt.
            let brought = rows - held_pages * PAGE_ROWS;
            assert_eq!(
                (held_pages * PAGE_ROWS + brought, reused, length - reused),
                (length - 1, length - 1, 1),
                "{what}"
            );
            assert_eq!(handoff.stats.pages, pages_to_bring(attention, rows, held_pages), "{what}");
        }
    }
    let ended = [&producing.machine, &decoder].map(|machine| machine.host.status().totals.ended);
    drop(busy);
    assert!(ended[0] > 16 + 5 && ended[1] > 3 * 16 + 5, "there was no company: {ended:?} requests ended");
}

#[test]
fn every_held_prefix_of_a_model_with_full_attention_gives_the_local_bits_in_f16() {
    run(every_held_prefix(Attention::Full, KvLayout::F16));
}

#[test]
fn every_held_prefix_of_a_model_with_full_attention_gives_the_local_bits_in_q8() {
    run(every_held_prefix(Attention::Full, KvLayout::Q8));
}

#[test]
fn every_held_prefix_of_a_model_with_windows_gives_the_local_bits_in_f16() {
    run(every_held_prefix(Attention::Windowed, KvLayout::F16));
}

#[test]
fn every_held_prefix_of_a_model_with_windows_gives_the_local_bits_in_q8() {
    run(every_held_prefix(Attention::Windowed, KvLayout::Q8));
}

#[test]
fn each_of_the_last_five_tokens_counts_behind_a_long_held_prefix() {
    run(async {
        for attention in [Attention::Full, Attention::Windowed] {
            let cluster = Cluster::new();
            let producing = cluster.produce("producer", small(attention, KvLayout::Q8), None).await;
            let decoder = small(attention, KvLayout::Q8);
            let remote = cluster.remote("decoder", &decoder, producing.address, &cluster.keys);
            let plain = tokens(7, 600);
            hold(&decoder, &plain, 400).await;
            let mut answers = Vec::new();
            for needle in 0..=5 {
                let mut prompt = plain.clone();
                if needle > 0 {
                    prompt[600 - needle] ^= 1;
                }
                let found = answer_remotely(&decoder, &remote, &prompt, PrefixReuse::Share).await.unwrap();
                assert!(found.0.held_pages >= 6, "{needle}: {} pages held", found.0.held_pages);
                let local = decoder.host.submit(request(&prompt, 6, PrefixReuse::Isolate)).await.unwrap();
                assert!(found.2 == answer(local).await.1, "{attention:?}, needle {needle} from the end: other bits");
                assert!(!answers.contains(&found.2), "{attention:?}: needle {needle} from the end changes nothing");
                answers.push(found.2);
            }
        }
    });
}
