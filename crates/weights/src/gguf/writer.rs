//! Writes GGUF version 3, little-endian, alignment 32.

use super::cursor::FaultAt;
use super::error::GgufFault;
use super::metadata::Metadata;
use super::parse::{ENTRIES_MAX, KEY_BYTES_MAX, TENSOR_NAME_BYTES_MAX};
use super::tensor::Record;
use super::value::{Value, ValueType};
use muser_kernels::formats::WeightType;
use std::collections::HashSet;
use std::io::{self, Write};

/// Every tensor's data begins at a multiple of this many bytes, and the file's length is one.
const ALIGNMENT: u64 = 32;

/// Collects metadata and the directory of tensors, then writes the file, asking for each tensor's data in turn.
#[derive(Debug, Default)]
pub struct GgufWriter {
    /// The metadata entries as encoded.
    entries: Vec<u8>,
    entry_count: u64,
    keys: HashSet<String>,
    tensors: Vec<PlannedTensor>,
    names: HashSet<String>,
    /// Offset of the next tensor's data, relative to the data section, bytes.
    data_bytes: u64,
}

/// A tensor of a [`GgufWriter`].
#[derive(Debug)]
pub struct PlannedTensor {
    name: String,
    ty: WeightType,
    shape: Vec<u64>,
    data_offset: u64,
    bytes: u64,
}

/// Reasons for which a file could not be written. Everything but `Io` is the caller's fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A key or tensor name that is empty, or a shape or length the reader would refuse.
    #[error("{name:?} cannot be written: {fault}")]
    Refused {
        /// The key or tensor.
        name: String,
        /// Fault that the reader would report.
        fault: GgufFault,
    },
    /// A key or tensor name given twice.
    #[error("{name:?} was added before")]
    Duplicate {
        /// The key or tensor.
        name: String,
    },
    /// More metadata entries or tensors than the reader accepts.
    #[error("{name:?} is one entry more than the {limit} allowed")]
    TooMany {
        /// The key or tensor.
        name: String,
        /// The limit.
        limit: u64,
    },
    /// The data given for a tensor has another length than its type and shape say.
    #[error("tensor {name:?} takes {expected} bytes of data, {given} were given")]
    WrongDataLength {
        /// The tensor.
        name: String,
        /// Bytes it takes.
        expected: u64,
        /// Bytes given, up to the write that was too long.
        given: u64,
    },
    /// The output could not be written, or a tensor's data could not be had.
    #[error("cannot write the model: {0}")]
    Io(#[from] io::Error),
}

/// A type that arrays can be written of.
pub trait Element {
    /// Its type in the file.
    const TYPE: ValueType;

    /// Appends the value as the file stores it.
    fn encode(&self, out: &mut Vec<u8>);
}

impl GgufWriter {
    /// A file without metadata and tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata entry.
    ///
    /// # Errors
    /// If the key is empty, too long or known, there are too many entries, or the key is `general.alignment` with
    /// another value than the 32 this writer uses.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), WriteError> {
        if key == "general.alignment" && value != Value::U32(32) {
            let fault = match value {
                Value::U32(value) => GgufFault::Alignment { value },
                other => GgufFault::AlignmentType { found: other.value_type() },
            };
            return Err(WriteError::Refused { name: key.into(), fault });
        }
        self.begin_entry(key, value.value_type())?;
        encode(value, &mut self.entries);
        Ok(())
    }

    /// Adds a metadata entry that is an array.
    ///
    /// # Errors
    /// If the key is empty, too long or known, or there are too many entries.
    pub fn set_array<T: Element>(&mut self, key: &str, values: &[T]) -> Result<(), WriteError> {
        self.begin_entry(key, ValueType::Array)?;
        self.entries.extend_from_slice(&(T::TYPE as u32).to_le_bytes());
        self.entries.extend_from_slice(&(values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| value.encode(&mut self.entries));
        Ok(())
    }

    /// Adds every entry of another file except those about that file's own layout: its alignment and its shards.
    ///
    /// # Errors
    /// If a key is known already or there are too many entries.
    pub fn copy_metadata(&mut self, metadata: Metadata) -> Result<(), WriteError> {
        let of_layout = |key: &str| key == "general.alignment" || key.starts_with("split.");
        metadata.iter().filter(|(key, _)| !of_layout(key)).try_for_each(|(key, value)| self.set(key, value))
    }

    /// Adds a tensor behind those added before. `shape`: 1 to 4 dimensions, row length first.
    ///
    /// # Errors
    /// If the name is empty, too long or known, there are too many tensors, or the shape has a zero, overflows, or has
    /// rows that are not whole blocks.
    pub fn tensor(&mut self, name: &str, ty: WeightType, shape: &[u64]) -> Result<(), WriteError> {
        check_name(name, TENSOR_NAME_BYTES_MAX)?;
        let bytes = byte_len(ty, shape).map_err(|fault| WriteError::Refused { name: name.into(), fault })?;
        if self.tensors.len() as u64 == ENTRIES_MAX {
            return Err(WriteError::TooMany { name: name.into(), limit: ENTRIES_MAX });
        }
        let end = self.data_bytes.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        let overflow =
            || WriteError::Refused { name: name.into(), fault: GgufFault::SizeOverflow { shape: shape.into() } };
        let end = end.ok_or_else(overflow)?;
        if !self.names.insert(name.into()) {
            return Err(WriteError::Duplicate { name: name.into() });
        }
        let shape = shape.to_vec();
        self.tensors.push(PlannedTensor { name: name.into(), ty, shape, data_offset: self.data_bytes, bytes });
        self.data_bytes = end;
        Ok(())
    }

    /// The tensors in the order they were added.
    pub fn tensors(&self) -> &[PlannedTensor] {
        &self.tensors
    }

    /// Writes everything up to the data section.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write_header(&self, out: &mut impl Write) -> io::Result<()> {
        let mut header = Vec::new();
        header.extend_from_slice(b"GGUF");
        header.extend_from_slice(&3u32.to_le_bytes());
        header.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        header.extend_from_slice(&self.entry_count.to_le_bytes());
        header.extend_from_slice(&self.entries);
        for tensor in &self.tensors {
            encode_string(tensor.name.as_bytes(), &mut header);
            // At most four dimensions: `tensor` has checked.
            header.extend_from_slice(&u32::try_from(tensor.shape.len()).unwrap_or(4).to_le_bytes());
            tensor.shape.iter().for_each(|length| header.extend_from_slice(&length.to_le_bytes()));
            header.extend_from_slice(&(tensor.ty as u32).to_le_bytes());
            header.extend_from_slice(&tensor.data_offset.to_le_bytes());
        }
        header.resize(header.len().next_multiple_of(32), 0);
        out.write_all(&header)
    }

    /// Writes the whole file. `data` is called once per tensor, in order, and writes exactly that tensor's bytes.
    ///
    /// # Errors
    /// If `out` or `data` fails, or `data` writes too many or too few bytes. What was written until then is not a file.
    pub fn write(
        &self,
        out: &mut impl Write,
        mut data: impl FnMut(&PlannedTensor, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        self.write_header(out)?;
        for tensor in &self.tensors {
            let mut bounded = Bounded { out, left: tensor.bytes, given: 0 };
            let outcome = data(tensor, &mut bounded);
            let Bounded { left, given, .. } = bounded;
            if given > tensor.bytes || outcome.is_ok() && left > 0 {
                let name = tensor.name.clone();
                return Err(WriteError::WrongDataLength { name, expected: tensor.bytes, given });
            }
            outcome?;
            let padding = usize::try_from(tensor.bytes.next_multiple_of(ALIGNMENT) - tensor.bytes);
            out.write_all(&[0; 32][..padding.expect("less than the alignment")])?;
        }
        Ok(())
    }

    /// Appends the key and type of a metadata entry; its value follows.
    fn begin_entry(&mut self, key: &str, ty: ValueType) -> Result<(), WriteError> {
        check_name(key, KEY_BYTES_MAX)?;
        if self.entry_count == ENTRIES_MAX {
            return Err(WriteError::TooMany { name: key.into(), limit: ENTRIES_MAX });
        }
        if !self.keys.insert(key.into()) {
            return Err(WriteError::Duplicate { name: key.into() });
        }
        self.entry_count += 1;
        encode_string(key.as_bytes(), &mut self.entries);
        self.entries.extend_from_slice(&(ty as u32).to_le_bytes());
        Ok(())
    }
}

impl PlannedTensor {
    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Storage type of its elements.
    pub fn weight_type(&self) -> WeightType {
        self.ty
    }

    /// Its dimensions, row length first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Bytes of data it takes.
    pub fn byte_len(&self) -> u64 {
        self.bytes
    }
}

/// Passes on at most as many bytes as a tensor takes, and counts the bytes given.
struct Bounded<'a, W> {
    out: &'a mut W,
    left: u64,
    given: u64,
}

impl<W: Write> Write for Bounded<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            self.given += bytes.len() as u64;
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more data than the tensor takes"));
        }
        let written = self.out.write(bytes)?;
        self.left -= written as u64;
        self.given += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Bytes of a tensor, by the reader's own rules.
fn byte_len(ty: WeightType, shape: &[u64]) -> Result<u64, GgufFault> {
    let count = u32::try_from(shape.len()).unwrap_or(u32::MAX);
    let Some(dimensions @ 1..=4) = u8::try_from(count).ok() else {
        return Err(GgufFault::DimensionCount { count });
    };
    let mut padded = [1; 4];
    padded[..shape.len()].copy_from_slice(shape);
    let type_id = ty as u32;
    let record = Record { name_at: 0, name_bytes: 0, dimensions, type_id, shape: padded, data_offset: 0 };
    record.check_shape(0).map_err(|FaultAt { fault, .. }| fault)?;
    record.byte_len().ok_or(GgufFault::SizeOverflow { shape: shape.into() })
}

fn check_name(name: &str, limit: u64) -> Result<(), WriteError> {
    let fault = match name.len() as u64 {
        0 => GgufFault::EmptyName,
        length if length > limit => GgufFault::NameTooLong { length, limit },
        _ => return Ok(()),
    };
    Err(WriteError::Refused { name: name.into(), fault })
}

fn encode_string(string: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(string.len() as u64).to_le_bytes());
    out.extend_from_slice(string);
}

fn encode(value: Value, out: &mut Vec<u8>) {
    match value {
        Value::U8(value) => value.encode(out),
        Value::I8(value) => value.encode(out),
        Value::U16(value) => value.encode(out),
        Value::I16(value) => value.encode(out),
        Value::U32(value) => value.encode(out),
        Value::I32(value) => value.encode(out),
        Value::F32(value) => value.encode(out),
        Value::Bool(value) => value.encode(out),
        Value::String(value) => encode_string(value, out),
        Value::Array(value) => {
            out.extend_from_slice(&(value.element_type() as u32).to_le_bytes());
            out.extend_from_slice(&(value.len() as u64).to_le_bytes());
            out.extend_from_slice(value.encoded());
        }
        Value::U64(value) => value.encode(out),
        Value::I64(value) => value.encode(out),
        Value::F64(value) => value.encode(out),
    }
}

/// Implements [`Element`] for numbers, whose bytes are their little-endian ones.
macro_rules! number_elements {
    ($($number:ty => $variant:ident),*) => {$(
        impl Element for $number {
            const TYPE: ValueType = ValueType::$variant;

            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

number_elements!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32);
number_elements!(u64 => U64, i64 => I64, f64 => F64);

impl Element for bool {
    const TYPE: ValueType = ValueType::Bool;

    fn encode(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }
}

impl Element for &str {
    const TYPE: ValueType = ValueType::String;

    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(self.as_bytes(), out);
    }
}

impl Element for String {
    const TYPE: ValueType = ValueType::String;

    fn encode(&self, out: &mut Vec<u8>) {
        encode_string(self.as_bytes(), out);
    }
}
