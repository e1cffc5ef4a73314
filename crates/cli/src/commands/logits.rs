//! `muser logits`: full logits of every position, so that anyone can compare bits.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use muser_kernels::attention::KvLayout;
use muser_kv::{PagePool, SequenceCache};
use muser_model::{Executor, LogitsWanted, SequenceInput};

use crate::failure::Failure;
use crate::model;
use crate::settings::LogitsArgs;

/// Runs the command.
pub fn run(args: &LogitsArgs) -> Result<(), Failure> {
    let prompts = read_prompts(&args.ids)?;
    let mut executor = model::executor(model::open(args.model.as_deref())?, &args.machine, args.chunk)?;
    let mut out = BufWriter::new(File::create(&args.out).map_err(Failure::io(&args.out))?);
    for prompt in &prompts {
        write_logits(&mut executor, prompt, args.kv.into(), &mut |row| {
            row.iter().try_for_each(|z| out.write_all(&z.to_le_bytes())).map_err(Failure::io(&args.out))
        })?;
    }
    out.flush().map_err(Failure::io(&args.out))
}

/// Computes the logits of every position of `prompt` on its own and hands them on in order.
fn write_logits(
    executor: &mut Executor,
    prompt: &[u32],
    layout: KvLayout,
    on_row: &mut dyn FnMut(&[f32]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let spec = executor.model().cache_spec(layout, prompt.len())?;
    let mut cache = SequenceCache::new(spec, PagePool::new(usize::MAX));
    for chunk in prompt.chunks(executor.rows_max()) {
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
fn read_prompts(path: &Path) -> Result<Vec<Vec<u32>>, Failure> {
    let text = fs::read_to_string(path).map_err(Failure::io(path))?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let prompts = lines
        .map(|(line, text)| {
            let id = |word: &str| {
                let reason = || format!("{word:?} is not a token id");
                word.parse().map_err(|_| Failure::Input { path: path.to_owned(), line, reason: reason() })
            };
            text.split_whitespace().map(id).collect()
        })
        .collect::<Result<Vec<_>, _>>()?;
    if prompts.is_empty() {
        return Err(Failure::Input { path: path.to_owned(), line: 1, reason: "there are no token ids".into() });
    }
    Ok(prompts)
}
