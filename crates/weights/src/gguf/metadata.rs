//! Metadata: typed access by key, with errors that name the key.

use super::value::{Array, Value, ValueType};

/// The metadata of a file, as views into it.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) entries: &'a [Entry],
    /// Indices of `entries`, sorted by key.
    pub(super) by_key: &'a [u32],
}

/// Location of one metadata entry in its file.
///
/// Small, because a hostile file may declare many: the value's type (4 bytes) and the value follow the key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Byte offset of the key.
    pub(super) key_at: usize,
    pub(super) key_bytes: u16,
    pub(super) value_type: ValueType,
    /// Byte offset of the value's end, exclusive.
    pub(super) end: usize,
}

/// Reasons for which a metadata value cannot be used as the type asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The file has no such key.
    #[error("metadata key {key:?} is missing")]
    Missing {
        /// The key asked for.
        key: String,
    },
    /// The value has another type.
    #[error("metadata key {key:?} must be {wanted}, it is {found}")]
    WrongType {
        /// The key.
        key: String,
        /// The type asked for.
        wanted: &'static str,
        /// The type found.
        found: ValueType,
    },
    /// The value is an array whose elements have another type.
    #[error("metadata key {key:?} must be {wanted}, it is an array of {found}")]
    WrongElementType {
        /// The key.
        key: String,
        /// The type asked for.
        wanted: &'static str,
        /// The element type found.
        found: ValueType,
    },
    /// An integer does not fit the type asked for.
    #[error("metadata key {key:?} must be {wanted}, {value} does not fit")]
    OutOfRange {
        /// The key.
        key: String,
        /// The type asked for.
        wanted: &'static str,
        /// The value found.
        value: i128,
    },
    /// A string is not UTF-8.
    #[error("metadata key {key:?}, string {index}: not UTF-8 after {valid_bytes} bytes")]
    NotUtf8 {
        /// The key.
        key: String,
        /// Index of the string in an array; 0 if the value is one string.
        index: usize,
        /// Bytes before the first wrong one.
        valid_bytes: usize,
    },
    /// An array that must have one element per layer has another length.
    #[error("metadata key {key:?} has {found} elements for {layers} layers")]
    WrongLayerCount {
        /// The key.
        key: String,
        /// Layers of the model.
        layers: usize,
        /// Elements of the array.
        found: usize,
    },
}

/// A setting that is the same in every layer or has one value per layer.
#[derive(Clone, Debug, PartialEq)]
pub enum PerLayer<T> {
    /// One value for all layers.
    Same(T),
    /// One value per layer, in order.
    Each(Vec<T>),
}

impl<T: Copy> PerLayer<T> {
    /// The value of layer `layer`, or `None` behind the last layer of [`Self::Each`].
    pub fn get(&self, layer: usize) -> Option<T> {
        match self {
            Self::Same(value) => Some(*value),
            Self::Each(values) => values.get(layer).copied(),
        }
    }
}

/// Turns the absence of a key from an error into `None`; every other error stays one.
pub trait Optional<T> {
    /// `Ok(None)` for [`MetadataError::Missing`].
    ///
    /// # Errors
    /// Every other error, unchanged.
    fn optional(self) -> Result<Option<T>, MetadataError>;
}

impl<T> Optional<T> for Result<T, MetadataError> {
    fn optional(self) -> Result<Option<T>, MetadataError> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(MetadataError::Missing { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// Each getter's errors: the key is missing, or its value has another type or does not fit. An integer of any width is
/// accepted where its value fits.
#[expect(clippy::missing_errors_doc, reason = "the same for every getter, said once above")]
impl<'a> Metadata<'a> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, Value<'a>)> {
        let Self { bytes, entries, .. } = *self;
        entries.iter().map(move |entry| (entry.key(bytes), entry.decode(bytes)))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.entry(key).map(|(_, value)| value)
    }

    /// The value of `key`, which must be there.
    pub fn require(&self, key: &str) -> Result<Value<'a>, MetadataError> {
        self.get(key).ok_or_else(|| MetadataError::Missing { key: key.into() })
    }

    /// An integer that fits a u32.
    pub fn u32(&self, key: &str) -> Result<u32, MetadataError> {
        integer(key, "a u32", self.require(key)?)
    }

    /// An integer that fits a u64.
    pub fn u64(&self, key: &str) -> Result<u64, MetadataError> {
        integer(key, "a u64", self.require(key)?)
    }

    /// An integer that fits an i32.
    pub fn i32(&self, key: &str) -> Result<i32, MetadataError> {
        integer(key, "an i32", self.require(key)?)
    }

    /// An integer that fits a usize.
    pub fn usize(&self, key: &str) -> Result<usize, MetadataError> {
        integer(key, "a usize", self.require(key)?)
    }

    /// An f32. Other float types and integers are refused: no known file stores settings in them.
    pub fn f32(&self, key: &str) -> Result<f32, MetadataError> {
        match self.require(key)? {
            Value::F32(value) => Ok(value),
            other => Err(wrong_type(key, "an f32", &other)),
        }
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Result<bool, MetadataError> {
        match self.require(key)? {
            Value::Bool(value) => Ok(value),
            other => Err(wrong_type(key, "a bool", &other)),
        }
    }

    /// A string of UTF-8.
    pub fn str(&self, key: &str) -> Result<&'a str, MetadataError> {
        match self.require(key)? {
            Value::String(bytes) => utf8(key, 0, bytes),
            other => Err(wrong_type(key, "a string", &other)),
        }
    }

    /// An array of any element type.
    pub fn array(&self, key: &str) -> Result<Array<'a>, MetadataError> {
        match self.require(key)? {
            Value::Array(array) => Ok(array),
            other => Err(wrong_type(key, "an array", &other)),
        }
    }

    /// An array of integers that each fit a u32.
    pub fn u32s(&self, key: &str) -> Result<Vec<u32>, MetadataError> {
        let wanted = "an array of u32";
        self.elements(key, wanted, |value| integer_in_array(key, wanted, value))
    }

    /// An array of integers that each fit an i32.
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>, MetadataError> {
        let wanted = "an array of i32";
        self.elements(key, wanted, |value| integer_in_array(key, wanted, value))
    }

    /// An array of integers of any type.
    pub fn integers(&self, key: &str) -> Result<Vec<i128>, MetadataError> {
        let wanted = "an array of integers";
        self.elements(key, wanted, |value| integer_in_array(key, wanted, value))
    }

    /// An array of f32.
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>, MetadataError> {
        let wanted = "an array of f32";
        self.elements(key, wanted, |value| match value {
            Value::F32(value) => Ok(value),
            other => Err(wrong_element(key, wanted, &other)),
        })
    }

    /// An array of bools. Some converters store them as integers, of which 0 and 1 are taken.
    pub fn bools(&self, key: &str) -> Result<Vec<bool>, MetadataError> {
        let wanted = "an array of bools";
        self.elements(key, wanted, |value| match value {
            Value::Bool(value) => Ok(value),
            other => match integer_in_array::<i128>(key, wanted, other)? {
                value @ (0 | 1) => Ok(value == 1),
                value => Err(MetadataError::OutOfRange { key: key.into(), wanted, value }),
            },
        })
    }

    /// An array of strings of UTF-8.
    pub fn strs(&self, key: &str) -> Result<Vec<&'a str>, MetadataError> {
        let wanted = "an array of strings";
        let mut index = 0..;
        self.elements(key, wanted, |value| match value {
            Value::String(bytes) => utf8(key, index.next().unwrap_or(0), bytes),
            other => Err(wrong_element(key, wanted, &other)),
        })
    }

    /// An array of strings that need not be UTF-8.
    pub fn byte_strings(&self, key: &str) -> Result<Vec<&'a [u8]>, MetadataError> {
        let wanted = "an array of strings";
        self.elements(key, wanted, |value| match value {
            Value::String(value) => Ok(value),
            other => Err(wrong_element(key, wanted, &other)),
        })
    }

    /// An integer that fits a u32, or an array of one such integer per layer. `layers`: layers of the model.
    pub fn u32_per_layer(&self, key: &str, layers: usize) -> Result<PerLayer<u32>, MetadataError> {
        match self.require(key)? {
            Value::Array(_) => per_layer(key, layers, self.u32s(key)?),
            _ => self.u32(key).map(PerLayer::Same),
        }
    }

    /// An f32, or an array of one f32 per layer. `layers`: layers of the model.
    pub fn f32_per_layer(&self, key: &str, layers: usize) -> Result<PerLayer<f32>, MetadataError> {
        match self.require(key)? {
            Value::Array(_) => per_layer(key, layers, self.f32s(key)?),
            _ => self.f32(key).map(PerLayer::Same),
        }
    }

    /// A bool, or an array of one bool per layer. `layers`: layers of the model.
    pub fn bool_per_layer(&self, key: &str, layers: usize) -> Result<PerLayer<bool>, MetadataError> {
        match self.require(key)? {
            Value::Array(_) => per_layer(key, layers, self.bools(key)?),
            _ => self.bool(key).map(PerLayer::Same),
        }
    }

    /// Keys, types and values as the file encodes them, sorted by key.
    pub(crate) fn encoded_by_key(&self) -> impl Iterator<Item = (&'a str, ValueType, &'a [u8])> {
        let Self { bytes, entries, by_key } = *self;
        by_key.iter().map(move |index| {
            let entry = &entries[*index as usize];
            (entry.key(bytes), entry.value_type, &bytes[entry.value_at()..entry.end])
        })
    }

    /// Location and value of `key`.
    pub(super) fn entry(&self, key: &str) -> Option<(&'a Entry, Value<'a>)> {
        let key_of = |index: &u32| self.entries[*index as usize].key_slice(self.bytes);
        let found = self.by_key.binary_search_by(|index| key_of(index).cmp(key.as_bytes())).ok()?;
        let entry = &self.entries[self.by_key[found] as usize];
        Some((entry, entry.decode(self.bytes)))
    }

    /// The elements of the array `key`, each converted by `element`.
    fn elements<T>(
        &self,
        key: &str,
        wanted: &'static str,
        element: impl FnMut(Value<'a>) -> Result<T, MetadataError>,
    ) -> Result<Vec<T>, MetadataError> {
        match self.require(key)? {
            Value::Array(array) => array.iter().map(element).collect(),
            other => Err(wrong_type(key, wanted, &other)),
        }
    }
}

impl Entry {
    /// The key, in the file `bytes`.
    pub(super) fn key<'a>(&self, bytes: &'a [u8]) -> &'a str {
        std::str::from_utf8(self.key_slice(bytes)).expect("keys are checked to be UTF-8 when their entry is made")
    }

    /// The bytes of the key, in the file `bytes`.
    pub(super) fn key_slice<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.key_at..][..usize::from(self.key_bytes)]
    }

    /// Byte offset of the value.
    pub(super) fn value_at(&self) -> usize {
        self.key_at + usize::from(self.key_bytes) + 4
    }

    /// The value, in the file `bytes`.
    pub(super) fn decode<'a>(&self, bytes: &'a [u8]) -> Value<'a> {
        Value::decode(self.value_type, &bytes[self.value_at()..self.end])
    }
}

fn integer<T: TryFrom<i128>>(key: &str, wanted: &'static str, value: Value) -> Result<T, MetadataError> {
    let value = value.integer().ok_or_else(|| wrong_type(key, wanted, &value))?;
    T::try_from(value).map_err(|_| MetadataError::OutOfRange { key: key.into(), wanted, value })
}

fn integer_in_array<T: TryFrom<i128>>(key: &str, wanted: &'static str, value: Value) -> Result<T, MetadataError> {
    let value = value.integer().ok_or_else(|| wrong_element(key, wanted, &value))?;
    T::try_from(value).map_err(|_| MetadataError::OutOfRange { key: key.into(), wanted, value })
}

fn utf8<'a>(key: &str, index: usize, bytes: &'a [u8]) -> Result<&'a str, MetadataError> {
    std::str::from_utf8(bytes).map_err(|error| MetadataError::NotUtf8 {
        key: key.into(),
        index,
        valid_bytes: error.valid_up_to(),
    })
}

fn per_layer<T>(key: &str, layers: usize, values: Vec<T>) -> Result<PerLayer<T>, MetadataError> {
    if values.len() == layers {
        Ok(PerLayer::Each(values))
    } else {
        Err(MetadataError::WrongLayerCount { key: key.into(), layers, found: values.len() })
    }
}

fn wrong_type(key: &str, wanted: &'static str, found: &Value) -> MetadataError {
    MetadataError::WrongType { key: key.into(), wanted, found: found.value_type() }
}

fn wrong_element(key: &str, wanted: &'static str, found: &Value) -> MetadataError {
    MetadataError::WrongElementType { key: key.into(), wanted, found: found.value_type() }
}
