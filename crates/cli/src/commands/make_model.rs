//! `muser make-model`: a model of a published geometry with random weights, for measurements without the real ones.

use std::io::{self, Write};

use muser_kernels::pool::Pool;
use muser_synthetic::published::{ModelGeometry, SyntheticModel};
use muser_weights::gguf::{PlannedTensor, WriteError};

use super::quantize::{QuantizeFailure, refuse_existing};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{NewFile, tell};
use crate::settings::{LikeModel, MakeModelArgs};

/// Bytes made at a time by all threads together.
const BYTES_AT_ONCE: usize = 64 << 20;

/// Runs the command.
pub fn run(args: &MakeModelArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    refuse_existing(&args.output)?;
    let geometry = match args.like {
        LikeModel::Muse30b => ModelGeometry::MUSE_30B,
        LikeModel::GlimmerMini => ModelGeometry::GLIMMER_MINI,
    };
    let seed = args.seed.value();
    let model = SyntheticModel::plan(&geometry, seed).map_err(QuantizeFailure::from)?;
    let mut pool = Pool::new(model::threads(args.threads))?;
    interrupt.hold();
    let mut out = NewFile::create(&args.output)?;
    let written = model.writer().write(&mut out, |tensor, data| fill(&model, tensor, &mut pool, interrupt, data));
    if let Some(signal) = interrupt.requested() {
        return Err(Failure::Interrupted(signal));
    }
    written.map_err(|reason| match reason {
        WriteError::Io(reason) => Failure::Io { path: args.output.clone(), reason },
        other => QuantizeFailure::from(other).into(),
    })?;
    refuse_existing(&args.output)?;
    out.finish()?;
    let bytes: u64 = model.writer().tensors().iter().map(PlannedTensor::byte_len).sum();
    tell(format_args!("{}: {:.2} GB of random weights, seed {}", geometry.name, bytes as f64 / 1e9, seed));
    Ok(())
}

/// Writes the rows of one tensor.
fn fill(
    model: &SyntheticModel,
    tensor: &PlannedTensor,
    pool: &mut Pool,
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> io::Result<()> {
    let rows = tensor.shape()[1..].iter().product::<u64>();
    let row_bytes = usize::try_from(tensor.byte_len() / rows).map_err(io::Error::other)?;
    let rows = usize::try_from(rows).map_err(io::Error::other)?;
    let at_once = (BYTES_AT_ONCE / row_bytes).max(1);
    let mut block = vec![0; row_bytes * at_once.min(rows)];
    for first in (0..rows).step_by(at_once) {
        if interrupt.requested().is_some() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let block = &mut block[..row_bytes * at_once.min(rows - first)];
        pool.for_each_chunk(block, row_bytes, |_, row, out| model.fill_row(tensor, first + row, out));
        out.write_all(block)?;
    }
    Ok(())
}
