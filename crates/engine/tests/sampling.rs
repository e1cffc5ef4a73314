//! The sampler beside a plain restatement of its rules: f64 and std's mathematics, full sorts, no shared code.

use std::sync::Arc;

use muser_engine::{
    LogitBias, SAMPLER_SETTINGS, SAMPLER_STAGES, Sampler, SamplerWorkspace, SamplingError, SamplingSettings,
    SettingValue,
};

/// The probability of each token (0 where a stage dropped it), by the definitions.
fn reference(settings: &SamplingSettings, logits: &[f32], tokens: &[u32]) -> Vec<f64> {
    let mut left: Vec<(usize, f64)> = logits.iter().map(|z| f64::from(*z)).enumerate().collect();
    for bias in &settings.logit_bias {
        left[bias.token as usize].1 += f64::from(bias.bias);
    }
    let recent: Vec<u32> = tokens.iter().rev().take(settings.penalty_tokens).copied().collect();
    for (token, logit) in &mut left {
        let count = recent.iter().filter(|recent| **recent as usize == *token).count();
        if count > 0 {
            let repeat = f64::from(settings.repeat_penalty);
            *logit = if *logit <= 0.0 { *logit * repeat } else { *logit / repeat };
            *logit -= count as f64 * f64::from(settings.frequency_penalty) + f64::from(settings.presence_penalty);
        }
    }
    left.retain(|(_, logit)| *logit != f64::NEG_INFINITY);
    left.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap());
    if settings.top_k > 0 {
        left.truncate(settings.top_k);
    }
    if settings.typical_p < 1.0 {
        let p = softmax(&left);
        let entropy: f64 = -p.iter().map(|p| p * p.ln()).sum::<f64>();
        let mut order: Vec<usize> = (0..left.len()).collect();
        let far = |index: usize| (-p[index].ln() - entropy).abs();
        order.sort_by(|a, b| far(*a).partial_cmp(&far(*b)).unwrap());
        let mut sum = 0.0;
        let mut kept = Vec::new();
        for index in order {
            kept.push(left[index]);
            sum += p[index];
            if sum > f64::from(settings.typical_p) {
                break;
            }
        }
        kept.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap());
        left = kept;
    }
    if settings.top_p < 1.0 {
        let p = softmax(&left);
        let mut sum = 0.0;
        let mut count = 0;
        while count < left.len() && sum < f64::from(settings.top_p) {
            sum += p[count];
            count += 1;
        }
        left.truncate(count);
    }
    let best = softmax(&left)[0];
    let likely: Vec<bool> =
        softmax(&left).iter().map(|p| *p >= f64::from(settings.min_p) * best * (1.0 - 1e-9)).collect();
    let mut likely = likely.into_iter();
    left.retain(|_| likely.next().unwrap());
    if settings.temperature == 0.0 {
        left.truncate(1);
    } else {
        left.iter_mut().for_each(|(_, logit)| *logit /= f64::from(settings.temperature));
    }
    let mut probabilities = vec![0.0; logits.len()];
    for ((token, _), p) in left.iter().zip(softmax(&left)) {
        probabilities[*token] = p;
    }
    probabilities
}

fn softmax(left: &[(usize, f64)]) -> Vec<f64> {
    let peak = left.iter().map(|(_, logit)| *logit).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = left.iter().map(|(_, logit)| (logit - peak).exp()).sum();
    left.iter().map(|(_, logit)| (logit - peak).exp() / total).collect()
}

fn random_logits(random: &mut fastrand::Rng, vocab: usize) -> Vec<f32> {
    let spread = 1.0 + 6.0 * random.f32();
    (0..vocab).map(|_| spread * (random.f32() + random.f32() + random.f32() - 1.5)).collect()
}

/// The sampler's choices at many positions, counted. `tokens` end at each position in turn with the same recent tokens.
fn frequencies(settings: &SamplingSettings, logits: &[f32], recent: &[u32], draws: usize) -> Vec<f64> {
    let sampler = Sampler::new(settings.clone(), logits.len()).unwrap();
    let mut workspace = SamplerWorkspace::new(logits.len());
    let mut counts = vec![0u32; logits.len()];
    for round in 0..draws {
        let reseeded = SamplingSettings { seed: round as u64 * 77 + 5, ..settings.clone() };
        let sampler = if round % 2 == 0 { &sampler } else { &Sampler::new(reseeded, logits.len()).unwrap() };
        // Older tokens than the penalties look at move the position alone.
        let tokens = [&vec![0; round], recent].concat();
        counts[sampler.choose(logits, &tokens, &mut workspace) as usize] += 1;
    }
    counts.into_iter().map(|count| f64::from(count) / draws as f64).collect()
}

/// One stage set at a time, then all at once.
fn variants(random: &mut fastrand::Rng, vocab: u32) -> Vec<SamplingSettings> {
    let neutral = SamplingSettings { penalty_tokens: 7, ..SamplingSettings::default() };
    let bias = |random: &mut fastrand::Rng, bias| LogitBias { token: random.u32(..vocab), bias };
    let logit_bias = vec![bias(random, 2.5), bias(random, -1.5), bias(random, f32::NEG_INFINITY), bias(random, 0.7)];
    let all = SamplingSettings {
        logit_bias: logit_bias.clone(),
        repeat_penalty: 1.4,
        frequency_penalty: 0.3,
        presence_penalty: 0.4,
        top_k: 20,
        typical_p: 0.9,
        top_p: 0.85,
        min_p: 0.05,
        temperature: 1.3,
        ..neutral.clone()
    };
    vec![
        neutral.clone(),
        SamplingSettings { temperature: 0.5, ..neutral.clone() },
        SamplingSettings { logit_bias: logit_bias.clone(), ..neutral.clone() },
        SamplingSettings { repeat_penalty: 1.8, ..neutral.clone() },
        SamplingSettings { repeat_penalty: 0.6, ..neutral.clone() },
        SamplingSettings { frequency_penalty: 0.8, ..neutral.clone() },
        SamplingSettings { presence_penalty: 1.5, ..neutral.clone() },
        SamplingSettings { presence_penalty: -1.0, frequency_penalty: -0.2, ..neutral.clone() },
        SamplingSettings { top_k: 5, ..neutral.clone() },
        SamplingSettings { typical_p: 0.6, ..neutral.clone() },
        SamplingSettings { top_p: 0.7, ..neutral.clone() },
        SamplingSettings { min_p: 0.2, ..neutral.clone() },
        all.clone(),
        SamplingSettings { temperature: 0.0, ..all },
    ]
}

#[test]
fn choices_have_the_probabilities_that_the_rules_define_and_dropped_tokens_never_come() {
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..4 {
        let logits = random_logits(&mut random, 40);
        let recent: Vec<u32> = (0..7).map(|_| random.u32(..12)).collect();
        for settings in variants(&mut random, 40) {
            let want = reference(&settings, &logits, &recent);
            let got = frequencies(&settings, &logits, &recent, 3000);
            for (token, (want, got)) in want.iter().zip(&got).enumerate() {
                let what = format!("round {round}, token {token}, {settings:?}: {want} {got}");
                assert!(*want > 0.0 || *got == 0.0, "{what}");
                // Four standard deviations of a binomial, and a little.
                assert!((want - got).abs() <= 0.004 + 4.0 * (want * (1.0 - want) / 3000.0).sqrt(), "{what}");
            }
        }
    }
}

#[test]
fn each_single_choice_is_where_the_draw_falls_among_the_defined_probabilities() {
    let mut random = fastrand::Rng::with_seed(12);
    let neutral = |seed| SamplingSettings { seed, penalty_tokens: 7, ..SamplingSettings::default() };
    let mut workspace = SamplerWorkspace::new(300);
    let mut decided = 0;
    for round in 0..600 {
        let vocab = if round % 3 == 0 { 300 } else { 50 };
        let logits = random_logits(&mut random, vocab);
        let tokens: Vec<u32> = (0..random.usize(1..30)).map(|_| random.u32(..20)).collect();
        let seed = random.u64(..);
        // Two tokens of equal chance tell on which side of one half the draw lies, 2^n of them where exactly: no part of the
        // sampler's own arithmetic is needed to know it.
        let draw = {
            let flat = vec![0.0; 1 << 16];
            let sampler = Sampler::new(neutral(seed), flat.len()).unwrap();
            f64::from(sampler.choose(&flat, &tokens, &mut SamplerWorkspace::new(1 << 16))) / 65536.0
        };
        for settings in variants(&mut random, 40) {
            let settings = SamplingSettings { seed, ..settings };
            let probabilities = reference(&settings, &logits, &tokens);
            let sampler = Sampler::new(settings.clone(), vocab).unwrap();
            let chosen = sampler.choose(&logits, &tokens, &mut workspace) as usize;
            let below: f64 = probabilities[..chosen].iter().sum();
            let (low, high) = (below - 1e-9, below + probabilities[chosen] + 1e-9);
            let what =
                format!("round {round}: token {chosen} for a draw of {draw}, not in {low}..{high}: {settings:?}");
            assert!(probabilities[chosen] > 0.0 && draw + 1.0 / 65536.0 >= low && draw <= high, "{what}");
            decided += 1;
        }
    }
    assert_eq!(decided, 600 * 14);
}

#[test]
fn settings_that_drop_nothing_choose_as_the_plain_softmax_does() {
    let mut random = fastrand::Rng::with_seed(13);
    let mut workspace = SamplerWorkspace::new(200);
    for position in 1..400 {
        let logits = random_logits(&mut random, 200);
        let tokens: Vec<u32> = (0..position).map(|_| random.u32(..200)).collect();
        let plain = SamplingSettings { seed: 3, ..SamplingSettings::default() };
        let wide = SamplingSettings { top_k: 200, penalty_tokens: usize::MAX, min_p: 1e-30, ..plain.clone() };
        let zero = vec![LogitBias { token: 7, bias: 1.0 }, LogitBias { token: 7, bias: -1.0 }];
        let chosen = [plain.clone(), wide, SamplingSettings { logit_bias: zero, ..plain }]
            .map(|settings| Sampler::new(settings, 200).unwrap().choose(&logits, &tokens, &mut workspace));
        assert!(chosen.iter().all(|token| *token == chosen[0]), "position {position}: {chosen:?}");
    }
}

#[test]
fn a_draw_depends_on_the_seed_and_the_position_of_the_last_token_alone() {
    let mut workspace = SamplerWorkspace::new(16);
    let mut choose = |tokens: &[u32]| {
        Sampler::new(SamplingSettings::default(), 16).unwrap().choose(&[0.5; 16], tokens, &mut workspace)
    };
    // The first outputs of SplitMix64 from 0 begin with the hexadecimal digits e, 6 and 0.
    assert_eq!([choose(&[3]), choose(&[9, 9]), choose(&[1, 2, 3]), choose(&[5, 3])], [14, 6, 0, 6]);
}

#[test]
fn greedy_takes_the_highest_and_the_lowest_token_of_a_tie() {
    let mut workspace = SamplerWorkspace::new(4);
    let mut choose = |logits: &[f32]| {
        Sampler::new(SamplingSettings::greedy(), logits.len()).unwrap().choose(logits, &[1], &mut workspace)
    };
    assert_eq!(choose(&[0.5, 2.0, 2.0, -1.0]), 1);
    assert_eq!(choose(&[-3.0]), 0);
    assert_eq!(choose(&[-1.0, -0.0, 0.0]), 1);
}

#[test]
fn extreme_settings_and_logits_choose_a_token_that_is_allowed() {
    let logits = [f32::MAX, f32::MIN, 0.0, f32::MAX];
    let mut workspace = SamplerWorkspace::new(4);
    let ban = LogitBias { token: 0, bias: f32::NEG_INFINITY };
    for (temperature, penalty) in [(f32::MIN_POSITIVE, f32::MAX), (f32::MAX, f32::MIN_POSITIVE), (1e-45, 1e-45)] {
        let settings = SamplingSettings {
            temperature,
            repeat_penalty: penalty,
            frequency_penalty: penalty,
            presence_penalty: -penalty,
            logit_bias: vec![ban, LogitBias { token: 3, bias: f32::MAX }],
            typical_p: 1e-30,
            top_p: 1e-30,
            min_p: 1.0,
            penalty_tokens: usize::MAX,
            ..SamplingSettings::default()
        };
        let sampler = Sampler::new(settings, 4).unwrap();
        for position in 1..20 {
            assert_ne!(sampler.choose(&logits, &vec![3; position], &mut workspace), 0);
        }
    }
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let refused = |name: &str, value: f32| {
        let mut settings = SamplingSettings::default();
        let setting = SAMPLER_SETTINGS.iter().find(|setting| setting.name == name).unwrap();
        let SettingValue::Number { set, .. } = setting.value else { panic!("{name} is no number") };
        set(&mut settings, value);
        Sampler::new(settings, 100).err().map(|error| error.to_string())
    };
    let (max, infinity) = (f32::MAX, f32::INFINITY);
    let share = "is not above 0 and at most 1";
    type Case<'a> = (&'a str, &'a [f32], &'a [f32], &'a str);
    let cases: [Case; 7] = [
        ("temperature", &[0.0, 1e-45, max], &[-1e-45, -0.1, infinity], "is not a finite number >= 0"),
        ("repeat_penalty", &[1e-45, max], &[0.0, -1.0, infinity], "is not a finite number > 0"),
        ("frequency_penalty", &[-max, max], &[infinity, -infinity], "is not a finite number"),
        ("presence_penalty", &[-max, max], &[infinity, -infinity], "is not a finite number"),
        ("typical_p", &[1e-45, 1.0], &[0.0, -0.5, 1.001, infinity], share),
        ("top_p", &[1e-45, 1.0], &[0.0, -0.5, 1.001, infinity], share),
        ("min_p", &[0.0, 1.0], &[-0.5, 1.001, infinity], "is not from 0 to 1"),
    ];
    for (name, fine, wrong, says) in cases {
        fine.iter().for_each(|value| assert_eq!(refused(name, *value), None, "{name} {value}"));
        let label = name.replace("_penalty", " penalty").replace('_', "-");
        for value in wrong.iter().chain(&[f32::NAN]) {
            assert_eq!(refused(name, *value).as_deref(), Some(&*format!("{label} {value} {says}")));
        }
    }
    let numbers = SAMPLER_SETTINGS.iter().filter(|setting| matches!(setting.value, SettingValue::Number { .. }));
    assert_eq!(numbers.count(), cases.len(), "a setting is missing here");
}

#[test]
fn each_row_of_the_settings_reads_what_it_writes_and_belongs_to_a_stage() {
    let neutral = SamplingSettings::default();
    for (index, setting) in SAMPLER_SETTINGS.iter().enumerate() {
        let mut changed = neutral.clone();
        match setting.value {
            SettingValue::Number { get, set, .. } => {
                set(&mut changed, 0.25);
                assert_eq!(get(&changed), 0.25, "{}", setting.name);
            }
            SettingValue::Whole { get, set, .. } => {
                set(&mut changed, 7);
                assert_eq!(get(&changed), 7, "{}", setting.name);
            }
        }
        assert_ne!(changed, neutral, "{}", setting.name);
        if let Some(stage) = setting.stage {
            assert!(SAMPLER_STAGES.iter().any(|known| known.name == stage), "{stage}");
            changed.leave_out(stage);
            assert_eq!(changed, neutral, "{}", setting.name);
        }
        let names = SAMPLER_SETTINGS[index + 1..].iter().map(|other| other.name);
        assert!(names.into_iter().all(|other| other != setting.name), "{} stands twice", setting.name);
    }
}

#[test]
fn a_bias_that_is_no_number_is_refused() {
    let logit_bias = vec![LogitBias { token: 1, bias: f32::NAN }];
    let refused = Sampler::new(SamplingSettings { logit_bias, ..SamplingSettings::default() }, 100).err();
    assert!(matches!(refused, Some(SamplingError::Bias { token: 1, .. })), "{refused:?}");
}

#[test]
fn biases_of_tokens_that_do_not_exist_or_of_all_that_do_are_refused() {
    let new = |logit_bias| Sampler::new(SamplingSettings { logit_bias, ..SamplingSettings::default() }, 3).err();
    let bias = |token, bias| LogitBias { token, bias };
    let refused = SamplingError::BiasedToken { token: 3, vocab: 3 };
    assert_eq!(new(vec![bias(2, 1.0), bias(3, 1.0)]), Some(refused));
    let refused = SamplingError::Bias { token: 1, bias: f32::INFINITY };
    assert_eq!(new(vec![bias(1, f32::INFINITY)]), Some(refused));
    let ban = |token| bias(token, f32::NEG_INFINITY);
    assert_eq!(new(vec![ban(0), ban(2), ban(0)]), None);
    assert_eq!(new(vec![ban(0), ban(2), ban(1)]), Some(SamplingError::NothingAllowed { vocab: 3 }));
}

#[test]
fn logprobs_are_those_of_the_raw_softmax_sorted_and_never_exceed_one_in_sum() {
    let mut random = fastrand::Rng::with_seed(14);
    let plain = Sampler::new(SamplingSettings::default(), 60).unwrap();
    let mut workspace = SamplerWorkspace::new(60);
    for round in 0..300 {
        let mut logits = random_logits(&mut random, 60);
        logits[7] = logits[40];
        let left: Vec<(usize, f64)> = logits.iter().map(|z| f64::from(*z)).enumerate().collect();
        let p = softmax(&left);
        let chosen = random.u32(..60);
        for count in [0, 1, 5, 59, 60, 1000] {
            let found = workspace.logprobs(&plain, &logits, chosen, count);
            assert_eq!(found.chosen.token, chosen);
            assert!((found.chosen.logprob - p[chosen as usize].ln()).abs() < 1e-12);
            assert_eq!(found.top.len(), count.min(60));
            let mut order: Vec<u32> = (0..60).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
            assert!(found.top.iter().map(|top| top.token).eq(order.into_iter().take(count)), "round {round}");
            for top in found.top {
                assert!(top.logprob <= 0.0 && (top.logprob - p[top.token as usize].ln()).abs() < 1e-12);
            }
            assert!(found.top.iter().map(|top| top.logprob.exp()).sum::<f64>() <= 1.0 + 1e-12);
        }
    }
    // One token has all the probability that f64 can tell.
    let certain = workspace.logprobs(&plain, &[900.0, -900.0], 1, 2);
    assert_eq!((certain.top[0].logprob, certain.chosen.logprob), (0.0, -1800.0));
}

#[test]
fn logprobs_of_the_draw_are_the_probabilities_that_the_token_was_drawn_with() {
    let mut random = fastrand::Rng::with_seed(15);
    let mut workspace = SamplerWorkspace::new(50);
    let settings: Vec<SamplingSettings> = (0..6).flat_map(|_| variants(&mut random, 50)).collect();
    for settings in settings {
        let logits = random_logits(&mut random, 50);
        let tokens: Vec<u32> = (0..9).map(|_| random.u32(..50)).collect();
        let want = reference(&settings, &logits, &tokens);
        let left = want.iter().filter(|p| **p > 0.0).count();
        let sampler = Sampler::new(settings, 50).unwrap();
        for count in [0, 3, 1000] {
            let chosen = sampler.choose(&logits, &tokens, &mut workspace);
            let found = workspace.draw_logprobs(chosen, count);
            assert_eq!((found.chosen.token, found.top.len()), (chosen, count.min(left)));
            for token in found.top.iter().chain([&found.chosen]) {
                assert!((token.logprob.exp() - want[token.token as usize]).abs() < 1e-9, "{sampler:?} {token:?}");
            }
            assert!(found.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
        }
    }
}

#[test]
fn suppressed_tokens_have_no_part_in_any_stage_or_probability() {
    let mut random = fastrand::Rng::with_seed(16);
    let mut workspace = SamplerWorkspace::new(50);
    let settings: Vec<SamplingSettings> = (0..6).flat_map(|_| variants(&mut random, 50)).collect();
    for settings in settings {
        let logits = random_logits(&mut random, 50);
        let tokens: Vec<u32> = (0..9).map(|_| random.u32(..50)).collect();
        // The likeliest of all, and pushed further by the caller.
        let mut order: Vec<u32> = (0..50).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        let suppressed: Arc<[u32]> = order[..4].into();
        let banned = suppressed.iter().map(|&token| LogitBias { token, bias: f32::NEG_INFINITY });
        let pushed = suppressed.iter().map(|&token| LogitBias { token, bias: 50.0 });
        let with = |more: Vec<LogitBias>| SamplingSettings {
            logit_bias: settings.logit_bias.iter().copied().chain(more).collect(),
            ..settings.clone()
        };
        let bans = Sampler::new(with(banned.collect()), 50).unwrap();
        let suppresses = Sampler::suppressing(with(pushed.collect()), 50, Arc::clone(&suppressed)).unwrap();
        let chosen = suppresses.choose(&logits, &tokens, &mut workspace);
        assert_eq!(chosen, bans.choose(&logits, &tokens, &mut workspace), "{settings:?}");
        let of_model = workspace.logprobs(&suppresses, &logits, chosen, 1000);
        assert_eq!(of_model.top.len(), 46);
        assert!(!of_model.top.iter().any(|top| suppressed.contains(&top.token)));
        let total: f64 = of_model.top.iter().map(|top| top.logprob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-9, "{total}");
        let drawn = suppresses.choose(&logits, &tokens, &mut workspace);
        let of_draw = workspace.draw_logprobs(drawn, 1000);
        assert!(!of_draw.top.iter().any(|top| suppressed.contains(&top.token)));
    }
    let ban = vec![LogitBias { token: 1, bias: f32::NEG_INFINITY }];
    let settings = SamplingSettings { logit_bias: ban, ..SamplingSettings::default() };
    let nothing = Sampler::suppressing(settings, 3, [0, 2].into()).err();
    assert_eq!(nothing, Some(SamplingError::NothingAllowed { vocab: 3 }));
}
