//! How `serde` takes shared bytes: whole, and not byte by byte. Byte by byte, a state of 16 MiB would take a second without optimization.

use std::sync::Arc;

use serde::{Deserializer, Serializer};

/// For fields with `#[serde(with = "crate::whole")]`.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(bytes: &Arc<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// The counterpart of [`serialize`].
///
/// # Errors
/// The deserializer's.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
    serde_bytes::deserialize::<Vec<u8>, _>(deserializer).map(Arc::from)
}

/// For optional fields with `#[serde(with = "crate::whole::optional")]`.
pub mod optional {
    use super::{Arc, Deserializer, Serializer};

    /// Takes the bytes, if there are any.
    ///
    /// # Errors
    /// The serializer's.
    #[allow(clippy::ref_option)] // serde gives the field
    pub fn serialize<S: Serializer>(bytes: &Option<Arc<[u8]>>, serializer: S) -> Result<S::Ok, S::Error> {
        serde_bytes::serialize(&bytes.as_deref(), serializer)
    }

    /// The counterpart of [`serialize`].
    ///
    /// # Errors
    /// The deserializer's.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<[u8]>>, D::Error> {
        let bytes: Option<Vec<u8>> = serde_bytes::deserialize(deserializer)?;
        Ok(bytes.map(Arc::from))
    }
}
