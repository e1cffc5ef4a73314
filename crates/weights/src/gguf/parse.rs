//! Parsing of bytes into a directory of metadata and tensors, with every bound checked before it is used.

use super::cursor::{Cursor, FaultAt};
use super::error::{GgufError, GgufFault, Item};
use super::metadata::{Entry, Metadata};
use super::tensor::{Record, Tensor};
use super::value::{Value, ValueType};

/// Most metadata entries, and most tensors, one file may declare: some ten times those of the largest public models.
pub const ENTRIES_MAX: u64 = 16_384;
/// Longest key in bytes (the format's own limit).
pub const KEY_BYTES_MAX: u64 = 65_535;
/// Longest tensor name in bytes (the format's own limit).
pub const TENSOR_NAME_BYTES_MAX: u64 = 64;

/// Key length, one byte of key, type, one byte of value.
const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Name length, one byte of name, dimension count, one dimension, type, data offset.
const RECORD_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// The alignment of a file that does not state one.
const DEFAULT_ALIGNMENT: u32 = 32;

/// A whole GGUF file: metadata, and tensors whose data is known to lie inside the file.
#[derive(Debug)]
pub struct Gguf<'a> {
    bytes: &'a [u8],
    directory: Directory,
}

/// The header of a GGUF file whose data may be absent. Its tensors have names, types and shapes but no bytes.
#[derive(Debug)]
pub struct HeaderOnly<'a> {
    bytes: &'a [u8],
    directory: Directory,
}

impl<'a> Gguf<'a> {
    /// Reads the header of `bytes`, a whole file, and checks where every tensor's data lies.
    ///
    /// # Errors
    /// If anything in the file is not as [the format](super) demands.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        let directory = Directory::parse(bytes)?;
        directory.check_data(bytes)?;
        Ok(Self { bytes, directory })
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        self.directory.metadata(self.bytes)
    }

    /// The tensors in the order of the directory.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.directory.records.iter().map(|record| self.directory.tensor_with_data(record, self.bytes))
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let record = self.directory.record(name, self.bytes)?;
        Some(self.directory.tensor_with_data(record, self.bytes))
    }

    /// The directory, for a holder of the bytes who cannot hold a borrow of them.
    pub(super) fn into_directory(self) -> Directory {
        self.directory
    }
}

impl<'a> HeaderOnly<'a> {
    /// Reads the header at the begin of `bytes`. The tensors' data need not be there.
    ///
    /// # Errors
    /// If anything in the header is not as [the format](super) demands.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, GgufError> {
        Ok(Self { bytes, directory: Directory::parse(bytes)? })
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        self.directory.metadata(self.bytes)
    }

    /// The tensors in the order of the directory, without data.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        let no_data = |record| Tensor { name: name_of(record, self.bytes), record, bytes: None };
        self.directory.records.iter().map(no_data)
    }
}

/// Offsets of every part of a file. They point into the bytes it was parsed from, and must be used with the same bytes.
#[derive(Debug)]
pub(super) struct Directory {
    entries: Vec<Entry>,
    /// Indices of `entries`, sorted by key.
    entries_by_key: Vec<u32>,
    pub(super) records: Vec<Record>,
    /// Indices of `records`, sorted by name.
    records_by_name: Vec<u32>,
    /// Byte offset of the data section; may lie behind the end of a file without tensors.
    pub(super) data_at: usize,
}

impl Directory {
    fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut cursor = Cursor { bytes, at: 0 };
        let (tensor_count, entry_count) = header(&mut cursor)?;
        let mut entries = Vec::with_capacity(entry_count);
        for index in 0..entry_count as u64 {
            entries.push(entry(&mut cursor, index)?);
        }
        let entries_by_key = sorted_unique(&entries, |entry| entry.key_slice(bytes));
        let entries_by_key = entries_by_key.map_err(|[first, second]| {
            let item = Item::Metadata(entries[first].key(bytes).into());
            GgufFault::DuplicateName { first: entries[first].key_at - 8 }.of(item, entries[second].key_at - 8)
        })?;
        let alignment = alignment(Metadata { bytes, entries: &entries, by_key: &entries_by_key })?;
        let mut records = Vec::with_capacity(tensor_count);
        for index in 0..tensor_count as u64 {
            records.push(record(&mut cursor, index, alignment)?);
        }
        let records_by_name = sorted_unique(&records, |record| name_bytes_of(record, bytes));
        let records_by_name = records_by_name.map_err(|[first, second]| {
            let item = Item::Tensor(name_of(&records[first], bytes).into());
            GgufFault::DuplicateName { first: records[first].name_at - 8 }.of(item, records[second].name_at - 8)
        })?;
        let data_at = cursor.at.next_multiple_of(alignment as usize);
        Ok(Self { entries, entries_by_key, records, records_by_name, data_at })
    }

    /// Checks that every tensor's data lies inside the file and that no two share a byte.
    fn check_data(&self, bytes: &[u8]) -> Result<(), GgufError> {
        let have = bytes.len().saturating_sub(self.data_at) as u64;
        // Nothing can be said about the extent of an unknown type, except that it is not empty.
        let length_of = |record: &Record| record.byte_len().unwrap_or(1);
        for record in &self.records {
            let (data_offset, length) = (record.data_offset, length_of(record));
            if data_offset.checked_add(length).is_none_or(|end| end > have) {
                let fault = GgufFault::PastEnd { data_offset, bytes: length, have };
                return Err(fault.of(Item::Tensor(name_of(record, bytes).into()), record.name_at - 8));
            }
        }
        let mut by_offset: Vec<u32> = (0..).take(self.records.len()).collect();
        by_offset.sort_unstable_by_key(|index| (self.records[*index as usize].data_offset, *index));
        for pair in by_offset.windows(2) {
            let (first, second) = (&self.records[pair[0] as usize], &self.records[pair[1] as usize]);
            if first.data_offset + length_of(first) > second.data_offset {
                let fault = GgufFault::Overlap { other: name_of(first, bytes).into() };
                return Err(fault.of(Item::Tensor(name_of(second, bytes).into()), second.name_at - 8));
            }
        }
        Ok(())
    }

    /// The metadata of the file `bytes`.
    pub(super) fn metadata<'a>(&'a self, bytes: &'a [u8]) -> Metadata<'a> {
        Metadata { bytes, entries: &self.entries, by_key: &self.entries_by_key }
    }

    /// The record called `name` of the file `bytes`.
    pub(super) fn record(&self, name: &str, bytes: &[u8]) -> Option<&Record> {
        let name_at = |index: &u32| name_bytes_of(&self.records[*index as usize], bytes);
        let found = self.records_by_name.binary_search_by(|index| name_at(index).cmp(name.as_bytes())).ok()?;
        Some(&self.records[self.records_by_name[found] as usize])
    }

    /// A tensor of the file `bytes`, of which [`Self::check_data`] has approved.
    pub(super) fn tensor_with_data<'a>(&self, record: &'a Record, bytes: &'a [u8]) -> Tensor<'a> {
        let data = record.byte_len().and_then(|length| {
            let start = self.data_at.checked_add(usize::try_from(record.data_offset).ok()?)?;
            bytes.get(start..)?.get(..usize::try_from(length).ok()?)
        });
        Tensor { name: name_of(record, bytes), record, bytes: data }
    }
}

/// The name of a tensor of the file `bytes`.
pub(super) fn name_of<'a>(record: &Record, bytes: &'a [u8]) -> &'a str {
    std::str::from_utf8(name_bytes_of(record, bytes)).expect("names are checked to be UTF-8 when their record is made")
}

fn name_bytes_of<'a>(record: &Record, bytes: &'a [u8]) -> &'a [u8] {
    &bytes[record.name_at..][..usize::from(record.name_bytes)]
}

/// Reads the header; returns how many tensors and metadata entries the file declares, both possible in its size.
fn header(cursor: &mut Cursor) -> Result<(usize, usize), GgufError> {
    let in_header = |FaultAt { fault, offset }| fault.of(Item::Header, offset);
    let magic = cursor.u32().map_err(in_header)?.to_le_bytes();
    if magic != *b"GGUF" {
        return Err(GgufFault::NotGguf { found: magic }.of(Item::Header, 0));
    }
    let version = cursor.u32().map_err(in_header)?;
    if matches!(version.swap_bytes(), 1..=3) {
        return Err(GgufFault::BigEndian { version: version.swap_bytes() }.of(Item::Header, 4));
    }
    if !matches!(version, 2 | 3) {
        return Err(GgufFault::Version { version }.of(Item::Header, 4));
    }
    let tensor_count = cursor.u64().map_err(in_header)?;
    let entry_count = cursor.u64().map_err(in_header)?;
    let left = cursor.left() as u64;
    let checked = |count: u64, bytes_min: u64, offset: usize| {
        let room = left / bytes_min;
        if count > room {
            return Err(GgufFault::CountExceedsFile { count, room }.of(Item::Header, offset));
        }
        // Both bounds fit a usize: one is smaller than the file.
        match usize::try_from(count) {
            Ok(fits) if count <= ENTRIES_MAX => Ok(fits),
            _ => Err(GgufFault::CountExceedsLimit { count, limit: ENTRIES_MAX }.of(Item::Header, offset)),
        }
    };
    Ok((checked(tensor_count, RECORD_BYTES_MIN, 8)?, checked(entry_count, ENTRY_BYTES_MIN, 16)?))
}

/// Reads the `index`-th metadata entry and walks its value to the end.
fn entry(cursor: &mut Cursor, index: u64) -> Result<Entry, GgufError> {
    let key_at = cursor.at + 8;
    let key = cursor.name(KEY_BYTES_MAX).map_err(|at| at.fault.of(Item::Key(index), at.offset))?;
    let in_entry = |at: FaultAt| at.fault.of(Item::Metadata(key.into()), at.offset);
    let value_type = value_type(cursor).map_err(in_entry)?;
    skip_value(cursor, value_type).map_err(in_entry)?;
    let key_bytes = u16::try_from(key.len()).expect("a key has at most 65,535 bytes");
    Ok(Entry { key_at, key_bytes, value_type, end: cursor.at })
}

fn value_type(cursor: &mut Cursor) -> Result<ValueType, FaultAt> {
    let offset = cursor.at;
    let id = cursor.u32()?;
    ValueType::from_id(id).ok_or(FaultAt { fault: GgufFault::UnknownValueType { id }, offset })
}

/// Moves behind a value after checking that it is whole, so that it can be decoded later without a check.
fn skip_value(cursor: &mut Cursor, ty: ValueType) -> Result<(), FaultAt> {
    match ty {
        ValueType::Array => skip_array(cursor),
        ValueType::Bool => skip_bools(cursor, 1),
        ValueType::String => cursor.string().map(drop),
        fixed => cursor.take(fixed.fixed_bytes().unwrap_or(0) as u64).map(drop),
    }
}

fn skip_array(cursor: &mut Cursor) -> Result<(), FaultAt> {
    let type_at = cursor.at;
    let element = value_type(cursor)?;
    let count_at = cursor.at;
    let count = cursor.u64()?;
    // A string takes at least its length field.
    let element_bytes_min = element.fixed_bytes().unwrap_or(8) as u64;
    let room = cursor.left() as u64 / element_bytes_min;
    match element {
        ValueType::Array => Err(FaultAt { fault: GgufFault::NestedArray, offset: type_at }),
        _ if count > room => Err(FaultAt { fault: GgufFault::CountExceedsFile { count, room }, offset: count_at }),
        ValueType::Bool => skip_bools(cursor, count),
        ValueType::String => (0..count).try_for_each(|_| cursor.string().map(drop)),
        _ => cursor.take(count * element_bytes_min).map(drop),
    }
}

fn skip_bools(cursor: &mut Cursor, count: u64) -> Result<(), FaultAt> {
    let offset = cursor.at;
    let bools = cursor.take(count)?;
    match bools.iter().position(|byte| *byte > 1) {
        None => Ok(()),
        Some(index) => Err(FaultAt { fault: GgufFault::InvalidBool { byte: bools[index] }, offset: offset + index }),
    }
}

/// The file's alignment: `general.alignment` or the default.
fn alignment(metadata: Metadata) -> Result<u32, GgufError> {
    let key = "general.alignment";
    let Some((entry, value)) = metadata.entry(key) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let refuse = |fault: GgufFault| Err(fault.of(Item::Metadata(key.into()), entry.value_at()));
    match value {
        Value::U32(value) if value.is_power_of_two() && (8..=65_536).contains(&value) => Ok(value),
        Value::U32(value) => refuse(GgufFault::Alignment { value }),
        other => refuse(GgufFault::AlignmentType { found: other.value_type() }),
    }
}

/// Reads the `index`-th directory entry.
fn record(cursor: &mut Cursor, index: u64, alignment: u32) -> Result<Record, GgufError> {
    let name_at = cursor.at + 8;
    let name = cursor.name(TENSOR_NAME_BYTES_MAX).map_err(|at| at.fault.of(Item::TensorName(index), at.offset))?;
    let in_tensor = |at: FaultAt| at.fault.of(Item::Tensor(name.into()), at.offset);
    let count_at = cursor.at;
    let count = cursor.u32().map_err(in_tensor)?;
    let dimensions = match u8::try_from(count) {
        Ok(dimensions @ 1..=4) => dimensions,
        _ => return Err(in_tensor(FaultAt { fault: GgufFault::DimensionCount { count }, offset: count_at })),
    };
    let shape_at = cursor.at;
    let mut shape = [1; 4];
    for length in &mut shape[..usize::from(dimensions)] {
        *length = cursor.u64().map_err(in_tensor)?;
    }
    let type_id = cursor.u32().map_err(in_tensor)?;
    let offset_at = cursor.at;
    let data_offset = cursor.u64().map_err(in_tensor)?;
    let name_bytes = u8::try_from(name.len()).expect("a tensor name has at most 64 bytes");
    let record = Record { name_at, name_bytes, dimensions, type_id, shape, data_offset };
    record.check_shape(shape_at).map_err(in_tensor)?;
    let alignment = u64::from(alignment);
    if !data_offset.is_multiple_of(alignment) {
        let fault = GgufFault::Misaligned { data_offset, alignment };
        return Err(in_tensor(FaultAt { fault, offset: offset_at }));
    }
    Ok(record)
}

/// The indices of `items` sorted by name, or the first two indices of a name that occurs twice.
fn sorted_unique<'a, T>(items: &'a [T], name: impl Fn(&'a T) -> &'a [u8]) -> Result<Vec<u32>, [usize; 2]> {
    let name_at = |index: u32| name(&items[index as usize]);
    let mut order: Vec<u32> = (0..).take(items.len()).collect();
    order.sort_unstable_by(|a, b| name_at(*a).cmp(name_at(*b)).then(a.cmp(b)));
    match order.windows(2).find(|pair| name_at(pair[0]) == name_at(pair[1])) {
        Some(pair) => Err([pair[0] as usize, pair[1] as usize]),
        None => Ok(order),
    }
}
