//! `muser inspect`: what a model file holds, and whether muser can run it.
//!
//! A file that cannot be run is still described; only one that cannot be read is an error.

use std::io::{self, Write};
use std::time::SystemTime;

use muser_engine::load_tokenizer;
use muser_kv::{KvLayout, LayoutError, PageLayout};
use muser_model::{Component, Identity, Model, ModelConfig, read_config};
use muser_weights::digest::FileDigest;
use muser_weights::gguf::{ModelFiles, Tensor, TensorType, Value};
use serde::Serialize;
use serde_json::json;

use crate::failure::Failure;
use crate::model;
use crate::output::one_line;
use crate::settings::InspectArgs;

/// Elements of an array that are shown to people.
const SHOWN_ELEMENTS: usize = 6;
/// Characters of a string that are shown to people.
const SHOWN_CHARACTERS: usize = 80;

/// The command's output.
#[derive(Serialize)]
struct Report {
    files: Vec<String>,
    file_bytes: u64,
    metadata: serde_json::Map<String, serde_json::Value>,
    tensors: Vec<TensorLine>,
    parameters: u64,
    tensor_digest: Option<String>,
    identities: Vec<IdentityLine>,
    runs: bool,
    problems: Vec<String>,
    kv_bytes_per_position: Option<KvBytes>,
}

#[derive(Serialize)]
struct TensorLine {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    shape: Vec<u64>,
    bytes: Option<u64>,
    supported: bool,
}

/// The identity of KV in one layout, with its components.
#[derive(Serialize)]
struct IdentityLine {
    kv: &'static str,
    identity: String,
    components: serde_json::Map<String, serde_json::Value>,
}

/// Bytes one position takes in all layers that keep it.
#[derive(Serialize)]
struct KvBytes {
    q8: usize,
    f16: usize,
}

/// Runs the command.
pub fn run(args: &InspectArgs) -> Result<(), Failure> {
    let files = model::open(args.model.as_deref(), &args.hub)?;
    let config = read_config(&files.metadata());
    let digest = FileDigest::load_or_compute(&files, SystemTime::now()).map(|(digest, _)| digest);
    let mut report = describe(&files);
    match &config {
        Ok(config) => {
            match kv_bytes(config) {
                Ok(bytes) => report.kv_bytes_per_position = Some(bytes),
                Err(reason) => report.problems.push(reason.to_string()),
            }
            if let Ok(digest) = &digest {
                report.identities = identities(digest, config);
            }
        }
        Err(reason) => report.problems.push(reason.to_string()),
    }
    match &digest {
        Ok(digest) => report.tensor_digest = Some(digest.tensors.to_string()),
        Err(reason) => report.problems.push(reason.to_string()),
    }
    if let Ok(config) = &config {
        let reasons = [
            Model::check(&files).err().map(|reason| reason.to_string()),
            load_tokenizer(&files.metadata(), config.vocab).err().map(|reason| reason.to_string()),
        ];
        report.problems.extend(reasons.into_iter().flatten());
    }
    report.runs = report.problems.is_empty();
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(|error| Failure::Stdout(error.into()))?;
        return writeln!(out).map_err(Failure::Stdout);
    }
    print(&report, &mut out).map_err(Failure::Stdout)
}

fn describe(files: &ModelFiles) -> Report {
    let metadata = files.metadata();
    Report {
        files: files.paths().map(|path| path.display().to_string()).collect(),
        file_bytes: files.file_bytes(),
        metadata: metadata.iter().map(|(key, value)| (key.to_owned(), to_json(&value))).collect(),
        tensors: files.tensors().map(tensor_line).collect(),
        parameters: files.tensors().map(|tensor| tensor.elements()).sum(),
        tensor_digest: None,
        identities: Vec::new(),
        runs: false,
        problems: Vec::new(),
        kv_bytes_per_position: None,
    }
}

fn tensor_line(tensor: Tensor<'_>) -> TensorLine {
    TensorLine {
        name: tensor.name().to_owned(),
        ty: tensor.tensor_type().to_string(),
        shape: tensor.shape().to_vec(),
        bytes: tensor.byte_len(),
        supported: matches!(tensor.tensor_type(), TensorType::Supported(_)),
    }
}

fn identities(digest: &FileDigest, config: &ModelConfig) -> Vec<IdentityLine> {
    let line = |(kv, layout)| {
        let identity = Identity::new(digest, config, layout);
        let component = |c: Component| (c.to_string(), json!(identity.component(c).to_string()));
        let components = Component::ALL.into_iter().map(component).collect();
        IdentityLine { kv, identity: identity.digest().to_string(), components }
    };
    [("q8", KvLayout::Q8), ("f16", KvLayout::F16)].map(line).into()
}

fn kv_bytes(config: &ModelConfig) -> Result<KvBytes, LayoutError> {
    let bytes = |layout| {
        let page = PageLayout::new(layout, config.kv_heads, config.head_dim)?;
        Ok(config.layers.len() * page.row_bytes())
    };
    Ok(KvBytes { q8: bytes(KvLayout::Q8)?, f16: bytes(KvLayout::F16)? })
}

fn to_json(value: &Value<'_>) -> serde_json::Value {
    match value {
        Value::Bool(value) => json!(value),
        Value::F32(value) => json!(value),
        Value::F64(value) => json!(value),
        Value::String(bytes) => json!(String::from_utf8_lossy(bytes)),
        Value::Array(array) => array.iter().map(|element| to_json(&element)).collect(),
        Value::U64(value) => json!(value),
        other => json!(other.integer().and_then(|value| i64::try_from(value).ok())),
    }
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for path in report.files.iter().filter(|path| !path.is_empty()) {
        writeln!(out, "file        {}", one_line(path))?;
    }
    if report.files.iter().all(String::is_empty) {
        writeln!(out, "file        (the model that ships with muser)")?;
    }
    writeln!(out, "size        {} bytes, {} parameters", report.file_bytes, report.parameters)?;
    writeln!(out, "\nmetadata")?;
    for (key, value) in &report.metadata {
        writeln!(out, "  {} = {}", one_line(key), one_line(&shorten(value)))?;
    }
    writeln!(out, "\ntensors")?;
    for tensor in &report.tensors {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        let bytes = tensor.bytes.map_or("?".into(), |bytes| bytes.to_string());
        let note = if tensor.supported { "" } else { "  NOT SUPPORTED" };
        writeln!(out, "  {:<40} {:<8} [{}] {bytes} bytes{note}", one_line(&tensor.name), tensor.ty, shape.join(", "))?;
    }
    writeln!(out)?;
    if let Some(KvBytes { q8, f16 }) = &report.kv_bytes_per_position {
        writeln!(out, "kv          {q8} bytes per position as q8, {f16} as f16, over all layers")?;
    }
    if let Some(digest) = &report.tensor_digest {
        writeln!(out, "tensors     {digest}")?;
    }
    for line in &report.identities {
        writeln!(out, "identity    {} ({})", line.identity, line.kv)?;
    }
    match report.problems.as_slice() {
        [] => writeln!(out, "runs        yes"),
        problems => problems.iter().try_for_each(|problem| writeln!(out, "runs        no: {}", one_line(problem))),
    }
}

/// A value in one line that people can read.
fn shorten(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Array(elements) => {
            let shown: Vec<String> = elements.iter().take(SHOWN_ELEMENTS).map(shorten).collect();
            let more = if elements.len() > SHOWN_ELEMENTS { ", ..." } else { "" };
            format!("[{}{more}] ({} elements)", shown.join(", "), elements.len())
        }
        serde_json::Value::String(text) if text.chars().count() > SHOWN_CHARACTERS => {
            let shown: String = text.chars().take(SHOWN_CHARACTERS).collect();
            format!("{shown:?}... ({} characters)", text.chars().count())
        }
        other => other.to_string(),
    }
}
