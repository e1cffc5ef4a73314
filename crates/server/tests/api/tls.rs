//! The server through TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use muser_server::{ConnectionLimits, Tls, TlsError};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client::connect;
use crate::world::{Setup, World, shipped};

struct Made {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key_pem: String,
}

/// A server that speaks TLS.
fn world(made: &Made, limits: ConnectionLimits) -> World {
    let tls = Tls::from_pem(made.certificate_pem.as_bytes(), made.key_pem.as_bytes()).unwrap();
    let mut setup = Setup::of(shipped());
    setup.server.limits = limits;
    World::start_with(setup, |server| {
        let server = server.with_tls(tls);
        assert!(server.url().starts_with("https://127.0.0.1:"));
        server
    })
}

fn made() -> Made {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    Made { certificate: cert.der().clone(), certificate_pem: cert.pem(), key_pem: signing_key.serialize_pem() }
}

fn client(trusted: &Made, world: &World) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.certificate.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    StreamOwned::new(connection, connect(world.address))
}

#[test]
fn a_client_that_trusts_the_certificate_is_answered() {
    let made = made();
    // Time enough to agree, on the busiest machine.
    let world = world(&made, ConnectionLimits { head_timeout: Duration::from_secs(60), ..ConnectionLimits::default() });
    let mut stream = client(&made, &world);
    let body = r#"{"prompt": "a", "n_predict": 3, "stream": true}"#;
    let head = format!("Host: localhost\r\nConnection: close\r\nContent-Length: {}", body.len());
    write!(stream, "POST /completion HTTP/1.1\r\n{head}\r\n\r\n{body}").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains(r#""stop_type""#), "{text}");
    let mut other = client(&self::made(), &world);
    assert!(other.write_all(b"GET /health HTTP/1.1\r\n\r\n").and_then(|()| other.flush()).is_err());
    // Who does not speak TLS is not answered.
    let mut plain = connect(world.address);
    plain.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[test]
fn a_client_that_never_begins_to_agree_is_not_waited_for() {
    let world =
        world(&made(), ConnectionLimits { head_timeout: Duration::from_millis(200), ..ConnectionLimits::default() });
    assert_eq!(connect(world.address).read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_file_that_is_no_certificate_or_no_key_is_refused_for_what_it_is() {
    let (made, other) = (made(), made());
    let of = |certificate: &str, key: &str| Tls::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err();
    let (certificate, key) = (&made.certificate_pem, &made.key_pem);
    assert!(matches!(of("", key), TlsError::NoCertificate));
    assert!(matches!(of(key, key), TlsError::NoCertificate));
    assert!(matches!(of(certificate, ""), TlsError::Key(_)));
    assert!(matches!(of(certificate, certificate), TlsError::Key(_)));
    assert!(matches!(of(certificate, &other.key_pem), TlsError::Unusable(_)));
    let cut = certificate.lines().take(3).collect::<Vec<_>>().join("\n");
    assert!(matches!(of(&cut, key), TlsError::Certificates(_) | TlsError::NoCertificate));
    let broken = certificate.replace("MII", "!!!");
    assert!(matches!(of(&broken, key), TlsError::Certificates(_)));
    assert!(!format!("{:?}", Tls::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap()).contains("MII"));
}
