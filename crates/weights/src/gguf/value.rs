//! Metadata values as views into the file.

use std::fmt;

/// The types a metadata value can have; the numbers are GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "these are the format's own names")]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// Every type, in the order of GGUF's numbers.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with GGUF's number `id`, if the format defines it.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| *ty as u32 == id)
    }

    /// Bytes of one value, or `None` for strings and arrays.
    pub fn fixed_bytes(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}

/// Elements of an array that are shown to people.
const SHOWN_MAX: usize = 8;

/// One metadata value. A string is bytes: the format demands UTF-8, published files do not always have it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "these are the format's own names")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value of any integer type; `None` for everything else, bools included.
    pub fn integer(&self) -> Option<i128> {
        match *self {
            Self::U8(value) => Some(value.into()),
            Self::I8(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U64(value) => Some(value.into()),
            Self::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    /// The value of type `ty` that `bytes` encode, which the parser has checked to be exactly one such value.
    pub(super) fn decode(ty: ValueType, bytes: &'a [u8]) -> Self {
        match ty {
            ValueType::U8 => Self::U8(bytes[0]),
            ValueType::I8 => Self::I8(bytes[0].cast_signed()),
            ValueType::U16 => Self::U16(u16::from_le_bytes(first(bytes))),
            ValueType::I16 => Self::I16(i16::from_le_bytes(first(bytes))),
            ValueType::U32 => Self::U32(u32::from_le_bytes(first(bytes))),
            ValueType::I32 => Self::I32(i32::from_le_bytes(first(bytes))),
            ValueType::F32 => Self::F32(f32::from_le_bytes(first(bytes))),
            ValueType::Bool => Self::Bool(bytes[0] == 1),
            ValueType::String => Self::String(&bytes[8..]),
            ValueType::Array => {
                let id = u32::from_le_bytes(first(bytes));
                let element = ValueType::from_id(id).expect("the parser refuses arrays of unknown types");
                let len = usize::try_from(u64::from_le_bytes(first(&bytes[4..])));
                let len = len.expect("the parser refuses arrays longer than the file");
                Self::Array(Array { element, len, bytes: &bytes[12..] })
            }
            ValueType::U64 => Self::U64(u64::from_le_bytes(first(bytes))),
            ValueType::I64 => Self::I64(i64::from_le_bytes(first(bytes))),
            ValueType::F64 => Self::F64(f64::from_le_bytes(first(bytes))),
        }
    }
}

/// For display: strings with what is not UTF-8 replaced, long arrays by their first elements and length.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(value) => value.fmt(f),
            Self::I8(value) => value.fmt(f),
            Self::U16(value) => value.fmt(f),
            Self::I16(value) => value.fmt(f),
            Self::U32(value) => value.fmt(f),
            Self::I32(value) => value.fmt(f),
            Self::F32(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
            Self::String(value) => write!(f, "{:?}", String::from_utf8_lossy(value)),
            Self::Array(value) => value.fmt(f),
            Self::U64(value) => value.fmt(f),
            Self::I64(value) => value.fmt(f),
            Self::F64(value) => value.fmt(f),
        }
    }
}

/// An array of values of one type, which is not itself an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    /// The elements as the file stores them, one after the other.
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as the file stores them, one after the other.
    pub fn encoded(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements in order. Nothing is copied.
    pub fn iter(&self) -> Elements<'a> {
        Elements { element: self.element, left: self.len, bytes: self.bytes }
    }
}

impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, value) in self.iter().take(SHOWN_MAX).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{value}")?;
        }
        match self.len {
            0..=SHOWN_MAX => f.write_str("]"),
            len => write!(f, ", ...] ({len} of {})", self.element),
        }
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = Elements<'a>;

    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}

/// The elements of an [`Array`].
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    element: ValueType,
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let length = match self.element.fixed_bytes() {
            Some(length) => length,
            None => {
                let length = usize::try_from(u64::from_le_bytes(first(self.bytes)));
                8 + length.expect("the parser refuses strings longer than the file")
            }
        };
        let (value, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        Some(Value::decode(self.element, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}

/// The first `N` bytes of a value, which the parser has checked to be there.
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_arrays_are_shown_by_their_begin_and_length() {
        let array = |len| Value::Array(Array { element: ValueType::U8, len, bytes: &[7; 9][..len] });
        assert_eq!(array(0).to_string(), "[]");
        assert_eq!(array(2).to_string(), "[7, 7]");
        assert_eq!(array(9).to_string(), "[7, 7, 7, 7, 7, 7, 7, 7, ...] (9 of u8)");
    }

    #[test]
    fn a_string_is_shown_on_one_line_whatever_it_holds() {
        assert_eq!(Value::String(b"a\n\xff").to_string(), "\"a\\n\u{fffd}\"");
    }
}
