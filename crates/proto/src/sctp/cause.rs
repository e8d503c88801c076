//! Error causes of ABORT and ERROR (RFC 9260 §3.3.10).

use bytes::Bytes;

use super::tlv::{FieldReader, MalformedSctp, put_tlv};
use super::tsn::Tsn;

/// An error cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorCause {
    /// Data of a stream that does not exist (1).
    InvalidStream(u16),
    /// Parameters of these types are missing (2).
    MissingParameter(Vec<u16>),
    /// The cookie came this many microseconds after its end (3).
    StaleCookie(u32),
    /// The sender has no room for another association (4).
    OutOfResource,
    /// An address cannot be used. The value is its whole parameter (5).
    UnresolvableAddress(Bytes),
    /// A chunk of an unknown type, whole (6).
    UnrecognizedChunk(Bytes),
    /// A parameter of INIT or INIT ACK has an invalid value (7).
    InvalidMandatoryParameter,
    /// Parameters of unknown types, whole (8).
    UnrecognizedParameters(Bytes),
    /// The DATA chunk of this TSN has no data (9).
    NoUserData(Tsn),
    /// A COOKIE ECHO came while the association was being shut down (10).
    CookieWhileShuttingDown,
    /// A restart tried to add these addresses (11).
    RestartWithNewAddresses(Bytes),
    /// The user aborted the association, for this reason (12).
    UserAbort(Bytes),
    /// The peer broke the protocol (13).
    ProtocolViolation(Bytes),
    /// Any other cause.
    Other {
        /// Its code.
        code: u16,
        /// Its value.
        value: Bytes,
    },
}

impl ErrorCause {
    /// Reads all causes up to the end of the chunk.
    pub(super) fn parse_all(fields: &mut FieldReader) -> Result<Vec<Self>, MalformedSctp> {
        let mut all = Vec::new();
        while let Some((code, value)) = fields.tlv()? {
            all.push(Self::parse(code, value)?);
        }
        Ok(all)
    }

    fn parse(code: u16, value: Bytes) -> Result<Self, MalformedSctp> {
        let mut fields = FieldReader::new(value.clone(), "an error cause");
        let cause = match code {
            1 => {
                let stream = fields.u16()?;
                fields.u16()?; // reserved
                Self::InvalidStream(stream)
            }
            2 => {
                let count = fields.u32()?;
                let types = fields.rest();
                if !types.len().is_multiple_of(2) || u32::try_from(types.len() / 2) != Ok(count) {
                    return Err(MalformedSctp::Length("a list of missing parameters"));
                }
                let types = types
                    .chunks_exact(2)
                    .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
                Self::MissingParameter(types.collect())
            }
            3 => Self::StaleCookie(fields.u32()?),
            4 => Self::OutOfResource,
            5 => Self::UnresolvableAddress(fields.rest()),
            6 => Self::UnrecognizedChunk(fields.rest()),
            7 => Self::InvalidMandatoryParameter,
            8 => Self::UnrecognizedParameters(fields.rest()),
            9 => Self::NoUserData(Tsn(fields.u32()?)),
            10 => Self::CookieWhileShuttingDown,
            11 => Self::RestartWithNewAddresses(fields.rest()),
            12 => Self::UserAbort(fields.rest()),
            13 => Self::ProtocolViolation(fields.rest()),
            _ => {
                fields.rest();
                Self::Other { code, value }
            }
        };
        fields.end()?;
        Ok(cause)
    }

    /// The cause's code.
    pub const fn code(&self) -> u16 {
        match self {
            Self::InvalidStream(_) => 1,
            Self::MissingParameter(_) => 2,
            Self::StaleCookie(_) => 3,
            Self::OutOfResource => 4,
            Self::UnresolvableAddress(_) => 5,
            Self::UnrecognizedChunk(_) => 6,
            Self::InvalidMandatoryParameter => 7,
            Self::UnrecognizedParameters(_) => 8,
            Self::NoUserData(_) => 9,
            Self::CookieWhileShuttingDown => 10,
            Self::RestartWithNewAddresses(_) => 11,
            Self::UserAbort(_) => 12,
            Self::ProtocolViolation(_) => 13,
            Self::Other { code, .. } => *code,
        }
    }

    /// Appends the cause to `out`.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let code = self.code();
        match self {
            Self::InvalidStream(stream) => {
                let [high, low] = stream.to_be_bytes();
                put_tlv(out, code, &[high, low, 0, 0]);
            }
            Self::MissingParameter(types) => {
                // A chunk has room for fewer than 2¹⁵ types.
                let mut value = (types.len() as u32).to_be_bytes().to_vec();
                value.extend(types.iter().flat_map(|kind| kind.to_be_bytes()));
                put_tlv(out, code, &value);
            }
            Self::StaleCookie(number) | Self::NoUserData(Tsn(number)) => {
                put_tlv(out, code, &number.to_be_bytes());
            }
            Self::OutOfResource | Self::InvalidMandatoryParameter | Self::CookieWhileShuttingDown => {
                put_tlv(out, code, &[]);
            }
            Self::UnresolvableAddress(value)
            | Self::UnrecognizedChunk(value)
            | Self::UnrecognizedParameters(value)
            | Self::RestartWithNewAddresses(value)
            | Self::UserAbort(value)
            | Self::ProtocolViolation(value)
            | Self::Other { value, .. } => put_tlv(out, code, value),
        }
    }
}
