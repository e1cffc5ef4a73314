//! Handshake messages: node, boot and model identity of both ends.

use crate::body::{BodyError, Fields};
use crate::codec::Codecs;
use crate::header::FrameKind;

/// Digests that must be equal on both machines, in the order of [`Component`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(pub [[u8; 32]; 5]);

/// A part of an [`Identity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Component {
    /// Name, type, shape and bytes of every tensor.
    Tensors = 1,
    /// The tokenizer's metadata.
    Tokenizer = 2,
    /// The model's effective configuration.
    Configuration = 3,
    /// Version and parameters of the arithmetic.
    Arithmetic = 4,
    /// Layout of keys and values in pages.
    KvLayout = 5,
}

/// One process that takes part in handoffs.
///
/// | byte | field    | meaning                                                                            |
/// |------|----------|------------------------------------------------------------------------------------|
/// | 0    | boot id  | 16 bytes, drawn anew at each start                                                 |
/// | 16   | node id  | 32 bytes, the same for the node's life                                             |
/// | 48   | identity | five digests of 32 bytes: tensors, tokenizer, configuration, arithmetic, KV layout |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Drawn anew at each start of the process.
    pub boot_id: [u8; 16],
    /// The same for the node's life.
    pub node_id: [u8; 32],
    /// Identity of its model, arithmetic and KV layout.
    pub identity: Identity,
}

/// The receiver's greeting.
///
/// | byte | field           | meaning                                      |
/// |------|-----------------|----------------------------------------------|
/// | 0    | version_min     | `u16`, the oldest version of messages spoken |
/// | 2    | version_max     | `u16`, the newest                            |
/// | 4    | node            | 208 bytes, see [`Node`]                      |
/// | 212  | frame_bytes_max | `u32`, longest `Pages` body the receiver takes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version of messages spoken.
    pub version_min: u16,
    /// The newest version of messages spoken.
    pub version_max: u16,
    /// The receiver.
    pub node: Node,
    /// Longest `Pages` body that the receiver takes, in bytes.
    pub frame_bytes_max: u32,
}

/// The sender's answer to a [`Hello`].
///
/// | byte | field           | meaning                                      |
/// |------|-----------------|----------------------------------------------|
/// | 0    | version         | `u16`, the version of messages to speak      |
/// | 2    | node            | 208 bytes, see [`Node`]                      |
/// | 210  | concurrent_max  | `u32`, handoffs the sender serves at a time, over all connections |
/// | 214  | codecs          | `u32`, bit mask of page codecs               |
/// | 218  | frame_bytes_max | `u32`, longest `Pages` body the sender makes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloAck {
    /// The version of messages to speak.
    pub version: u16,
    /// The sender.
    pub node: Node,
    /// Handoffs the sender serves at a time, over all connections.
    pub concurrent_max: u32,
    /// Codecs the sender can pack pages with.
    pub codecs: Codecs,
    /// Longest `Pages` body that the sender makes, in bytes.
    pub frame_bytes_max: u32,
}

impl Identity {
    /// The first component in which the two differ.
    pub fn first_difference(&self, other: &Self) -> Option<Component> {
        Component::ALL.into_iter().zip(self.0.iter().zip(&other.0)).find(|(_, (a, b))| a != b).map(|(part, _)| part)
    }
}

impl Component {
    /// Every component, in order.
    pub const ALL: [Self; 5] = [Self::Tensors, Self::Tokenizer, Self::Configuration, Self::Arithmetic, Self::KvLayout];

    /// The component of a number on the wire.
    pub fn decode(raw: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|component| *component as u8 == raw)
    }
}

impl std::fmt::Display for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tensors => "tensors",
            Self::Tokenizer => "tokenizer",
            Self::Configuration => "configuration",
            Self::Arithmetic => "arithmetic",
            Self::KvLayout => "KV layout",
        })
    }
}

impl Node {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.boot_id);
        out.extend_from_slice(&self.node_id);
        out.extend_from_slice(self.identity.0.as_flattened());
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, BodyError> {
        let (boot_id, node_id) = (fields.array()?, fields.array()?);
        let mut digests = [[0; 32]; 5];
        for digest in &mut digests {
            *digest = fields.array()?;
        }
        Ok(Self { boot_id, node_id, identity: Identity(digests) })
    }
}

impl Hello {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.version_min.to_le_bytes());
        out.extend_from_slice(&self.version_max.to_le_bytes());
        self.node.write(out);
        out.extend_from_slice(&self.frame_bytes_max.to_le_bytes());
    }

    pub(crate) fn read(body: &[u8]) -> Result<Self, BodyError> {
        let mut fields = Fields::new(FrameKind::Hello, body);
        let read = Self {
            version_min: fields.u16()?,
            version_max: fields.u16()?,
            node: Node::read(&mut fields)?,
            frame_bytes_max: fields.u32()?,
        };
        fields.finish()?;
        Ok(read)
    }
}

impl HelloAck {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.version.to_le_bytes());
        self.node.write(out);
        out.extend_from_slice(&self.concurrent_max.to_le_bytes());
        out.extend_from_slice(&self.codecs.0.to_le_bytes());
        out.extend_from_slice(&self.frame_bytes_max.to_le_bytes());
    }

    pub(crate) fn read(body: &[u8]) -> Result<Self, BodyError> {
        let mut fields = Fields::new(FrameKind::HelloAck, body);
        let read = Self {
            version: fields.u16()?,
            node: Node::read(&mut fields)?,
            concurrent_max: fields.u32()?,
            codecs: Codecs(fields.u32()?),
            frame_bytes_max: fields.u32()?,
        };
        fields.finish()?;
        Ok(read)
    }
}
