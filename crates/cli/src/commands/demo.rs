//! `muser demo`: a producer and a decoder on this machine, one prompt both ways, and whether the bits are the same.
//!
//! The producer is a process of its own, reached over the loopback interface as any other would be: a cluster is begun in a
//! folder that is gone at the end, the producer joins it with a ticket, and starts with the configuration that it got.

mod processes;

use std::io::{self, Write};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muser_cluster::enrol::Machine;
use muser_cluster::handoff::{Handoff, Remote};
use muser_engine::engine::{Generate, Job, PrefixReuse, RequestEvent};
use muser_engine::{LogprobsStage, LogprobsWanted, SamplingSettings, load_tokenizer};
use muser_host::{Answer, EngineHost, Refused};
use muser_kernels::attention::KvLayout;
use muser_text::{Specials, Tokenizer};
use muser_trust::Address;
use tokio::runtime::Builder;

use crate::cluster_member::Membership;
use crate::failure::Failure;
use crate::input::read_text;
use crate::member_error::MemberError;
use crate::model;
use crate::node::{Exchange, Node, NodeSettings, PageMemory};
use crate::settings::cluster_member::{DemoArgs, FallbackTo, Prefill, ProducerArgs};
use crate::settings::{DeviceChoice, MachineArgs};
use crate::usage::UsageError;

/// Repeated until the prompt is long enough, if none is given.
const PASSAGE: &str = "The harbour lay still in the morning, and the boats that had come in at night were tied side by side. \
A girl walked along the wall with a basket, counting them as she did every day, and found one that she did not know. ";

/// Tokens that are compared when the producer joins, if the prompt has as many.
const QUALIFICATION_TOKENS: usize = 600;
/// Result of one run, with or without the producer.
struct Outcome {
    first_token: Duration,
    tokens: Vec<u32>,
    /// The logarithms of the probabilities of the whole vocabulary at every token, as bits.
    bits: Vec<u64>,
}

/// Runs the command.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    let folder = tempfile::tempdir().map_err(MemberError::System)?;
    let (producer_folder, decoder_folder) = (folder.path().join("producer"), folder.path().join("decoder"));
    processes::begin(&decoder_folder)?;
    let files = model::open(args.model.as_deref(), &args.hub)?;
    // Two unequal machines are the point: a GPU that was asked for is the producer's.
    let device = if args.machine.device == DeviceChoice::Cuda { DeviceChoice::Cpu } else { args.machine.device };
    let machine = MachineArgs { device, ..args.machine.clone() };
    let executor = model::executor(Arc::clone(&files), &machine, model::CHUNK_ROWS)?;
    let (vocab, trained) = (executor.spec().config().vocab, executor.spec().config().context);
    let prompt = prompt(args, &load_tokenizer(&files.metadata(), vocab)?, trained)?;
    let settings = NodeSettings {
        kv: KvLayout::from(args.kv),
        context: trained,
        memory: PageMemory::Sequences { count: 2, kept: 0 },
        running_max: NonZeroUsize::MIN,
        waiting_max: 1,
    };
    let (node, shape) = Node::exchanging(executor, &settings, &files, Exchange::Receive)?;
    let (host, _) = EngineHost::start(node.engine).map_err(MemberError::System)?;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(MemberError::System)?;
    let prompt_tokens = prompt.len().min(QUALIFICATION_TOKENS);
    let (host_too, shape_too, tokens) = (host.clone(), shape.clone(), u32::try_from(vocab).unwrap_or(u32::MAX));
    let machine = Machine { host: host_too, shape: shape_too, vocab: tokens, prompt_tokens };
    runtime.block_on(processes::enrol(args, &machine, &decoder_folder, &producer_folder))?;
    let (_producing, address) = processes::start_producer(args, &producer_folder)?;
    let membership = Membership::load(&decoder_folder)?;
    let asked = producers(&decoder_folder, address);
    let remotes = membership.remotes(&asked, &shape, &membership.quarantine()?)?;
    let generate = generate(args.predict, vocab, trained);
    let (local, (remote, handoff)) = runtime.block_on(async {
        let local = answer_here(&host, &prompt, generate.clone()).await?;
        let remote = answer_with(&remotes[0], &host, &prompt, generate).await?;
        Ok::<_, MemberError>((local, remote))
    })?;
    let same = local.tokens == remote.tokens && local.bits == remote.bits;
    let written = print(&local, &remote, &handoff, prompt.len(), same).map_err(Failure::Stdout);
    written.and_then(|()| if same { Ok(()) } else { Err(MemberError::BitsDiffer.into()) })
}

/// The producer at `address`, asked for every prompt.
fn producers(decoder: &Path, address: Address) -> ProducerArgs {
    ProducerArgs {
        cluster: Some(decoder.to_owned()),
        producer: vec![address],
        producer_min_tokens: 0,
        prefill: Prefill::Producer,
        fallback: FallbackTo::Fail,
        handoff_seconds: NonZeroU32::new(3600).unwrap_or(NonZeroU32::MIN),
        producer_stall_seconds: NonZeroU32::new(600).unwrap_or(NonZeroU32::MIN),
        audit: 0.0,
        audit_tokens: NonZeroUsize::MIN,
    }
}

/// The prompt of a file, or the passage as often as it takes.
fn prompt(args: &DemoArgs, tokenizer: &Tokenizer, trained: usize) -> Result<Vec<u32>, Failure> {
    let text = args.file.as_deref().map(read_text).transpose()?;
    let mut tokens = match &text {
        Some(text) => tokenizer.encode_prompt(text, Specials::AsText),
        None => tokenizer.encode_prompt(&PASSAGE.repeat(args.tokens.get() / 16 + 1), Specials::AsText),
    };
    let room = trained.saturating_sub(args.predict.get());
    if text.is_none() {
        tokens.truncate(args.tokens.get().min(room));
    }
    if tokens.len() > room || tokens.len() < 2 {
        return Err(UsageError::PromptLength { tokens: tokens.len(), max: room }.into());
    }
    Ok(tokens)
}

fn generate(predict: NonZeroUsize, vocab: usize, context: usize) -> Generate {
    Generate {
        tokens_max: Some(predict.get()),
        context,
        stop_tokens: Arc::new([]),
        sampling: SamplingSettings::greedy(),
        logprobs: Some(LogprobsWanted { count: vocab, stage: LogprobsStage::Model }),
    }
}

async fn answer_here(host: &EngineHost, prompt: &[u32], generate: Generate) -> Result<Outcome, MemberError> {
    let began = Instant::now();
    let answer = host.submit(Job::generate(prompt, PrefixReuse::Isolate, generate)).await?;
    listen(answer, began).await
}

async fn answer_with(
    remote: &Remote,
    host: &EngineHost,
    prompt: &[u32],
    generate: Generate,
) -> Result<(Outcome, Handoff), MemberError> {
    let began = Instant::now();
    let mut installation = host.begin_installation(prompt.to_vec(), PrefixReuse::Isolate).await?;
    let handoff = remote.bring(&mut installation).await?;
    let installed = installation.finish()?;
    let last = prompt[installed.tokens().len()];
    let answer = host.submit(Job::generate_from(installed, last, generate)).await?;
    Ok((listen(answer, began).await?, handoff))
}

async fn listen(mut answer: Answer, began: Instant) -> Result<Outcome, MemberError> {
    let mut outcome = Outcome { first_token: Duration::ZERO, tokens: Vec::new(), bits: Vec::new() };
    while let Some(timed) = answer.next().await {
        match timed.event {
            RequestEvent::Token(chosen) => {
                if outcome.tokens.is_empty() {
                    outcome.first_token = timed.at - began;
                }
                outcome.tokens.push(chosen.token);
                let logprobs = chosen.logprobs.map(|found| found.top).unwrap_or_default();
                outcome.bits.extend(logprobs.iter().flat_map(|top| [u64::from(top.token), top.logprob.to_bits()]));
            }
            RequestEvent::Finished(_) => return Ok(outcome),
            RequestEvent::Failed(error) => return Err(MemberError::Answer(error.to_string())),
            _ => {}
        }
    }
    Err(Refused::Stopped.into())
}

fn print(local: &Outcome, remote: &Outcome, handoff: &Handoff, prompt: usize, same: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let seconds = |duration: Duration| duration.as_secs_f64();
    writeln!(
        out,
        "a prompt of {prompt} tokens, {} tokens answered; producer and decoder share this machine\n",
        local.tokens.len()
    )?;
    writeln!(out, "| | computed here | by the producer |")?;
    writeln!(out, "|---|---:|---:|")?;
    writeln!(
        out,
        "| first token after | {:.3} s | {:.3} s |",
        seconds(local.first_token),
        seconds(remote.first_token)
    )?;
    writeln!(out, "| of which the handoff | | {:.3} s |", seconds(handoff.elapsed))?;
    writeln!(out, "| pages brought | | {} |", handoff.stats.pages)?;
    writeln!(out, "| bytes brought | | {} |", handoff.stats.payload_bytes)?;
    writeln!(out, "| same tokens and logits, bit for bit | | {} |", if same { "yes" } else { "NO" })?;
    out.flush()
}
