//! Policy `response`: the time from a request to the first byte of its response is too long. A request that has no response yet counts with
//! the time that has passed.

use std::time::Duration;

use crate::Instant;

/// The response time.
#[derive(Clone, Copy, Debug)]
pub struct ResponseTime {
    limit: Duration,
    asked: Option<Instant>,
}

impl ResponseTime {
    /// Response times above this limit are bad.
    pub const fn new(limit: Duration) -> Self {
        Self { limit, asked: None }
    }

    /// The client program has sent something.
    pub fn on_input(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// Output has arrived. Returns whether the response came too late. `None`: it is no first byte.
    pub fn on_output(&mut self, now: Instant) -> Option<bool> {
        let asked = self.asked.take()?;
        Some(now.since(asked) > self.limit)
    }

    /// Whether the response is late by now.
    pub fn is_late(&self, now: Instant) -> bool {
        self.asked.is_some_and(|asked| now.since(asked) > self.limit)
    }

    /// Another server owns the session. It gets the whole time for the response.
    pub fn on_move(&mut self, now: Instant) {
        self.asked = self.asked.map(|_| now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_response_is_noticed_before_it_comes() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut response = ResponseTime::new(Duration::from_millis(50));
        assert_eq!(response.on_output(at(0)), None);
        response.on_input(at(10));
        response.on_input(at(20));
        assert!(!response.is_late(at(60)) && response.is_late(at(61)));
        assert_eq!(response.on_output(at(60)), Some(false));
        response.on_input(at(100));
        assert_eq!(response.on_output(at(151)), Some(true));
        response.on_input(at(200));
        response.on_move(at(300));
        assert!(!response.is_late(at(350)));
    }
}
