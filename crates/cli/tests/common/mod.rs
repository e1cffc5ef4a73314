//! Runs the binary as a user would, and makes the model files to run it on.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use muser_kernels::formats::WeightType;
use muser_synthetic::small::{Architecture, LlamaOptions, ModelSpec, Storage, generate};
use muser_weights::gguf::{Gguf, GgufWriter, Value};
use tempfile::TempDir;

/// The model that the binary contains.
pub const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/glimmer-mini/glimmer-mini-Q4_K_M.gguf");

/// Exit code and output of a command.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Takes the output of a process, which must be UTF-8.
    pub fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
        let ended = Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        ended
    }

    /// The output, after checking that the command succeeded.
    #[track_caller]
    pub fn done(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// Its one line on standard error, if it ended with `code` and printed nothing else.
    #[track_caller]
    pub fn refused(self, code: i32) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), ""), "{}", self.stderr);
        let line = self.stderr.strip_suffix('\n').expect("a whole line");
        assert!(line.starts_with("muser: ") && !line.contains(char::is_control), "{line:?}");
        line.to_owned()
    }

    /// The parser's message on standard error, after checking that it refused the command line.
    #[track_caller]
    pub fn wrong_usage(self) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (Some(2), ""), "{}", self.stderr);
        assert!(self.stderr.starts_with("error: ") && self.stderr.contains("--help"), "{}", self.stderr);
        self.stderr
    }
}

/// The binary with `args`, not yet running.
pub fn command<A: AsRef<OsStr>>(args: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muser"));
    // The user who runs the tests may have a configuration.
    command.env("XDG_CONFIG_HOME", "/nowhere");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MUSER_ARG_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same with at most so many descriptors.
pub fn command_with_descriptors(descriptors: u64, args: &[&str]) -> Command {
    let plain = command(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {descriptors} && exec \"$@\""), "sh"]).arg(plain.get_program());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

/// The id of a text that is one token of the shipped model.
#[track_caller]
pub fn token(text: &str) -> u32 {
    let ended = muser(&["tokenize", "--no-bos", "--ids", text]).done();
    let ids: Vec<u32> = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(ids.len(), 1, "{text:?}: {ids:?}");
    ids[0]
}

/// Runs the binary to its end.
pub fn muser<A: AsRef<OsStr>>(args: &[A]) -> Ended {
    Ended::of(command(args).output().unwrap())
}

/// Runs the binary where no file may grow beyond 4 KiB, as on a disk that is full.
pub fn muser_on_a_full_disk<A: AsRef<OsStr>>(args: &[A]) -> Ended {
    // Without the trap the system would end the process instead of failing the write.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ && ulimit -f 8 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_muser")]);
    Ended::of(shell.args(args).stdin(Stdio::null()).output().unwrap())
}

/// Time on processors that a process has had, in hundredths of a second, even if it has ended but nobody has waited for it.
pub fn processor_ticks(child: &Child) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    // Behind the name, which may hold anything: 11 other fields, then the time outside the system and inside.
    let fields = text.rsplit_once(") ").unwrap().1.split(' ');
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// A folder of test files, removed at the end.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Path of the file `name`, which need not exist, as an argument.
    pub fn at(&self, name: &str) -> String {
        self.0.path().join(name).into_os_string().into_string().unwrap()
    }

    /// Writes the file `name`; its path.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::write(self.0.path().join(name), bytes).unwrap();
        self.at(name)
    }

    /// The names of all files, sorted.
    pub fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = fs::read_dir(self.0.path()).unwrap().map(name).collect();
        names.sort();
        names
    }
}

/// A `llama` of two layers whose rows are whole blocks of 256, except those of `ffn_down`, which have `ffn` columns.
pub fn llama_spec(ffn: u32) -> ModelSpec {
    ModelSpec {
        architecture: Architecture::Llama(LlamaOptions { tied_output: false, rope_factors: false, qkv_biases: false }),
        layers: 2,
        hidden: 256,
        query_heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ffn,
        vocab: 320,
        context: 128,
        rope_base: 10_000.0,
        seed: 3,
    }
}

/// The model's file with matrices of a float type.
pub fn float_model(spec: &ModelSpec, ty: WeightType) -> Vec<u8> {
    generate(spec, Storage { weight_type: &|_| ty, quantise: None }).unwrap()
}

/// The file with other metadata; `None` takes a key out.
pub fn with_keys(file: &[u8], changes: &[(&str, Option<Value<'_>>)]) -> Vec<u8> {
    let parsed = Gguf::parse(file).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in parsed.metadata().iter().filter(|(key, _)| changes.iter().all(|(changed, _)| changed != key)) {
        writer.set(key, value).unwrap();
    }
    for (key, value) in changes {
        value.iter().for_each(|value| writer.set(key, *value).unwrap());
    }
    for tensor in parsed.tensors() {
        writer.tensor(tensor.name(), tensor.weight().unwrap().ty, tensor.shape()).unwrap();
    }
    let mut out = Vec::new();
    let data = |name: &str| parsed.tensor(name).unwrap().bytes().unwrap();
    writer.write(&mut out, |tensor, out| out.write_all(data(tensor.name()))).unwrap();
    out
}

/// The file with another number for the type of one tensor; its data stays, so the type must not need more bytes.
pub fn with_tensor_type(file: &[u8], name: &str, type_id: u32) -> Vec<u8> {
    let mut file = file.to_vec();
    let after_name = file.windows(name.len()).position(|part| part == name.as_bytes()).unwrap() + name.len();
    let dimensions = u32::from_le_bytes(file[after_name..][..4].try_into().unwrap());
    // Behind the name: the number of dimensions, as many of them, then the type.
    let type_at = after_name + 4 + 8 * usize::try_from(dimensions).unwrap();
    file[type_at..][..4].copy_from_slice(&type_id.to_le_bytes());
    file
}

/// The file with other data at the begin of one tensor.
pub fn with_data(file: &[u8], name: &str, skip: usize, data: &[u8]) -> Vec<u8> {
    let place =
        Gguf::parse(file).unwrap().tensor(name).unwrap().bytes().unwrap().as_ptr().addr() - file.as_ptr().addr();
    let mut file = file.to_vec();
    file[place + skip..][..data.len()].copy_from_slice(data);
    file
}

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
