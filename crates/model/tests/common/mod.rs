//! Small model files, and the same files with other keys and tensors.

use muser_kernels::formats::WeightType;
use muser_synthetic::small::{Architecture, GlimmerOptions, LlamaOptions, ModelSpec, Storage, generate};
use muser_weights::gguf::{Gguf, GgufWriter, Value};

/// `None` takes the key out.
pub type Changes<'a> = &'a [(&'a str, Option<Value<'a>>)];

/// Two layers of the smallest widths that kernels take.
pub fn spec(architecture: Architecture) -> ModelSpec {
    ModelSpec {
        architecture,
        layers: 2,
        hidden: 64,
        query_heads: 4,
        kv_heads: 2,
        head_dim: 32,
        ffn: 96,
        vocab: 300,
        context: 128,
        rope_base: 10_000.0,
        seed: 1,
    }
}

/// A `llama` with every optional part.
pub fn llama() -> Vec<u8> {
    let options = LlamaOptions { tied_output: false, rope_factors: true, qkv_biases: true };
    file(&spec(Architecture::Llama(options)))
}

/// A `muse-glimmer` of one local and one global layer.
pub fn glimmer() -> Vec<u8> {
    file(&spec(Architecture::MuseGlimmer(GlimmerOptions { window: 32, local_layers: vec![true, false] })))
}

/// The file of a model, in F32.
pub fn file(spec: &ModelSpec) -> Vec<u8> {
    generate(spec, Storage { weight_type: &|_| WeightType::F32, quantise: None }).unwrap()
}

/// The file with other keys, and with the shapes that `shape` gives its tensors; a tensor of no shape is left out.
pub fn rewritten(file: &[u8], changes: Changes<'_>, shape: impl Fn(&str, &[u64]) -> Option<Vec<u64>>) -> Vec<u8> {
    let parsed = Gguf::parse(file).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in parsed.metadata().iter() {
        if changes.iter().all(|(changed, _)| *changed != key) {
            writer.set(key, value).unwrap();
        }
    }
    for (key, value) in changes {
        value.iter().for_each(|value| writer.set(key, *value).unwrap());
    }
    for tensor in parsed.tensors() {
        if let Some(shape) = shape(tensor.name(), tensor.shape()) {
            writer.tensor(tensor.name(), tensor.weight().unwrap().ty, &shape).unwrap();
        }
    }
    let mut out = Vec::new();
    let data = |name: &str| parsed.tensors().find(|tensor| tensor.name() == name).unwrap().bytes().unwrap();
    writer.write(&mut out, |tensor, out| out.write_all(data(tensor.name()))).unwrap();
    out
}

/// The file with other keys.
pub fn with_keys(file: &[u8], changes: Changes<'_>) -> Vec<u8> {
    rewritten(file, changes, |_, shape| Some(shape.to_vec()))
}
