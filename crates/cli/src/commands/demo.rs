//! `muser demo`: a producer and a decoder on this machine, one prompt both ways, and whether the bits are the same.
//!
//! The producer is a process of its own, reached over the loopback interface as any other would be: a cluster of two is
//! made in a folder that is gone at the end, with certificates, keys and ledger.

use std::io::{self, BufRead, BufReader, Write};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muser_cluster::handoff::{Address, Handoff, Remote};
use muser_cluster::identity::{ClusterAuthority, ClusterFolder, Grant, NodeKey, NodeName, Roles};
use muser_cluster::keys::KeyRing;
use muser_engine::engine::{PrefixReuse, Request};
use muser_engine::{
    ChunkRows, Engine, EngineSettings, LogprobsStage, LogprobsWanted, SamplingSettings, load_tokenizer,
};
use muser_host::{Answer, EngineHost, What};
use muser_kernels::attention::KvLayout;
use muser_text::{Specials, Tokenizer};
use tokio::runtime::Builder;

use crate::cluster_member::{Membership, shape};
use crate::failure::Failure;
use crate::input::read_text;
use crate::model;
use crate::settings::cluster_member::{DemoArgs, FallbackTo, Prefill, ProducerArgs};

/// Repeated until the prompt is long enough, if none is given.
const PASSAGE: &str = "The harbour lay still in the morning, and the boats that had come in at night were tied side by side. \
A girl walked along the wall with a basket, counting them as she did every day, and found one that she did not know. ";

/// The folder's certificates are for an hour: longer than any demonstration.
const LIFETIME_S: u64 = 3600;

/// What one way of answering came to.
struct Outcome {
    first_token: Duration,
    tokens: Vec<u32>,
    /// The logarithms of the probabilities of the whole vocabulary at every token, as bits.
    bits: Vec<u64>,
}

/// The producer's process; ended with the demonstration.
struct Producing(Child);

impl Drop for Producing {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    let failed = |reason: &dyn std::fmt::Display| Failure::Handoff(reason.to_string());
    let folder = tempfile::tempdir().map_err(|reason| failed(&reason))?;
    let (producer_folder, decoder_folder) = make_cluster(folder.path())?;
    let (_producing, address) = start_producer(args, &producer_folder)?;
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let executor = model::executor(files, &args.machine, model::CHUNK_ROWS)?;
    let (loaded, trained) = (Arc::clone(executor.model()), executor.model().config().context);
    let tokenizer = load_tokenizer(&loaded.files().metadata(), loaded.config().vocab)?;
    let prompt = prompt(args, &tokenizer, trained)?;
    let kv = KvLayout::from(args.kv);
    let (shape, identity) = shape(&loaded, kv, trained)?;
    let needed = loaded.cache_spec(kv, trained)?.peak_bytes(trained, model::CHUNK_ROWS.get());
    let settings = EngineSettings {
        context: trained,
        kv,
        identity,
        budget_bytes: 2 * needed,
        prefix_bytes_max: 0,
        installed_bytes_max: needed,
        running_max: NonZeroUsize::MIN,
        waiting_max: 1,
        chunk: ChunkRows::DEFAULT,
    };
    let producers = ProducerArgs {
        cluster: Some(decoder_folder.clone()),
        producer: vec![address],
        producer_min_tokens: 0,
        prefill: Prefill::Producer,
        fallback: FallbackTo::Fail,
        handoff_seconds: NonZeroU32::new(3600).unwrap_or(NonZeroU32::MIN),
        producer_stall_seconds: NonZeroU32::new(600).unwrap_or(NonZeroU32::MIN),
        audit: 0.0,
        audit_tokens: NonZeroUsize::MIN,
    };
    let membership = Membership::load(&decoder_folder)?;
    let remotes = membership.remotes(&producers, &shape, &membership.quarantine()?)?;
    let (host, _) = EngineHost::start(Engine::new(executor, settings)?).map_err(|reason| failed(&reason))?;
    let request = request(&prompt, args.predict, loaded.config().vocab, trained);
    let runtime =
        Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(|reason| failed(&reason))?;
    let (local, (remote, handoff)) = runtime.block_on(async {
        let local = answer_here(&host, request.clone()).await?;
        let remote = answer_with(&remotes[0], &host, request).await?;
        Ok::<_, Failure>((local, remote))
    })?;
    let same = local.tokens == remote.tokens && local.bits == remote.bits;
    let written = print(&local, &remote, &handoff, prompt.len(), same).map_err(Failure::Stdout);
    written.and_then(|()| if same { Ok(()) } else { Err(Failure::Handoff("the bits differ".into())) })
}

/// A cluster of two nodes under `root`: the folders of the producer and of the decoder.
fn make_cluster(root: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let failed = |reason: &dyn std::fmt::Display| Failure::Handoff(reason.to_string());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let name = |name: &str| NodeName::new(name).map_err(|reason| failed(&reason));
    let authority = ClusterAuthority::create(&name("demo")?, now).map_err(|reason| failed(&reason))?;
    let keys = KeyRing::generate(now).map_err(|reason| failed(&reason))?;
    let node = |node: &str, roles| {
        let folder = ClusterFolder::new(root.join(node));
        let key = NodeKey::generate().map_err(|reason| failed(&reason))?;
        folder.join(authority.certificate_pem(), &keys).map_err(|reason| failed(&reason))?;
        folder.save_node_key(&key).map_err(|reason| failed(&reason))?;
        let grant = Grant { name: name(node)?, roles, lifetime_s: LIFETIME_S };
        let wanted = key.request().map_err(|reason| failed(&reason))?;
        let certificate = authority.sign(&wanted, &grant, now).map_err(|reason| failed(&reason))?;
        folder.save_node_certificate(&certificate).map_err(|reason| failed(&reason))?;
        Ok::<_, Failure>(folder.path().to_owned())
    };
    Ok((node("producer", Roles::Producer)?, node("decoder", Roles::Decoder)?))
}

/// Starts the producer, and waits until it says where it listens.
fn start_producer(args: &DemoArgs, folder: &Path) -> Result<(Producing, Address), Failure> {
    let failed = |reason: String| Failure::Handoff(format!("the producer did not start: {reason}"));
    let program = std::env::current_exe().map_err(|reason| failed(reason.to_string()))?;
    let mut command = Command::new(program);
    command.args(["produce", "--listen", "127.0.0.1:0"]).arg("--cluster").arg(folder);
    command.arg("--cache-type-k").arg(args.kv.to_string()).arg("--cache-type-v").arg(args.kv.to_string());
    if let Some(path) = &args.model {
        command.arg("--model").arg(path);
    }
    if let Some(reference) = &args.hub.hf_repo {
        command.arg("--hf-repo").arg(reference.to_string());
    }
    if let Some(threads) = args.machine.threads {
        command.arg("--threads").arg(threads.to_string());
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut producing = Producing(child.map_err(|reason| failed(reason.to_string()))?);
    let Some(stderr) = producing.0.stderr.take() else { return Err(failed("it says nothing".into())) };
    let mut lines = BufReader::new(stderr).lines();
    let mut said = String::from("it ended");
    while let Some(Ok(line)) = lines.next() {
        let address = line.split_once("producing on ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        if let Some(address) = address {
            // It must never wait for a reader.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok((producing, address));
        }
        said = line;
    }
    Err(failed(said))
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
        return Err(Failure::Usage(format!("the prompt has {} tokens, it needs to have 2 to {room}", tokens.len())));
    }
    Ok(tokens)
}

fn request(prompt: &[u32], predict: NonZeroUsize, vocab: usize, context: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        tokens_max: Some(predict.get()),
        context,
        stop_tokens: Arc::new([]),
        sampling: SamplingSettings::greedy(),
        logprobs: Some(LogprobsWanted { count: vocab, stage: LogprobsStage::Model }),
        reuse: PrefixReuse::Isolate,
    }
}

async fn answer_here(host: &EngineHost, request: Request) -> Result<Outcome, Failure> {
    let began = Instant::now();
    let answer = host.submit(request).await.map_err(|reason| Failure::Handoff(reason.to_string()))?;
    listen(answer, began).await
}

async fn answer_with(remote: &Remote, host: &EngineHost, request: Request) -> Result<(Outcome, Handoff), Failure> {
    let failed = |reason: &dyn std::fmt::Display| Failure::Handoff(reason.to_string());
    let began = Instant::now();
    let installation = host.begin_installation(request.prompt.clone(), request.reuse).await;
    let mut installation = installation.map_err(|reason| failed(&reason))?;
    let handoff = remote.bring(&mut installation).await.map_err(|reason| failed(&reason))?;
    let installed = installation.finish().map_err(|reason| failed(&reason))?;
    let answer = host.submit_installed(request, installed).await.map_err(|reason| failed(&reason))?;
    Ok((listen(answer, began).await?, handoff))
}

async fn listen(mut answer: Answer, began: Instant) -> Result<Outcome, Failure> {
    let mut outcome = Outcome { first_token: Duration::ZERO, tokens: Vec::new(), bits: Vec::new() };
    while let Some(news) = answer.next().await {
        match news.what {
            What::Token(chosen) => {
                if outcome.tokens.is_empty() {
                    outcome.first_token = news.at - began;
                }
                outcome.tokens.push(chosen.token);
                let logprobs = chosen.logprobs.map(|found| found.top).unwrap_or_default();
                outcome.bits.extend(logprobs.iter().flat_map(|top| [u64::from(top.token), top.logprob.to_bits()]));
            }
            What::Finished(_) => return Ok(outcome),
            What::Failed(reason) => return Err(Failure::Handoff(reason)),
            What::Started { .. } | What::Progress { .. } => {}
        }
    }
    Err(Failure::Handoff("the engine has stopped".into()))
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
