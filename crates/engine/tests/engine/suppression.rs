//! Tokens that a model's file rules out are chosen in no way.

use muser_engine::{LogitBias, LogprobsStage, LogprobsWanted, SamplingSettings};
use muser_kv::KvLayout;

use crate::world::{Request, World, greedy, roomy, suppressing};

#[test]
fn a_suppressed_token_is_chosen_neither_greedily_nor_by_lot_nor_by_bias_and_has_no_probability() {
    let prompt: Vec<u32> = (0..20).map(|at| at * 13 % 256).collect();
    let requests = |biases: &dyn Fn() -> Vec<LogitBias>| {
        [0.0, 1.5].map(|temperature| Request {
            sampling: SamplingSettings { temperature, seed: 3, logit_bias: biases(), ..SamplingSettings::default() },
            logprobs: Some(LogprobsWanted { count: 300, stage: LogprobsStage::Model }),
            ..greedy(&prompt, 30)
        })
    };
    let mut plain = World::new(&suppressing(&[]), roomy(KvLayout::F16));
    let mut chosen: Vec<u32> = requests(&Vec::new).into_iter().flat_map(|request| plain.run(request).tokens).collect();
    chosen.sort_unstable();
    chosen.dedup();
    assert!(chosen.len() > 10);
    let bias = |bias: f32| chosen.iter().map(|&token| LogitBias { token, bias }).collect::<Vec<_>>();
    let mut suppressing = World::new(&suppressing(&chosen), roomy(KvLayout::F16));
    let (pushed, banned) = (requests(&|| bias(30.0)), requests(&|| bias(f32::NEG_INFINITY)));
    for (pushed, banned) in pushed.into_iter().zip(banned) {
        let (found, want) = (suppressing.run(pushed), plain.run(banned));
        assert_eq!(found.tokens, want.tokens);
        assert!(!found.tokens.iter().any(|token| chosen.contains(token)));
        assert!(!found.alternatives.is_empty());
        assert!(!found.alternatives.iter().any(|(token, _)| chosen.contains(token)));
    }
}
