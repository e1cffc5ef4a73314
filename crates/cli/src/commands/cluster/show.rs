//! `muser cluster show`: prints a cluster folder without its secrets.

use std::io::{self, Write};

use muser_cluster::enrol::{Pending, PendingState, pending};
use muser_trust::identity::{ClusterFolder, NodeFacts, Revoked, Role};
use muser_trust::keys::KeyState;
use muser_trust::quarantine::Quarantined;
use serde::Serialize;

use super::{ClusterFailure, hexadecimal, now_unix_s};
use crate::failure::Failure;
use crate::settings::cluster::{DAY_S, ShowArgs};

/// Everything the command says.
#[derive(Serialize)]
struct Report {
    cluster_id: String,
    /// True if the CA's key is here, so that this folder can grant and renew.
    authority: bool,
    name: String,
    node_id: String,
    roles: Vec<String>,
    serial: String,
    not_before_unix_s: u64,
    not_after_unix_s: u64,
    /// True if the certificate is valid now and not on the deny-list.
    valid: bool,
    /// Whole days to the end of validity, rounded down; negative after it.
    days_left: i64,
    mac_keys: Vec<KeyLine>,
    revoked: Vec<RevokedLine>,
    quarantined: Vec<QuarantinedLine>,
    /// Granted in enrolments that have not ended, or whose process was killed.
    pending: Vec<PendingLine>,
}

#[derive(Serialize)]
struct KeyLine {
    id: u32,
    state: KeyState,
    created_unix_s: u64,
}

#[derive(Serialize)]
struct RevokedLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    since_unix_s: u64,
}

#[derive(Serialize)]
struct PendingLine {
    node: String,
    name: String,
    serial: String,
    since_unix_s: u64,
    /// The enrolling process was killed: it is taken back by the next enrolment.
    abandoned: bool,
}

#[derive(Serialize)]
struct QuarantinedLine {
    node: String,
    since_unix_s: u64,
    model: String,
    layer: usize,
    position: usize,
    found: String,
}

/// Runs the command.
pub fn show(args: &ShowArgs) -> Result<(), Failure> {
    let report = report(&ClusterFolder::new(&args.folder))?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(|error| Failure::Stdout(error.into()))?;
        return writeln!(out).map_err(Failure::Stdout);
    }
    print(&report, &mut out).map_err(Failure::Stdout)
}

fn report(folder: &ClusterFolder) -> Result<Report, ClusterFailure> {
    let identity = folder.load_identity()?;
    let revocations = folder.load_revocations()?;
    let facts @ NodeFacts { not_before_unix_s, not_after_unix_s, .. } = identity.facts();
    let now = now_unix_s()?;
    let roles = [Role::Decoder, Role::Producer].into_iter().filter(|role| facts.roles.contain(*role));
    let keys = folder.load_keys()?;
    let line = |(id, state, created_unix_s)| KeyLine { id, state, created_unix_s };
    Ok(Report {
        cluster_id: hexadecimal(&identity.cluster_id()),
        authority: folder.path().join("ca.key").exists(),
        name: facts.name.to_string(),
        node_id: facts.id.to_string(),
        roles: roles.map(|role| role.to_string()).collect(),
        serial: facts.serial.to_string(),
        not_before_unix_s: *not_before_unix_s,
        not_after_unix_s: *not_after_unix_s,
        valid: (*not_before_unix_s..=*not_after_unix_s).contains(&now) && revocations.revokes(facts)?.is_none(),
        days_left: not_after_unix_s.cast_signed().saturating_sub_unsigned(now).div_euclid(DAY_S.cast_signed()),
        mac_keys: keys.list().map(line).collect(),
        revoked: revocations.list()?.into_iter().map(RevokedLine::from).collect(),
        pending: pending(folder)?.into_iter().map(PendingLine::from).collect(),
        quarantined: folder.load_quarantine()?.list()?.into_iter().map(QuarantinedLine::from).collect(),
    })
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "cluster   {}", report.cluster_id)?;
    writeln!(out, "node      {}", report.node_id)?;
    writeln!(out, "name      {}", report.name)?;
    writeln!(out, "roles     {}", report.roles.join(", "))?;
    writeln!(out, "serial    {}", report.serial)?;
    let valid = if report.valid { "yes" } else { "no" };
    writeln!(out, "valid     {valid}, {} days left", report.days_left)?;
    writeln!(out, "ca.key    {}", if report.authority { "here" } else { "elsewhere" })?;
    writeln!(out, "\nMAC keys")?;
    for KeyLine { id, state, created_unix_s } in &report.mac_keys {
        writeln!(out, "  {id:<6}  {state:<12}  made {created_unix_s} s after 1970")?;
    }
    writeln!(out, "\nrevoked{}", if report.revoked.is_empty() { "   none" } else { "" })?;
    for RevokedLine { node, serial, since_unix_s } in &report.revoked {
        for (kind, digits) in [("node", node), ("serial", serial)] {
            if let Some(digits) = digits {
                writeln!(out, "  {kind:<6}  {digits}  since {since_unix_s} s after 1970")?;
            }
        }
    }
    if !report.pending.is_empty() {
        writeln!(out, "\npending")?;
    }
    for PendingLine { node, name, serial, since_unix_s, abandoned } in &report.pending {
        writeln!(out, "  node    {node}  {name}, granted {since_unix_s} s after 1970")?;
        let state = if *abandoned {
            "its enrolment was killed; the next muser enroll revokes it"
        } else {
            "its enrolment goes on"
        };
        writeln!(out, "  serial  {serial}  {state}")?;
    }
    // Only decoders that audit come to have any.
    if !report.quarantined.is_empty() {
        writeln!(out, "\nquarantined")?;
    }
    for QuarantinedLine { node, since_unix_s, model, found, .. } in &report.quarantined {
        writeln!(out, "  node    {node}  since {since_unix_s} s after 1970")?;
        writeln!(out, "          {found}, model {model}")?;
    }
    Ok(())
}

impl From<Pending> for PendingLine {
    fn from(entry: Pending) -> Self {
        let Pending { node, name, serial, since_unix_s, state } = entry;
        let abandoned = state == PendingState::Abandoned;
        Self { node: node.to_string(), name, serial: serial.to_string(), since_unix_s, abandoned }
    }
}

impl From<Quarantined> for QuarantinedLine {
    fn from(entry: Quarantined) -> Self {
        let Quarantined { node, since_unix_s, model, layer, position, found } = entry;
        Self { node: node.to_string(), since_unix_s, model: hexadecimal(&model), layer, position, found }
    }
}

impl From<(Revoked, u64)> for RevokedLine {
    fn from((revoked, since_unix_s): (Revoked, u64)) -> Self {
        match revoked {
            Revoked::Node(id) => Self { node: Some(id.to_string()), serial: None, since_unix_s },
            Revoked::Serial(serial) => Self { node: None, serial: Some(serial.to_string()), since_unix_s },
        }
    }
}
