//! A cluster begun, joined, renewed and read back from its folders.

use std::fs;
use std::path::Path;

use muser_files::FileError;
use muser_trust::identity::{
    AuthorityError, CLOCK_SKEW_S, ClusterAuthority, ClusterFolder, DEFAULT_LIFETIME_S, Grant, IdentityError, NodeFacts,
    NodeKey, NodeName, Roles,
};
use muser_trust::keys::KeyRing;

const NOW: u64 = 1_800_000_000;

fn grant(name: &str, roles: Roles) -> Grant {
    Grant { name: NodeName::new(name).unwrap(), roles, lifetime_s: DEFAULT_LIFETIME_S }
}

/// A cluster's first node.
fn begun(folder: &Path) -> (ClusterFolder, ClusterAuthority) {
    let authority = ClusterAuthority::create(&NodeName::new("desk").unwrap(), NOW).unwrap();
    let folder = ClusterFolder::new(folder);
    folder.begin(&authority, &KeyRing::generate(NOW).unwrap()).unwrap();
    let key = NodeKey::generate().unwrap();
    folder.save_node_key(&key).unwrap();
    let certificate = authority.sign(&key.request().unwrap(), &grant("first", Roles::Both), NOW).unwrap();
    folder.save_node_certificate(&certificate).unwrap();
    (folder, authority)
}

#[test]
fn a_begun_cluster_is_read_back_and_renewal_keeps_the_node_id() {
    let path = tempfile::tempdir().unwrap();
    let (folder, authority) = begun(path.path());
    let identity = folder.load_identity().unwrap();
    let facts = identity.facts().clone();
    assert_eq!((facts.name.as_str(), facts.roles), ("first", Roles::Both));
    assert_eq!((facts.not_before_unix_s, facts.not_after_unix_s), (NOW - CLOCK_SKEW_S, NOW + DEFAULT_LIFETIME_S));
    assert_eq!(identity.cluster_id(), authority.cluster_id());
    let key = folder.load_node_key().unwrap();
    assert_eq!(key.id(), facts.id);

    let again = folder.load_authority().unwrap();
    let renewed = again.sign(&key.request().unwrap(), &grant("first", Roles::Decoder), NOW + 1000).unwrap();
    folder.save_node_certificate(&renewed).unwrap();
    let renewed = folder.load_identity().unwrap().facts().clone();
    assert!(renewed.id == facts.id && renewed.serial != facts.serial && renewed.roles == Roles::Decoder);
    assert_eq!(folder.load_keys().unwrap().active().unwrap().0, 1);
    assert_eq!(folder.load_revocations().unwrap().revokes(&renewed).unwrap(), None);
}

#[test]
fn an_authority_knows_what_it_issued_whatever_the_time_and_nothing_of_another() {
    let (path, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (folder, authority) = begun(path.path());
    let (other_folder, other) = begun(elsewhere.path());
    let key = folder.load_node_key().unwrap();
    for issued in [NOW - CLOCK_SKEW_S, NOW, NOW + DEFAULT_LIFETIME_S] {
        let certificate = authority.sign(&key.request().unwrap(), &grant("first", Roles::Both), issued);
        folder.save_node_certificate(&certificate.unwrap()).unwrap();
        let identity = folder.load_identity().unwrap();
        assert!(authority.issued(&identity) && !other.issued(&identity), "{issued}");
    }
    // Same CA certificate beside it, same name and roles, own signature.
    let forged = other.sign(&key.request().unwrap(), &grant("first", Roles::Both), NOW).unwrap();
    folder.save_node_certificate(&forged).unwrap();
    assert!(!authority.issued(&folder.load_identity().unwrap()));
    assert!(other.issued(&other_folder.load_identity().unwrap()));
}

#[test]
fn nothing_is_overwritten() {
    let path = tempfile::tempdir().unwrap();
    let (folder, authority) = begun(path.path());
    let before = fs::read(path.path().join("ca.key")).unwrap();
    let keys = KeyRing::generate(NOW).unwrap();
    let other = ClusterAuthority::create(&NodeName::new("other").unwrap(), NOW).unwrap();
    let exists = |result| matches!(result, Err(IdentityError::File(FileError::Exists { .. })));
    assert!(exists(folder.begin(&other, &keys)));
    assert!(exists(folder.join(authority.certificate_pem(), &keys)));
    assert!(exists(folder.save_node_key(&NodeKey::generate().unwrap())));
    assert_eq!(fs::read(path.path().join("ca.key")).unwrap(), before);
}

#[test]
fn a_request_grants_itself_nothing_and_a_forged_one_is_refused() {
    let path = tempfile::tempdir().unwrap();
    let (_, authority) = begun(path.path());
    let request = NodeKey::generate().unwrap().request().unwrap();
    // Exchange one character in the middle of the signed bytes.
    let mut forged = request.clone().into_bytes();
    let at = forged.len() / 2;
    forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
    let forged = String::from_utf8(forged).unwrap();
    for bad in ["", "nonsense", &forged] {
        let result = authority.sign(bad, &grant("a", Roles::Both), NOW);
        assert!(matches!(result, Err(AuthorityError::BadRequest(_))), "{result:?}");
    }
    for lifetime_s in [0, u64::MAX] {
        let asked = Grant { lifetime_s, ..grant("a", Roles::Both) };
        assert!(matches!(authority.sign(&request, &asked, NOW), Err(AuthorityError::BadLifetime { .. })));
    }
    assert!(matches!(
        authority.sign(&request, &grant("a", Roles::Both), u64::MAX),
        Err(AuthorityError::BadClock { .. })
    ));
}

#[cfg(unix)]
#[test]
fn secrets_are_written_for_their_owner_alone_and_refused_when_others_can_read_them() {
    use std::os::unix::fs::PermissionsExt;
    let path = tempfile::tempdir().unwrap();
    let (folder, _) = begun(path.path());
    for name in ["ca.key", "node.key", "keys.toml"] {
        let file = path.path().join(name);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    }
    let message = "holds a secret, but has mode 644";
    for (name, error) in [
        ("ca.key", folder.load_authority().unwrap_err().to_string()),
        ("node.key", folder.load_identity().unwrap_err().to_string()),
        ("keys.toml", folder.load_keys().unwrap_err().to_string()),
    ] {
        assert!(error.contains(name) && error.contains(message), "{error}");
    }
}

#[test]
fn a_damaged_or_exchanged_file_is_named() {
    let path = tempfile::tempdir().unwrap();
    let (folder, _) = begun(path.path());
    let stranger = tempfile::tempdir().unwrap();
    begun(stranger.path());
    let cases = [
        ("ca.pem", "ca.key", "the CA's certificate cannot be read"),
        ("ca.key", "ca.key", "the private key cannot be read"),
        ("node.pem", "node.key", "these 8 bytes are no certificate"),
        ("node.key", "node.key", "the private key cannot be read"),
    ];
    for (name, blamed, unreadable) in cases {
        let file = path.path().join(name);
        let good = fs::read(&file).unwrap();
        fs::copy(stranger.path().join(name), &file).unwrap();
        let error = match name.starts_with("ca") {
            true => folder.load_authority().unwrap_err().to_string(),
            false => folder.load_identity().unwrap_err().to_string(),
        };
        assert!(error.contains(blamed) && error.ends_with("does not belong to the certificate"), "{name}: {error}");
        fs::write(&file, "nonsense").unwrap();
        let error = match name.starts_with("ca") {
            true => folder.load_authority().unwrap_err().to_string(),
            false => folder.load_identity().unwrap_err().to_string(),
        };
        assert!(error.ends_with(&format!("{name}: {unreadable}")), "{name}: {error}");
        fs::write(&file, good).unwrap();
    }
    fs::remove_file(path.path().join("node.pem")).unwrap();
    assert!(matches!(folder.load_identity(), Err(IdentityError::File(FileError::Missing { .. }))));
}

#[test]
fn no_secret_is_printed() {
    let path = tempfile::tempdir().unwrap();
    let (folder, authority) = begun(path.path());
    let printed = format!("{authority:?} {:?} {:?}", folder.load_identity().unwrap(), folder.load_node_key().unwrap());
    let key = fs::read_to_string(path.path().join("node.key")).unwrap();
    assert!(!printed.contains("PRIVATE") && !printed.contains(key.lines().nth(1).unwrap()), "{printed}");
    assert!(printed.contains("first"), "{printed}");
}

#[test]
fn the_authority_s_own_certificate_is_not_a_node() {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let authority = ClusterAuthority::create(&NodeName::new("desk").unwrap(), NOW).unwrap();
    let der = CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes()).unwrap();
    assert!(NodeFacts::of_certificate(&der).is_err());
}
