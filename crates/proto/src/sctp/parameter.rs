//! Parameters of INIT and INIT ACK (RFC 9260 §3.3.2.1, §3.3.3.1).

use std::net::IpAddr;

use bytes::Bytes;

use super::tlv::{FieldReader, MalformedSctp, UnknownReaction, put_tlv};

/// A parameter of an INIT or INIT ACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitParameter {
    /// An address of the sender (types 5 and 6).
    Address(IpAddr),
    /// The state cookie, to be echoed as it is (type 7, INIT ACK only).
    StateCookie(Bytes),
    /// A parameter of the INIT that the sender of the INIT ACK did not recognise, whole (type 8, INIT ACK only).
    Unrecognized(Bytes),
    /// The time by which the sender of the INIT wants the cookie to live longer, milliseconds (type 9, INIT only).
    CookiePreservative(u32),
    /// A host name. A receiver must refuse it (type 11).
    HostName(Bytes),
    /// The types of address that the sender can use (type 12).
    SupportedAddresses(Vec<u16>),
    /// Any other parameter.
    Other {
        /// Its type.
        kind: u16,
        /// Its value.
        value: Bytes,
    },
}

/// Type of an IPv4 address.
const IPV4_ADDRESS: u16 = 5;
/// Type of an IPv6 address.
const IPV6_ADDRESS: u16 = 6;
/// Type of the state cookie.
pub const STATE_COOKIE: u16 = 7;
const UNRECOGNIZED: u16 = 8;
const COOKIE_PRESERVATIVE: u16 = 9;
const HOST_NAME: u16 = 11;
const SUPPORTED_ADDRESSES: u16 = 12;

impl InitParameter {
    /// Reads all parameters up to the end of the chunk.
    pub(super) fn parse_all(fields: &mut FieldReader) -> Result<Vec<Self>, MalformedSctp> {
        let mut all = Vec::new();
        while let Some((kind, value)) = fields.tlv()? {
            all.push(Self::parse(kind, value)?);
        }
        Ok(all)
    }

    fn parse(kind: u16, value: Bytes) -> Result<Self, MalformedSctp> {
        let mut fields = FieldReader::new(value.clone(), "a parameter");
        let parameter = match kind {
            IPV4_ADDRESS => Self::Address(IpAddr::from(fields.u32()?.to_be_bytes())),
            IPV6_ADDRESS => {
                let octets = <[u8; 16]>::try_from(&*fields.rest());
                Self::Address(octets.map_err(|_| MalformedSctp::Length("an address"))?.into())
            }
            COOKIE_PRESERVATIVE => Self::CookiePreservative(fields.u32()?),
            SUPPORTED_ADDRESSES => {
                let types = fields.rest();
                if !types.len().is_multiple_of(2) {
                    return Err(MalformedSctp::Length("a list of address types"));
                }
                let types = types
                    .chunks_exact(2)
                    .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
                Self::SupportedAddresses(types.collect())
            }
            STATE_COOKIE => Self::StateCookie(fields.rest()),
            UNRECOGNIZED => Self::Unrecognized(fields.rest()),
            HOST_NAME => Self::HostName(fields.rest()),
            _ => {
                fields.rest();
                Self::Other { kind, value }
            }
        };
        fields.end()?;
        Ok(parameter)
    }

    /// Appends the parameter to `out`.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Address(IpAddr::V4(address)) => put_tlv(out, IPV4_ADDRESS, &address.octets()),
            Self::Address(IpAddr::V6(address)) => put_tlv(out, IPV6_ADDRESS, &address.octets()),
            Self::StateCookie(cookie) => put_tlv(out, STATE_COOKIE, cookie),
            Self::Unrecognized(parameter) => put_tlv(out, UNRECOGNIZED, parameter),
            Self::CookiePreservative(millis) => put_tlv(out, COOKIE_PRESERVATIVE, &millis.to_be_bytes()),
            Self::HostName(name) => put_tlv(out, HOST_NAME, name),
            Self::SupportedAddresses(types) => {
                let bytes: Vec<u8> = types.iter().flat_map(|kind| kind.to_be_bytes()).collect();
                put_tlv(out, SUPPORTED_ADDRESSES, &bytes);
            }
            Self::Other { kind, value } => put_tlv(out, *kind, value),
        }
    }

    /// The whole parameter, as an INIT ACK or an error reports it.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        self.emit(&mut out);
        out.into()
    }

    /// Reaction to this parameter if its type is unknown.
    pub const fn unknown(&self) -> Option<UnknownReaction> {
        match self {
            Self::Other { kind, .. } => Some(UnknownReaction::of((*kind >> 14) as u8)),
            _ => None,
        }
    }
}
