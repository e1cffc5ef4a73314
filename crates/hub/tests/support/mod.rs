//! A small HTTP/1.1 server on the loopback interface that does what a test tells it, also what no server should.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod hub;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// One request.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    headers: Vec<(String, String)>,
}

/// HTTP reply. `Connection: close` is added.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Body,
}

pub enum Body {
    /// With its length stated.
    Whole(Vec<u8>),
    /// These bytes of a body that is stated to have so many, then the end of the connection.
    Cut(Vec<u8>, usize),
    /// These bytes of a body that is stated to have so many, then nothing until the client leaves.
    Stalled(Vec<u8>, usize),
    /// In chunks, without a length; with the end marked or cut off.
    Chunked(Vec<u8>, End),
    /// Without a length: it ends where the connection does.
    UntilClose(Vec<u8>),
    /// The first half, and the rest when the gate opens.
    Gated(Vec<u8>, Arc<Gate>),
    /// Chunks of this text, for ever.
    Endless(&'static [u8]),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Marked,
    CutOff,
}

/// Closed until it is opened.
#[derive(Default)]
pub struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    pub fn wait(&self) {
        let guard = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(guard, |is_open| !*is_open).unwrap());
    }
}

impl Asked {
    /// A request for everything from a byte on, whatever the etag.
    pub fn of_range(start: usize) -> Self {
        let headers = vec![("Range".into(), format!("bytes={start}-"))];
        Self { method: "GET".into(), path: "/".into(), headers }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// First byte of the range asked for.
    pub fn range_start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

impl Reply {
    pub fn new(status: u16, body: Body) -> Self {
        Self { status, headers: Vec::new(), body }
    }

    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self::new(200, Body::Whole(body.into()))
    }

    pub fn status(status: u16) -> Self {
        Self::new(status, Body::Whole(b"{}".into()))
    }

    pub fn redirect(location: impl Into<String>) -> Self {
        Self::status(302).with("Location", location)
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// `content`, or the part of it that is asked for, as servers that know ranges answer.
    pub fn file(asked: &Asked, content: &[u8], etag: &str) -> Self {
        let is_same = asked.header("if-range").is_none_or(|known| known == etag);
        match asked.range_start().filter(|_| is_same) {
            Some(start) if start >= content.len() => {
                Self::status(416).with("Content-Range", format!("bytes */{}", content.len()))
            }
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", content.len() - 1, content.len());
                let rest = Self::new(206, Body::Whole(content[start..].into()));
                rest.with("Content-Range", range).with("ETag", etag)
            }
            None => Self::ok(content).with("ETag", etag),
        }
    }

    /// The same, but the connection ends after `bytes` of the body.
    pub fn cut_after(mut self, bytes: usize) -> Self {
        if let Body::Whole(whole) = self.body {
            let kept = whole[..bytes.min(whole.len())].to_vec();
            self.body = Body::Cut(kept, whole.len());
        }
        self
    }
}

/// A running server; it ends when it is dropped.
pub struct Server {
    /// `http://127.0.0.1:PORT`.
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    is_over: Arc<AtomicBool>,
    accepting: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Answers every request with what `answer` says.
    pub fn start(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, is_over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (log, over, answer) = (asked.clone(), is_over.clone(), Arc::new(answer));
        let accepting = thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (log, answer) = (log.clone(), answer.clone());
                thread::spawn(move || {
                    // A client that leaves in the middle is part of many tests.
                    let _ = serve(stream.unwrap(), &log, &*answer);
                });
            }
        });
        Self { url, asked, is_over, accepting: Some(accepting) }
    }

    /// Answers every request with a line of no known protocol.
    pub fn speaking_nonsense() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let accepting = thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.unwrap();
                // What the client says must be read, or closing would reset the connection before it reads the answer.
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(b"nonsense, and enough of it\r\n");
            }
        });
        Self { url, asked: Arc::default(), is_over, accepting: Some(accepting) }
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Requests with `method` so far.
    pub fn count(&self, method: &str) -> usize {
        self.asked().iter().filter(|asked| asked.method == method).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
        let _ = self.accepting.take().map(thread::JoinHandle::join);
    }
}

fn serve(
    mut stream: TcpStream,
    log: &Mutex<Vec<Asked>>,
    answer: &(dyn Fn(&Asked) -> Reply + Send + Sync),
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(()) };
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.into(), value.into())),
            None => break,
        }
    }
    let asked = Asked { method, path, headers };
    log.lock().unwrap().push(asked.clone());
    let reply = answer(&asked);
    let mut head = format!("HTTP/1.1 {} Said\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    match &reply.body {
        Body::Whole(bytes) | Body::Gated(bytes, _) => head += &format!("Content-Length: {}\r\n\r\n", bytes.len()),
        Body::Cut(_, stated) | Body::Stalled(_, stated) => head += &format!("Content-Length: {stated}\r\n\r\n"),
        Body::Chunked(..) | Body::Endless(_) => head += "Transfer-Encoding: chunked\r\n\r\n",
        Body::UntilClose(_) => head += "\r\n",
    }
    stream.write_all(head.as_bytes())?;
    if asked.method == "HEAD" {
        return Ok(());
    }
    write_body(&mut stream, reply.body)
}

fn write_body(stream: &mut TcpStream, body: Body) -> std::io::Result<()> {
    match body {
        Body::Whole(bytes) | Body::Cut(bytes, _) | Body::UntilClose(bytes) => stream.write_all(&bytes),
        Body::Stalled(bytes, _) => {
            stream.write_all(&bytes)?;
            stream.read_to_end(&mut Vec::new()).map(drop)
        }
        Body::Gated(bytes, gate) => {
            let (first, rest) = bytes.split_at(bytes.len() / 2);
            stream.write_all(first)?;
            gate.wait();
            stream.write_all(rest)
        }
        Body::Chunked(bytes, end) => {
            for chunk in bytes.chunks(1000) {
                write_chunk(stream, chunk)?;
            }
            if end == End::Marked { stream.write_all(b"0\r\n\r\n") } else { Ok(()) }
        }
        Body::Endless(text) => loop {
            write_chunk(stream, text)?;
        },
    }
}

fn write_chunk(stream: &mut TcpStream, chunk: &[u8]) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
    stream.write_all(chunk)?;
    stream.write_all(b"\r\n")
}
