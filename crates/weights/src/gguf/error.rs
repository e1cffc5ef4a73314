//! Refusal of a GGUF file: the part, the byte offset, and the fault.

use super::value::ValueType;

/// A refusal: the part of the file, the byte, and the fault. The file is at fault, never the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{item}, byte {offset}: {fault}")]
pub struct GgufError {
    /// The part of the file that is wrong.
    pub item: Item,
    /// Byte offset in the file of the first wrong byte.
    pub offset: usize,
    /// Fault found there.
    pub fault: GgufFault,
}

/// A part of a GGUF file, as an error message calls it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Item {
    /// The 24 bytes before the metadata.
    #[error("header")]
    Header,
    /// The key of a metadata entry, counted from 0, when it could not be read.
    #[error("key of metadata entry {0}")]
    Key(u64),
    /// The value of a metadata entry, or the entry as a whole.
    #[error("metadata key {0:?}")]
    Metadata(String),
    /// The name of a tensor, counted from 0, when it could not be read.
    #[error("name of tensor {0}")]
    TensorName(u64),
    /// A tensor: its directory entry or its data.
    #[error("tensor {0:?}")]
    Tensor(String),
}

/// Fault of the bytes of an [`Item`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufFault {
    /// The file does not begin with `GGUF`.
    #[error("not a GGUF file: it begins with {found:02x?} instead of \"GGUF\"")]
    NotGguf {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The file was written for a big-endian machine.
    #[error("big-endian GGUF (version {version}) is not supported; convert the model for a little-endian machine")]
    BigEndian {
        /// The version, read in the file's own byte order.
        version: u32,
    },
    /// A version other than 2 and 3.
    #[error("GGUF version {version} is not supported; versions 2 and 3 are")]
    Version {
        /// The version the file states.
        version: u32,
    },
    /// The file ends inside the item.
    #[error("file cut short: need {need} bytes, have {have}")]
    Truncated {
        /// Bytes the item takes, as far as is known.
        need: u64,
        /// Bytes between the offset and the end of the file.
        have: u64,
    },
    /// More entries are declared than the bytes left could hold.
    #[error("{count} entries are declared, but the rest of the file has room for {room}")]
    CountExceedsFile {
        /// Entries declared.
        count: u64,
        /// Entries of the smallest possible size that fit the rest of the file.
        room: u64,
    },
    /// More entries are declared than this reader accepts.
    #[error("{count} entries are declared, the limit is {limit}")]
    CountExceedsLimit {
        /// Entries declared.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// A key or tensor name of no bytes.
    #[error("the name is empty")]
    EmptyName,
    /// A key or tensor name of too many bytes.
    #[error("the name has {length} bytes, the limit is {limit}")]
    NameTooLong {
        /// Bytes of the name.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// A key or tensor name that is not UTF-8.
    #[error("the name is not UTF-8 after {valid_bytes} bytes")]
    NameNotUtf8 {
        /// Bytes before the first wrong one.
        valid_bytes: usize,
    },
    /// A key or tensor name seen before.
    #[error("duplicate name, first seen at byte {first}")]
    DuplicateName {
        /// Offset of the first entry of that name.
        first: usize,
    },
    /// A metadata value of a type the format does not define.
    #[error("value type {id} is unknown")]
    UnknownValueType {
        /// The type's number.
        id: u32,
    },
    /// An array of arrays, which no known model uses.
    #[error("arrays of arrays are not supported")]
    NestedArray,
    /// A bool that is neither 0 nor 1.
    #[error("a bool is stored as {byte}, only 0 and 1 are allowed")]
    InvalidBool {
        /// The byte found.
        byte: u8,
    },
    /// `general.alignment` of a type other than u32.
    #[error("the alignment must be a u32, it is {found}")]
    AlignmentType {
        /// The type found.
        found: ValueType,
    },
    /// `general.alignment` of an unusable value.
    #[error("the alignment must be a power of two from 8 to 65536, it is {value}")]
    Alignment {
        /// The value found.
        value: u32,
    },
    /// A tensor of no dimensions or of more than four.
    #[error("{count} dimensions, 1 to 4 are allowed")]
    DimensionCount {
        /// Dimensions declared.
        count: u32,
    },
    /// A dimension of length zero.
    #[error("dimension {axis} is 0")]
    ZeroDimension {
        /// Index of the dimension; 0 is the row length.
        axis: u32,
    },
    /// More elements or bytes than can be counted.
    #[error("the size of shape {shape:?} overflows")]
    SizeOverflow {
        /// The dimensions, row length first.
        shape: Vec<u64>,
    },
    /// Rows that end inside a block.
    #[error("rows of {cols} weights are not whole blocks: type {type_id} has blocks of {block_len}")]
    PartialBlock {
        /// Weights per row.
        cols: u64,
        /// GGUF's number of the tensor type.
        type_id: u32,
        /// Weights per block of that type.
        block_len: u64,
    },
    /// Tensor data that does not begin at a multiple of the alignment.
    #[error("the data offset {data_offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The offset, counted from the begin of the data section.
        data_offset: u64,
        /// The file's alignment in bytes.
        alignment: u64,
    },
    /// Tensor data that ends behind the end of the file.
    #[error("data offset {data_offset} + {bytes} bytes ends behind the data section of {have} bytes")]
    PastEnd {
        /// The offset, counted from the begin of the data section.
        data_offset: u64,
        /// Bytes of data; 1 if the tensor type's size is unknown.
        bytes: u64,
        /// Bytes of the file's data section.
        have: u64,
    },
    /// Tensor data that shares bytes with another tensor.
    #[error("the data overlaps that of tensor {other:?}")]
    Overlap {
        /// The tensor that begins first.
        other: String,
    },
}

impl GgufFault {
    /// The refusal of `item` at byte `offset` for this fault.
    pub(super) fn of(self, item: Item, offset: usize) -> GgufError {
        GgufError { item, offset, fault: self }
    }
}
