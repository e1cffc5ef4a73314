//! Tensors as views into the file.

use super::cursor::FaultAt;
use super::error::GgufFault;
use super::ggml_types::TensorType;
use muser_kernels::formats::WeightType;

/// A tensor's directory entry and, if the file was opened with its data, the data.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub(super) name: &'a str,
    pub(super) record: &'a Record,
    pub(super) bytes: Option<&'a [u8]>,
}

/// A tensor muser can compute with: whole rows of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weight<'a> {
    /// Storage type of the elements.
    pub ty: WeightType,
    /// Elements per row, a multiple of the type's block length.
    pub cols: usize,
    /// Number of rows; all dimensions but the first, multiplied.
    pub rows: usize,
    /// `rows * ty.row_bytes(cols)` bytes.
    pub bytes: &'a [u8],
}

/// Reasons for which a tensor cannot be used as a weight.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The file has no tensor of that name.
    #[error("the model has no tensor {name:?}")]
    Missing {
        /// The name asked for.
        name: String,
    },
    /// The tensor's type has no kernels.
    #[error("tensor {name:?} is stored as {ty}, which muser cannot compute with")]
    Unsupported {
        /// The tensor.
        name: String,
        /// Its type.
        ty: TensorType,
    },
    /// Only the header was opened.
    #[error("tensor {name:?} has no data: only the header of its file was read")]
    NoData {
        /// The tensor.
        name: String,
    },
}

/// A directory entry as stored, after every check that does not need the data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Byte offset of the name in the file.
    pub(super) name_at: usize,
    pub(super) name_bytes: u8,
    pub(super) dimensions: u8,
    pub(super) type_id: u32,
    pub(super) shape: [u64; 4],
    /// Byte offset of the data, relative to the data section.
    pub(super) data_offset: u64,
}

impl<'a> Tensor<'a> {
    /// The tensor's name, unique in its model.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Storage type of the elements, as the file states it.
    pub fn tensor_type(&self) -> TensorType {
        TensorType::from_ggml(self.record.type_id)
    }

    /// The 1 to 4 dimensions in GGUF's order: the row length first.
    pub fn shape(&self) -> &'a [u64] {
        self.record.dims()
    }

    /// Elements per row.
    pub fn cols(&self) -> u64 {
        self.record.shape[0]
    }

    /// Number of rows: all dimensions but the first, multiplied.
    pub fn rows(&self) -> u64 {
        self.record.dims()[1..].iter().product()
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.record.dims().iter().product()
    }

    /// Byte offset of the data, relative to the data section.
    pub fn data_offset(&self) -> u64 {
        self.record.data_offset
    }

    /// Bytes of data, or `None` if the type's layout is not known.
    pub fn byte_len(&self) -> Option<u64> {
        self.record.byte_len()
    }

    /// The data, or `None` if the type's layout is not known or only the header was opened.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        self.bytes
    }

    /// The data as rows of a type muser computes with.
    ///
    /// # Errors
    /// If the type is not supported, or only the header was opened.
    pub fn weight(&self) -> Result<Weight<'a>, TensorError> {
        let TensorType::Supported(ty) = self.tensor_type() else {
            return Err(TensorError::Unsupported { name: self.name.into(), ty: self.tensor_type() });
        };
        let no_data = || TensorError::NoData { name: self.name.into() };
        let bytes = self.bytes.ok_or_else(no_data)?;
        // A tensor whose bytes are at hand has fewer elements than would overflow a usize.
        let (Ok(cols), Ok(rows)) = (usize::try_from(self.cols()), usize::try_from(self.rows())) else {
            return Err(no_data());
        };
        Ok(Weight { ty, cols, rows, bytes })
    }
}

impl Record {
    fn dims(&self) -> &[u64] {
        &self.shape[..usize::from(self.dimensions)]
    }

    /// Checks that the shape can be counted and that rows are whole blocks. `offset` is where the dimensions begin.
    pub(super) fn check_shape(&self, offset: usize) -> Result<(), FaultAt> {
        let at = |fault, offset| FaultAt { fault, offset };
        for (axis, length) in (0..).zip(self.dims()) {
            if *length == 0 {
                return Err(at(GgufFault::ZeroDimension { axis }, offset + axis as usize * 8));
            }
        }
        let overflow = || at(GgufFault::SizeOverflow { shape: self.dims().to_vec() }, offset);
        let count = |elements: u64, length: &u64| elements.checked_mul(*length);
        let elements = self.dims().iter().try_fold(1, count).filter(|count| i64::try_from(*count).is_ok());
        let elements = elements.ok_or_else(overflow)?;
        let ty = TensorType::from_ggml(self.type_id);
        if let (Some(block_len), Some(block_bytes)) = (ty.block_len(), ty.block_bytes()) {
            if !self.shape[0].is_multiple_of(block_len) {
                let (cols, type_id) = (self.shape[0], self.type_id);
                return Err(at(GgufFault::PartialBlock { cols, type_id, block_len }, offset));
            }
            (elements / block_len).checked_mul(block_bytes).ok_or_else(overflow)?;
        }
        Ok(())
    }

    /// Bytes of data. Does not overflow: [`Self::check_shape`] has done the same sum.
    pub(super) fn byte_len(&self) -> Option<u64> {
        let ty = TensorType::from_ggml(self.type_id);
        let elements: u64 = self.dims().iter().product();
        Some(elements / ty.block_len()? * ty.block_bytes()?)
    }
}
