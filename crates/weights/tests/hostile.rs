//! Files made to break a reader: each is refused with the fault, the key or tensor, and the byte.

mod common;

use common::{Raw, everything};
use muser_weights::gguf::{
    ENTRIES_MAX, Gguf, GgufError, GgufFault, HeaderOnly, Item, ModelFiles, ModelOpenError, ValueType,
};

/// Bytes of the header.
const HEADER: usize = 24;

#[track_caller]
fn refused(raw: &Raw, item: Item, offset: usize, fault: GgufFault) {
    let expected = GgufError { item, offset, fault };
    assert_eq!(Gguf::parse(&raw.0).err(), Some(expected.clone()));
    match ModelFiles::from_bytes(raw.0.clone()) {
        Err(ModelOpenError::Gguf { reason, .. }) => assert_eq!(reason, expected),
        other => panic!("{other:?}"),
    }
    assert!(!expected.to_string().contains('\n'));
}

/// As [`refused`], for a fault of the directory, which a header without data has as well.
#[track_caller]
fn refused_as_header(raw: &Raw, item: Item, offset: usize, fault: GgufFault) {
    refused(raw, item.clone(), offset, fault.clone());
    assert_eq!(HeaderOnly::parse(&raw.0).err(), Some(GgufError { item, offset, fault }));
}

fn key(key: &str) -> Item {
    Item::Metadata(key.into())
}

fn tensor(name: &str) -> Item {
    Item::Tensor(name.into())
}

fn raw(bytes: &[u8]) -> Raw {
    Raw(bytes.to_vec())
}

#[test]
fn a_file_too_short_for_a_header_is_cut_short() {
    refused_as_header(&raw(b""), Item::Header, 0, GgufFault::Truncated { need: 4, have: 0 });
    refused_as_header(&raw(b"GGU"), Item::Header, 0, GgufFault::Truncated { need: 4, have: 3 });
    refused_as_header(&raw(b"GGUF"), Item::Header, 4, GgufFault::Truncated { need: 4, have: 0 });
    refused_as_header(&raw(b"GGUF").u32(3), Item::Header, 8, GgufFault::Truncated { need: 8, have: 0 });
    refused_as_header(&raw(b"GGUF").u32(3).u64(0).u32(0), Item::Header, 16, GgufFault::Truncated { need: 8, have: 4 });
}

#[test]
fn a_file_of_another_format_or_version_is_refused_by_name() {
    let versioned = |version: u32| raw(b"GGUF").u32(version).u64(0).u64(0);
    refused_as_header(&raw(b"ggml").u64(0), Item::Header, 0, GgufFault::NotGguf { found: *b"ggml" });
    refused_as_header(&raw(b"FUGG").u64(0), Item::Header, 0, GgufFault::NotGguf { found: *b"FUGG" });
    for version in [0, 1, 4, 256, 65_536, u32::MAX] {
        refused_as_header(&versioned(version), Item::Header, 4, GgufFault::Version { version });
    }
    for version in [1, 2, 3u32] {
        refused_as_header(&versioned(version.swap_bytes()), Item::Header, 4, GgufFault::BigEndian { version });
    }
    assert!(Gguf::parse(&versioned(2).0).is_ok() && Gguf::parse(&versioned(3).0).is_ok());
}

#[test]
fn a_count_is_compared_with_the_file_before_anything_is_reserved() {
    for count in [1, 1 << 20, 1 << 32, 1 << 63, u64::MAX] {
        let fault = GgufFault::CountExceedsFile { count, room: 0 };
        refused_as_header(&Raw::header(count, 0), Item::Header, 8, fault.clone());
        refused_as_header(&Raw::header(0, count), Item::Header, 16, fault);
    }
    // One entry needs 14 bytes, one tensor 33.
    let fault = GgufFault::CountExceedsFile { count: 3, room: 2 };
    refused_as_header(&Raw::header(0, 3).bytes(&[0; 41]), Item::Header, 16, fault.clone());
    refused_as_header(&Raw::header(3, 0).bytes(&[0; 98]), Item::Header, 8, fault);
}

#[test]
fn a_count_above_the_limit_is_refused_even_if_the_file_is_long_enough() {
    let (count, limit) = (ENTRIES_MAX + 1, ENTRIES_MAX);
    let long = vec![0; 33 * 16_385];
    let fault = GgufFault::CountExceedsLimit { count, limit };
    refused_as_header(&Raw::header(count, 0).bytes(&long), Item::Header, 8, fault.clone());
    refused_as_header(&Raw::header(0, count).bytes(&long), Item::Header, 16, fault);
    refused_as_header(&Raw::header(0, limit).bytes(&long), Item::Key(0), HEADER, GgufFault::EmptyName);
}

#[test]
fn a_string_cannot_be_longer_than_the_file() {
    for length in [4, 1 << 40, 1 << 63, u64::MAX - 8, u64::MAX] {
        let value = Raw::header(0, 1).key("k", 8).u64(length).bytes(b"abc");
        refused_as_header(&value, key("k"), HEADER + 21, GgufFault::Truncated { need: length, have: 3 });
        let element = Raw::header(0, 1).key("k", 9).u32(8).u64(1).u64(length).bytes(b"abc");
        refused_as_header(&element, key("k"), HEADER + 33, GgufFault::Truncated { need: length, have: 3 });
    }
    let value = Raw::header(0, 1).key("k", 8).u32(1);
    refused_as_header(&value, key("k"), HEADER + 13, GgufFault::Truncated { need: 8, have: 4 });
}

#[test]
fn a_name_is_utf8_of_one_byte_to_the_limit() {
    let entry = |name: &[u8]| Raw::header(0, 1).string(name).u32(0).bytes(&[0; 100]);
    let directory = |name: &[u8]| Raw::header(1, 0).string(name).u32(1).u64(1).u32(0).u64(0).pad(32).bytes(&[0; 99]);
    refused_as_header(&entry(b""), Item::Key(0), HEADER, GgufFault::EmptyName);
    refused_as_header(&directory(b""), Item::TensorName(0), HEADER, GgufFault::EmptyName);
    let not_utf8 = GgufFault::NameNotUtf8 { valid_bytes: 2 };
    refused_as_header(&entry(b"ab\xffc"), Item::Key(0), HEADER + 10, not_utf8.clone());
    refused_as_header(&directory(b"ab\xc3"), Item::TensorName(0), HEADER + 10, not_utf8);
    let too_long = |length, limit| GgufFault::NameTooLong { length, limit };
    refused_as_header(&entry(&[b'k'; 65_536]), Item::Key(0), HEADER, too_long(65_536, 65_535));
    refused_as_header(&directory(&[b't'; 65]), Item::TensorName(0), HEADER, too_long(65, 64));
    for length in [1 << 40, u64::MAX] {
        let entry = Raw::header(0, 1).u64(length).bytes(&[0; 99]);
        refused_as_header(&entry, Item::Key(0), HEADER, too_long(length, 65_535));
        let directory = Raw::header(1, 0).u64(length).bytes(&[0; 99]);
        refused_as_header(&directory, Item::TensorName(0), HEADER, too_long(length, 64));
    }
    let second = Raw::header(0, 2).key("k", 0).bytes(&[0]).u64(0).bytes(&[0; 99]);
    refused_as_header(&second, Item::Key(1), HEADER + 14, GgufFault::EmptyName);
    assert!(Gguf::parse(&entry(&[b'k'; 65_535]).0).is_ok());
    assert!(Gguf::parse(&directory(&[b't'; 64]).0).is_ok());
}

#[test]
fn arrays_of_arrays_are_refused_at_the_first_level() {
    let nested = |depth| (0..depth).fold(Raw::header(0, 1).key("k", 9), |raw, _| raw.u32(9).u64(1)).u32(0).u64(0);
    for depth in [1, 2, 10_000] {
        refused_as_header(&nested(depth), key("k"), HEADER + 13, GgufFault::NestedArray);
    }
}

#[test]
fn an_array_cannot_have_more_elements_than_the_file_has_room_for() {
    let sizes = [1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8];
    for (type_id, size) in (0..).zip(sizes).filter(|(_, size)| *size != 0) {
        for count in [24 / size + 1, 1 << 40, 1 << 61, 1 << 62, 1 << 63, u64::MAX] {
            let array = Raw::header(0, 1).key("k", 9).u32(type_id).u64(count).bytes(&[0; 24]);
            let fault = GgufFault::CountExceedsFile { count, room: 24 / size };
            refused_as_header(&array, key("k"), HEADER + 17, fault);
        }
        let array = Raw::header(0, 1).key("k", 9).u32(type_id).u64(24 / size).bytes(&[0; 24]);
        assert!(Gguf::parse(&array.0).is_ok(), "type {type_id}");
    }
}

#[test]
fn a_value_type_outside_the_format_is_refused() {
    for id in [13, 14, 255, u32::MAX] {
        let fault = GgufFault::UnknownValueType { id };
        refused_as_header(&Raw::header(0, 1).key("k", id).u64(0), key("k"), HEADER + 9, fault.clone());
        refused_as_header(&Raw::header(0, 1).key("k", 9).u32(id).u64(0), key("k"), HEADER + 13, fault);
    }
}

#[test]
fn a_bool_is_zero_or_one() {
    let one = Raw::header(0, 1).key("k", 7).bytes(&[2]);
    refused_as_header(&one, key("k"), HEADER + 13, GgufFault::InvalidBool { byte: 2 });
    let array = Raw::header(0, 1).key("k", 9).u32(7).u64(3).bytes(&[0, 1, 255]);
    refused_as_header(&array, key("k"), HEADER + 27, GgufFault::InvalidBool { byte: 255 });
}

#[test]
fn the_alignment_is_a_u32_power_of_two_in_range() {
    let name = "general.alignment";
    let value_at = HEADER + 8 + name.len() + 4;
    let aligned = |value| Raw::header(0, 1).key(name, 4).u32(value);
    for value in [0, 1, 3, 4, 24, 33, 1 << 17, 1 << 30, 1 << 31, u32::MAX] {
        refused_as_header(&aligned(value), key(name), value_at, GgufFault::Alignment { value });
    }
    for value in [8, 16, 32, 64, 65_536] {
        assert!(Gguf::parse(&aligned(value).0).is_ok(), "{value}");
    }
    for (id, found) in [(5, ValueType::I32), (6, ValueType::F32), (10, ValueType::U64), (2, ValueType::U16)] {
        let other = Raw::header(0, 1).key(name, id).bytes(&32u64.to_le_bytes()[..found.fixed_bytes().unwrap()]);
        refused_as_header(&other, key(name), value_at, GgufFault::AlignmentType { found });
    }
    let string = Raw::header(0, 1).key(name, 8).string(b"32");
    refused_as_header(&string, key(name), value_at, GgufFault::AlignmentType { found: ValueType::String });
}

#[test]
fn keys_and_tensor_names_are_unique() {
    let keys = Raw::header(0, 3).key("a", 0).bytes(&[1]).key("b", 0).bytes(&[1]).key("a", 4).u32(1);
    refused_as_header(&keys, key("a"), HEADER + 28, GgufFault::DuplicateName { first: HEADER });
    let tensors = Raw::header(3, 0).tensor("a", &[1], 0, 0).tensor("b", &[1], 0, 32).tensor("a", &[1], 0, 64);
    let tensors = tensors.pad(32).bytes(&[0; 96]);
    refused_as_header(&tensors, tensor("a"), HEADER + 66, GgufFault::DuplicateName { first: HEADER });
    let alignments = Raw::header(0, 2).key("general.alignment", 4).u32(64).key("general.alignment", 4).u32(32);
    let fault = GgufFault::DuplicateName { first: HEADER };
    refused_as_header(&alignments, key("general.alignment"), HEADER + 33, fault);
}

/// A file with one tensor `t`, whose dimensions begin at byte `SHAPE`, and `data` bytes of data.
fn one_tensor(shape: &[u64], type_id: u32, data_offset: u64, data: usize) -> Raw {
    Raw::header(1, 0).tensor("t", shape, type_id, data_offset).pad(32).bytes(&vec![0; data])
}

const SHAPE: usize = HEADER + 8 + 1 + 4;

#[test]
fn a_tensor_has_one_to_four_dimensions() {
    for count in [0, 5, 6, 1 << 20, u32::MAX] {
        let bytes = Raw::header(1, 0).string(b"t").u32(count).bytes(&[1; 99]);
        refused_as_header(&bytes, tensor("t"), SHAPE - 4, GgufFault::DimensionCount { count });
    }
    assert!(Gguf::parse(&one_tensor(&[1, 1, 1, 1], 0, 0, 4).0).is_ok());
}

#[test]
fn no_dimension_is_zero() {
    for (axis, shape) in [(0, &[0][..]), (0, &[0, 0]), (1, &[32, 0]), (2, &[1, 1, 0, 1]), (3, &[1, 1, 1, 0])] {
        // The type, the shape's product and an unknown type make no difference.
        for type_id in [0, 8, 12, 1000] {
            let at = SHAPE + 8 * axis as usize;
            refused_as_header(&one_tensor(shape, type_id, 0, 64), tensor("t"), at, GgufFault::ZeroDimension { axis });
        }
    }
}

#[test]
fn a_shape_cannot_overflow() {
    let shapes: [&[u64]; 6] =
        [&[1 << 63], &[u64::MAX], &[1 << 32, 1 << 31], &[1 << 32, 1 << 32], &[1 << 16; 4], &[u64::MAX, u64::MAX]];
    for shape in shapes {
        for type_id in [0, 28, 1000] {
            let fault = GgufFault::SizeOverflow { shape: shape.to_vec() };
            refused_as_header(&one_tensor(shape, type_id, 0, 64), tensor("t"), SHAPE, fault);
        }
    }
    // 2^62 elements can be counted, their bytes cannot.
    let fault = GgufFault::SizeOverflow { shape: vec![1 << 62] };
    refused_as_header(&one_tensor(&[1 << 62], 0, 0, 64), tensor("t"), SHAPE, fault);
    // 2^61 elements take 2^63 bytes, which are counted and then not found.
    let fault = GgufFault::PastEnd { data_offset: 0, bytes: 1 << 63, have: 64 };
    refused(&one_tensor(&[1 << 61], 0, 0, 64), tensor("t"), HEADER, fault);
}

#[test]
fn rows_are_whole_blocks() {
    for (type_id, block_len, cols) in [(8, 32, 33), (8, 32, 16), (12, 256, 128), (40, 64, 32), (10, 256, 300)] {
        let fault = GgufFault::PartialBlock { cols, type_id, block_len };
        // Together the rows would be whole blocks.
        refused_as_header(&one_tensor(&[cols, block_len], type_id, 0, 99_999), tensor("t"), SHAPE, fault);
    }
}

#[test]
fn tensor_data_begins_at_a_multiple_of_the_alignment() {
    for data_offset in [1, 31, 33, u64::MAX] {
        let fault = GgufFault::Misaligned { data_offset, alignment: 32 };
        refused_as_header(&one_tensor(&[1], 0, data_offset, 99), tensor("t"), SHAPE + 12, fault);
    }
    let aligned = Raw::header(1, 1).key("general.alignment", 4).u32(64).tensor("t", &[1], 0, 32).pad(64);
    let fault = GgufFault::Misaligned { data_offset: 32, alignment: 64 };
    refused_as_header(&aligned.bytes(&[0; 99]), tensor("t"), SHAPE + 33 + 12, fault);
}

#[test]
fn tensor_data_ends_inside_the_file() {
    let past = |data_offset, bytes, have: usize| GgufFault::PastEnd { data_offset, bytes, have: have as u64 };
    refused(&one_tensor(&[2], 0, 0, 7), tensor("t"), HEADER, past(0, 8, 7));
    refused(&one_tensor(&[2], 0, 32, 39), tensor("t"), HEADER, past(32, 8, 39));
    refused(&one_tensor(&[32], 8, 0, 33), tensor("t"), HEADER, past(0, 34, 33));
    refused(&one_tensor(&[2], 0, 1 << 40, 64), tensor("t"), HEADER, past(1 << 40, 8, 64));
    let largest = u64::MAX - 31;
    refused(&one_tensor(&[64], 0, largest, 64), tensor("t"), HEADER, past(largest, 256, 64));
    refused(&one_tensor(&[7], 1000, 32, 32), tensor("t"), HEADER, past(32, 1, 32));
    // The file ends inside the padding before the data section.
    let mut cut = one_tensor(&[2], 0, 0, 0);
    cut.0.truncate(SHAPE + 8 + 4 + 8);
    refused(&cut, tensor("t"), HEADER, past(0, 8, 0));
    assert!(Gguf::parse(&one_tensor(&[2], 0, 32, 40).0).is_ok());
}

#[test]
fn tensors_share_no_byte() {
    let two = |first: (&[u64], u32, u64), second: (&[u64], u32, u64)| {
        let header = Raw::header(2, 0).tensor("a", first.0, first.1, first.2);
        header.tensor("b", second.0, second.1, second.2).pad(32).bytes(&[0; 256])
    };
    let second = HEADER + 33;
    let overlap = |other: &str| GgufFault::Overlap { other: other.into() };
    refused(&two((&[1], 0, 32), (&[1], 0, 32)), tensor("b"), second, overlap("a"));
    refused(&two((&[9], 0, 0), (&[1], 0, 32)), tensor("b"), second, overlap("a"));
    refused(&two((&[1], 0, 32), (&[9], 0, 0)), tensor("a"), HEADER, overlap("b"));
    refused(&two((&[64], 0, 0), (&[1], 1000, 128)), tensor("b"), second, overlap("a"));
    refused(&two((&[1], 1000, 64), (&[1], 1000, 64)), tensor("b"), second, overlap("a"));
    assert!(Gguf::parse(&two((&[8], 0, 0), (&[8], 0, 32)).0).is_ok());
}

#[test]
fn as_many_entries_are_read_as_declared() {
    let keys = |count| Raw::header(0, count).key("a", 4).u32(0).key("b", 4).u32(0).bytes(&[0; 14]);
    assert_eq!(Gguf::parse(&keys(1).0).unwrap().metadata().len(), 1);
    assert_eq!(Gguf::parse(&keys(2).0).unwrap().metadata().len(), 2);
    refused_as_header(&keys(3), Item::Key(2), HEADER + 34, GgufFault::EmptyName);
}

#[test]
fn every_shorter_prefix_is_refused() {
    let whole = everything();
    for length in 0..whole.len() {
        assert!(Gguf::parse(&whole[..length]).is_err(), "{length} bytes");
    }
    assert!(Gguf::parse(&whole).is_ok());
}

#[test]
fn a_file_cut_short_on_disk_is_refused_like_one_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let whole = everything();
    for length in (0..whole.len()).step_by(97) {
        std::fs::write(&path, &whole[..length]).unwrap();
        match ModelFiles::open(&path) {
            Err(ModelOpenError::Gguf { reason, .. }) => assert_eq!(Some(reason), Gguf::parse(&whole[..length]).err()),
            other => panic!("{length} bytes: {other:?}"),
        }
    }
}

#[test]
fn a_refusal_names_the_part_the_byte_and_the_fault_on_one_line() {
    let error = Gguf::parse(&one_tensor(&[32, 0], 0, 0, 0).0).unwrap_err();
    assert_eq!(error.to_string(), "tensor \"t\", byte 45: dimension 1 is 0");
    let error = Gguf::parse(&Raw::header(0, 1).key("two\nlines", 77).0).unwrap_err();
    assert_eq!(error.to_string(), "metadata key \"two\\nlines\", byte 41: value type 77 is unknown");
}
