//! Content-derived page names: pages of the same name are the same page, whichever machine computed them.

use std::fmt;
use std::slice::ChunksExact;

use crate::layout::PAGE_ROWS;

/// Identity of keys and values: a digest of what their bits depend on besides tokens, which are weights, configuration,
/// tokenizer, arithmetic and page layout. Page names start from it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KvIdentity([u8; 32]);

impl KvIdentity {
    /// The identity of a process that runs one model and exchanges no pages: names under it mean nothing elsewhere.
    pub const PROCESS_LOCAL: Self = Self([0; 32]);

    /// The identity with this digest (`muser_model::Identity::digest`).
    pub fn from_digest(digest: [u8; 32]) -> Self {
        Self(digest)
    }

    /// The digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The name of a full page: a digest of the model's identity and of every token up to the page's end.
///
/// The name is BLAKE3 in key-derivation mode, with the context string `muser kv page name, version 1`, over:
///
/// | byte | field    | meaning                                                                     |
/// |------|----------|-----------------------------------------------------------------------------|
/// | 0    | identity | 32 bytes: digest of weights, configuration, tokenizer, arithmetic, layout;  |
/// |      |          | within a realm, [`Realm::identity`](crate::Realm::identity) of it           |
/// | 32   | parent   | 32 bytes: name of the page before; zeroes for the first page of a sequence  |
/// | 64   | tokens   | the page's 64 token ids, `u32` little-endian                                |
///
/// Names chain, so a name also fixes the page's position: the same 64 tokens elsewhere have another name. All layers'
/// pages at one position share a name; a stored or shipped page is (name, layer). A page that is not full has none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageName([u8; 32]);

/// The names of a sequence's full pages, first to last; made by [`names_of`].
#[derive(Clone, Debug)]
pub struct PageNames<'tokens> {
    identity: KvIdentity,
    parent: Option<PageName>,
    pages: ChunksExact<'tokens, u32>,
}

/// The names of the full pages of a sequence that starts with `tokens`: `tokens.len() / 64` of them.
pub fn names_of<'tokens>(identity: &KvIdentity, tokens: &'tokens [u32]) -> PageNames<'tokens> {
    PageNames { identity: *identity, parent: None, pages: tokens.chunks_exact(PAGE_ROWS) }
}

impl PageName {
    /// The name of the page of `tokens` that follows `parent`, or that starts a sequence where there is none.
    pub fn of(identity: &KvIdentity, parent: Option<&Self>, tokens: &[u32; PAGE_ROWS]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("muser kv page name, version 1");
        hasher.update(&identity.0);
        hasher.update(parent.map_or(&[0; 32], |parent| &parent.0));
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The name as stored and shipped.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The name with these bytes, as stored or received; no page need have it.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl Iterator for PageNames<'_> {
    type Item = PageName;

    fn next(&mut self) -> Option<PageName> {
        let tokens = self.pages.next()?.as_array()?;
        let name = PageName::of(&self.identity, self.parent.as_ref(), tokens);
        self.parent = Some(name);
        Some(name)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.pages.size_hint()
    }
}

impl ExactSizeIterator for PageNames<'_> {}

impl fmt::Display for PageName {
    /// 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageName({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by an independent BLAKE3 implementation over the documented bytes: identity 0, 1, ..., 31 and token `i`
    /// of the sequence equal to `200000 + 3 i`.
    const GOLDEN: [&str; 3] = [
        "a92c07eeb54cf537426309f5e029fbe6dd11b187254dd3e5075853e10785aca0",
        "0e5becc01ee979ed9b2a88b3eac9f6f2aaf822145231545bf7bfb143bd425713",
        "3890c51f738e1e985ea652323a3a38620e58c11b413c4cf92265d4cfdf113c5a",
    ];

    fn identity() -> KvIdentity {
        KvIdentity::from_digest(std::array::from_fn(|index| u8::try_from(index).unwrap()))
    }

    fn tokens(count: u32) -> Vec<u32> {
        (0..count).map(|index| 200_000 + 3 * index).collect()
    }

    #[test]
    fn names_are_the_documented_digest() {
        let names: Vec<String> = names_of(&identity(), &tokens(192)).map(|name| name.to_string()).collect();
        assert_eq!(names, GOLDEN);
    }

    #[test]
    fn the_last_partial_page_has_no_name() {
        for (count, names) in [(0, 0), (63, 0), (64, 1), (127, 1), (128, 2), (200, 3)] {
            assert_eq!(names_of(&identity(), &tokens(count)).len(), names);
            assert_eq!(names_of(&identity(), &tokens(count)).count(), names);
        }
    }

    #[test]
    fn a_changed_token_renames_its_page_and_every_later_one_and_no_earlier_one() {
        let original: Vec<PageName> = names_of(&identity(), &tokens(320)).collect();
        for changed in [0, 63, 64, 150, 319] {
            let mut tokens = tokens(320);
            tokens[changed] ^= 1 << 31;
            for (page, (ours, theirs)) in names_of(&identity(), &tokens).zip(&original).enumerate() {
                assert_eq!(ours == *theirs, page < changed / PAGE_ROWS, "token {changed}, page {page}");
            }
        }
    }

    #[test]
    fn another_identity_renames_every_page() {
        let tokens = tokens(256);
        let original = names_of(&identity(), &tokens);
        for bit in 0..256 {
            let mut other = identity();
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert!(names_of(&other, &tokens).zip(original.clone()).all(|(ours, theirs)| ours != theirs));
        }
    }

    #[test]
    fn the_same_tokens_at_another_position_have_another_name() {
        let tokens = [7; 256];
        let names: Vec<PageName> = names_of(&identity(), &tokens).collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name));
        }
    }

    #[test]
    fn a_name_survives_its_bytes() {
        let name = names_of(&identity(), &tokens(64)).next().unwrap();
        assert_eq!(PageName::from_bytes(*name.as_bytes()), name);
    }
}
