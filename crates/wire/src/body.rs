//! Reading fixed little-endian fields from a frame's body.

use crate::header::FrameKind;

/// Error in a body whose digest matched. The peer's fault; ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The body ends inside a field.
    #[error("a {kind:?} body of {have} bytes lacks {missing} bytes")]
    Truncated {
        /// The frame's kind.
        kind: FrameKind,
        /// Length of the body.
        have: usize,
        /// Missing bytes of the field.
        missing: usize,
    },
    /// Bytes follow the last field.
    #[error("a {kind:?} body has {extra} bytes behind its last field")]
    Trailing {
        /// The frame's kind.
        kind: FrameKind,
        /// Bytes too many.
        extra: usize,
    },
    /// A field holds an undefined value.
    #[error("{field} of a {kind:?} body is {got}")]
    Value {
        /// The frame's kind.
        kind: FrameKind,
        /// The field's name.
        field: &'static str,
        /// Its value.
        got: u64,
    },
}

/// The part of a body that is not read yet.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    kind: FrameKind,
    whole: usize,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(kind: FrameKind, body: &'a [u8]) -> Self {
        Self { kind, whole: body.len(), rest: body }
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], BodyError> {
        let Some((field, rest)) = self.rest.split_at_checked(count) else {
            return Err(BodyError::Truncated { kind: self.kind, have: self.whole, missing: count - self.rest.len() });
        };
        self.rest = rest;
        Ok(field)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], BodyError> {
        let field = self.bytes(N)?;
        Ok(std::array::from_fn(|index| field[index]))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, BodyError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, BodyError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, BodyError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, BodyError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Everything that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// The error for a field with an undefined value.
    pub(crate) fn value(&self, field: &'static str, got: u64) -> BodyError {
        BodyError::Value { kind: self.kind, field, got }
    }

    /// Checks that everything was read.
    pub(crate) fn finish(self) -> Result<(), BodyError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(BodyError::Trailing { kind: self.kind, extra }),
        }
    }
}
