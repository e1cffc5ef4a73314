//! Activation rows on the device, quantised once into every layout that their consumers read (rule 2 of `docs/numerics.md`).

use muser_kernels::activations::ActivationFormat;

use crate::driver::{Context, DeviceBuffer, DriverError};
use crate::queue::Queue;

/// Rows of a tile of the layouts for Hopper's matrix instructions.
const TILE_ROWS: usize = 128;

/// Layouts that the consumers of one vector want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms(u8);

impl Forms {
    /// No layout.
    pub const EMPTY: Self = Self(0);
    /// 8-bit codes with a scale per 256, row by row.
    pub const CODES_256: Self = Self(1);
    /// 8-bit codes with a scale per 32, row by row.
    pub const CODES_32: Self = Self(2);
    /// The f32 values.
    pub const FLOATS: Self = Self(4);
    /// The codes with a scale per 256 as f16 in tiles of 128 rows.
    pub const HALF_TILES: Self = Self(8);
    /// The codes with a scale per 256 as bytes in tiles of 128 rows.
    pub const BYTE_TILES: Self = Self(16);
    /// The codes with a scale per 32 as bytes in tiles of 128 rows, with their scales and sums.
    pub const SCALED_TILES: Self = Self(32);
    /// Every layout.
    pub const ALL: Self = Self(63);

    /// This set and `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if every layout of `other` is in the set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Forms {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}

/// Room for the activation rows of one step, in chosen layouts.
#[derive(Debug)]
pub struct DeviceActivations {
    rows_max: usize,
    cols_max: usize,
    allocated: Forms,
    rows: usize,
    cols: usize,
    forms: Forms,
    pub(crate) codes256: DeviceBuffer<i8>,
    pub(crate) scales256: DeviceBuffer<f32>,
    pub(crate) sums256: DeviceBuffer<i16>,
    pub(crate) codes32: DeviceBuffer<i8>,
    pub(crate) scales32: DeviceBuffer<f32>,
    pub(crate) sums32: DeviceBuffer<i16>,
    pub(crate) floats: DeviceBuffer<f32>,
    pub(crate) half_tiles: DeviceBuffer<u8>,
    pub(crate) byte_tiles: DeviceBuffer<u8>,
    pub(crate) tile_scales: DeviceBuffer<f32>,
    pub(crate) scaled_tiles: DeviceBuffer<u8>,
}

impl DeviceActivations {
    /// Room for `rows_max` rows of up to `cols_max` values in the layouts `forms`.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`], or the error of an earlier kernel.
    pub fn new(context: &Context, rows_max: usize, cols_max: usize, forms: Forms) -> Result<Self, DriverError> {
        let sizes = Sizes::of(rows_max, cols_max, forms);
        Ok(Self {
            rows_max,
            cols_max,
            allocated: forms,
            rows: 0,
            cols: 0,
            forms: Forms::EMPTY,
            codes256: DeviceBuffer::new(context, sizes.codes256)?,
            scales256: DeviceBuffer::new(context, sizes.codes256 / 256)?,
            sums256: DeviceBuffer::new(context, sizes.codes256 / 32)?,
            codes32: DeviceBuffer::new(context, sizes.codes32)?,
            scales32: DeviceBuffer::new(context, sizes.codes32 / 32)?,
            sums32: DeviceBuffer::new(context, sizes.codes32 / 32)?,
            floats: DeviceBuffer::new(context, sizes.floats)?,
            half_tiles: DeviceBuffer::new(context, sizes.half_tiles)?,
            byte_tiles: DeviceBuffer::new(context, sizes.byte_tiles)?,
            tile_scales: DeviceBuffer::new(context, sizes.tile_scales)?,
            scaled_tiles: DeviceBuffer::new(context, sizes.scaled_tiles)?,
        })
    }

    /// Bytes of device memory that [`DeviceActivations::new`] takes for the same arguments.
    pub fn bytes(rows_max: usize, cols_max: usize, forms: Forms) -> usize {
        Self::buffers(rows_max, cols_max, forms).into_iter().sum()
    }

    /// Bytes of each buffer that [`DeviceActivations::new`] makes for the same arguments.
    pub(crate) fn buffers(rows_max: usize, cols_max: usize, forms: Forms) -> [usize; 11] {
        let Sizes { codes256, codes32, floats, half_tiles, byte_tiles, tile_scales, scaled_tiles } =
            Sizes::of(rows_max, cols_max, forms);
        [
            codes256,
            codes256 / 256 * 4,
            codes256 / 32 * 2,
            codes32,
            codes32 / 32 * 4,
            codes32 / 32 * 2,
            4 * floats,
            half_tiles,
            byte_tiles,
            4 * tile_scales,
            scaled_tiles,
        ]
    }

    /// Rows of the last quantisation.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row of the last quantisation.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Codes and scales of the last quantisation in `format`, which has both: a row takes its columns rounded up to 256 codes,
    /// and as many scales as that holds groups. For checks.
    ///
    /// # Errors
    /// [`DriverError`] of this or of earlier work.
    pub fn download(&self, queue: &mut Queue, format: ActivationFormat) -> Result<(Vec<i8>, Vec<f32>), DriverError> {
        queue.sync()?;
        let (codes, scales, group) = match format {
            ActivationFormat::Int8x256 => (&self.codes256, &self.scales256, 256),
            _ => (&self.codes32, &self.scales32, 32),
        };
        let len = self.rows * self.blocks() * 256;
        let (mut host_codes, mut host_scales) = (vec![0; len], vec![0.0; len / group]);
        queue.stream().download(codes, 0, &mut host_codes)?;
        queue.stream().download(scales, 0, &mut host_scales)?;
        Ok((host_codes, host_scales))
    }

    /// Codes and scales of the last quantisation out of [`Forms::HALF_TILES`] or [`Forms::BYTE_TILES`], as
    /// [`Self::download`] gives those with a scale per 256. For checks.
    ///
    /// # Errors
    /// [`DriverError`] of this or of earlier work.
    pub fn download_tiles(&self, queue: &mut Queue, form: Forms) -> Result<(Vec<i8>, Vec<f32>), DriverError> {
        queue.sync()?;
        let (rows, blocks, is_half) = (self.rows, self.blocks(), form == Forms::HALF_TILES);
        let tile = rows.next_multiple_of(TILE_ROWS) * blocks;
        // A chunk of 128 rows has 128 bytes of each.
        let (tiles, chunk_cols) = if is_half { (&self.half_tiles, 64) } else { (&self.byte_tiles, 128) };
        let mut bytes = vec![0; tile * 256 * (128 / chunk_cols)];
        let mut tile_scales = vec![0.0; tile];
        queue.stream().download(tiles, 0, &mut bytes)?;
        queue.stream().download(&self.tile_scales, 0, &mut tile_scales)?;
        let chunks = 256 / chunk_cols;
        let code = |row: usize, col: usize| {
            let block = row / TILE_ROWS * blocks + col / 256;
            let line = ((block * chunks + col % 256 / chunk_cols) * TILE_ROWS + row % TILE_ROWS) * 128;
            let byte = col % chunk_cols * (128 / chunk_cols);
            let at = line + ((byte / 16) ^ (row % 8)) * 16 + byte % 16;
            if is_half { small_half(u16::from_le_bytes([bytes[at], bytes[at + 1]])) } else { bytes[at].cast_signed() }
        };
        let codes = (0..rows).flat_map(|row| (0..blocks * 256).map(move |col| (row, col)));
        let scales = (0..rows).flat_map(|row| (0..blocks).map(move |block| (row, block)));
        let scale = |(row, block): (usize, usize)| {
            tile_scales[(row / TILE_ROWS * blocks + block) * TILE_ROWS + row % TILE_ROWS]
        };
        Ok((codes.map(|(row, col)| code(row, col)).collect(), scales.map(scale).collect()))
    }

    /// The f32 values of the last quantisation, `[rows, cols]`. For checks.
    ///
    /// # Errors
    /// [`DriverError`] of this or of earlier work.
    pub fn download_floats(&self, queue: &mut Queue) -> Result<Vec<f32>, DriverError> {
        queue.sync()?;
        let mut values = vec![0.0; self.rows * self.cols];
        queue.stream().download(&self.floats, 0, &mut values)?;
        Ok(values)
    }

    /// Overwrites everything with bytes 0xff, so that a check sees every element that a kernel forgets.
    pub fn poison(&mut self, queue: &mut Queue) {
        queue.fill(&mut self.codes256, 0xff);
        queue.fill(&mut self.scales256, 0xff);
        queue.fill(&mut self.sums256, 0xff);
        queue.fill(&mut self.codes32, 0xff);
        queue.fill(&mut self.scales32, 0xff);
        queue.fill(&mut self.sums32, 0xff);
        queue.fill(&mut self.floats, 0xff);
        queue.fill(&mut self.half_tiles, 0xff);
        queue.fill(&mut self.byte_tiles, 0xff);
        queue.fill(&mut self.tile_scales, 0xff);
        queue.fill(&mut self.scaled_tiles, 0xff);
    }

    /// Groups of 256 per row, the last perhaps short.
    pub(crate) fn blocks(&self) -> usize {
        self.cols.div_ceil(256)
    }

    /// Layouts that the last quantisation wrote.
    pub fn forms(&self) -> Forms {
        self.forms
    }

    /// Makes this `rows` rows of `cols` values in the layouts `forms`, to be written next.
    ///
    /// # Panics
    /// If that is more than there is room for.
    pub(crate) fn begin(&mut self, rows: usize, cols: usize, forms: Forms) {
        let (rows_max, cols_max) = (self.rows_max, self.cols_max);
        assert!(
            rows <= rows_max && cols <= cols_max,
            "{rows} x {cols} activations in room for {rows_max} x {cols_max}"
        );
        assert!(self.allocated.contains(forms), "layouts {forms:?} in room for {:?}", self.allocated);
        (self.rows, self.cols, self.forms) = (rows, cols, forms);
    }

    /// The kernels' `ActivationForms`: addresses of the layouts that the next quantisation writes, null for the others.
    pub(crate) fn addresses(&self) -> [u64; 11] {
        let wanted = |form: Forms, address: u64| if self.forms.contains(form) { address } else { 0 };
        let tiles = [Forms::HALF_TILES, Forms::BYTE_TILES].into_iter().any(|form| self.forms.contains(form));
        [
            wanted(Forms::CODES_256, self.codes256.address()),
            wanted(Forms::CODES_256, self.scales256.address()),
            wanted(Forms::CODES_256, self.sums256.address()),
            wanted(Forms::CODES_32, self.codes32.address()),
            wanted(Forms::CODES_32, self.scales32.address()),
            wanted(Forms::CODES_32, self.sums32.address()),
            wanted(Forms::FLOATS, self.floats.address()),
            wanted(Forms::HALF_TILES, self.half_tiles.address()),
            wanted(Forms::BYTE_TILES, self.byte_tiles.address()),
            if tiles { self.tile_scales.address() } else { 0 },
            wanted(Forms::SCALED_TILES, self.scaled_tiles.address()),
        ]
    }
}

/// The integer that is the f16 of `bits`; -128, which no code is, if it is not one of -127 to 127 (or is minus zero).
fn small_half(bits: u16) -> i8 {
    // Adding it rounds to an integer, which then is the difference of the bits.
    const TO_INTEGER: f32 = 12_582_912.0;
    let value = half::f16::from_bits(bits).to_f32();
    let integer = (value + TO_INTEGER).to_bits().wrapping_sub(TO_INTEGER.to_bits()).cast_signed();
    i8::try_from(integer).ok().filter(|code| bits != 0x8000 && f32::from(*code) == value).unwrap_or(i8::MIN)
}

/// Elements of each buffer.
struct Sizes {
    codes256: usize,
    codes32: usize,
    floats: usize,
    half_tiles: usize,
    byte_tiles: usize,
    tile_scales: usize,
    scaled_tiles: usize,
}

impl Sizes {
    fn of(rows: usize, cols: usize, forms: Forms) -> Self {
        let if_wanted = |form: Forms, len: usize| if forms.contains(form) { len } else { 0 };
        let padded_cols = cols.next_multiple_of(256);
        let tile = rows.next_multiple_of(TILE_ROWS) * padded_cols;
        let (half_tiles, byte_tiles) = (if_wanted(Forms::HALF_TILES, 2 * tile), if_wanted(Forms::BYTE_TILES, tile));
        Self {
            codes256: if_wanted(Forms::CODES_256, rows * padded_cols),
            codes32: if_wanted(Forms::CODES_32, rows * padded_cols),
            floats: if_wanted(Forms::FLOATS, rows * cols),
            half_tiles,
            byte_tiles,
            tile_scales: if half_tiles + byte_tiles > 0 { tile / 256 } else { 0 },
            // With each 32 codes a scale and a sum of 4 bytes.
            scaled_tiles: if_wanted(Forms::SCALED_TILES, tile / 32 * (32 + 8)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_layout_follow_from_rows_and_columns() {
        // 6,656 columns are 26 groups of 256; 130 rows fill two tiles of 128.
        assert_eq!(DeviceActivations::bytes(130, 6656, Forms::CODES_256), 130 * 26 * (256 + 4 + 16));
        assert_eq!(DeviceActivations::bytes(130, 6656, Forms::CODES_32), 130 * 26 * (256 + 32 + 16));
        assert_eq!(DeviceActivations::bytes(130, 6656, Forms::FLOATS), 130 * 6656 * 4);
        assert_eq!(DeviceActivations::bytes(130, 6656, Forms::HALF_TILES), 2 * 128 * 26 * (512 + 4));
        assert_eq!(DeviceActivations::bytes(130, 6656, Forms::BYTE_TILES), 2 * 128 * 26 * (256 + 4));
        assert_eq!(DeviceActivations::bytes(130, 6656, Forms::SCALED_TILES), 2 * 128 * 26 * (256 + 64));
        // 576 columns take three groups.
        assert_eq!(DeviceActivations::bytes(1, 576, Forms::CODES_32), 3 * (256 + 32 + 16));
        assert_eq!(DeviceActivations::bytes(1, 576, Forms::EMPTY), 0);
    }
}
