//! The flags of `muser serve`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use muser_kernels::attention::KvLayout;
use muser_server::{ConnectionLimits, Origins};

use super::cluster_member::ProducerArgs;
use super::generation::{one_layout, temperature};
use super::{HubArgs, KvType, MachineArgs, SamplerArgs};
use crate::failure::Failure;

/// `muser serve`.
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub struct ServeArgs {
    /// Model file [default: the model that ships with muser].
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    /// The model's name in answers [default: the file's name].
    #[arg(short, long, value_name = "NAME")]
    pub alias: Option<String>,
    /// Positions of a request, prompt and answer together; 0 takes as many as the model was made for.
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub ctx_size: u32,
    /// Requests that run at once; -np for short.
    #[arg(long, alias = "np", value_name = "N", default_value = "4")]
    pub parallel: NonZeroUsize,
    /// Requests that wait at most; the next one is refused.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub queue: usize,
    /// Tokens to generate where a request does not say; -1 goes on until the model ends or the context is full.
    #[arg(short = 'n', long, alias = "n-predict", value_name = "N", default_value_t = -1,
          value_parser = clap::value_parser!(i64).range(-1..))]
    pub predict: i64,
    /// Temperature where a request does not say; 0 always takes the most likely token.
    #[arg(long, alias = "temperature", value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    pub temp: f32,
    #[command(flatten)]
    pub sampler: SamplerArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub connections: ConnectionArgs,
    #[command(flatten)]
    pub producers: ProducerArgs,
    /// Disables /metrics.
    #[arg(long)]
    pub no_metrics: bool,
    /// Disables /slots.
    #[arg(long)]
    pub no_slots: bool,
}

/// Memory and layout of cached keys and values.
#[derive(Args, Debug)]
pub struct MemoryArgs {
    /// Layout of cached keys; -ctk for short.
    #[arg(long, alias = "ctk", value_name = "TYPE", value_enum, default_value_t = KvType::Q8)]
    pub cache_type_k: KvType,
    /// Layout of cached values; must equal that of the keys; -ctv for short.
    #[arg(long, alias = "ctv", value_name = "TYPE", value_enum, default_value_t = KvType::Q8)]
    pub cache_type_v: KvType,
    /// Memory of all keys and values, in MiB [default: what all requests that run at once can need, but no more than half
    /// of this machine's].
    #[arg(long, value_name = "MIB")]
    pub kv_memory: Option<NonZeroU32>,
    /// Part of this for the prefix cache, in MiB; 0 keeps nothing; -cram for short [default: half].
    #[arg(long, alias = "cram", value_name = "MIB")]
    pub cache_ram: Option<u32>,
}

/// API keys and access.
#[derive(Args, Debug)]
pub struct AccessArgs {
    /// Key that may use the model. Others see it in the list of processes: prefer a file. May be given several times.
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub api_key: Vec<String>,
    /// Key that may read /metrics and /slots. May be given several times.
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub metrics_key: Vec<String>,
    /// Key for all routes, /admin/drain included. May be given several times.
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub admin_key: Vec<String>,
    /// File with a key a line, each followed by its scopes if they are not just "use": KEY use,metrics,admin.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Vec<PathBuf>,
    /// Shares cached prefixes among all API keys [default: each key has its own]. A client can then detect, by trying, what
    /// others asked.
    #[arg(long)]
    pub share_prefixes: bool,
    /// Listens beyond this machine without keys: every client that reaches the port may use the server.
    #[arg(long)]
    pub insecure_public: bool,
    /// Origins, besides the server's own, whose pages may send requests, each a scheme and a host; * for all.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', value_parser = origin)]
    pub cors_origins: Vec<String>,
}

/// Listening address, TLS and connection limits.
#[derive(Args, Debug)]
pub struct ConnectionArgs {
    /// Name or address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes any that is free.
    #[arg(long, default_value_t = 9931)]
    pub port: u16,
    /// Certificates in PEM, the server's own first; the server then speaks TLS.
    #[arg(long, value_name = "FILE", requires = "ssl_key_file")]
    pub ssl_cert_file: Option<PathBuf>,
    /// The certificate's private key in PEM.
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file")]
    pub ssl_key_file: Option<PathBuf>,
    /// Time for requests under way to end when the server is asked to stop, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_seconds: u32,
    /// Open connections at most.
    #[arg(long, value_name = "N", default_value = "512")]
    pub max_connections: NonZeroUsize,
    /// Largest body of a request, in MiB.
    #[arg(long, value_name = "MIB", default_value = "32")]
    pub max_body_mib: NonZeroU32,
    /// Timeout for receiving a request, and for a client that reads nothing of the answer, in seconds; -to for short.
    #[arg(long, alias = "to", value_name = "SECONDS", default_value = "60")]
    pub timeout: NonZeroU32,
    /// Idle time of a stream after which a comment is sent, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "30")]
    pub sse_ping_interval: NonZeroU32,
}

impl ServeArgs {
    /// Positions of a request, of the `trained` ones that the model has.
    pub fn context(&self, trained: usize) -> usize {
        if self.ctx_size == 0 { trained } else { self.ctx_size as usize }
    }

    /// Tokens to generate at most where a request does not say.
    pub fn tokens_max(&self) -> Option<usize> {
        usize::try_from(self.predict).ok()
    }
}

impl MemoryArgs {
    /// The one layout of keys and values.
    pub fn kv(&self) -> Result<KvLayout, Failure> {
        one_layout(self.cache_type_k, self.cache_type_v)
    }
}

impl ConnectionArgs {
    /// Limits of connections where the system has descriptors for `available` of them: a quarter at most are narrow places.
    pub fn limits(&self, available: NonZeroUsize) -> ConnectionLimits {
        let timeout = Duration::from_secs(self.timeout.get().into());
        let narrow_max = ConnectionLimits::default().narrow_max.min(available.get() / 4);
        ConnectionLimits {
            connections_max: self.max_connections.get().min(available.get() - narrow_max),
            narrow_max,
            body_bytes_max: mib(self.max_body_mib.get()),
            body_timeout: timeout,
            write_stall: timeout,
            ..ConnectionLimits::default()
        }
    }
}

/// Bytes of `count` MiB, saturating.
pub fn mib(count: u32) -> usize {
    (count as usize).saturating_mul(1 << 20)
}

fn origin(text: &str) -> Result<String, String> {
    Origins::default().add(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}
