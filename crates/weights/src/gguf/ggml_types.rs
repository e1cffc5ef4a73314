//! The tensor types GGUF numbers, and which of them muser computes with.

use muser_kernels::formats::WeightType;
use std::fmt;

/// Storage type of a tensor, as the file states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// A type muser computes with.
    Supported(WeightType),
    /// A type muser can list but not load.
    Unsupported(UnsupportedType),
}

/// A tensor type muser has no kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedType {
    /// GGUF's number of the type.
    pub id: u32,
    /// The field's spelling, if the number is known.
    pub name: Option<&'static str>,
    block: Option<Block>,
}

/// Weights and bytes of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    len: u64,
    bytes: u64,
}

impl TensorType {
    /// The type with GGUF's number `id`.
    pub fn from_ggml(id: u32) -> Self {
        if let Some(ty) = WeightType::from_ggml(id) {
            return Self::Supported(ty);
        }
        let known = OTHER_TYPES.iter().find(|(known, ..)| *known == id);
        Self::Unsupported(UnsupportedType {
            id,
            name: known.map(|(_, name, _)| *name),
            block: known.and_then(|(.., block)| *block).map(|(len, bytes)| Block { len, bytes }),
        })
    }

    /// GGUF's number of the type.
    pub fn id(self) -> u32 {
        match self {
            Self::Supported(ty) => ty as u32,
            Self::Unsupported(other) => other.id,
        }
    }

    /// Weights per block, or `None` if the type's layout is not known.
    pub fn block_len(self) -> Option<u64> {
        match self {
            Self::Supported(ty) => Some(ty.block_len() as u64),
            Self::Unsupported(other) => other.block.map(|block| block.len),
        }
    }

    /// Bytes per block, or `None` if the type's layout is not known.
    pub fn block_bytes(self) -> Option<u64> {
        match self {
            Self::Supported(ty) => Some(ty.block_bytes() as u64),
            Self::Unsupported(other) => other.block.map(|block| block.bytes),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Supported(ty) => ty.fmt(f),
            Self::Unsupported(other) => other.fmt(f),
        }
    }
}

impl fmt::Display for UnsupportedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => f.pad(name),
            None => f.pad(&format!("type {}", self.id)),
        }
    }
}

/// A type's number, name and, where files can hold it, (weights, bytes) of one block.
type OtherType = (u32, &'static str, Option<(u64, u64)>);

/// Types ggml has or had a number for besides the supported ones. Removed types keep their number, so that a file of
/// their time can be named; `Q8_1` exists only in memory.
const OTHER_TYPES: [OtherType; 27] = [
    (4, "Q4_2", None),
    (5, "Q4_3", None),
    (9, "Q8_1", None),
    (10, "Q2_K", Some((256, 84))),
    (11, "Q3_K", Some((256, 110))),
    (15, "Q8_K", Some((256, 292))),
    (16, "IQ2_XXS", Some((256, 66))),
    (17, "IQ2_XS", Some((256, 74))),
    (18, "IQ3_XXS", Some((256, 98))),
    (19, "IQ1_S", Some((256, 50))),
    (21, "IQ3_S", Some((256, 110))),
    (22, "IQ2_S", Some((256, 82))),
    (24, "I8", Some((1, 1))),
    (25, "I16", Some((1, 2))),
    (26, "I32", Some((1, 4))),
    (27, "I64", Some((1, 8))),
    (28, "F64", Some((1, 8))),
    (29, "IQ1_M", Some((256, 56))),
    (31, "Q4_0_4_4", Some((32, 18))),
    (32, "Q4_0_4_8", Some((32, 18))),
    (33, "Q4_0_8_8", Some((32, 18))),
    (34, "TQ1_0", Some((256, 54))),
    (35, "TQ2_0", Some((256, 66))),
    (36, "IQ4_NL_4_4", Some((32, 18))),
    (37, "IQ4_NL_4_8", Some((32, 18))),
    (38, "IQ4_NL_8_8", Some((32, 18))),
    (41, "Q1_0", Some((128, 18))),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_both_supported_and_unsupported() {
        for (id, name, _) in OTHER_TYPES {
            assert_eq!(WeightType::from_ggml(id), None, "{name}");
        }
    }

    #[test]
    fn a_type_without_a_name_is_called_by_its_number() {
        assert_eq!(TensorType::from_ggml(4_000_000_000).to_string(), "type 4000000000");
        assert_eq!(TensorType::from_ggml(10).to_string(), "Q2_K");
        assert_eq!(TensorType::from_ggml(12).to_string(), "Q4_K");
    }

    #[test]
    fn every_number_survives_the_round_trip() {
        for id in 0..256 {
            assert_eq!(TensorType::from_ggml(id).id(), id);
        }
    }
}
