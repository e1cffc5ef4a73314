//! `muser cluster`: makes and keeps the folders by which machines of one cluster know each other.
//!
//! The folder that began the cluster has the CA's key: it alone grants, renews and rotates. A folder for another machine is
//! made here and carried there, private key included. A new folder appears whole or not at all.
//!
//! - `show` prints a folder, `new_folder` makes one, `failure` says what can go wrong.

mod failure;
mod new_folder;
mod show;

use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use muser_cluster::enrol::{Pending, PendingState, pending, take_back};
use muser_files::FileError;
use muser_trust::identity::{
    ClusterAuthority, ClusterFolder, Grant, IdentityError, NodeFacts, NodeKey, Revoked, Roles,
};
use muser_trust::keys::{KeyRing, KeyState};

use crate::failure::Failure;
use crate::output::tell;
use crate::settings::cluster::{
    BeginArgs, ClusterArgs, ClusterCommand, DAY_S, FolderArgs, GrantArgs, ImportArgs, KeyArgs, LifetimeArgs,
    ReadmitArgs, RenewArgs, RevokeArgs,
};
pub use failure::ClusterFailure;
pub use new_folder::NewFolder;

/// Runs the command.
pub fn run(args: &ClusterArgs) -> Result<(), Failure> {
    match &args.command {
        ClusterCommand::Begin(args) => begin(args),
        ClusterCommand::Grant(args) => grant(args),
        ClusterCommand::Show(args) => show::show(args),
        ClusterCommand::RotateKeys(args) => rotate_keys(args),
        ClusterCommand::ActivateKey(args) => activate_key(args),
        ClusterCommand::Revoke(args) => revoke(args),
        ClusterCommand::Import(args) => import(args),
        ClusterCommand::Prune(args) => prune(args),
        ClusterCommand::RevokeKey(args) => revoke_key(args),
        ClusterCommand::Renew(args) => renew(args),
        ClusterCommand::Readmit(args) => readmit(args),
    }
}

fn begin(args: &BeginArgs) -> Result<(), Failure> {
    let (cluster_id, node) = make_first(args)?;
    tell(format_args!("{:?} has ca.key, which signs for every node: keep it on this machine", args.folder));
    print_names(&cluster_id, &node)
}

/// The folder that begins a cluster; the cluster's id and the node in it.
pub(super) fn make_first(args: &BeginArgs) -> Result<([u8; 32], NodeFacts), ClusterFailure> {
    let now = now_unix_s()?;
    let new = NewFolder::begin(&args.folder)?;
    let folder = ClusterFolder::new(new.partial());
    let authority = ClusterAuthority::create(&args.name, now)?;
    folder.begin(&authority, &KeyRing::generate(now)?)?;
    let name = args.node.as_ref().unwrap_or(&args.name).clone();
    let granted = Grant { name, roles: Roles::Both, lifetime_s: seconds(args.lifetime) };
    let node = make_node(&folder, &authority, &granted, now)?;
    new.finish()?;
    Ok((authority.cluster_id(), node))
}

fn grant(args: &GrantArgs) -> Result<(), Failure> {
    let (cluster_id, node) = make_other(args)?;
    let folder = shell_word(&args.out);
    tell(format_args!("carry it, then delete it here: scp -pr {folder} USER@HOST:FOLDER && rm -r {folder}"));
    print_names(&cluster_id, &node)
}

/// The folder of another machine; the cluster's id and the node in it.
fn make_other(args: &GrantArgs) -> Result<([u8; 32], NodeFacts), ClusterFailure> {
    let now = now_unix_s()?;
    let own = ClusterFolder::new(&args.folder);
    let (authority, keys) = (load_authority(&own)?, own.load_keys()?);
    let revoked = own.load_revocations()?.list()?;
    let new = NewFolder::begin(&args.out)?;
    let folder = ClusterFolder::new(new.partial());
    folder.join(authority.certificate_pem(), &keys)?;
    // A machine that comes later must not admit what the others refuse.
    let revocations = folder.load_revocations()?;
    revocations.revoke_all(&revoked)?;
    let granted = Grant { name: args.name.clone(), roles: args.roles.into(), lifetime_s: seconds(args.lifetime) };
    let node = make_node(&folder, &authority, &granted, now)?;
    new.finish()?;
    Ok((authority.cluster_id(), node))
}

fn rotate_keys(args: &FolderArgs) -> Result<(), Failure> {
    let (id, state) = add_key(&ClusterFolder::new(&args.folder))?;
    let folder = shell_word(&args.folder);
    tell(format_args!(
        "carry {folder}/keys.toml to every machine of the cluster: muser cluster import FOLDER --keys FILE"
    ));
    if state == KeyState::Next {
        tell(format_args!("it seals nothing yet; once every machine has it: muser cluster activate-key {folder} {id}"));
    }
    print_line(format_args!("{state:<9} {id}"))
}

/// The id of the new key, and what it is for. Elsewhere than at the CA it would be known to nobody else.
fn add_key(folder: &ClusterFolder) -> Result<(u32, KeyState), ClusterFailure> {
    load_authority(folder)?;
    let now = now_unix_s()?;
    folder.change_keys(|keys| {
        let id = keys.add(now)?;
        let is_active = keys.active().is_ok_and(|(active, _)| active == id);
        Ok((id, if is_active { KeyState::Active } else { KeyState::Next }))
    })
}

fn activate_key(args: &KeyArgs) -> Result<(), Failure> {
    activate(&ClusterFolder::new(&args.folder), args.id.get())?;
    let (folder, id) = (shell_word(&args.folder), args.id);
    tell(format_args!(
        "the other decoders go on with the key before until they have {folder}/keys.toml, or activate it too"
    ));
    print_line(format_args!("{:<9} {id}", KeyState::Active))
}

fn activate(folder: &ClusterFolder, id: u32) -> Result<(), ClusterFailure> {
    folder.change_keys(|keys| Ok(keys.activate(id)?))
}

fn revoke(args: &RevokeArgs) -> Result<(), Failure> {
    let revoked = args.revoked.0;
    add_revoked(&ClusterFolder::new(&args.folder), revoked)?;
    let folder = shell_word(&args.folder);
    tell(format_args!("carry {folder}/revoked.toml to every machine: muser cluster import FOLDER --revoked FILE"));
    print_line(match revoked {
        Revoked::Node(id) => format!("revoked   node {id}"),
        Revoked::Serial(serial) => format!("revoked   serial {serial}"),
    })
}

/// Adds to the deny-list what is not on it yet.
fn add_revoked(folder: &ClusterFolder, revoked: Revoked) -> Result<(), ClusterFailure> {
    let now = now_unix_s()?;
    folder.load_revocations()?.revoke(revoked, now)?;
    // It may be what a killed enrolment granted: then nothing is left to be seen to.
    let is_it = |left: &Pending| [Revoked::Node(left.node), Revoked::Serial(left.serial)].contains(&revoked);
    if pending(folder)?.iter().any(|left| left.state == PendingState::Abandoned && is_it(left)) {
        take_back(folder, now)?;
    }
    Ok(())
}

fn import(args: &ImportArgs) -> Result<(), Failure> {
    let folder = ClusterFolder::new(&args.folder);
    if let Some(carried) = &args.revoked {
        let count = take_revoked(&folder, carried, args.instead.then(now_unix_s).transpose()?)?;
        print_line(format_args!("revoked   {count} entries"))?;
    }
    if let Some(carried) = &args.keys {
        folder.import_keys(carried).map_err(ClusterFailure::from)?;
        let keys = folder.load_keys().map_err(ClusterFailure::from)?;
        keys.list().try_for_each(|(id, state, _)| print_line(format_args!("{state:<11} {id}")))?;
    }
    Ok(())
}

/// Takes a deny-list in addition to the one here, or instead of it at a time. Returns how many entries there are then.
fn take_revoked(folder: &ClusterFolder, carried: &Path, instead_unix_s: Option<u64>) -> Result<usize, ClusterFailure> {
    match instead_unix_s {
        None => folder.import_revocations(carried)?,
        Some(now) => folder.put_revocations(carried, now)?,
    }
    Ok(folder.load_revocations()?.list()?.len())
}

fn prune(args: &FolderArgs) -> Result<(), Failure> {
    let pruned = take_off_expired(&ClusterFolder::new(&args.folder))?;
    print_line(format_args!("pruned    {pruned} certificates"))
}

fn take_off_expired(folder: &ClusterFolder) -> Result<usize, ClusterFailure> {
    Ok(folder.load_revocations()?.prune(now_unix_s()?)?)
}

fn revoke_key(args: &KeyArgs) -> Result<(), Failure> {
    let left = forget_key(&ClusterFolder::new(&args.folder), args.id.get())?;
    let folder = shell_word(&args.folder);
    tell(format_args!("carry {folder}/keys.toml to every machine: muser cluster import FOLDER --keys FILE"));
    if left == KeysLeft::NoneActive {
        tell("no MAC key is active now, nothing can be sealed: muser cluster rotate-keys makes one");
    }
    print_line(format_args!("revoked   key {}", args.id))
}

/// Keys that remain after a revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeysLeft {
    /// One seals.
    OneActive,
    /// None does.
    NoneActive,
}

fn forget_key(folder: &ClusterFolder, id: u32) -> Result<KeysLeft, ClusterFailure> {
    folder.change_keys(|keys| {
        keys.revoke(id)?;
        Ok(if keys.active().is_ok() { KeysLeft::OneActive } else { KeysLeft::NoneActive })
    })
}

fn renew(args: &RenewArgs) -> Result<(), Failure> {
    let (cluster_id, node) = sign_again(args)?;
    if let Some(other) = &args.other {
        tell(format_args!("carry {}/node.pem to the machine that it names", shell_word(other)));
    }
    print_names(&cluster_id, &node)
}

fn sign_again(args: &RenewArgs) -> Result<([u8; 32], NodeFacts), ClusterFailure> {
    let own = ClusterFolder::new(&args.folder);
    let authority = load_authority(&own)?;
    let other = args.other.as_ref().unwrap_or(&args.folder);
    let folder = ClusterFolder::new(other);
    let identity = folder.load_identity()?;
    // Name and roles are taken from the certificate, so it must be one of ours.
    if !authority.issued(&identity) {
        return Err(ClusterFailure::NotIssuedHere { other: other.clone(), folder: args.folder.clone() });
    }
    let facts = identity.facts();
    if let Some(Revoked::Node(id)) = own.load_revocations()?.revokes(facts)? {
        return Err(ClusterFailure::NodeRevoked(id));
    }
    let granted = Grant { name: facts.name.clone(), roles: facts.roles, lifetime_s: seconds(args.lifetime) };
    sign(&folder, &authority, &granted, now_unix_s()?)?;
    Ok((authority.cluster_id(), folder.load_identity()?.facts().clone()))
}

fn readmit(args: &ReadmitArgs) -> Result<(), Failure> {
    lift_quarantine(args)?;
    print_line(format_args!("readmitted node {}", args.node))
}

fn lift_quarantine(args: &ReadmitArgs) -> Result<(), ClusterFailure> {
    match ClusterFolder::new(&args.folder).load_quarantine()?.readmit(args.node, now_unix_s()?)? {
        true => Ok(()),
        false => Err(ClusterFailure::NotQuarantined { node: args.node, folder: args.folder.clone() }),
    }
}

/// A key and its certificate, in a folder that has neither; what the certificate says.
fn make_node(
    folder: &ClusterFolder,
    authority: &ClusterAuthority,
    granted: &Grant,
    now_unix_s: u64,
) -> Result<NodeFacts, ClusterFailure> {
    folder.save_node_key(&NodeKey::generate()?)?;
    sign(folder, authority, granted, now_unix_s)?;
    Ok(folder.load_identity()?.facts().clone())
}

/// Has the key of a folder certified.
fn sign(
    folder: &ClusterFolder,
    authority: &ClusterAuthority,
    granted: &Grant,
    now_unix_s: u64,
) -> Result<(), ClusterFailure> {
    let request = folder.load_node_key()?.request()?;
    Ok(folder.save_node_certificate(&authority.sign(&request, granted, now_unix_s)?)?)
}

fn load_authority(folder: &ClusterFolder) -> Result<ClusterAuthority, ClusterFailure> {
    folder.load_authority().map_err(|error| match error {
        IdentityError::File(FileError::Missing { .. }) => ClusterFailure::NoAuthority(folder.path().to_owned()),
        error => error.into(),
    })
}

fn print_names(cluster_id: &[u8; 32], node: &NodeFacts) -> Result<(), Failure> {
    let cluster_id = hexadecimal(cluster_id);
    print_line(format_args!("cluster   {cluster_id}\nnode      {}\nserial    {}", node.id, node.serial))
}

fn print_line(line: impl std::fmt::Display) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{line}").map_err(Failure::Stdout)
}

fn seconds(lifetime: LifetimeArgs) -> u64 {
    lifetime.days * DAY_S
}

fn now_unix_s() -> Result<u64, ClusterFailure> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map(|since| since.as_secs()).map_err(|_| ClusterFailure::Clock)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A path as one types it in a shell.
pub(super) fn shell_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    // What `scp` would take for a flag or for a machine's name.
    let text = if path.is_absolute() { text.into_owned() } else { format!("./{text}") };
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
