//! `muser logits`: full logits of every position, so that anyone can compare bits.
//!
//! The file appears under its name when the logits of all prompts are in it, never before.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;

use muser_kernels::attention::KvLayout;
use muser_kv::{PagePool, SequenceCache};
use muser_model::{Forward, LoadError, LogitsWanted, ModelConfig, SequenceInput, read_config};

use crate::failure::Failure;
use crate::input::read_text;
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::NewFile;
use crate::settings::LogitsArgs;

/// A line of the file of token ids.
struct Prompt {
    /// Its number, from 1.
    line: usize,
    ids: Vec<u32>,
}

/// Runs the command.
pub fn run(args: &LogitsArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    let prompts = read_prompts(&args.ids)?;
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let config = read_config(&files.metadata()).map_err(LoadError::from)?;
    // All prompts are looked at before anything is computed, and before a large model takes its time to load.
    for prompt in &prompts {
        prompt.check(&config).map_err(|reason| refused(&args.ids, prompt.line, reason))?;
    }
    interrupt.hold();
    let mut out = NewFile::create(&args.out)?;
    // No more rows than there are: the buffers grow with them.
    let longest = prompts.iter().filter_map(|prompt| NonZeroUsize::new(prompt.ids.len())).max();
    let rows = args.chunk.min(longest.unwrap_or(NonZeroUsize::MIN));
    let mut executor = model::executor(files, &args.machine, rows)?;
    for prompt in &prompts {
        write_logits(&mut executor, &prompt.ids, args.kv.into(), interrupt, &mut |row| {
            row.iter().try_for_each(|z| out.write_all(&z.to_le_bytes())).map_err(Failure::io(&args.out))
        })?;
    }
    out.finish()
}

/// Computes the logits of every position of `prompt` on its own and hands them on in order.
fn write_logits(
    executor: &mut dyn Forward,
    prompt: &[u32],
    layout: KvLayout,
    interrupt: &Interrupt,
    on_row: &mut dyn FnMut(&[f32]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let spec = executor.spec().cache_spec(layout, prompt.len())?;
    let mut cache = SequenceCache::new(spec, PagePool::new(usize::MAX));
    for chunk in prompt.chunks(executor.rows_max()) {
        interrupt.check()?;
        let mut batch = [SequenceInput::new(&mut cache, chunk, LogitsWanted::All)];
        let mut written = Ok(());
        executor.forward(&mut batch, &mut |_, row| {
            if written.is_ok() {
                written = on_row(row);
            }
        })?;
        let [input] = batch;
        input.outcome?;
        written?;
    }
    Ok(())
}

/// One prompt per line that is not empty: decimal ids separated by white space.
fn read_prompts(path: &Path) -> Result<Vec<Prompt>, Failure> {
    let text = read_text(path)?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let id = |word: &str| word.parse().map_err(|_| format!("{word:?} is not a token id"));
    let prompts = lines
        .map(|(line, text)| match text.split_whitespace().map(id).collect() {
            Ok(ids) => Ok(Prompt { line, ids }),
            Err(reason) => Err(refused(path, line, reason)),
        })
        .collect::<Result<Vec<_>, _>>()?;
    if prompts.is_empty() {
        return Err(refused(path, 1, "there are no token ids".into()));
    }
    Ok(prompts)
}

impl Prompt {
    /// Checks the prompt's token ids and length against the model.
    fn check(&self, config: &ModelConfig) -> Result<(), String> {
        let ModelConfig { vocab, context, .. } = *config;
        if let Some(id) = self.ids.iter().find(|id| **id as usize >= vocab) {
            return Err(format!("token {id} does not exist: the vocabulary has {vocab}"));
        }
        let length = self.ids.len();
        if length > context {
            return Err(format!("{length} tokens are more than the model's context of {context}"));
        }
        Ok(())
    }
}

fn refused(path: &Path, line: usize, reason: String) -> Failure {
    Failure::Input { path: path.to_owned(), line, reason }
}
