//! Unpredictable random bytes of the cryptographic provider.

/// The system gave no random bytes; nothing secret can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random bytes")]
pub struct NoRandomness;

/// `N` fresh bytes.
///
/// # Errors
/// [`NoRandomness`].
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    rustls::crypto::aws_lc_rs::default_provider().secure_random.fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// An unpredictable key of 256 bits.
///
/// # Errors
/// [`NoRandomness`].
pub fn secret() -> Result<[u8; 32], NoRandomness> {
    bytes()
}

/// An unpredictable number of 64 bits.
///
/// # Errors
/// [`NoRandomness`].
pub fn number() -> Result<u64, NoRandomness> {
    bytes().map(u64::from_le_bytes)
}
