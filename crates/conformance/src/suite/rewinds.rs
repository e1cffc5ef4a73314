//! Going back as far as a cache allows, and going on differently.

use super::run::{LAYOUTS, Run};
use crate::backend::{Backend, CaseError, Comparison};
use crate::models::{MIXES, generated, glimmer_spec, tokens};
use crate::tally::BitTally;

pub(super) fn after_a_rewind_another_continuation_has_the_bits_of_a_fresh_run<B: Backend>(
    on: &Comparison<B>,
    tally: &mut BitTally,
) -> Result<(), CaseError> {
    let file = generated(&glimmer_spec(&MIXES[1], 100, &[true, false], 1024), &MIXES[1]);
    let subject = on.load_bytes("window 100", file)?;
    let (prompt, other) = (tokens(331, 10), tokens(90, 11));
    for layout in LAYOUTS {
        // Inside the last page, at page borders, and as far back as the extra page allows.
        for rows in [330, 321, 320, 319, 256, 255, 0] {
            let prompt = &prompt[..if rows == 0 { 90 } else { 331 }];
            let mut truth: Option<Run> = None;
            for variant in subject.variants() {
                let mut executor = subject.executor(variant, 48)?;
                let mut got = Run::begin(&executor, layout)?;
                got.extend(&mut executor, prompt, 48)?;
                let kept = rows.max(got.cache.oldest_rewind());
                got.truncate(kept)?;
                got.extend(&mut executor, &other, 48)?;
                let known = match truth.take() {
                    Some(known) => known,
                    None => subject.truth(layout, &[&prompt[..kept], &other].concat())?,
                };
                let what = subject.describe(variant);
                got.compare(truth.insert(known), &format_args!("{what}, {layout:?} cache, back to {kept}"), tally);
            }
        }
    }
    Ok(())
}
