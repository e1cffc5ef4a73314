//! This machine as a member of its cluster: what `produce` and `serve` read out of the cluster's folder.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muser_cluster::enrol::{Pending, PendingState, pending};
use muser_cluster::handoff::{Member, Remote, RemoteSettings, Shape, Trust};
use muser_files::FileError;
use muser_kernels::attention::{KvLayout, PAGE_ROWS};
use muser_kv::KvIdentity;
use muser_lane::{Acceptor, Connector, LaneSettings, UnixClock, Wanted};
use muser_ledger::{FolderStorage, Ledger};
use muser_model::{Identity, ModelSpec};
use muser_placement::{Policy, PolicyFileError, PolicySettings};
use muser_server::{AuditSettings, Auditor, Fallback, PolicyFile, PrefillBy, PrefillSettings, RemotePrefill};
use muser_trust::identity::{ClusterFolder, NodeIdentity, Role};
use muser_trust::quarantine::Quarantine;
use muser_trust::random;
use muser_weights::digest::FileDigest;
use muser_weights::gguf::ModelFiles;

use crate::failure::Failure;
use crate::member_error::MemberError;
use crate::output::tell;
use crate::settings::cluster_member::{FallbackTo, Prefill, ProducerArgs};

/// Handshakes that take longer are given up.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handoffs that the ledger remembers at once: about 16 MB of memory. Those that have expired make way.
const LEDGER_ENTRIES: usize = 1 << 16;

/// A folder that was read.
pub struct Membership {
    folder: ClusterFolder,
    identity: NodeIdentity,
    lane: LaneSettings,
}

impl Membership {
    /// Reads the folder.
    pub fn load(path: &Path) -> Result<Self, MemberError> {
        let folder = ClusterFolder::new(path);
        let identity = folder.load_identity()?;
        for left in pending(&folder)? {
            if left.state == PendingState::Abandoned {
                let Pending { name, serial, .. } = left;
                tell(format_args!(
                    "muser: an enrolment of {name} was killed when it had granted certificate {serial}: muser cluster revoke \
                     {} {serial}",
                    path.display()
                ));
            }
        }
        let revocations = Arc::new(folder.load_revocations()?);
        let lane = LaneSettings { revocations, handshake_timeout: HANDSHAKE, clock: clock() };
        Ok(Self { folder, identity, lane })
    }

    /// This run of the node.
    pub fn member(&self, shape: &Shape) -> Result<Member, MemberError> {
        let keys = self.folder.load_keys()?;
        let trust = Arc::new(Trust::load(self.folder.clone(), Arc::clone(&self.lane.revocations))?);
        let member = Member::new(self.identity.facts(), &keys, shape)?;
        Ok(member.following(trust))
    }

    /// This node's name.
    pub fn name(&self) -> &str {
        self.identity.facts().name.as_str()
    }

    /// Takes lanes of decoders.
    pub fn acceptor(&self) -> Result<Acceptor, MemberError> {
        let wanted = Wanted { role: Role::Decoder, id: None };
        Ok(Acceptor::new(&self.identity, self.lane.clone(), wanted)?)
    }

    /// Placement policy for the model with this identity, with its learned rates, and the file they persist in. A
    /// missing, damaged or foreign file gives a new policy.
    fn policy(&self, identity: &KvIdentity) -> (Policy, PolicyFile) {
        let (path, settings) = (self.folder.policy(), PolicySettings::default());
        let known = match Policy::load(&path, settings.clone(), 0) {
            Ok(policy) if policy.model() == *identity.as_bytes() => Some(policy),
            Ok(_) => {
                tell(format_args!("muser: {} is of another model or layout: rates are learnt anew", path.display()));
                None
            }
            Err(PolicyFileError::File(FileError::Missing { .. })) => None,
            Err(reason) => {
                tell(format_args!("muser: {reason}: rates are learnt anew"));
                None
            }
        };
        let policy = known.unwrap_or_else(|| Policy::new(settings, *identity.as_bytes()));
        let report = Arc::new(|reason: &str| tell(format_args!("muser: {reason}")));
        (policy, PolicyFile { path, report })
    }

    /// The quarantine list: producers that get no requests.
    pub fn quarantine(&self) -> Result<Arc<Quarantine>, MemberError> {
        Ok(Arc::new(self.folder.load_quarantine()?))
    }

    /// Auditor of the pages that producers send, for the model with this identity.
    fn auditor(&self, args: &ProducerArgs, identity: &KvIdentity, quarantine: Arc<Quarantine>) -> Auditor {
        let settings = AuditSettings {
            rate: args.audit,
            pages_max: NonZeroUsize::new(args.audit_tokens.get().div_ceil(PAGE_ROWS)).unwrap_or(NonZeroUsize::MIN),
            model: *identity.as_bytes(),
            random: Arc::new(|| random::number().unwrap_or(0)),
            clock: self.lane.clock.clone(),
            report: Arc::new(|reason| tell(format_args!("muser: {reason}"))),
        };
        Auditor::new(settings, quarantine)
    }

    /// Remote prefill by the producers that the flags name, for the model of `handoffs`.
    pub fn remote_prefill(&self, args: &ProducerArgs, shape: &Shape) -> Result<RemotePrefill, MemberError> {
        let identity = shape.identity().kv();
        let (policy, file) = self.policy(&identity);
        let quarantine = self.quarantine()?;
        let remotes = self.remotes(args, shape, &quarantine)?;
        let auditor = self.auditor(args, &identity, quarantine);
        Ok(RemotePrefill::new(remotes, prefill(args), (policy, Some(file)), auditor))
    }

    /// The producers named by the flags; those in `quarantine` get no requests.
    pub fn remotes(
        &self,
        args: &ProducerArgs,
        shape: &Shape,
        quarantine: &Arc<Quarantine>,
    ) -> Result<Vec<Remote>, MemberError> {
        let connector = Arc::new(Connector::new(&self.identity, self.lane.clone())?);
        let member = self.member(shape)?;
        let storage = FolderStorage::open(&self.folder.ledger())?;
        let ledger = Arc::new(Ledger::open(storage, LEDGER_ENTRIES)?);
        let remote = |address| {
            let settings = RemoteSettings {
                address,
                wanted: Wanted { role: Role::Producer, id: None },
                expires_in: Duration::from_secs(args.handoff_seconds.get().into()),
                stall_limit: Duration::from_secs(args.producer_stall_seconds.get().into()),
            };
            let of_model = (shape.clone(), member.clone());
            Remote::new(Arc::clone(&connector), of_model, Arc::clone(&ledger), self.lane.clock.clone(), settings)
                .with_quarantine(Arc::clone(quarantine))
        };
        Ok(args.producer.iter().map(|address| remote(*address)).collect())
    }
}

/// Shape of handoffs of a model with the given files.
pub fn shape(files: &ModelFiles, model: &ModelSpec, kv: KvLayout, context: usize) -> Result<Shape, Failure> {
    let (digest, _) = FileDigest::load_or_compute(files, SystemTime::now()).map_err(MemberError::Digest)?;
    let identity = Identity::new(&digest, model.config(), kv);
    let shape = Shape::new(model.cache_spec(kv, context)?, identity);
    Ok(shape.map_err(MemberError::Shape)?)
}

/// Settings of remote prefill from the flags.
fn prefill(args: &ProducerArgs) -> PrefillSettings {
    PrefillSettings {
        tokens_min: args.producer_min_tokens,
        by: match args.prefill {
            Prefill::Cheapest => PrefillBy::Cheapest,
            Prefill::Producer => PrefillBy::Producer,
        },
        fallback: match args.fallback {
            FallbackTo::Local => Fallback::Local,
            FallbackTo::OtherProducer => Fallback::OtherProducer,
            FallbackTo::Fail => Fallback::Fail,
        },
    }
}

/// The system's clock.
pub fn clock() -> UnixClock {
    Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}
