//! Handoffs of any size over a real lane, with made-up pages: checks that all of it arrives, and measures rate and
//! memory.
//!
//! `handoff_sizes MIB...` prints a line of JSON per size. The sender is a process of its own, so that each end's memory is
//! measured alone. Every page is compared with what was to be sent. There is no engine, and so nothing but the wire.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muser_lane::{Acceptor, Connector, Lane, LaneSettings, UnixClock, Wanted};
use muser_trust::identity::{ClusterAuthority, ClusterFolder, Grant, NodeKey, NodeName, Role, Roles};
use muser_trust::keys::KeyRing;
use muser_wire::{
    Acceptance, Codecs, HandoffId, HandoffPlan, Identity, KeyState, MacKeys, Node, Receiver, ReceiverEvent,
    ReceiverSettings, Request, Sender, SenderEvent, SenderSettings, SenderTimes, Stats,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Four layers of such pages make a MiB for each token of a request.
const LAYERS: u16 = 4;
const PAGE_BYTES: u32 = 256 << 10;
const FRAME_BYTES_MAX: u32 = 16 << 20;
const BACKLOG_BYTES: usize = 32 << 20;
const STALL_MS: u64 = 60_000;
const KEY_ID: u32 = 1;
/// The receiver has a clock of its own.
const NO_TIMES: SenderTimes =
    SenderTimes { queue_us: 0, compute_us: 0, pack_us: 0, send_busy_us: None, send_wall_us: 0 };

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match args.as_slice() {
        [first, folder] if first == "send" => runtime.block_on(send(folder)),
        sizes if !sizes.is_empty() => {
            let sizes = sizes.iter().map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
            runtime.block_on(receive(&sizes))
        }
        _ => Err("sizes in MiB are needed".into()),
    }
}

/// Starts the sender, and asks it for each size.
async fn receive(sizes: &[usize]) -> Outcome<()> {
    let root = tempfile::tempdir()?;
    let now = (clock())();
    let authority = ClusterAuthority::create(&NodeName::new("sizes")?, now)?;
    let keys = KeyRing::generate(now)?;
    for (name, roles) in [("sender", Roles::Producer), ("receiver", Roles::Decoder)] {
        let folder = ClusterFolder::new(root.path().join(name));
        let key = NodeKey::generate()?;
        folder.join(authority.certificate_pem(), &keys)?;
        folder.save_node_key(&key)?;
        let grant = Grant { name: NodeName::new(name)?, roles, lifetime_s: 86_400 };
        folder.save_node_certificate(&authority.sign(&key.request()?, &grant, now)?)?;
    }
    let mut child = Command::new(std::env::current_exe()?)
        .arg("send")
        .arg(root.path().join("sender"))
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let address = said.next().ok_or("the sender did not start")??.parse()?;
    let folder = ClusterFolder::new(root.path().join("receiver"));
    let connector = Connector::new(&folder.load_identity()?, lane_settings(&folder)?)?;
    let mut lane = connector.connect(address, Wanted { role: Role::Producer, id: None }).await?;
    let began = Instant::now();
    let now_ms = move || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let settings = ReceiverSettings {
        node: node(1),
        lane: lane.binding(),
        keys: mac_keys(),
        pages_bytes_max: FRAME_BYTES_MAX,
        stall_limit_ms: STALL_MS,
    };
    let mut receiver = Receiver::connect(settings, now_ms());
    for (number, mib) in sizes.iter().enumerate() {
        reset_peak()?;
        let started = Instant::now();
        let stats = ask(&mut lane, &mut receiver, (u8::try_from(number)?, *mib), &now_ms).await?;
        let seconds = started.elapsed().as_secs_f64();
        let sender = said.next().ok_or("the sender is gone")??;
        println!(
            "{{\"payload_bytes\": {}, \"pages\": {}, \"frames\": {}, \"seconds\": {seconds:.3}, \"gbit_per_s\": {:.3}, \
             \"every_page_equal\": true, \"receiver_peak_kib\": {}, \"sender_peak_kib\": {sender}}}",
            stats.payload_bytes,
            stats.pages,
            stats.frames,
            stats.payload_bytes as f64 * 8e-9 / seconds,
            peak_kib()?,
        );
    }
    drop(lane);
    child.wait()?;
    Ok(())
}

/// One handoff of so many MiB, in which every page is compared.
async fn ask(
    lane: &mut Lane,
    receiver: &mut Receiver,
    (number, mib): (u8, usize),
    now_ms: &impl Fn() -> u64,
) -> Outcome<Stats> {
    let (mut buffer, mut unread, mut asked) = (vec![0; 256 << 10], Vec::new(), false);
    let mut expected = Vec::new();
    loop {
        if receiver.is_idle() && !asked {
            asked = true;
            let request = Request {
                expires_in_ms: 3_600_000,
                codecs: Codecs::NONE_ONLY,
                ..Request::new(HandoffId([number + 1; 16]), KEY_ID, [number + 1; 32], vec![7; mib])
            };
            receiver.request(request, now_ms())?;
        }
        match receiver.poll_event() {
            Some(ReceiverEvent::Accepted(_)) => receiver.ledger_recorded(plan(mib)?, now_ms())?,
            Some(ReceiverEvent::Page { layer, page, bytes }) => {
                make_page(layer, page, &mut expected);
                if bytes != expected {
                    return Err(format!("page {page} of layer {layer} is another").into());
                }
            }
            Some(ReceiverEvent::Complete(stats)) => {
                receiver.installed()?;
                lane.write_all(receiver.output()).await?;
                lane.flush().await?;
                receiver.output_sent(receiver.output().len(), now_ms());
                return Ok(stats);
            }
            Some(ReceiverEvent::Failed(failure)) => return Err(failure.into()),
            Some(ReceiverEvent::Refused(refuse)) => return Err(refuse.detail.into()),
            Some(_) => {}
            None => {
                if !receiver.output().is_empty() {
                    lane.write_all(receiver.output()).await?;
                    lane.flush().await?;
                    receiver.output_sent(receiver.output().len(), now_ms());
                }
                let taken = receiver.take_bytes(&unread, now_ms());
                unread.drain(..taken);
                if taken == 0 && !receiver.is_idle() {
                    let read = lane.read(&mut buffer).await?;
                    if read == 0 {
                        return Err("the sender left".into());
                    }
                    unread.extend_from_slice(&buffer[..read]);
                }
            }
        }
    }
}

/// Sends whatever is asked for, until the receiver leaves.
async fn send(folder: &str) -> Outcome<()> {
    let folder = ClusterFolder::new(Path::new(folder));
    let wanted = Wanted { role: Role::Decoder, id: None };
    let acceptor = Acceptor::new(&folder.load_identity()?, lane_settings(&folder)?, wanted)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let mut lane = acceptor.accept(listener.accept().await?.0).await?;
    let began = Instant::now();
    let now_ms = || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let settings = SenderSettings {
        node: node(2),
        lane: lane.binding(),
        keys: mac_keys(),
        codecs: Codecs::NONE_ONLY,
        concurrent_max: 1,
        context_max: 1 << 20,
        pages_bytes_max: FRAME_BYTES_MAX,
        backlog_bytes_max: BACKLOG_BYTES,
        stall_limit_ms: STALL_MS,
    };
    let mut sender = Sender::new(settings, now_ms());
    let (mut buffer, mut pages) = (vec![0; 64 << 10], Vec::new());
    let (mut frames, mut unread, mut under_way) = (Vec::new(), Vec::new(), false);
    loop {
        let taken = sender.take_bytes(&unread, now_ms());
        unread.drain(..taken);
        while let Some(event) = sender.poll_event() {
            match event {
                SenderEvent::Request(request) => {
                    reset_peak()?;
                    let plan = plan(request.tokens.len())?;
                    frames = plan.frames(0, 0..u32::MAX, sender.frame_bytes_max());
                    frames.reverse();
                    under_way = true;
                    sender.accept(Acceptance { nonce: [9; 32], first_page: 0, reused_rows: 0, plan }, now_ms())?;
                }
                SenderEvent::Installed(_) => {
                    println!("{}", peak_kib()?);
                    std::io::stdout().flush()?;
                }
                SenderEvent::Failed(failure) => return Err(failure.into()),
                _ => {}
            }
        }
        while under_way && sender.wants_more() {
            let Some(range) = frames.pop() else {
                sender.commit(NO_TIMES, now_ms())?;
                under_way = false;
                break;
            };
            let (first, count) = (range.start, range.len());
            pages.resize_with(count * usize::from(LAYERS), Vec::new);
            for (index, page) in pages.iter_mut().enumerate() {
                let (layer, page_index) = (index / count, first + u32::try_from(index % count)?);
                make_page(u16::try_from(layer)?, page_index, page);
            }
            let of = |layer: u16, page: u32| pages[usize::from(layer) * count + (page - first) as usize].as_slice();
            sender.send_pages(0, range, of)?;
        }
        let output = sender.output();
        if output.is_empty() && taken == 0 {
            // The receiver leaves without a farewell.
            let read = lane.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                return Ok(());
            }
            unread.extend_from_slice(&buffer[..read]);
        } else if !output.is_empty() {
            let written = lane.write(output).await?;
            sender.output_sent(written, now_ms());
            if sender.output().is_empty() {
                lane.flush().await?;
            }
        }
    }
}

/// The pages of a handoff of so many MiB.
fn plan(mib: usize) -> Outcome<HandoffPlan> {
    let pages = 0..u32::try_from(mib)?;
    Ok(HandoffPlan::new(vec![(0..LAYERS).collect()], vec![pages; usize::from(LAYERS)], PAGE_BYTES)?)
}

/// The bytes of a page: no two pages have the same.
fn make_page(layer: u16, page: u32, bytes: &mut Vec<u8>) {
    bytes.clear();
    let seed = u64::from(layer) << 32 | u64::from(page);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..PAGE_BYTES / 8 {
        state = state.wrapping_mul(0xd129_0258_49f2_5c6b).wrapping_add(seed);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
}

fn node(number: u8) -> Node {
    Node { boot_id: [number; 16], node_id: [number; 32], identity: Identity([[5; 32]; 5]) }
}

fn mac_keys() -> MacKeys {
    let mut keys = MacKeys::default();
    keys.set(KEY_ID, [11; 32], KeyState::Active);
    keys
}

fn lane_settings(folder: &ClusterFolder) -> Outcome<LaneSettings> {
    let revocations = Arc::new(folder.load_revocations()?);
    Ok(LaneSettings { revocations, handshake_timeout: Duration::from_secs(10), clock: clock() })
}

fn clock() -> UnixClock {
    Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// The most memory that was resident since [`reset_peak`], in KiB.
fn peak_kib() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Forgets the peak so far.
fn reset_peak() -> Outcome<()> {
    Ok(std::fs::write("/proc/self/clear_refs", "5")?)
}
