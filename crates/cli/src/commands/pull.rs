//! `muser pull`: a model file by its address, or out of a repository of the hub; its path on standard output.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use muser_hub::{
    CachedContent, FileName, PullRequest, Pulled, PulledFile, Reference, Revision, Sha256, sha256_of_file,
};
use serde_json::json;

use crate::failure::Failure;
use crate::hub::{MAGIC, Network, model_files};
use crate::progress::Shown;

/// `muser pull`.
#[derive(Args, Debug)]
pub struct PullArgs {
    /// A repository with a quantisation, `user/repo[:QUANT]` [default of QUANT: Q4_K_M, else the first file], or the
    /// address of a file.
    #[arg(value_name = "REFERENCE")]
    pub reference: Reference,
    /// File in the repository; -hff for short. Of a split model, all parts come.
    #[arg(long, alias = "hff", value_name = "NAME")]
    pub hf_file: Option<FileName>,
    /// Branch, tag or commit of the repository [default: main].
    #[arg(long, value_name = "NAME")]
    pub revision: Option<Revision>,
    /// Digest that the file must have.
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<Sha256>,
    /// File to write [default: the hub's cache, or muser's own for an address].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Do not use the network: the files must be cached.
    #[arg(long)]
    pub offline: bool,
    /// Show no progress.
    #[arg(long)]
    pub no_progress: bool,
    /// Machine-readable output.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(args: &PullArgs) -> Result<(), Failure> {
    let request = PullRequest {
        reference: args.reference.clone(),
        file: args.hf_file.clone(),
        revision: args.revision.clone(),
        sha256: args.sha256,
        output: args.output.clone(),
        magic: MAGIC,
        cached: CachedContent::Believed,
    };
    let network = if args.offline { Network::Offline } else { Network::Current };
    let shown = if args.no_progress || args.json { Shown::Troubles } else { Shown::Progress };
    let pulled = model_files(&request, network, shown)?;
    let mut out = io::stdout().lock();
    if args.json {
        let report = report(&pulled)?;
        serde_json::to_writer_pretty(&mut out, &report).map_err(|error| Failure::Stdout(error.into()))?;
        return writeln!(out).map_err(Failure::Stdout);
    }
    // The bytes of the path as they are, so that any path can be handed on.
    let path = pulled.files[0].path.as_os_str().as_encoded_bytes();
    out.write_all(path).and_then(|()| out.write_all(b"\n")).map_err(Failure::Stdout)
}

/// Everything that is known about the files. `sha256` is that of the only file, and null for several.
fn report(pulled: &Pulled) -> Result<serde_json::Value, Failure> {
    let mut files = Vec::new();
    for file in &pulled.files {
        let sha256 = digest(file)?.to_string();
        files.push(json!({ "path": file.path.display().to_string(), "bytes": file.bytes, "sha256": sha256 }));
    }
    Ok(json!({
        "path": files[0]["path"],
        "bytes": pulled.files.iter().map(|file| file.bytes).sum::<u64>(),
        "sha256": if let [only] = files.as_slice() { only["sha256"].clone() } else { serde_json::Value::Null },
        "from_cache": pulled.files.iter().all(|file| file.from_cache),
        "files": files,
    }))
}

fn digest(file: &PulledFile) -> Result<Sha256, Failure> {
    match file.sha256 {
        Some(known) => Ok(known),
        None => sha256_of_file(&file.path).map_err(Failure::io(&file.path)),
    }
}
