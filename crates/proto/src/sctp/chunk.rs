//! Chunks (RFC 9260 §3.2, §3.3).
//!
//! ```text
//!    1 byte   1 byte    2 bytes    length − 4 bytes    up to 3 bytes
//!   ┌───────┬────────┬──────────┬───────────────────┬──────────────┐
//!   │ type  │ flags  │ length   │ value             │ padding      │
//!   └───────┴────────┴──────────┴───────────────────┴──────────────┘
//! ```

use bytes::Bytes;

use super::cause::ErrorCause;
use super::data::UserData;
use super::parameter::InitParameter;
use super::tlv::{FieldReader, MalformedSctp, UnknownReaction, close, open, put_tlv};
use super::tsn::{Ssn, Tsn};

/// A fragment of a message, or a whole message (RFC 9260 §3.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataChunk {
    /// Its number.
    pub tsn: Tsn,
    /// The message's stream.
    pub stream: u16,
    /// The message's place in the stream. Meaningless if `is_unordered`.
    pub ssn: Ssn,
    /// The application's protocol identifier, as the application gave it.
    pub protocol: u32,
    /// The receiver should acknowledge without delay (I).
    pub is_immediate: bool,
    /// The message has no place in its stream (U).
    pub is_unordered: bool,
    /// The message begins here (B).
    pub begins: bool,
    /// The message ends here (E).
    pub ends: bool,
    /// The data.
    pub data: UserData,
}

/// The fields of an INIT or INIT ACK (RFC 9260 §3.3.2, §3.3.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitChunk {
    /// The tag that packets to the sender of this chunk must carry. A valid tag is not 0.
    pub tag: u32,
    /// Free receive buffer, bytes.
    pub window: u32,
    /// Number of streams that the sender wants to use.
    pub outbound_streams: u16,
    /// Number of streams that the sender allows.
    pub inbound_streams: u16,
    /// The sender's first TSN.
    pub first_tsn: Tsn,
    /// Parameters, in their order.
    pub parameters: Vec<InitParameter>,
}

/// An acknowledgement (RFC 9260 §3.3.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SackChunk {
    /// Everything up to this TSN has arrived.
    pub cumulative: Tsn,
    /// Free receive buffer, bytes.
    pub window: u32,
    /// First and last TSN of each run that arrived behind a gap, counted from the cumulative TSN.
    pub gaps: Vec<(u16, u16)>,
    /// TSNs that arrived again since the last SACK.
    pub duplicates: Vec<Tsn>,
}

/// A chunk. The flag T (`is_reflected`) of ABORT and SHUTDOWN COMPLETE says that the packet answers another packet, and repeats the tag of
/// that other packet (RFC 9260 §8.5.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SctpChunk {
    /// User data (0).
    Data(DataChunk),
    /// Asks for an association (1).
    Init(Box<InitChunk>),
    /// Answers an INIT (2).
    InitAck(Box<InitChunk>),
    /// Acknowledges data (3).
    Sack(SackChunk),
    /// Asks whether a path works; the answer returns these bytes unchanged (4).
    Heartbeat(Bytes),
    /// Answers a HEARTBEAT (5).
    HeartbeatAck(Bytes),
    /// Ends the association at once (6).
    Abort {
        /// T.
        is_reflected: bool,
        /// Reasons.
        causes: Vec<ErrorCause>,
    },
    /// No more data will follow; acknowledges up to this TSN (7).
    Shutdown(Tsn),
    /// Answers a SHUTDOWN when all data is acknowledged (8).
    ShutdownAck,
    /// Reports errors that do not end the association (9).
    Error(Vec<ErrorCause>),
    /// Returns the state cookie (10).
    CookieEcho(Bytes),
    /// Answers a COOKIE ECHO (11).
    CookieAck,
    /// Answers a SHUTDOWN ACK (14).
    ShutdownComplete {
        /// T.
        is_reflected: bool,
    },
    /// A chunk of another type.
    Other {
        /// Its type.
        kind: u8,
        /// Its flags.
        flags: u8,
        /// Its value.
        value: Bytes,
    },
}

/// Bytes of a DATA chunk before its data.
pub const DATA_HEADER: usize = 16;
/// Bytes of a SACK before its gaps and duplicates.
pub const SACK_HEADER: usize = 16;
/// Type of the chunk that only fills a packet (RFC 4820).
pub const PAD: u8 = 0x84;
/// Type of the parameter in a HEARTBEAT.
const HEARTBEAT_INFO: u16 = 1;

const IMMEDIATE: u8 = 8;
const UNORDERED: u8 = 4;
const BEGINS: u8 = 2;
const ENDS: u8 = 1;
const REFLECTED: u8 = 1;

impl SctpChunk {
    /// Reads the chunk of this type and these flags from its value.
    pub(super) fn parse(kind: u8, flags: u8, value: Bytes) -> Result<Self, MalformedSctp> {
        let mut fields = FieldReader::new(value, name(kind));
        let chunk = match kind {
            0 => Self::Data(data(flags, &mut fields)?),
            1 => Self::Init(Box::new(init(&mut fields)?)),
            2 => Self::InitAck(Box::new(init(&mut fields)?)),
            3 => Self::Sack(sack(&mut fields)?),
            4 => Self::Heartbeat(heartbeat_info(&mut fields)?),
            5 => Self::HeartbeatAck(heartbeat_info(&mut fields)?),
            6 => Self::Abort {
                is_reflected: flags & REFLECTED != 0,
                causes: ErrorCause::parse_all(&mut fields)?,
            },
            7 => Self::Shutdown(Tsn(fields.u32()?)),
            8 => Self::ShutdownAck,
            9 => Self::Error(ErrorCause::parse_all(&mut fields)?),
            10 => Self::CookieEcho(fields.rest()),
            11 => Self::CookieAck,
            14 => Self::ShutdownComplete {
                is_reflected: flags & REFLECTED != 0,
            },
            _ => Self::Other {
                kind,
                flags,
                value: fields.rest(),
            },
        };
        fields.end()?;
        Ok(chunk)
    }

    /// Copies the chunk's data out of its packet of `packet` bytes if the data is less than half of the packet. The data may stay in the
    /// receive buffer for long, and would keep the whole packet in memory.
    pub(super) fn detached(mut self, packet: usize) -> Self {
        if let Self::Data(chunk) = &mut self
            && let UserData::Bytes(bytes) = &mut chunk.data
            && bytes.len() < packet / 2
        {
            *bytes = Bytes::copy_from_slice(bytes);
        }
        self
    }

    /// The chunk's type.
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Data(_) => 0,
            Self::Init(_) => 1,
            Self::InitAck(_) => 2,
            Self::Sack(_) => 3,
            Self::Heartbeat(_) => 4,
            Self::HeartbeatAck(_) => 5,
            Self::Abort { .. } => 6,
            Self::Shutdown(_) => 7,
            Self::ShutdownAck => 8,
            Self::Error(_) => 9,
            Self::CookieEcho(_) => 10,
            Self::CookieAck => 11,
            Self::ShutdownComplete { .. } => 14,
            Self::Other { kind, .. } => *kind,
        }
    }

    const fn flags(&self) -> u8 {
        match self {
            Self::Data(data) => {
                let bits = [
                    (data.is_immediate, IMMEDIATE),
                    (data.is_unordered, UNORDERED),
                    (data.begins, BEGINS),
                    (data.ends, ENDS),
                ];
                let mut flags = 0;
                let mut at = 0;
                while at < bits.len() {
                    flags |= if bits[at].0 { bits[at].1 } else { 0 };
                    at += 1;
                }
                flags
            }
            Self::Abort {
                is_reflected: true, ..
            }
            | Self::ShutdownComplete { is_reflected: true } => REFLECTED,
            Self::Other { flags, .. } => *flags,
            _ => 0,
        }
    }

    /// Whether it must be the only chunk of its packet (RFC 9260 §6.10).
    pub const fn is_alone(&self) -> bool {
        matches!(
            self,
            Self::Init(_) | Self::InitAck(_) | Self::ShutdownComplete { .. }
        )
    }

    /// Reaction to this chunk if its type is unknown (RFC 9260 §3.2).
    pub const fn unknown(&self) -> Option<UnknownReaction> {
        match self {
            Self::Other { kind, .. } => Some(UnknownReaction::of(*kind >> 6)),
            _ => None,
        }
    }

    /// Length of the encoded chunk in bytes, without padding. The length of DATA and SACK is computed without writing them, because they
    /// are frequent.
    pub fn wire_bytes(&self) -> usize {
        match self {
            Self::Data(data) => DATA_HEADER + data.data.len(),
            Self::Sack(sack) => SACK_HEADER + 4 * (sack.gaps.len() + sack.duplicates.len()),
            _ => {
                let mut out = Vec::new();
                self.emit(&mut out);
                out.len()
            }
        }
    }

    /// Pads `out`, and appends the chunk.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let start = open(out, u16::from_be_bytes([self.kind(), self.flags()]));
        match self {
            Self::Data(data) => data.emit(out),
            Self::Init(init) | Self::InitAck(init) => init.emit(out),
            Self::Sack(sack) => sack.emit(out),
            Self::Heartbeat(info) | Self::HeartbeatAck(info) => put_tlv(out, HEARTBEAT_INFO, info),
            Self::Abort { causes, .. } | Self::Error(causes) => {
                for cause in causes {
                    cause.emit(out);
                }
            }
            Self::Shutdown(tsn) => out.extend_from_slice(&tsn.0.to_be_bytes()),
            Self::CookieEcho(cookie) => out.extend_from_slice(cookie),
            Self::ShutdownAck | Self::CookieAck | Self::ShutdownComplete { .. } => {}
            Self::Other { value, .. } => out.extend_from_slice(value),
        }
        close(out, start);
    }

    /// The whole chunk, as an error reports it.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        self.emit(&mut out);
        out.into()
    }
}

/// The chunk's name in errors.
const fn name(kind: u8) -> &'static str {
    match kind {
        0 => "DATA",
        1 => "INIT",
        2 => "INIT ACK",
        3 => "SACK",
        4 => "HEARTBEAT",
        5 => "HEARTBEAT ACK",
        6 => "ABORT",
        7 => "SHUTDOWN",
        8 => "SHUTDOWN ACK",
        9 => "ERROR",
        10 => "COOKIE ECHO",
        11 => "COOKIE ACK",
        14 => "SHUTDOWN COMPLETE",
        _ => "an unknown chunk",
    }
}

fn data(flags: u8, fields: &mut FieldReader) -> Result<DataChunk, MalformedSctp> {
    Ok(DataChunk {
        tsn: Tsn(fields.u32()?),
        stream: fields.u16()?,
        ssn: Ssn(fields.u16()?),
        protocol: fields.u32()?,
        is_immediate: flags & IMMEDIATE != 0,
        is_unordered: flags & UNORDERED != 0,
        begins: flags & BEGINS != 0,
        ends: flags & ENDS != 0,
        data: UserData::Bytes(fields.rest()),
    })
}

fn init(fields: &mut FieldReader) -> Result<InitChunk, MalformedSctp> {
    Ok(InitChunk {
        tag: fields.u32()?,
        window: fields.u32()?,
        outbound_streams: fields.u16()?,
        inbound_streams: fields.u16()?,
        first_tsn: Tsn(fields.u32()?),
        parameters: InitParameter::parse_all(fields)?,
    })
}

fn sack(fields: &mut FieldReader) -> Result<SackChunk, MalformedSctp> {
    let (cumulative, window) = (Tsn(fields.u32()?), fields.u32()?);
    let (gaps, duplicates) = (fields.u16()?, fields.u16()?);
    let gaps = (0..gaps).map(|_| Ok((fields.u16()?, fields.u16()?)));
    let gaps = gaps.collect::<Result<_, MalformedSctp>>()?;
    let duplicates = (0..duplicates).map(|_| Ok(Tsn(fields.u32()?)));
    let duplicates = duplicates.collect::<Result<_, MalformedSctp>>()?;
    Ok(SackChunk {
        cumulative,
        window,
        gaps,
        duplicates,
    })
}

fn heartbeat_info(fields: &mut FieldReader) -> Result<Bytes, MalformedSctp> {
    match fields.tlv()? {
        Some((HEARTBEAT_INFO, info)) => Ok(info),
        _ => Err(MalformedSctp::Length("a heartbeat's information")),
    }
}

impl DataChunk {
    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.tsn.0.to_be_bytes());
        out.extend_from_slice(&self.stream.to_be_bytes());
        out.extend_from_slice(&self.ssn.0.to_be_bytes());
        out.extend_from_slice(&self.protocol.to_be_bytes());
        self.data.emit(out);
    }
}

impl InitChunk {
    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.tag.to_be_bytes());
        out.extend_from_slice(&self.window.to_be_bytes());
        out.extend_from_slice(&self.outbound_streams.to_be_bytes());
        out.extend_from_slice(&self.inbound_streams.to_be_bytes());
        out.extend_from_slice(&self.first_tsn.0.to_be_bytes());
        for parameter in &self.parameters {
            parameter.emit(out);
        }
    }
}

impl SackChunk {
    fn emit(&self, out: &mut Vec<u8>) {
        // A chunk of less than 64 KiB has fewer than 2¹⁶ gaps, and fewer than 2¹⁶ duplicates.
        let counts = [self.gaps.len() as u16, self.duplicates.len() as u16];
        out.extend_from_slice(&self.cumulative.0.to_be_bytes());
        out.extend_from_slice(&self.window.to_be_bytes());
        out.extend(counts.iter().flat_map(|count| count.to_be_bytes()));
        for (first, last) in &self.gaps {
            out.extend_from_slice(&first.to_be_bytes());
            out.extend_from_slice(&last.to_be_bytes());
        }
        out.extend(self.duplicates.iter().flat_map(|tsn| tsn.0.to_be_bytes()));
    }
}
