//! Pages between the device's form (`kernels/pages.cuh`) and the canonical bytes that leave the process.

use muser_kernels::attention::{AttentionShape, KvLayout, PAGE_ROWS};

use super::{Queue, dimension};
use crate::driver::{Arguments, DeviceBuffer, Launch, pair};

pub(crate) const KERNELS: &[&str] = &["pack_pages_q8", "unpack_pages_q8", "pack_pages_f16", "unpack_pages_f16"];

/// Threads of a block, as in `kernels/pages.cu`.
const THREADS: u32 = 256;
/// 64-bit words of a [`PageCopy`] on the device.
const COPY_WORDS: usize = 3;

/// One page to pack or unpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Address of the device page.
    pub device: u64,
    /// Address in device memory of its canonical bytes, a multiple of 16.
    pub canonical: u64,
    /// Rows that hold a position: the others are zero in the canonical bytes. Unpacking takes all rows as they are.
    pub rows: usize,
}

impl PageCopy {
    /// The words of a list of pages on the device, three for each page.
    ///
    /// # Panics
    /// If a page has more than 64 rows or an address is no multiple of 16.
    pub fn words(copies: &[Self]) -> Vec<u64> {
        let words = copies.iter().flat_map(|copy| {
            assert!(copy.rows <= PAGE_ROWS, "{} rows of a page", copy.rows);
            assert!(
                (copy.device | copy.canonical).is_multiple_of(16),
                "pages at {:x} and {:x}",
                copy.device,
                copy.canonical
            );
            [copy.device, copy.canonical, pair(dimension(copy.rows), 0)]
        });
        words.collect()
    }
}

impl Queue {
    /// Writes the canonical bytes of the pages of a list made by [`PageCopy::words`].
    ///
    /// # Safety
    /// Both addresses of every copy must be those of [`KvLayout::page_bytes`] bytes in device memory that stay allocated until
    /// this has run; no two canonical places may overlap.
    pub unsafe fn pack_pages(&mut self, shape: &AttentionShape, layout: KvLayout, copies: &DeviceBuffer<u64>) {
        let kernel = match layout {
            KvLayout::Q8 => "pack_pages_q8",
            KvLayout::F16 => "pack_pages_f16",
        };
        // SAFETY: the caller's promise.
        unsafe { self.copy_pages(kernel, shape, copies) };
    }

    /// Writes the device pages of a list made by [`PageCopy::words`] from their canonical bytes.
    ///
    /// # Safety
    /// As for [`Queue::pack_pages`], with device pages that do not overlap.
    pub unsafe fn unpack_pages(&mut self, shape: &AttentionShape, layout: KvLayout, copies: &DeviceBuffer<u64>) {
        let kernel = match layout {
            KvLayout::Q8 => "unpack_pages_q8",
            KvLayout::F16 => "unpack_pages_f16",
        };
        // SAFETY: the caller's promise.
        unsafe { self.copy_pages(kernel, shape, copies) };
    }

    unsafe fn copy_pages(&mut self, kernel: &'static str, shape: &AttentionShape, copies: &DeviceBuffer<u64>) {
        let (kv_heads, head_dim) = (dimension(shape.kv_heads()), dimension(shape.head_dim()));
        let launch = self.early(Launch::of(dimension(copies.len() / COPY_WORDS), THREADS).rows(kv_heads));
        let arguments = Arguments::new().structure(&[copies.address(), pair(kv_heads, head_dim)]);
        // SAFETY: the kernel's one parameter is this structure; the addresses are the caller's promise.
        unsafe { self.launch(kernel, &launch, arguments) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_three_words_a_page() {
        let copy = PageCopy { device: 0x100, canonical: 0x2_0000_0010, rows: 64 };
        assert_eq!(PageCopy::words(&[copy; 2]), [0x100, 0x2_0000_0010, 64, 0x100, 0x2_0000_0010, 64]);
    }

    #[test]
    #[should_panic(expected = "65 rows of a page")]
    fn more_rows_than_a_page_has_are_a_wrong_call() {
        PageCopy::words(&[PageCopy { device: 0, canonical: 0, rows: 65 }]);
    }
}
