//! Text that the instruction sets share: what runs on any vector length is written once.

pub(crate) mod attention;
pub(crate) mod float_panels;
pub(crate) mod packed_panels;
pub(crate) mod rows;
