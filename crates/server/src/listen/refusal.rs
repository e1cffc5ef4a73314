//! The envelope for refusals of the HTTP layer: it answers heads that it cannot read by a status alone.
//!
//! Every other refusal has the envelope, and clients parse it whatever layer an error is of. The HTTP layer has no hook
//! for that answer, so it is recognised on its way out: no other response of this server has such a status and no body.

use std::ops::Range;

use crate::error::{ApiError, ErrorKind};

/// The end of a head without a body, whose fields come in the order in which the HTTP layer writes them.
const END: &[u8] = b"\r\n\r\n";
const EMPTY: &[u8] = b"\r\ncontent-length: 0\r\n";
/// Longer than any head that the HTTP layer writes by itself.
const HEAD_BYTES_MAX: usize = 256;

/// Refusals of the HTTP layer: status line, and the kind and message sent instead.
const REFUSALS: [(&[u8], ErrorKind, &str); 3] = [
    (b"HTTP/1.1 400 ", ErrorKind::InvalidRequest, "the head of the request is no HTTP/1.1"),
    (b"HTTP/1.1 414 ", ErrorKind::UriTooLong, "the path of the request is too long"),
    (b"HTTP/1.1 431 ", ErrorKind::HeadTooLarge, "the head of the request is too long, or has too many fields"),
];

/// The refusal of the HTTP layer at the end of `bytes`, if there is one: its range, and the bytes to send instead.
pub fn replaced(bytes: &[u8]) -> Option<(Range<usize>, Vec<u8>)> {
    if !bytes.ends_with(END) {
        return None;
    }
    let from = bytes.len().saturating_sub(HEAD_BYTES_MAX);
    let tail = &bytes[from..];
    let begins = |at: &usize| tail[*at..].starts_with(b"HTTP/1.1 4");
    let at = (0..tail.len()).rev().find(begins)?;
    let head = &tail[at..];
    let is_empty = head.windows(EMPTY.len()).any(|window| window == EMPTY);
    let (_, kind, message) = REFUSALS.iter().find(|(begin, _, _)| is_empty && head.starts_with(begin))?;
    let error = ApiError::new(*kind, *message);
    let (code, _) = kind.code_and_name();
    let body = error.body().to_string();
    let answer = format!(
        "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    Some((from + at..bytes.len(), answer.into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_without_a_body_gets_one_and_what_stands_before_it_stays() {
        let before = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        let refusal = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n";
        for before in ["", before] {
            let bytes = format!("{before}{refusal}");
            let (range, instead) = replaced(bytes.as_bytes()).unwrap();
            assert_eq!(range, before.len()..bytes.len());
            let instead = String::from_utf8(instead).unwrap();
            let (head, body) = instead.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
            assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{head}");
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["error"]["code"], 400);
        }
    }

    #[test]
    fn other_answers_stay_as_they_are() {
        let others = [
            "",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 12\r\n\r\n{\"error\":{}}",
            "HTTP/1.1 204 No Content\r\ndate: now\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 10\r\n\r\n",
            "\"HTTP/1.1 400 \\r\\ncontent-length: 0\\r\\n\"",
        ];
        for other in others {
            assert_eq!(replaced(other.as_bytes()), None, "{other}");
        }
    }
}
