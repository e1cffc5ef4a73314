//! Requests made to break a server: each is answered as it should be, and whoever watches the server never notices.
//!
//! The real binary is asked over real sockets, within an address space that a fault would exceed, while `/health` is asked
//! all the time. The tests' profile has overflow checks on.

#[path = "hostile_requests/bodies.rs"]
mod bodies;
mod common;
#[path = "hostile_requests/heads.rs"]
mod heads;
#[path = "hostile_requests/heavy.rs"]
mod heavy;
#[path = "hostile_requests/templates.rs"]
mod templates;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Address space of the server. Its own threads and model reserve less than a third of it.
const ADDRESS_SPACE_KIB: u64 = 3 << 20;
/// Limits of the server's resident memory that requests may add while they are answered, and that may remain
/// afterwards.
const PEAK_KIB: u64 = 512 << 10;
const LEFT_KIB: u64 = 128 << 10;
/// Far beyond what any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(100);
/// For an answer to `/health`, which waits for nothing: less than the time of the longest work that a request may ask for.
const WATCH_PATIENCE: Duration = Duration::from_secs(10);
/// Positions of a request, and tokens of the shipped model's vocabulary.
const CONTEXT: usize = 512;
const VOCAB: usize = 4096;

/// A request, and the statuses of which it must get one.
pub struct Case {
    /// Description of the hostile part.
    pub name: String,
    /// HTTP method.
    pub method: &'static str,
    /// Path with query.
    pub path: &'static str,
    /// Body as sent.
    pub body: Vec<u8>,
    /// Allowed statuses.
    pub expected: &'static [u16],
}

impl Case {
    /// One that is posted.
    pub fn post(
        name: impl Into<String>,
        path: &'static str,
        body: impl Into<Vec<u8>>,
        expected: &'static [u16],
    ) -> Self {
        Self { name: name.into(), method: "POST", path, body: body.into(), expected }
    }
}

/// A server within its address space.
struct Target {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
    said: String,
}

impl Target {
    fn start() -> Self {
        Self::start_with(ADDRESS_SPACE_KIB, &["-c", "512"])
    }

    /// One whose data may have so many KiB, with more flags.
    fn start_with(data_kib: u64, flags: &[&str]) -> Self {
        let limited = format!("ulimit -v {ADDRESS_SPACE_KIB} && ulimit -d {data_kib} && exec \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_muser"), "serve", "--port", "0", "-t", "1"]);
        shell.args(["--kv-memory", "64", "-n", "4"]).args(flags);
        shell.env("XDG_CONFIG_HOME", "/nowhere").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("\nkeys ") {
            assert!(stderr.read_line(&mut said).unwrap() > 0, "ended with {:?}: {said}", child.wait());
        }
        let address = said.split("listening on http://").nth(1).unwrap().lines().next().unwrap().to_owned();
        Self { child, stderr, address, said }
    }

    /// A line of the process's status, in KiB.
    fn memory(&self, name: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the server lives");
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end, of which nothing but its own words may tell.
    fn ended(mut self) -> (Option<i32>, String) {
        self.stderr.read_to_string(&mut self.said).unwrap();
        assert!(!self.said.contains("panicked"), "{}", self.said);
        (self.child.wait().unwrap().code(), self.said)
    }
}

/// Sends bytes as they are; what came back until the end of the connection.
fn exchange(address: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for part in parts {
        // A server may refuse, and close, before it has read everything.
        if stream.write_all(part).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        // A connection that was closed while more was on its way is reset behind its answer.
        assert!(error.kind() == std::io::ErrorKind::ConnectionReset, "no answer: {error}");
    }
    answer
}

/// The status of an answer, whose refusals all have the envelope.
#[track_caller]
fn status_of(name: &str, answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(&answer[..answer.len().min(100_000)]);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("{name}: no status in {text:?}"));
    if status >= 400 {
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let envelope: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{name}: {error} in {text:?}"));
        assert_eq!(envelope["error"]["code"], status, "{name}: {envelope}");
        let message = envelope["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty() && message.len() < 8000, "{name}: {message}");
    }
    status
}

fn ask(address: &str, case: &Case) -> u16 {
    let Case { name, method, path, body, .. } = case;
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    status_of(name, &exchange(address, &[head.as_bytes(), body]))
}

/// Runs `work` while `/health` is asked all the time, by a new connection each time.
fn watched(address: &str, work: impl FnOnce()) {
    let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let case = Case { method: "GET", ..Case::post("the watch", "/health", "", &[200]) };
                let began = Instant::now();
                assert_eq!(ask(address, &case), 200);
                assert!(began.elapsed() < WATCH_PATIENCE, "/health took {:?}", began.elapsed());
                asked.fetch_add(1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        // The watch ends with the work, however that ends.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _over = Over(&over);
        work();
    });
    assert!(asked.into_inner() > 0, "nobody watched");
}

#[track_caller]
fn assert_all(address: &str, cases: &[Case]) {
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let status = ask(address, case);
            let Case { name, path, expected, .. } = case;
            (!expected.contains(&status)).then(|| format!("{path} {name}: {status}, and not one of {expected:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {} went wrong:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn hostile_requests_are_refused_by_name_and_harm_nobody() {
    let target = Target::start();
    let address = target.address.clone();
    let before = target.memory("VmRSS");
    let cases = bodies::cases(VOCAB, CONTEXT);
    assert!(cases.len() > 150, "{}", cases.len());
    watched(&address, || {
        assert_all(&address, &cases);
        for head in heads::heads(&address) {
            let answer = exchange(&address, &[head.bytes.as_bytes()]);
            assert!(head.expected.contains(&status_of(head.name, &answer)), "{}", head.name);
        }
    });
    let peak = target.memory("VmHWM");
    assert!(peak < before + PEAK_KIB, "{before} KiB became {peak}");
    target.signal("TERM");
    let (code, said) = target.ended();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn heavy_requests_cost_little_and_leave_nothing_behind() {
    let target = Target::start();
    let address = target.address.clone();
    let before = target.memory("VmRSS");
    let cases = heavy::cases(VOCAB);
    watched(&address, || {
        for case in &cases {
            // Several at once: what one may hold, all together may not.
            thread::scope(|scope| {
                let others: Vec<_> = (0..2).map(|_| scope.spawn(|| ask(&address, case))).collect();
                let statuses = others.into_iter().map(|other| other.join().unwrap()).chain([ask(&address, case)]);
                for status in statuses.collect::<Vec<_>>() {
                    let busy = [429, 503].contains(&status);
                    assert!(busy || case.expected.contains(&status), "{}: {status}", case.name);
                }
            });
            let peak = target.memory("VmHWM");
            assert!(peak < before + PEAK_KIB, "{}: {before} KiB became {peak}", case.name);
        }
    });
    // Memory goes back once the last answer has been taken.
    let mut left = target.memory("VmRSS");
    for _ in 0..300 {
        if left < before + LEFT_KIB {
            break;
        }
        thread::sleep(Duration::from_millis(100));
        left = target.memory("VmRSS");
    }
    assert!(left < before + LEFT_KIB, "{before} KiB became {left}");
    let ordinary = Case::post("ordinary", "/completion", r#"{"prompt":"Once","n_predict":2}"#, &[200]);
    assert_eq!(ask(&address, &ordinary), 200);
    target.signal("TERM");
    let (code, said) = target.ended();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn signals_are_heard_whatever_the_server_is_doing() {
    let mut target = Target::start();
    let address = target.address.clone();
    let [word] = heavy::long_work();
    // More of it than there are threads, and nobody waits for the answers.
    let clients: Vec<TcpStream> = (0..6)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            let head = format!(
                "POST {} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n",
                word.path,
                word.body.len()
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&word.body).unwrap();
            stream
        })
        .collect();
    target.signal("TERM");
    while !target.said.contains("muser: stopping") {
        assert!(target.stderr.read_line(&mut target.said).unwrap() > 0, "{}", target.said);
    }
    target.signal("TERM");
    let (code, said) = target.ended();
    // It may have been done before the second one came.
    assert!([Some(143), Some(0)].contains(&code), "{code:?}: {said}");
    drop(clients);
}
