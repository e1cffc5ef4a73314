//! Builds GGUF bytes by hand, well-formed or not, without the crate's own writer.

#![allow(dead_code, reason = "each test binary uses its own part")]

/// A file's bytes, appended part by part.
#[derive(Clone, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    /// A version 3 header.
    pub fn header(tensors: u64, entries: u64) -> Self {
        Self(Vec::new()).bytes(b"GGUF").u32(3).u64(tensors).u64(entries)
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn string(self, string: &[u8]) -> Self {
        self.u64(string.len() as u64).bytes(string)
    }

    /// A key and a value's type; the value follows.
    pub fn key(self, key: &str, type_id: u32) -> Self {
        self.string(key.as_bytes()).u32(type_id)
    }

    /// A directory entry.
    pub fn tensor(self, name: &str, shape: &[u64], type_id: u32, data_offset: u64) -> Self {
        let count = u32::try_from(shape.len()).unwrap();
        let begun = self.string(name.as_bytes()).u32(count);
        shape.iter().fold(begun, |raw, length| raw.u64(*length)).u32(type_id).u64(data_offset)
    }

    /// Zeros up to a multiple of `alignment`.
    pub fn pad(mut self, alignment: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self
    }
}

/// A file with one value of every type, one array of every element type, and three tensors of which one is `Q2_K`.
pub fn everything() -> Vec<u8> {
    all_arrays(all_scalars(Raw::header(3, 26)))
        .key("general.alignment", 4)
        .u32(64)
        .tensor("z.weight", &[3, 2], 0, 64)
        .tensor("a.weight", &[32], 8, 0)
        .tensor("odd.weight", &[256, 2], 10, 128)
        .pad(64)
        .bytes(&[8; 34])
        .pad(64)
        .bytes(&[1; 24])
        .pad(64)
        .bytes(&[2; 168])
        .0
}

/// 13 entries.
fn all_scalars(raw: Raw) -> Raw {
    let raw = raw.key("general.architecture", 8).string(b"test");
    let raw = raw.key("one.u8", 0).bytes(&[200]);
    let raw = raw.key("one.i8", 1).bytes(&[0x80]);
    let raw = raw.key("one.u16", 2).bytes(&[0xff, 0xfe]);
    let raw = raw.key("one.i16", 3).bytes(&[0xff, 0xfe]);
    let raw = raw.key("one.u32", 4).u32(4_000_000_000);
    let raw = raw.key("one.i32", 5).u32(0xffff_fffe);
    let raw = raw.key("one.f32", 6).u32(1.5f32.to_bits());
    let raw = raw.key("one.bool", 7).bytes(&[1]);
    let raw = raw.key("one.bytes", 8).string(b"ab\xff");
    let raw = raw.key("one.u64", 10).u64(1 << 40);
    let raw = raw.key("one.i64", 11).u64(u64::MAX);
    raw.key("one.f64", 12).u64(2.5f64.to_bits())
}

/// 12 entries.
fn all_arrays(raw: Raw) -> Raw {
    let raw = raw.key("all.u8", 9).u32(0).u64(2).bytes(&[1, 2]);
    let raw = raw.key("all.i8", 9).u32(1).u64(2).bytes(&[1, 0xff]);
    let raw = raw.key("all.u16", 9).u32(2).u64(1).bytes(&[1, 2]);
    let raw = raw.key("all.i16", 9).u32(3).u64(1).bytes(&[0xff, 0xff]);
    let raw = raw.key("all.u32", 9).u32(4).u64(2).u32(7).u32(9);
    let raw = raw.key("all.i32", 9).u32(5).u64(2).u32(7).u32(0xffff_ffff);
    let raw = raw.key("all.f32", 9).u32(6).u64(1).u32(0.25f32.to_bits());
    let raw = raw.key("all.bool", 9).u32(7).u64(3).bytes(&[1, 0, 1]);
    let raw = raw.key("all.strings", 9).u32(8).u64(3).string(b"a").string(b"").string(b"bc");
    let raw = raw.key("all.u64", 9).u32(10).u64(1).u64(3);
    let raw = raw.key("all.i64", 9).u32(11).u64(1).u64(u64::MAX);
    raw.key("all.f64", 9).u32(12).u64(0)
}
