//! A model file that changes under a loaded model: nothing is read from it any more.

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_kernels::cpu::Kernels;
use muser_kernels::formats::WeightType;
use muser_kv::{KvLayout, PagePool, SequenceCache};
use muser_model::{Executor, LogitsWanted, Model, SequenceInput};
use muser_synthetic::small::{Architecture, LlamaOptions, ModelSpec, Storage, generate};
use muser_weights::gguf::ModelFiles;

const ONE: NonZeroUsize = NonZeroUsize::MIN;

/// A model whose embedding table spans several pages of memory.
fn file() -> Vec<u8> {
    let options = LlamaOptions { tied_output: false, rope_factors: false, qkv_biases: false };
    let spec = ModelSpec {
        architecture: Architecture::Llama(options),
        layers: 2,
        hidden: 64,
        query_heads: 4,
        kv_heads: 2,
        head_dim: 32,
        ffn: 96,
        vocab: 600,
        context: 64,
        rope_base: 10_000.0,
        seed: 5,
    };
    generate(&spec, Storage { weight_type: &|_| WeightType::F32, quantise: None }).unwrap()
}

/// Bits of the logits of every row of a step.
fn logits(model: &Arc<Model>) -> Vec<u32> {
    let tokens: Vec<u32> = (0..40).map(|index| index * 14).collect();
    let mut executor = Executor::new(Arc::clone(model), Kernels::detected(), ONE, ONE.saturating_add(39)).unwrap();
    let mut cache = SequenceCache::new(model.cache_spec(KvLayout::F16, 64).unwrap(), PagePool::new(usize::MAX));
    let mut all = Vec::new();
    let mut batch = [SequenceInput::new(&mut cache, &tokens, LogitsWanted::All)];
    executor.forward(&mut batch, &mut |_, row| all.extend(row.iter().map(|z| z.to_bits()))).unwrap();
    assert_eq!(batch[0].outcome, Ok(()));
    all
}

/// `cp`, `wget -O` and `rsync --inplace` write into the file that a running server has loaded.
#[test]
fn a_file_overwritten_or_cut_after_loading_changes_no_logit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let bytes = file();
    std::fs::write(&path, &bytes).unwrap();
    let model = Arc::new(Model::load(Arc::new(ModelFiles::open(&path).unwrap()), ONE).unwrap());
    let before = logits(&model);

    std::fs::write(&path, vec![0x5a; bytes.len()]).unwrap();
    assert!(logits(&model) == before, "the overwritten file reached the logits");
    std::fs::write(&path, &bytes[..4096]).unwrap();
    assert!(logits(&model) == before, "the cut file reached the logits");
}
