//! Codecs of a page's bytes in a frame: plain, or packed without loss.
//!
//! A packed page is its bytes of even index, then those of odd index, as one LZ4 block without a size in front. The two
//! halves of 16-bit numbers differ in entropy, so that they pack better apart. A reader knows the page's size, which
//! bounds unpacking whatever the block claims.

/// Codec of a stored page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageCodec {
    /// The page's bytes as they are.
    None = 0,
    /// Byte planes, then LZ4.
    PlanesLz4 = 1,
}

/// The codecs a side can read or may use, as a bit mask: bit `n` is codec number `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codecs(pub u32);

/// A packed page that cannot be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{stored} packed bytes do not unpack to a page of {page} bytes")]
pub struct UnpackError {
    /// Bytes of the packed page.
    pub stored: usize,
    /// Bytes of a page.
    pub page: usize,
}

/// Packs and unpacks pages with buffers that are used again.
#[derive(Debug, Default)]
pub struct PagePacker {
    planes: Vec<u8>,
    other: Vec<u8>,
}

impl PageCodec {
    /// The codec of a number on the wire.
    pub fn decode(raw: u8) -> Option<Self> {
        [Self::None, Self::PlanesLz4].into_iter().find(|codec| *codec as u8 == raw)
    }
}

impl Codecs {
    /// Pages as they are. Every side can read these.
    pub const NONE_ONLY: Self = Self(1);
    /// Every codec of this build.
    pub const ALL: Self = Self(3);

    /// True if `codec` is in the set.
    pub fn contains(self, codec: PageCodec) -> bool {
        self.0 >> (codec as u8) & 1 == 1
    }

    /// Intersection of both sides' sets. [`PageCodec::None`] is always part of it.
    pub fn common(self, other: Self) -> Self {
        Self(self.0 & other.0 | Self::NONE_ONLY.0)
    }
}

impl PagePacker {
    /// `page` in the smaller of its forms among `codecs`.
    pub fn pack<'a>(&'a mut self, page: &'a [u8], codecs: Codecs) -> (PageCodec, &'a [u8]) {
        if !codecs.contains(PageCodec::PlanesLz4) {
            return (PageCodec::None, page);
        }
        self.planes.clear();
        self.planes.extend(page.iter().step_by(2));
        self.planes.extend(page.iter().skip(1).step_by(2));
        self.other.resize(lz4_flex::block::get_maximum_output_size(page.len()), 0);
        match lz4_flex::block::compress_into(&self.planes, &mut self.other) {
            Ok(packed) if packed < page.len() => (PageCodec::PlanesLz4, &self.other[..packed]),
            _ => (PageCodec::None, page),
        }
    }

    /// The page of `page_bytes` bytes that [`PagePacker::pack`] packed into `stored` with [`PageCodec::PlanesLz4`].
    ///
    /// # Errors
    /// [`UnpackError`] if that is not what `stored` holds.
    pub fn unpack(&mut self, stored: &[u8], page_bytes: usize) -> Result<&[u8], UnpackError> {
        self.planes.resize(page_bytes, 0);
        let unpacked = lz4_flex::block::decompress_into(stored, &mut self.planes);
        if !matches!(unpacked, Ok(bytes) if bytes == page_bytes) {
            return Err(UnpackError { stored: stored.len(), page: page_bytes });
        }
        self.other.resize(page_bytes, 0);
        let (even, odd) = self.planes.split_at(page_bytes.div_ceil(2));
        self.other.iter_mut().step_by(2).zip(even).for_each(|(to, from)| *to = *from);
        self.other.iter_mut().skip(1).step_by(2).zip(odd).for_each(|(to, from)| *to = *from);
        Ok(&self.other)
    }

    /// The page that [`PagePacker::unpack`] gave last.
    pub(crate) fn unpacked(&self) -> &[u8] {
        &self.other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_comes_back_to_the_bit_and_is_never_stored_longer() {
        let mut random = fastrand::Rng::with_seed(41);
        let (mut packer, mut reader, mut smaller) = (PagePacker::default(), PagePacker::default(), 0);
        for length in (0..200).chain([4096, 4097, 70_001]) {
            for values in [1, 3, 256] {
                let page: Vec<u8> = (0..length).map(|_| (random.u32(0..values) & 255) as u8).collect();
                let (codec, stored) = packer.pack(&page, Codecs::ALL);
                assert!(stored.len() <= page.len());
                match codec {
                    PageCodec::None => assert_eq!(stored, page),
                    PageCodec::PlanesLz4 => {
                        smaller += 1;
                        assert_eq!(reader.unpack(stored, page.len()).as_deref(), Ok(&page[..]), "{length} {values}");
                    }
                }
                assert_eq!(packer.pack(&page, Codecs::NONE_ONLY), (PageCodec::None, &page[..]));
            }
        }
        assert!(smaller > 200, "only {smaller} pages were packed");
    }

    #[test]
    fn a_page_of_another_size_or_of_random_bytes_is_refused() {
        let (mut packer, mut reader) = (PagePacker::default(), PagePacker::default());
        let (codec, stored) = packer.pack(&[9; 1000], Codecs::ALL);
        assert_eq!(codec, PageCodec::PlanesLz4);
        for wrong in [0, 1, 999, 1001, 5000] {
            assert_eq!(reader.unpack(stored, wrong), Err(UnpackError { stored: stored.len(), page: wrong }));
        }
        let mut random = fastrand::Rng::with_seed(7);
        for length in 0..300 {
            let noise: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            let _ = reader.unpack(&noise, 512).map(|page| assert_eq!(page.len(), 512));
        }
    }
}
