//! Configuration of an endpoint: its TCP options, buffers and timeouts.

use std::time::Duration;

use thiserror::Error;

/// Configuration of an endpoint. The defaults are those of Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Largest segment that we receive and send, in bytes of payload and TCP options (RFC 9293 §3.7.1).
    pub mss: u16,
    /// Shift of the windows that we advertise (RFC 7323 §2). With `None`, the option is not offered.
    pub window_scale: Option<u8>,
    /// Whether selective acknowledgements are offered (RFC 2018).
    pub sack: bool,
    /// Whether timestamps are offered (RFC 7323 §3).
    pub timestamps: bool,
    /// Bytes of output that are kept until the peer has acknowledged them.
    pub send_buffer: usize,
    /// Bytes of input that may wait for the application. Bounds the advertised window.
    pub receive_buffer: usize,
    /// Longest delay of an acknowledgement that waits for data to go with it (RFC 9293 §3.8.6.3: below 0.5 s).
    pub delayed_ack: Duration,
    /// Retransmission timeout before the first measured round trip (RFC 6298 §2.1).
    pub rto_initial: Duration,
    /// Smallest retransmission timeout.
    pub rto_min: Duration,
    /// Largest retransmission timeout, backoff included.
    pub rto_max: Duration,
    /// Number of repetitions of a SYN before the connection is given up.
    pub syn_retries: u32,
    /// Number of repetitions of a segment, or of an unanswered probe, before the connection is given up.
    pub retries: u32,
    /// Time for which the 4-tuple of a connection that we closed first stays taken: 2 MSL (RFC 9293 §3.6.1).
    pub time_wait: Duration,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            mss: 1460,             // 1500 of Ethernet − 20 IPv4 − 20 TCP
            window_scale: Some(7), // 65,535 << 7: windows up to 8 MB
            sack: true,
            timestamps: true,
            send_buffer: 1 << 20,
            receive_buffer: 1 << 20,
            delayed_ack: Duration::from_millis(40), // TCP_DELACK_MIN
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200), // TCP_RTO_MIN
            rto_max: Duration::from_secs(120),
            syn_retries: 6,                     // net.ipv4.tcp_syn_retries
            retries: 15,                        // net.ipv4.tcp_retries2
            time_wait: Duration::from_secs(60), // TCP_TIMEWAIT_LEN
        }
    }
}

/// Why a [`TcpConfig`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidTcpConfig {
    /// Smaller than [`TcpConfig::MSS_MIN`].
    #[error("mss must be at least {min}, not {0}", min = TcpConfig::MSS_MIN)]
    Mss(u16),
    /// Larger than RFC 7323 §2.3 allows.
    #[error("window_scale must be at most {max}, not {0}", max = TcpConfig::WINDOW_SCALE_MAX)]
    WindowScale(u8),
    /// A buffer that holds no byte.
    #[error("{0} must be positive")]
    EmptyBuffer(&'static str),
    /// The timeouts contradict each other.
    #[error("rto_min, rto_initial, rto_max must be positive and in this order")]
    Rto,
}

impl TcpConfig {
    /// Smallest segment size: Linux's `TCP_MIN_MSS`. The longest IP and TCP options leave room for 8 bytes of data.
    pub const MSS_MIN: u16 = 88;
    /// Largest shift (RFC 7323 §2.3).
    pub const WINDOW_SCALE_MAX: u8 = 14;

    /// Checks whether an endpoint can have this configuration.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(&self) -> Result<(), InvalidTcpConfig> {
        if self.mss < Self::MSS_MIN {
            return Err(InvalidTcpConfig::Mss(self.mss));
        }
        if let Some(shift) = self.window_scale.filter(|shift| *shift > Self::WINDOW_SCALE_MAX) {
            return Err(InvalidTcpConfig::WindowScale(shift));
        }
        for (name, size) in [
            ("send_buffer", self.send_buffer),
            ("receive_buffer", self.receive_buffer),
        ] {
            if size == 0 {
                return Err(InvalidTcpConfig::EmptyBuffer(name));
            }
        }
        let ordered = self.rto_min <= self.rto_initial && self.rto_initial <= self.rto_max;
        if self.rto_min.is_zero() || !ordered {
            return Err(InvalidTcpConfig::Rto);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_holds_and_each_error_names_its_field() {
        let default = TcpConfig::default;
        assert_eq!(default().check(), Ok(()));
        let refused = |config: TcpConfig| config.check().unwrap_err().to_string();
        assert!(refused(TcpConfig { mss: 87, ..default() }).starts_with("mss"));
        assert!(
            refused(TcpConfig {
                window_scale: Some(15),
                ..default()
            })
            .starts_with("window_scale")
        );
        assert!(
            refused(TcpConfig {
                send_buffer: 0,
                ..default()
            })
            .starts_with("send_buffer")
        );
        assert!(
            refused(TcpConfig {
                receive_buffer: 0,
                ..default()
            })
            .starts_with("receive_buffer")
        );
        assert!(
            refused(TcpConfig {
                rto_min: Duration::ZERO,
                ..default()
            })
            .starts_with("rto_min")
        );
        assert!(
            refused(TcpConfig {
                rto_max: Duration::from_millis(1),
                ..default()
            })
            .starts_with("rto_min")
        );
    }
}
