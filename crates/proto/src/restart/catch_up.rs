//! How long a client waits for an application that must first generate again the output that the client already has (docs/commit-modes.md).

use std::time::Duration;

use crate::Instant;

/// A connection is given up if its application generates nothing for this long, although the client already has more than the application
/// has generated. All input that led to this output is logged, so the application waits for nothing but itself. Longer than a stop by a
/// garbage collector or a slow start, and shorter than the patience of most clients.
pub const CATCH_UP_SILENCE: Duration = Duration::from_secs(60);

/// Watches an application that catches up after a takeover.
#[derive(Clone, Copy, Debug)]
pub struct CatchUp {
    /// Number of bytes that the client has and the application has yet to generate.
    missing: u64,
    /// When the application last generated something.
    since: Instant,
}

impl CatchUp {
    /// An application that begins to catch up now.
    pub const fn new(now: Instant, missing: u64) -> Self {
        Self { missing, since: now }
    }

    /// The application has yet to generate `missing` bytes.
    pub const fn look(&mut self, now: Instant, missing: u64) {
        if missing < self.missing {
            self.since = now;
        }
        self.missing = missing;
    }

    /// When the connection is given up, unless the application generates something before. `None`: it has caught up.
    pub fn gives_up_at(&self) -> Option<Instant> {
        (self.missing > 0).then(|| self.since + CATCH_UP_SILENCE)
    }

    /// Checks that the application has caught up, or has generated something lately.
    ///
    /// # Errors
    /// The reason why the connection is given up.
    pub fn check(&self, now: Instant) -> Result<(), String> {
        match self.gives_up_at() {
            Some(at) if now >= at => Err(self.reason()),
            _ => Ok(()),
        }
    }

    /// The reason for giving up the connection.
    pub fn reason(&self) -> String {
        format!(
            "the application has generated nothing for {} s, although the client already has {} bytes more",
            CATCH_UP_SILENCE.as_secs(),
            self.missing
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_that_stops_before_it_has_caught_up_is_given_up() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut catch_up = CatchUp::new(at(1), 100);
        catch_up.look(at(30), 100);
        assert_eq!(catch_up.gives_up_at(), Some(at(61)), "nothing was generated");
        catch_up.look(at(60), 40);
        assert_eq!(catch_up.gives_up_at(), Some(at(120)));
        assert!(catch_up.check(at(119)).is_ok());
        let reason = catch_up.check(at(120)).unwrap_err();
        assert!(reason.contains("40 bytes more"), "{reason}");
        catch_up.look(at(119), 0);
        assert_eq!((catch_up.gives_up_at(), catch_up.check(at(1000))), (None, Ok(())));
    }
}
