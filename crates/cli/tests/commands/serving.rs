//! A running `muser serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command};

use crate::common::{command, command_with_descriptors};

const SERVE: [&str; 7] = ["serve", "--port", "0", "-c", "512", "-t", "1"];

/// A server that is ready.
pub struct Serving {
    pub child: Child,
    pub stderr: BufReader<ChildStderr>,
    /// Its standard error until it was ready.
    pub said: String,
    pub address: String,
}

impl Serving {
    pub fn start(args: &[&str]) -> Self {
        Self::of(command(&[&SERVE, args].concat()))
    }

    /// One that has at most so many descriptors.
    pub fn start_with_descriptors(descriptors: u64, args: &[&str]) -> Self {
        Self::of(command_with_descriptors(descriptors, &[&SERVE, args].concat()))
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("\nkeys ") {
            assert!(stderr.read_line(&mut said).unwrap() > 0, "ended with {:?}: {said}", child.wait());
        }
        let address = said.split("listening on http://").nth(1).unwrap().lines().next().unwrap().to_owned();
        Self { child, stderr, said, address }
    }

    /// Sends a request; the connection with its answer.
    pub fn send(&self, method: &str, path: &str, key: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nX-Api-Key: {key}\r\n", self.address);
        let length = body.len();
        write!(stream, "{head}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        stream
    }

    pub fn ask(&self, method: &str, path: &str, key: &str, body: &str) -> String {
        let mut answer = String::new();
        self.send(method, path, key, body).read_to_string(&mut answer).unwrap();
        answer
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for its end: exit code, and all that it said.
    pub fn ended(mut self) -> (Option<i32>, String) {
        self.stderr.read_to_string(&mut self.said).unwrap();
        (self.child.wait().unwrap().code(), self.said)
    }

    /// Asks it to stop once the requests under way have ended; all that it said.
    pub fn stopped(self) -> String {
        self.signal("TERM");
        let (code, said) = self.ended();
        assert_eq!(code, Some(0), "{said}");
        said
    }

    /// The value of a metric.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.ask("GET", "/metrics", "", "");
        let line = text.lines().find(|line| line.rsplit_once(' ').is_some_and(|(found, _)| found == name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }
}
