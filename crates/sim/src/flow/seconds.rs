//! Durations in scenario files: a number of seconds.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// Reads a number of seconds, rounded to nanoseconds.
///
/// # Errors
/// If the number is negative, not finite, or above a billion (32 years). Sums of several such durations fit the simulator's clock.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    let duration = Duration::try_from_secs_f64(seconds).ok();
    duration.filter(|duration| *duration <= LONGEST).ok_or_else(|| {
        D::Error::custom(format!(
            "{seconds} is not a number of seconds from 0 to 1,000,000,000"
        ))
    })
}

/// Optional durations in scenario files.
pub mod optional {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer};

    #[derive(Deserialize)]
    struct SecondsField(#[serde(with = "super")] Duration);

    /// Reads a number of seconds, if there is one.
    ///
    /// # Errors
    /// As [`super::deserialize`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<SecondsField>::deserialize(deserializer)?.map(|SecondsField(duration)| duration))
    }
}
