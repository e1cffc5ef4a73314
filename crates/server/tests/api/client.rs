//! An HTTP client that hides nothing: what the server sent, and when.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in small letters.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// A connection with an answer that is still coming.
pub struct Pending {
    reader: BufReader<TcpStream>,
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The body, if all went well.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// The message of a refusal with this status and type.
    #[track_caller]
    pub fn refused(&self, status: u16, kind: &str) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        let error = &self.json()["error"];
        assert_eq!((&error["code"], &error["type"]), (&Value::from(status), &Value::from(kind)), "{error}");
        error["message"].as_str().unwrap().to_owned()
    }

    /// The data of the events of a stream, `[DONE]` included.
    #[track_caller]
    pub fn events(&self) -> Vec<String> {
        assert_eq!((self.status, self.header("content-type")), (200, Some("text/event-stream")), "{}", self.body);
        let blocks = self.body.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
        blocks.map(|block| block.strip_prefix("data: ").unwrap().to_owned()).collect()
    }

    /// The objects of the events of a stream, without `[DONE]`.
    #[track_caller]
    pub fn chunks(&self) -> Vec<Value> {
        let objects = self.events().into_iter().filter(|data| data != "[DONE]");
        objects.map(|data| serde_json::from_str(&data).unwrap()).collect()
    }
}

/// Sends a request; the answer has begun when this returns.
pub fn begin(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Pending {
    Pending::read_head(send(address, method, path, headers, body))
}

/// A connection that waits only as long as any test could take: a server that hangs does not hang the test.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream
}

/// Sends a request, and leaves the answer to the caller.
pub fn send(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
    let mut stream = connect(address);
    let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request += &format!("Host: {address}\r\n");
    }
    headers.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
    request += "\r\n";
    // A server may refuse, and close, before it has read everything.
    let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(body));
    stream
}

impl Pending {
    /// Reads the status and the headers.
    pub fn read_head(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
        let mut headers = Vec::new();
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Self { reader, status, headers }
    }

    /// The next chunk of a body that comes in chunks; empty at the end. A stream sends an event in a chunk.
    pub fn chunk(&mut self) -> String {
        let mut size = String::new();
        self.reader.read_line(&mut size).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or_else(|_| panic!("no chunk size in {size:?}"));
        let mut bytes = vec![0; size + 2];
        self.reader.read_exact(&mut bytes).unwrap();
        bytes.truncate(size);
        String::from_utf8(bytes).unwrap()
    }

    /// The next `length` bytes of a body that is not sent in chunks.
    pub fn exactly(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length];
        self.reader.read_exact(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Reads what comes until the end of the connection, whatever it is.
    pub fn read_to_string(&mut self, text: &mut String) {
        self.reader.read_to_string(text).unwrap();
    }

    /// Reads the rest.
    pub fn finish(mut self) -> Answer {
        let chunked = self.headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let mut body = String::new();
        if chunked {
            loop {
                let chunk = self.chunk();
                if chunk.is_empty() {
                    break;
                }
                body += &chunk;
            }
        } else {
            self.reader.read_to_string(&mut body).unwrap();
        }
        Answer { status: self.status, headers: self.headers, body }
    }
}
