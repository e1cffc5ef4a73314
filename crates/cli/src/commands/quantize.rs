//! `muser quantize`: a GGUF file with other weight types.
//!
//! Matrices change type; vectors and everything else stay as they are. The new file appears under its name when it is
//! complete, never before.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muser_kernels::formats::{QuantiseError, WeightClass, WeightType, dequantise_row, first_non_finite, quantise_row};
use muser_kernels::pool::Pool;
use muser_weights::gguf::{GgufWriter, ModelFiles, Tensor, TensorError, Value, Weight, WriteError};

use crate::failure::Failure;
use crate::interrupt::{Interrupt, Signal};
use crate::model;
use crate::output::{NewFile, tell};
use crate::settings::{QuantizeArgs, QuantizeTo};

/// Rows converted at a time by all threads together: bounds the memory beside the files.
const ROWS_AT_ONCE: usize = 1024;

/// Failure of a conversion.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeFailure {
    /// The output exists already.
    #[error("{0:?} exists already; nothing was written")]
    OutputExists(PathBuf),
    /// Precision would be lost twice.
    #[error("tensor {name:?} is {ty} and has lost precision already; --allow-requantize converts it nevertheless")]
    Requantize {
        /// The tensor.
        name: String,
        /// Its type.
        ty: WeightType,
    },
    /// A scale beside the tensor would be lost.
    #[error("tensor {name:?} has a scale tensor beside it, which another type cannot express")]
    ScaleBeside {
        /// The tensor.
        name: String,
    },
    /// A tensor cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A tensor cannot be written in the new type.
    #[error("tensor {name:?}: {reason}")]
    Values {
        /// The tensor.
        name: String,
        /// The quantiser's error.
        reason: QuantiseError,
    },
    /// A value is a NaN or an infinity.
    #[error("tensor {name:?}: block {block} is not finite")]
    NotFinite {
        /// The tensor.
        name: String,
        /// The first such block.
        block: usize,
    },
    /// A signal came; nothing was written.
    #[error("{0}")]
    Interrupted(Signal),
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl QuantizeFailure {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::OutputExists(_) | Self::Requantize { .. } => 2,
            Self::ScaleBeside { .. } | Self::Tensor(_) | Self::Values { .. } | Self::NotFinite { .. } => 3,
            Self::Interrupted(signal) => signal.exit_code(),
            Self::Write(_) => 1,
        }
    }
}

/// Runs the command.
pub fn run(args: &QuantizeArgs, interrupt: &Interrupt) -> Result<(), Failure> {
    refuse_existing(&args.output)?;
    let files = Arc::new(ModelFiles::open(&args.input)?);
    let writer = plan(&files, args)?;
    let mut pool = Pool::new(model::threads(args.threads))?;
    interrupt.hold();
    let mut out = NewFile::create(&args.output)?;
    write(&writer, &files, &mut out, &mut pool, interrupt).map_err(|failure| match failure {
        QuantizeFailure::Write(WriteError::Io(reason)) => Failure::Io { path: args.output.clone(), reason },
        other => other.into(),
    })?;
    // Once more: this may have taken minutes.
    refuse_existing(&args.output)?;
    out.finish()?;
    for tensor in writer.tensors() {
        let from = files.weight(tensor.name()).map_err(QuantizeFailure::from)?.ty;
        if from != tensor.weight_type() {
            tell(format_args!("{:<40} {from} -> {}", tensor.name(), tensor.weight_type()));
        }
    }
    Ok(())
}

/// Refuses to replace what is at `path`.
pub(super) fn refuse_existing(path: &Path) -> Result<(), QuantizeFailure> {
    match fs::symlink_metadata(path) {
        Ok(_) => Err(QuantizeFailure::OutputExists(path.to_owned())),
        Err(_) => Ok(()),
    }
}

/// The key that GGUF requires once a tensor is quantised, and the version of the blocks' layouts.
const QUANTIZATION_VERSION: (&str, u32) = ("general.quantization_version", 2);

/// Metadata and tensors of the new file; nothing is written yet.
fn plan(files: &ModelFiles, args: &QuantizeArgs) -> Result<GgufWriter, QuantizeFailure> {
    let mut writer = GgufWriter::new();
    let own = [("general.file_type", args.weight_type.file_type()), QUANTIZATION_VERSION];
    for (key, value) in files.metadata().iter() {
        let of_file = key == "general.alignment" || key.starts_with("split.") || own.iter().any(|(own, _)| *own == key);
        if !of_file {
            writer.set(key, value)?;
        }
    }
    for (key, value) in own {
        writer.set(key, Value::U32(value))?;
    }
    for tensor in files.tensors() {
        let weight = tensor.weight()?;
        let ty = target(files, &tensor, weight, args)?;
        writer.tensor(tensor.name(), ty, tensor.shape())?;
    }
    Ok(writer)
}

/// The type in which a tensor is written.
fn target(
    files: &ModelFiles,
    tensor: &Tensor<'_>,
    weight: Weight<'_>,
    args: &QuantizeArgs,
) -> Result<WeightType, QuantizeFailure> {
    let name = || tensor.name().to_owned();
    let wanted = args.weight_type.for_columns(weight.cols);
    let Some(wanted) = wanted.filter(|wanted| *wanted != weight.ty && is_matrix(tensor)) else { return Ok(weight.ty) };
    if weight.ty.class() != WeightClass::Float && !args.allow_requantize {
        return Err(QuantizeFailure::Requantize { name: name(), ty: weight.ty });
    }
    let stem = tensor.name().strip_suffix(".weight").unwrap_or(tensor.name());
    if files.tensor(&format!("{stem}.scale")).or_else(|| files.tensor(&format!("{stem}.weight.scale"))).is_some() {
        return Err(QuantizeFailure::ScaleBeside { name: name() });
    }
    Ok(wanted)
}

/// Norms, biases and rotary factors have one dimension and stay as they are.
fn is_matrix(tensor: &Tensor<'_>) -> bool {
    tensor.shape().len() > 1 && tensor.name().ends_with(".weight")
}

/// Writes the file `writer` describes, each tensor of `files` in its new type.
fn write(
    writer: &GgufWriter,
    files: &ModelFiles,
    out: &mut impl Write,
    pool: &mut Pool,
    interrupt: &Interrupt,
) -> Result<(), QuantizeFailure> {
    let mut failure = None;
    let written = writer.write(out, |planned, data| {
        let weight = files.weight(planned.name()).map_err(io::Error::other)?;
        convert(weight, planned.weight_type(), pool, interrupt, data).unwrap_or_else(|reason| {
            failure = Some(reason.named(planned.name()));
            Err(io::Error::other("refused values"))
        })
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(written?),
    }
}

/// Failure to convert a tensor, without the tensor's name.
enum Refused {
    Interrupted(Signal),
    NotFinite(usize),
    Values(QuantiseError),
}

impl Refused {
    fn named(self, name: &str) -> QuantizeFailure {
        let name = name.to_owned();
        match self {
            Self::Interrupted(signal) => QuantizeFailure::Interrupted(signal),
            Self::NotFinite(block) => QuantizeFailure::NotFinite { name, block },
            Self::Values(reason) => QuantizeFailure::Values { name, reason },
        }
    }
}

/// Writes `weight` in type `to`. The inner error is the file's.
fn convert(
    weight: Weight<'_>,
    to: WeightType,
    pool: &mut Pool,
    interrupt: &Interrupt,
    out: &mut dyn Write,
) -> Result<io::Result<()>, Refused> {
    let go_on = || interrupt.requested().map_or(Ok(()), |signal| Err(Refused::Interrupted(signal)));
    go_on()?;
    if weight.ty == to {
        return Ok(out.write_all(weight.bytes));
    }
    if let Some(block) = first_non_finite(weight.ty, weight.bytes) {
        return Err(Refused::NotFinite(block));
    }
    let (from_bytes, to_bytes) = (weight.bytes.len() / weight.rows, to.row_bytes(weight.cols).expect("planned"));
    let mut floats: Vec<Vec<f32>> = (0..pool.threads()).map(|_| vec![0.0; weight.cols]).collect();
    let mut block = vec![0; to_bytes * ROWS_AT_ONCE.min(weight.rows)];
    let refused = std::sync::Mutex::new(None);
    for rows in weight.bytes.chunks(from_bytes * ROWS_AT_ONCE) {
        go_on()?;
        let block = &mut block[..rows.len() / from_bytes * to_bytes];
        pool.for_each_chunk_with(&mut floats, block, to_bytes, |floats, row, out| {
            dequantise_row(weight.ty, &rows[row * from_bytes..][..from_bytes], floats);
            if let Err(reason) = quantise_row(to, floats, out) {
                *refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(reason);
            }
        });
        if let Some(reason) = refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
            return Err(Refused::Values(reason));
        }
        if let Err(error) = out.write_all(block) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

impl QuantizeTo {
    /// The type for rows of `cols` weights; `None` if no block fits and the tensor stays as it is. Rows that are not whole
    /// blocks of 256 take the nearest type with blocks of 32.
    fn for_columns(self, cols: usize) -> Option<WeightType> {
        let (wanted, fallback) = match self {
            Self::Q8_0 => (WeightType::Q8_0, WeightType::Q8_0),
            Self::Q4_0 => (WeightType::Q4_0, WeightType::Q4_0),
            Self::Q4K => (WeightType::Q4_K, WeightType::Q5_0),
            Self::Q6K => (WeightType::Q6_K, WeightType::Q8_0),
        };
        [wanted, fallback].into_iter().find(|ty| ty.row_bytes(cols).is_some())
    }

    /// GGUF's number for a file that is mostly of this type.
    fn file_type(self) -> u32 {
        match self {
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
            Self::Q4K => 14,
            Self::Q6K => 18,
        }
    }
}
