//! Instruction sets, and the one table of the kernels that each of them has.
//!
//! A module holds the kernels of one instruction set, and `vector` the text that several share. A new instruction set is
//! a module, a variant of [`Isa`] and an entry of [`TABLE`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod vector;

use crate::activations::scalar::quantise_row;
use crate::attention::{self, AttentionKernels};
use crate::dot::{self, DotKernels};
use crate::rows::{self, RowKernels};

/// Instruction set that kernels are written for. Each is a variant on every processor, so that a name means one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable code, among it the scalar definitions.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI, on top of [`Self::Avx2`].
    Avx512,
}

impl Isa {
    /// Name in settings and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Kernels of one instruction set for all operations. Every instruction set gives the same bits.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    /// The instruction set.
    pub isa: Isa,
    /// Matrix products and the quantisation of their inputs.
    pub dot: DotKernels,
    /// Operations on rows.
    pub rows: RowKernels,
    /// Attention and the storing of keys and values.
    pub attention: AttentionKernels,
}

/// Kernels of an instruction set, and the test that this processor can run them.
struct Entry {
    kernels: Kernels,
    is_supported: fn() -> bool,
}

/// The portable kernels. An instruction set that lacks some kernels of its own takes these, or those of a smaller one.
const SCALAR: Kernels = Kernels {
    isa: Isa::Scalar,
    dot: DotKernels { quantise_row, panel: dot::scalar::panel },
    rows: rows::reference::KERNELS,
    attention: attention::reference::KERNELS,
};

/// Every instruction set, the portable one first and the fastest last.
static TABLE: &[Entry] = &[
    Entry { kernels: SCALAR, is_supported: || true },
    #[cfg(target_arch = "x86_64")]
    Entry { kernels: avx2::KERNELS, is_supported: avx2::is_supported },
    #[cfg(target_arch = "x86_64")]
    Entry { kernels: avx512::KERNELS, is_supported: avx512::is_supported },
];

impl Kernels {
    /// The portable kernels; those of rows and attention are the scalar definitions.
    pub fn scalar() -> Self {
        SCALAR
    }

    /// Kernels that this processor can run: the portable ones first, the fastest last.
    pub fn available() -> Vec<Self> {
        TABLE.iter().filter(|entry| (entry.is_supported)()).map(|entry| entry.kernels).collect()
    }

    /// The fastest kernels that this processor can run.
    pub fn detected() -> Self {
        TABLE.iter().rfind(|entry| (entry.is_supported)()).map_or(SCALAR, |entry| entry.kernels)
    }

    /// The kernels of the instruction set called `name`, if this processor can run them.
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|kernels| kernels.name() == name)
    }

    /// Name of the instruction set.
    pub fn name(&self) -> &'static str {
        self.isa.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_its_instruction_set_and_the_detected_one_is_the_last() {
        let available = Kernels::available();
        assert_eq!(available[0].isa, Isa::Scalar);
        assert_eq!(available.last().map(|kernels| kernels.isa), Some(Kernels::detected().isa));
        for kernels in available {
            assert_eq!(Kernels::named(kernels.name()).map(|named| named.isa), Some(kernels.isa));
        }
        assert!(Kernels::named("sse2").is_none());
    }
}
