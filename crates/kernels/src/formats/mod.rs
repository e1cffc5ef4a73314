//! Weight types as GGUF stores them, and the decoding of their blocks.

mod block32;
mod block_k;
mod dequantise;
mod finite;
mod quantise;

pub use block_k::KBlock;
pub use block32::Block32;
pub use dequantise::dequantise_row;
pub use finite::first_non_finite;
pub use quantise::{QuantiseError, quantise_row};

/// Storage type of a tensor's elements. The names are the field's; the numbers are GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, missing_docs, reason = "these are the format's own names")]
#[repr(u32)]
pub enum WeightType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ4_NL = 20,
    IQ4_XS = 23,
    BF16 = 30,
    MXFP4 = 39,
    NVFP4 = 40,
}

/// Class of weight types: the rule of `docs/numerics.md` that multiplies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightClass {
    /// Integer sub-scales inside blocks of 256 (rule 3).
    IntegerScales,
    /// One float scale per 32 (or 16) weights (rule 4).
    FloatScales,
    /// Plain floats (rule 4b).
    Float,
}

impl WeightType {
    /// Every supported type, in the order of GGUF's numbers.
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::BF16,
        Self::MXFP4,
        Self::NVFP4,
    ];

    /// The type with GGUF's number `id`, if it is supported.
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u32 == id)
    }

    /// The field's spelling, such as `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ4_XS => "IQ4_XS",
            Self::BF16 => "BF16",
            Self::MXFP4 => "MXFP4",
            Self::NVFP4 => "NVFP4",
        }
    }

    /// Weights per block: a row's length is a multiple of this.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL | Self::MXFP4 => 32,
            Self::NVFP4 => 64,
            Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
        }
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::MXFP4 => 17,
            Self::NVFP4 => 36,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
        }
    }

    /// Bytes of a row of `cols` weights, or `None` if `cols` is not a whole number of blocks or the product overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The rule that multiplies this type.
    pub fn class(self) -> WeightClass {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => WeightClass::Float,
            Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => WeightClass::IntegerScales,
            _ => WeightClass::FloatScales,
        }
    }
}

impl std::fmt::Display for WeightType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The 16 values of `IQ4_NL` and `IQ4_XS` codes.
pub const IQ4_CODEBOOK: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the 16 values of E2M1 (`MXFP4`, `NVFP4`), so that they are integers.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The f16 at byte `at` of `bytes`, widened exactly.
fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
