//! Heads that are no HTTP, or lie about their bodies, or come from pages that have no business here.

/// Bytes that are sent as they are, and the statuses of which they must get one.
pub struct Head {
    pub name: &'static str,
    pub bytes: String,
    pub expected: &'static [u16],
}

pub fn heads(address: &str) -> Vec<Head> {
    let text = r#"{"content":"hi"}"#;
    let length = text.len();
    let post = |fields: String, body: &str| format!("POST /tokenize HTTP/1.1\r\nHost: {address}\r\n{fields}\r\n{body}");
    let get = |fields: String| format!("GET /health HTTP/1.1\r\nHost: {address}\r\n{fields}\r\n");
    let head = |name, bytes, expected| Head { name, bytes, expected };
    let sized = |more: &str| post(format!("Connection: close\r\nContent-Length: {length}\r\n{more}"), text);
    vec![
        head("two lengths", post(format!("Content-Length: {length}\r\nContent-Length: 7\r\n"), text), &[400]),
        head("a list of lengths", post(format!("Content-Length: {length}, {length}\r\n"), text), &[400]),
        head("a length with a sign", post(format!("Content-Length: +{length}\r\n"), text), &[400]),
        head("a length below zero", post("Content-Length: -1\r\n".into(), ""), &[400]),
        head("a length in hexadecimal", post("Content-Length: 0x10\r\n".into(), text), &[400]),
        head("a length of 2^64", post("Content-Length: 18446744073709551616\r\n".into(), ""), &[400]),
        head("an unknown coding", post("Transfer-Encoding: xchunked\r\n".into(), ""), &[400]),
        head("chunked, and then something", post("Transfer-Encoding: chunked, identity\r\n".into(), ""), &[400]),
        head("a space before the colon", post("Transfer-Encoding : chunked\r\n".into(), ""), &[400]),
        head("a folded field", post("X-A: b\r\n c\r\nContent-Length: 2\r\n".into(), "{}"), &[400]),
        head("a NUL in a field", post("X-A: a\0b\r\nContent-Length: 2\r\n".into(), "{}"), &[400]),
        head(
            "a huge chunk",
            post("Transfer-Encoding: chunked\r\n".into(), "1ffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
            &[400],
        ),
        head("a chunk below zero", post("Transfer-Encoding: chunked\r\n".into(), "-5\r\n{}\r\n0\r\n\r\n"), &[400]),
        head("a chunk without a size", post("Transfer-Encoding: chunked\r\n".into(), "\r\n{}\r\n"), &[400]),
        head("a field of 40 KiB", get(format!("A: {}\r\n", "b".repeat(40 << 10))), &[431]),
        head("150 fields", get("A: b\r\n".repeat(150)), &[431]),
        head("HTTP/9.9", "GET /health HTTP/9.9\r\nHost: a\r\n\r\n".into(), &[400]),
        head("HTTP/0.9", "GET /health\r\n\r\n".into(), &[400]),
        head("a foreign origin", get("Origin: http://evil.example\r\nConnection: close\r\n".into()), &[403]),
        head("two origins", get(format!("Origin: http://{address}\r\nOrigin: null\r\nConnection: close\r\n")), &[403]),
        head(
            "a foreign name",
            "GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".into(),
            &[403],
        ),
        head("two hosts", get("Host: evil.example\r\nConnection: close\r\n".into()), &[403]),
        head("no host", "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n".into(), &[400, 403]),
        head("a form of another page", sized("Sec-Fetch-Site: cross-site\r\n"), &[403]),
        head("a page of a sibling", sized("Sec-Fetch-Site: same-site\r\n"), &[403]),
        head("plain text", sized("Content-Type: text/plain\r\n"), &[415]),
        head("a form with parts", sized("Content-Type: multipart/form-data; boundary=a\r\n"), &[415]),
        head("a packed body", sized("Content-Encoding: gzip\r\n"), &[415]),
        head("what curl sends", sized("Content-Type: application/x-www-form-urlencoded\r\n"), &[200]),
        head(
            "a body for a route without one",
            "POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n".into(),
            &[405],
        ),
        head("a body behind GET", get("Content-Length: 30000000\r\n".into()), &[200]),
        head(
            "a method of nobody",
            format!("BREW /completion HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"),
            &[405],
        ),
        head(
            "a path of 20 KiB",
            format!("GET /{} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n", "a".repeat(20 << 10)),
            &[404],
        ),
        head(
            "a query that is no number",
            format!("GET /slots?fail_on_no_slot=x HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"),
            &[400],
        ),
        head(
            "the end, asked for by anybody",
            format!("POST /admin/drain HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"),
            &[403],
        ),
    ]
}
