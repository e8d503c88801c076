//! The format of a record: for each event, one byte for its kind, then numbers of 7 bits per byte (LEB128). A clock is the difference to
//! the same clock's last value, so a usual event has 3 to 6 bytes.

use std::net::{IpAddr, SocketAddr};

use super::event::{CLOCKS, OrderEvent, Outcome, RANDOM_MAX, Source};

/// Largest number of sockets in one readiness event.
const READY_MAX: u64 = 1 << 16;
/// Errors of system calls are at most this (`MAX_ERRNO` in Linux).
const ERROR_MAX: u64 = 4095;

const ACCEPTED_IPV4: u8 = 1;
const ACCEPTED_IPV6: u8 = 2;
const ACCEPT_FAILED: u8 = 3;
const READY: u8 = 4;
const READY_FAILED: u8 = 5;
const READ: u8 = 6;
const READ_FAILED: u8 = 7;
const WRITTEN: u8 = 8;
const WRITE_FAILED: u8 = 9;
const RANDOM: u8 = 10;
const PID: u8 = 11;
const ASKED: u8 = 12;
const ASK_FAILED: u8 = 13;
const FORKED: u8 = 14;
/// The kinds from here on are the clocks.
const CLOCK: u8 = 16;

/// The bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of the record: {what}")]
pub struct BadRecord {
    /// Position of the event that cannot be read.
    pub at: u64,
    /// Why this event cannot be read.
    pub what: &'static str,
}

/// Writes events as bytes.
#[derive(Debug, Default)]
pub struct OrderEncoder {
    clocks: [u64; CLOCKS],
}

impl OrderEncoder {
    /// Appends an event to `record`.
    pub fn encode(&mut self, event: &OrderEvent, record: &mut Vec<u8>) {
        match event {
            OrderEvent::Accepted { listener, outcome } => match outcome {
                Ok(client) => {
                    let is_ipv4 = client.is_ipv4();
                    record.push(if is_ipv4 { ACCEPTED_IPV4 } else { ACCEPTED_IPV6 });
                    number(u64::from(*listener), record);
                    match client.ip() {
                        IpAddr::V4(ip) => record.extend(ip.octets()),
                        IpAddr::V6(ip) => record.extend(ip.octets()),
                    }
                    record.extend(client.port().to_be_bytes());
                }
                Err(error) => failed(ACCEPT_FAILED, *listener, *error, record),
            },
            OrderEvent::Ready(Ok(sources)) => {
                record.push(READY);
                number(sources.len() as u64, record);
                for (source, events) in sources {
                    let source = match source {
                        Source::Listener(listener) => u64::from(*listener) << 1,
                        Source::Connection(connection) => u64::from(*connection) << 1 | 1,
                    };
                    number(source, record);
                    number(u64::from(*events), record);
                }
            }
            OrderEvent::Ready(Err(error)) => failed(READY_FAILED, 0, *error, record),
            OrderEvent::Read { connection, outcome } => {
                moved([READ, READ_FAILED], *connection, *outcome, record);
            }
            OrderEvent::Written { connection, outcome } => {
                moved([WRITTEN, WRITE_FAILED], *connection, *outcome, record);
            }
            OrderEvent::Asked { connection, outcome } => {
                moved([ASKED, ASK_FAILED], *connection, *outcome, record);
            }
            OrderEvent::Clock { clock, nanos } => {
                let last = std::mem::replace(&mut self.clocks[usize::from(*clock)], *nanos);
                let change = nanos.wrapping_sub(last).cast_signed();
                record.push(CLOCK + clock);
                number((change << 1 ^ change >> 63).cast_unsigned(), record);
            }
            OrderEvent::Random(bytes) => {
                record.push(RANDOM);
                number(bytes.len() as u64, record);
                record.extend(bytes);
            }
            OrderEvent::Pid(pid) => {
                record.push(PID);
                number(u64::from(*pid), record);
            }
            OrderEvent::Forked { stream } => {
                record.push(FORKED);
                number(u64::from(*stream), record);
            }
        }
    }
}

/// Appends a number (LEB128).
pub(super) fn number(mut value: u64, record: &mut Vec<u8>) {
    while value >= 0x80 {
        record.push(value as u8 | 0x80);
        value >>= 7;
    }
    record.push(value as u8);
}

fn failed(kind: u8, socket: u32, error: i32, record: &mut Vec<u8>) {
    record.push(kind);
    number(u64::from(socket), record);
    number(u64::from(error.unsigned_abs()), record);
}

fn moved(kinds: [u8; 2], connection: u32, outcome: Outcome<u64>, record: &mut Vec<u8>) {
    match outcome {
        Ok(value) => {
            record.push(kinds[0]);
            number(u64::from(connection), record);
            number(value, record);
        }
        Err(error) => failed(kinds[1], connection, error, record),
    }
}

/// Reads events from bytes.
#[derive(Debug, Default)]
pub struct OrderDecoder {
    clocks: [u64; CLOCKS],
    at: u64,
}

/// Why no event was read.
enum Stop {
    /// The event's last bytes are missing.
    Incomplete,
    Bad(&'static str),
}

impl OrderDecoder {
    /// Reads the event at the beginning of `bytes`, and removes it from there. `None`: the event has not arrived whole.
    pub fn decode(&mut self, bytes: &mut &[u8]) -> Result<Option<OrderEvent>, BadRecord> {
        let mut rest = *bytes;
        match self.event(&mut rest) {
            Ok(event) => {
                self.at += (bytes.len() - rest.len()) as u64;
                *bytes = rest;
                Ok(Some(event))
            }
            Err(Stop::Incomplete) => Ok(None),
            Err(Stop::Bad(what)) => Err(BadRecord { at: self.at, what }),
        }
    }

    fn event(&mut self, bytes: &mut &[u8]) -> Result<OrderEvent, Stop> {
        let [kind] = array(bytes)?;
        Ok(match kind {
            ACCEPTED_IPV4 => OrderEvent::Accepted {
                listener: small(bytes)?,
                outcome: Ok(SocketAddr::new(
                    IpAddr::from(array::<4>(bytes)?),
                    u16::from_be_bytes(array(bytes)?),
                )),
            },
            ACCEPTED_IPV6 => OrderEvent::Accepted {
                listener: small(bytes)?,
                outcome: Ok(SocketAddr::new(
                    IpAddr::from(array::<16>(bytes)?),
                    u16::from_be_bytes(array(bytes)?),
                )),
            },
            ACCEPT_FAILED => OrderEvent::Accepted {
                listener: small(bytes)?,
                outcome: Err(error(bytes)?),
            },
            READY => OrderEvent::Ready(Ok(sources(bytes)?)),
            READY_FAILED => {
                small(bytes)?;
                OrderEvent::Ready(Err(error(bytes)?))
            }
            READ | READ_FAILED => OrderEvent::Read {
                connection: small(bytes)?,
                outcome: size_or_error(kind == READ, bytes)?,
            },
            WRITTEN | WRITE_FAILED => OrderEvent::Written {
                connection: small(bytes)?,
                outcome: size_or_error(kind == WRITTEN, bytes)?,
            },
            ASKED | ASK_FAILED => OrderEvent::Asked {
                connection: small(bytes)?,
                outcome: size_or_error(kind == ASKED, bytes)?,
            },
            RANDOM => {
                let size = limited(bytes, RANDOM_MAX as u64)?;
                let (random, rest) = bytes.split_at_checked(size as usize).ok_or(Stop::Incomplete)?;
                *bytes = rest;
                OrderEvent::Random(random.to_vec())
            }
            PID => OrderEvent::Pid(small(bytes)?),
            FORKED => OrderEvent::Forked {
                stream: small(bytes)?,
            },
            _ => {
                let clock = kind
                    .checked_sub(CLOCK)
                    .filter(|clock| usize::from(*clock) < CLOCKS)
                    .ok_or(Stop::Bad("an unknown kind of event"))?;
                let change = value(bytes)?;
                let change = (change >> 1).cast_signed() ^ -(change & 1).cast_signed();
                let last = &mut self.clocks[usize::from(clock)];
                *last = last.wrapping_add_signed(change);
                OrderEvent::Clock { clock, nanos: *last }
            }
        })
    }
}

fn sources(bytes: &mut &[u8]) -> Result<Vec<(Source, u32)>, Stop> {
    let count = limited(bytes, READY_MAX)?;
    let mut sources = Vec::new();
    for _ in 0..count {
        let source = limited(bytes, u64::from(u32::MAX) << 1 | 1)?;
        let socket = (source >> 1) as u32;
        let source = if source & 1 == 0 {
            Source::Listener(socket)
        } else {
            Source::Connection(socket)
        };
        sources.push((source, small(bytes)?));
    }
    Ok(sources)
}

fn size_or_error(is_size: bool, bytes: &mut &[u8]) -> Result<Outcome<u64>, Stop> {
    Ok(if is_size {
        Ok(value(bytes)?)
    } else {
        Err(error(bytes)?)
    })
}

fn error(bytes: &mut &[u8]) -> Result<i32, Stop> {
    limited(bytes, ERROR_MAX).map(|error| error as i32)
}

fn small(bytes: &mut &[u8]) -> Result<u32, Stop> {
    limited(bytes, u64::from(u32::MAX)).map(|value| value as u32)
}

fn limited(bytes: &mut &[u8], limit: u64) -> Result<u64, Stop> {
    let value = value(bytes)?;
    if value > limit {
        return Err(Stop::Bad("a number beyond its limit"));
    }
    Ok(value)
}

fn value(bytes: &mut &[u8]) -> Result<u64, Stop> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let [byte] = array(bytes)?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            break;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Stop::Bad("a number of more than 64 bits"))
}

fn array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Stop> {
    let (array, rest) = bytes.split_first_chunk::<N>().ok_or(Stop::Incomplete)?;
    *bytes = rest;
    Ok(*array)
}
