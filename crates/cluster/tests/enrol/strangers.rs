//! Peers that are not what they should be: another cluster, a node that poses as the CA, and bytes that make no sense.

use std::sync::Arc;

use muser_cluster::enrol::{EnrolError, IssuerSettings, Limits, PROTOCOL};
use muser_enrol::{Apply, FrameError, HEADER_BYTES, Kind, Message, RefuseCode, parse_header};
use muser_kernels::attention::KvLayout;
use muser_lane as lane;
use muser_trust::identity::{ClusterFolder, Roles};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::handoff_world::run;
use crate::world::{Begun, Heard, SECOND, applicant, apply, engine, limits, settings};

fn file(begun: &Begun, name: &str) -> std::path::PathBuf {
    begun.folder.path().join(name)
}

fn authority(begun: &Begun) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file(begun, "ca.pem")).unwrap()
}

/// A connection that has come as far as the first message.
async fn greeted(
    begun: &Begun,
    address: std::net::SocketAddr,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(authority(begun)).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from("enrolling.muser.internal").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(address).await?).await
}

async fn refusal(mut stream: TlsStream<TcpStream>) -> (RefuseCode, String) {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await.unwrap();
    let (kind, body_bytes) = parse_header(&header).unwrap();
    let mut body = vec![0; body_bytes as usize];
    stream.read_exact(&mut body).await.unwrap();
    match Message::decode(kind, &body).unwrap() {
        Message::Refuse(code, detail) => (code, detail),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_node_says_its_secret_neither_to_another_cluster_nor_to_a_node_of_its_own_that_poses_as_the_ca() {
    run(async {
        let machine = engine(KvLayout::Q8);
        let (begun, other) = (Begun::new(), Begun::new());
        let granted = || settings(Roles::Producer);
        let (issuer, wrong) = (begun.issuer(&machine, granted()).await, other.issuer(&machine, granted()).await);
        let (ticket, _) = issuer.ticket(&wrong.address().unwrap().to_string()).unwrap();
        let (_, kept) = wrong.ticket("127.0.0.1:1").unwrap();
        let applied = tokio::select! {
            ended = wrong.enrol(kept, &|_| ()) => panic!("{ended:?}"),
            applied = apply(&begun, &machine, "a", &ticket) => applied,
        };
        assert!(matches!(applied, Err(EnrolError::OtherCluster)), "{applied:?}");

        // With a certificate of the right CA, for a node.
        let chain = vec![CertificateDer::from_pem_file(file(&begun, "node.pem")).unwrap(), authority(&begun)];
        let key = PrivateKeyDer::from_pem_file(file(&begun, "node.key")).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (ticket, _) = issuer.ticket(&listener.local_addr().unwrap().to_string()).unwrap();
        let posing = async {
            let accepted = TlsAcceptor::from(Arc::new(config)).accept(listener.accept().await.unwrap().0).await;
            assert!(accepted.is_err());
        };
        let ((), applied) = tokio::join!(posing, apply(&begun, &machine, "b", &ticket));
        assert!(matches!(applied, Err(EnrolError::OtherCluster)), "{applied:?}");
    });
}

#[test]
fn an_issuer_refuses_other_protocols_and_frames_that_are_too_long_out_of_place_or_too_slow_and_waits_on() {
    run(async {
        let machine = engine(KvLayout::Q8);
        let begun = Begun::new();
        let limits = Limits { step: SECOND, ..limits() };
        let issuer = begun.issuer(&machine, IssuerSettings { limits, ..settings(Roles::Producer) }).await;
        let address = issuer.address().unwrap();
        let (ticket, kept) = issuer.ticket(&address.to_string()).unwrap();
        let heard = Heard::default();
        let tell = |progress: muser_cluster::enrol::Progress<'_>| heard.tell(progress);
        let trying = async {
            let mut plain = TcpStream::connect(address).await.unwrap();
            plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
            plain.read_to_end(&mut Vec::new()).await.unwrap();
            assert!(greeted(&begun, address, lane::PROTOCOL).await.is_err());

            let mut long = greeted(&begun, address, PROTOCOL).await.unwrap();
            let mut header: [u8; HEADER_BYTES] = *Message::Joined.frame().unwrap().first_chunk().unwrap();
            (header[5], header[10]) = (Kind::Apply as u8, 1);
            long.write_all(&header).await.unwrap();
            let most = FrameError::TooLong { kind: Kind::Apply, bytes: 1 << 16, most: 8 << 10 };
            let (code, detail) = refusal(long).await;
            assert!(code == RefuseCode::Protocol && detail.contains(&most.to_string()), "{detail}");

            let mut early = greeted(&begun, address, PROTOCOL).await.unwrap();
            early.write_all(&Message::Kept.frame().unwrap()).await.unwrap();
            let (code, detail) = refusal(early).await;
            assert!(code == RefuseCode::Protocol && detail.contains("Kept where Apply"), "{detail}");

            // A byte now and then does not hold the door open.
            let mut slow = greeted(&begun, address, PROTOCOL).await.unwrap();
            for byte in &header[..6] {
                slow.write_all(&[*byte]).await.unwrap();
                tokio::time::sleep(SECOND / 20).await;
            }
            let (code, detail) = refusal(slow).await;
            assert!(code == RefuseCode::Protocol && detail.contains("within 1 s"), "{detail}");
            apply(&begun, &machine, "gpu-box", &ticket).await.unwrap();
        };
        let (issued, ()) = tokio::join!(issuer.enrol(kept, &tell), trying);
        assert_eq!(issued.unwrap().node.name.as_str(), "gpu-box");
        let said = heard.0.lock().unwrap();
        assert_eq!(said.len(), 8, "{said:?}");
        for part in ["our TLS", "takes no part", "was announced", "where Apply", "within 1 s", "let in", "tested"] {
            assert!(said.iter().any(|said| said.contains(part)), "{part}: {said:?}");
        }
    });
}

#[test]
fn strangers_neither_end_an_enrolment_nor_keep_the_holder_of_its_ticket_out() {
    run(async {
        let machine = engine(KvLayout::Q8);
        let begun = Begun::new();
        let issuer = begun.issuer(&machine, settings(Roles::Producer)).await;
        let address = issuer.address().unwrap();
        let (ticket, kept) = issuer.ticket(&address.to_string()).unwrap();
        let heard = Heard::default();
        let tell = |progress: muser_cluster::enrol::Progress<'_>| heard.tell(progress);
        let trying = async {
            // More than may be in their handshake at once, all of one address: they say nothing, and stay.
            let mut silent = Vec::new();
            for _ in 0..100 {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            for _ in 0..12 {
                let mut guess = greeted(&begun, address, PROTOCOL).await.unwrap();
                let apply = Apply {
                    secret: [7; 32].into(),
                    identity: [[0; 32]; 5],
                    name: "guest".into(),
                    listen: None,
                    request: String::new(),
                };
                guess.write_all(&Message::Apply(apply).frame().unwrap()).await.unwrap();
                assert_eq!(refusal(guess).await.0, RefuseCode::WrongTicket);
            }
            apply(&begun, &machine, "gpu-box", &ticket).await.unwrap();
        };
        let (issued, ()) = tokio::join!(issuer.enrol(kept, &tell), trying);
        assert_eq!(issued.unwrap().node.name.as_str(), "gpu-box");
        let wrong = |said: &&String| said.contains("not the ticket that was issued");
        assert_eq!(heard.0.lock().unwrap().iter().filter(wrong).count(), 12);
    });
}

#[test]
fn strangers_at_the_port_of_a_new_node_do_not_keep_its_link_from_being_tested() {
    run(async {
        let machine = engine(KvLayout::Q8);
        let begun = Begun::new();
        let issuer = begun.issuer(&machine, settings(Roles::Producer)).await;
        let (ticket, kept) = issuer.ticket(&issuer.address().unwrap().to_string()).unwrap();
        let folder = ClusterFolder::new(begun.at("of-gpu-box"));
        std::fs::create_dir_all(folder.path()).unwrap();
        let applicant = applicant(&folder, &machine, "gpu-box").await;
        // They are there first, say nothing, and stay.
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(TcpStream::connect(applicant.port.address().unwrap()).await.unwrap());
        }
        let applying = applicant.apply(&ticket, &|_| (), |_| Ok(()));
        let (issued, applied) = tokio::join!(issuer.enrol(kept, &|_| ()), applying);
        applied.unwrap();
        assert_eq!(issued.unwrap().node.name.as_str(), "gpu-box");
    });
}
