//! f32 weights into stored blocks.
//!
//! The result is a function of the values alone: IEEE arithmetic in a written order, no libm, no instruction set.
//! `Q8_0`, `Q4_0`, `Q4_1`, `Q5_0` and `Q5_1` follow the formats' published rounding rules, so that other tools write the
//! same bytes. `IQ4_NL` and the K types are searched for the least squared error, not weighted by magnitude: weighting
//! did not bring the logits of a measured model closer to those of its unquantised weights.

mod affine;
mod block32;
mod block_k;
mod scaled;
mod sums;

use super::WeightType;

/// Reasons for which a row was not quantised. The output's content is then unspecified.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum QuantiseError {
    /// The caller's values hold a NaN or an infinity.
    #[error("element {index} is {value}: only finite values can be quantised")]
    NonFinite { index: usize, value: f32 },
    /// The values are too large for the type; `value` is the weight or block scale that does not fit.
    #[error("{ty} cannot store {value:e}, which the weights from element {index} on need")]
    OutOfRange { ty: WeightType, index: usize, value: f32 },
    /// The caller's slices do not match.
    #[error("{elements} weights of {ty} do not fill {bytes} bytes exactly")]
    Length { ty: WeightType, elements: usize, bytes: usize },
    /// Muser reads this type but does not write it.
    #[error("{ty} is read but not written")]
    Unsupported { ty: WeightType },
}

/// Writes the weights `x` to `out` as whole blocks of type `ty`.
///
/// # Errors
/// A value that is not finite or too large for the type; slices that do not match; a type that is only read (`IQ4_XS`,
/// `MXFP4`, `NVFP4`).
pub fn quantise_row(ty: WeightType, x: &[f32], out: &mut [u8]) -> Result<(), QuantiseError> {
    if ty.row_bytes(x.len()) != Some(out.len()) {
        return Err(QuantiseError::Length { ty, elements: x.len(), bytes: out.len() });
    }
    if let Some(index) = x.iter().position(|v| !v.is_finite()) {
        return Err(QuantiseError::NonFinite { index, value: x[index] });
    }
    match ty {
        WeightType::F32 => blocks(ty, x, out, |[v]: &[f32; 1]| Ok(v.to_le_bytes())),
        WeightType::F16 => blocks(ty, x, out, |&[v]| f16_bytes(v)),
        WeightType::BF16 => blocks(ty, x, out, |&[v]| {
            let rounded = half::bf16::from_f32(v);
            if rounded.is_finite() { Ok(rounded.to_le_bytes()) } else { Err(DoesNotFit(v)) }
        }),
        WeightType::Q8_0 => blocks(ty, x, out, block32::q8_0),
        WeightType::Q4_0 => blocks(ty, x, out, block32::q4_0),
        WeightType::Q4_1 => blocks(ty, x, out, block32::q4_1),
        WeightType::Q5_0 => blocks(ty, x, out, block32::q5_0),
        WeightType::Q5_1 => blocks(ty, x, out, block32::q5_1),
        WeightType::Q4_K => blocks(ty, x, out, block_k::q4_k),
        WeightType::Q5_K => blocks(ty, x, out, block_k::q5_k),
        WeightType::Q6_K => blocks(ty, x, out, block_k::q6_k),
        WeightType::IQ4_NL => blocks(ty, x, out, block32::iq4_nl),
        WeightType::IQ4_XS | WeightType::MXFP4 | WeightType::NVFP4 => Err(QuantiseError::Unsupported { ty }),
    }
}

/// A weight or scale beyond the range of the field it belongs in.
struct DoesNotFit(f32);

/// Quantises block by block; `quantise` makes the bytes of one block.
fn blocks<const LEN: usize, const BYTES: usize>(
    ty: WeightType,
    x: &[f32],
    out: &mut [u8],
    quantise: impl Fn(&[f32; LEN]) -> Result<[u8; BYTES], DoesNotFit>,
) -> Result<(), QuantiseError> {
    for (index, (x, out)) in x.as_chunks().0.iter().zip(out.as_chunks_mut().0).enumerate() {
        *out = quantise(x).map_err(|DoesNotFit(value)| QuantiseError::OutOfRange { ty, index: index * LEN, value })?;
    }
    Ok(())
}

/// The nearest f16, ties to even.
fn f16_of(value: f32) -> Result<half::f16, DoesNotFit> {
    let rounded = half::f16::from_f32(value);
    if rounded.is_finite() { Ok(rounded) } else { Err(DoesNotFit(value)) }
}

/// The bytes of the nearest f16.
fn f16_bytes(value: f32) -> Result<[u8; 2], DoesNotFit> {
    f16_of(value).map(half::f16::to_le_bytes)
}

/// `value` rounded to f16.
fn f16_nearest(value: f32) -> Result<f32, DoesNotFit> {
    f16_of(value).map(half::f16::to_f32)
}

/// The least f16 that is not below `value`, a magnitude well within f16's range.
fn f16_at_least(value: f32) -> f32 {
    let rounded = half::f16::from_f32(value);
    let up = u16::from(rounded.to_f32() < value);
    half::f16::from_bits(rounded.to_bits() + up).to_f32()
}
