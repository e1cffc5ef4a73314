//! Ways of computing a prompt on the GPU, each compared with one run on the CPU.

use std::num::NonZeroUsize;
use std::sync::Arc;

use muser_cuda::{CudaDevice, CudaLimits, Gpu};
use muser_kernels::cpu::Kernels;
use muser_kv::{DetachedCache, KvLayout, PAGE_ROWS, PagePool, PageSet, SequenceCache};
use muser_model::{Executor, LogitsWanted, Model, PrepareForCpu, SequenceInput};
use muser_weights::gguf::ModelFiles;

/// Rows of a step on either device.
const ROWS_MAX: usize = 512;
/// Tokens of a prompt: several pages, more than one segment would be slow for the CPU.
const TOKENS_MAX: usize = 600;
/// Device memory for pages: small, so that copies are dropped and made again.
const PAGE_BYTES_MAX: usize = 1;

/// Threads of the host that compute rotary angles.
const HOST_THREADS: NonZeroUsize = NonZeroUsize::new(3).expect("not zero");

/// One model on both devices.
pub struct Pair {
    cpu: Executor,
    gpu: Executor<CudaDevice>,
    ways: usize,
    values: usize,
    wrong: usize,
}

/// A prompt as the CPU computed it.
struct Truth {
    layout: KvLayout,
    tokens: Vec<u32>,
    logits: Vec<u32>,
    pages: Vec<Vec<u8>>,
}

/// A sequence that is being computed.
struct Going {
    cache: SequenceCache,
    logits: Vec<u32>,
}

impl Pair {
    pub fn load(gpu: &Gpu, files: ModelFiles) -> Self {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let rows = NonZeroUsize::new(ROWS_MAX).expect("not zero");
        let model = Model::load_with(&files, &mut PrepareForCpu { threads }).expect("the model on the CPU");
        let cpu = Executor::new(Arc::new(model), Kernels::detected(), threads, rows).expect("threads");
        let mut preparer = gpu.preparer().expect("a queue");
        let model = Model::<CudaDevice>::load_with(&files, &mut preparer).expect("the model on the GPU");
        let limits = CudaLimits { rows_max: ROWS_MAX, page_bytes_max: PAGE_BYTES_MAX, host_threads: HOST_THREADS };
        let device = CudaDevice::new(gpu, model.spec(), limits).expect("room on the GPU");
        let gpu = Executor::on(Arc::new(model), device, rows).expect("room on the GPU");
        Self { cpu, gpu, ways: 0, values: 0, wrong: 0 }
    }

    pub fn counts(&self) -> (usize, usize, usize) {
        (self.ways, self.values, self.wrong)
    }

    pub fn check_all(&mut self, round: usize) {
        let config = self.cpu.model().config();
        let (vocab, context) = (u32::try_from(config.vocab).expect("a vocabulary"), config.context);
        let mut random = fastrand::Rng::with_seed(round as u64 + 11);
        let count = TOKENS_MAX.min(context);
        for layout in [KvLayout::Q8, KvLayout::F16] {
            let truths: Vec<Truth> = (0..3)
                .map(|number| {
                    let tokens = (0..count - 31 * number).map(|_| random.u32(0..vocab)).collect();
                    self.truth(layout, tokens)
                })
                .collect();
            for chunk in [ROWS_MAX, 1, 7, 64, 65, 130, 200] {
                // One by one is slow on a whole prompt, and the same at every position.
                let tokens = if chunk < 16 { 16 * chunk + 70 } else { count };
                self.chunked(&truths[0], chunk, tokens.min(count));
            }
            self.in_company(&truths);
            self.rewound(&truths[0], &truths[1]);
            self.carried_on(&truths[0]);
        }
    }

    /// The prompt on the CPU.
    fn truth(&mut self, layout: KvLayout, tokens: Vec<u32>) -> Truth {
        let mut going = Going::new(&self.cpu, layout);
        for chunk in tokens.chunks(ROWS_MAX) {
            step(&mut self.cpu, &mut [(&mut going, chunk)]);
        }
        Truth { layout, pages: going.pages(), logits: going.logits, tokens }
    }

    fn chunked(&mut self, truth: &Truth, chunk: usize, tokens: usize) {
        let mut going = Going::new(&self.gpu, truth.layout);
        for part in truth.tokens[..tokens].chunks(chunk) {
            step(&mut self.gpu, &mut [(&mut going, part)]);
        }
        self.compare(&format!("chunks of {chunk}"), truth, &going, 0);
    }

    /// Three sequences in common steps: prompts beside single rows.
    fn in_company(&mut self, truths: &[Truth]) {
        let mut going: Vec<Going> = truths.iter().map(|truth| Going::new(&self.gpu, truth.layout)).collect();
        let mut random = fastrand::Rng::with_seed(3);
        loop {
            let mut left = ROWS_MAX;
            let mut parts: Vec<(&mut Going, &[u32])> = Vec::new();
            for (going, truth) in going.iter_mut().zip(truths) {
                let rest = &truth.tokens[going.cache.rows()..];
                let rows = if random.u8(..3) == 0 { 1 } else { random.usize(1..160) }.min(rest.len()).min(left);
                left -= rows;
                if rows > 0 {
                    parts.push((going, &rest[..rows]));
                }
            }
            if parts.is_empty() {
                break;
            }
            step(&mut self.gpu, &mut parts);
        }
        for (going, truth) in going.iter().zip(truths) {
            self.compare("company", truth, going, 0);
        }
    }

    /// Another continuation, taken back in the middle of a page.
    fn rewound(&mut self, truth: &Truth, other: &Truth) {
        let mut going = Going::new(&self.gpu, truth.layout);
        let keep = 100.min(truth.tokens.len() / 2);
        step(&mut self.gpu, &mut [(&mut going, &truth.tokens[..keep])]);
        step(&mut self.gpu, &mut [(&mut going, &other.tokens[..30])]);
        going.cache.truncate(keep).expect("a rewind within the page kept behind the window");
        going.logits.truncate(keep * self.gpu.model().config().vocab);
        for part in truth.tokens[keep..].chunks(150) {
            step(&mut self.gpu, &mut [(&mut going, part)]);
        }
        self.compare("rewind", truth, &going, 0);
    }

    /// A prefix whose pages came from the CPU's cache.
    fn carried_on(&mut self, truth: &Truth) {
        let rows = truth.tokens.len() / PAGE_ROWS / 2 * PAGE_ROWS;
        let mut here = Going::new(&self.cpu, truth.layout);
        step(&mut self.cpu, &mut [(&mut here, &truth.tokens[..rows])]);
        let spec = Arc::clone(here.cache.spec());
        let pool = PagePool::new(usize::MAX);
        let mut detached =
            DetachedCache::new(Arc::clone(&spec), pool, rows, PageSet::Held).expect("rows of the context");
        for layer in 0..spec.layers().len() {
            for page in detached.expected_pages(layer) {
                let exported = here.cache.export_page(layer, page).expect("a committed page");
                detached.install_page(layer, page, exported.bytes).expect("a page of this cache");
            }
        }
        let mut going = Going { cache: detached.finish().expect("every page"), logits: Vec::new() };
        for part in truth.tokens[rows..].chunks(90) {
            step(&mut self.gpu, &mut [(&mut going, part)]);
        }
        self.compare("carried on", truth, &going, rows);
    }

    /// Compares the logits from row `first` on, and every page where the whole prompt was computed.
    fn compare(&mut self, way: &str, truth: &Truth, going: &Going, first: usize) {
        let vocab = self.cpu.model().config().vocab;
        let want = &truth.logits[first * vocab..first * vocab + going.logits.len()];
        self.ways += 1;
        self.values += want.len();
        let mut differs = want
            .iter()
            .zip(&going.logits)
            .position(|(want, got)| want != got)
            .map(|at| format!("logit {} of row {}", at % vocab, first + at / vocab));
        if differs.is_none() && going.cache.rows() == truth.tokens.len() {
            let got = going.pages();
            self.values += got.iter().map(Vec::len).sum::<usize>();
            let layers = got.iter().zip(&truth.pages).enumerate();
            differs = layers
                .filter(|(_, (got, want))| got != want)
                .map(|(layer, _)| format!("pages of layer {layer}"))
                .next();
        }
        if let Some(place) = differs {
            self.wrong += 1;
            println!("  WRONG: {way}, {:?}: {place}", truth.layout);
        }
    }
}

impl Going {
    fn new<D: muser_model::Device>(executor: &Executor<D>, layout: KvLayout) -> Self {
        let context = executor.model().config().context.min(TOKENS_MAX + 64);
        let spec = executor.model().cache_spec(layout, context).expect("a cache");
        Self { cache: SequenceCache::new(spec, PagePool::new(usize::MAX)), logits: Vec::new() }
    }

    /// The bytes of each layer's pages.
    fn pages(&self) -> Vec<Vec<u8>> {
        (0..self.cache.spec().layers().len())
            .map(|layer| self.cache.pages(layer).iter().collect::<Vec<_>>().concat())
            .collect()
    }
}

/// One step; every row's logits are kept.
fn step<D: muser_model::Device>(executor: &mut Executor<D>, parts: &mut [(&mut Going, &[u32])]) {
    let mut logits: Vec<&mut Vec<u32>> = Vec::new();
    let mut batch: Vec<SequenceInput<'_>> = Vec::new();
    for (going, tokens) in parts {
        let Going { cache, logits: all } = &mut **going;
        logits.push(all);
        batch.push(SequenceInput::new(cache, tokens, LogitsWanted::All));
    }
    let ran = executor.forward(&mut batch, &mut |row, z| logits[row.sequence].extend(z.iter().map(|z| z.to_bits())));
    ran.expect("a step");
    batch.iter().for_each(|input| input.outcome.expect("finite values"));
}
