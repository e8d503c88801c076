//! The terms of an INIT or INIT ACK, once they are found valid (RFC 9260 §3.3.2, §3.3.3, §5.1.2).

use std::net::IpAddr;

use bytes::Bytes;

use super::cause::ErrorCause;
use super::chunk::InitChunk;
use super::parameter::InitParameter;
use super::tsn::Tsn;

/// Maximum number of a peer's addresses that are used. Further addresses are ignored.
pub const PATHS_MAX: usize = 8;
/// Smallest window that an INIT may announce (RFC 9260 §3.3.2).
const WINDOW_MIN: u32 = 1500;
/// A parameter is reported only if it lies in the first 256 bytes of unrecognised parameters. Parameters that need no report count, too.
const REPORTED_MAX: usize = 256;

/// The sender's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InitTerms {
    pub tag: u32,
    pub window: u32,
    pub outbound_streams: u16,
    pub inbound_streams: u16,
    pub first_tsn: Tsn,
    /// The sender's addresses. The first one is the source of its packet.
    pub addresses: Vec<IpAddr>,
    pub cookie: Option<Bytes>,
    /// Unrecognised parameters that the sender wants to be told of.
    pub unrecognized: Vec<Bytes>,
    /// Time in milliseconds by which the sender wants the cookie to live longer.
    pub preservative: u32,
}

/// Why an INIT or INIT ACK is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InitRefusal {
    /// It is dropped without an answer.
    Silent,
    /// It is answered with an ABORT of this cause.
    Abort(ErrorCause),
}

/// Whether one host can have this address.
pub(super) fn is_host(address: IpAddr) -> bool {
    !address.is_multicast() && !address.is_unspecified() && address != IpAddr::from([255; 4])
}

impl InitTerms {
    /// Reads and checks the chunk of a packet that came from `from`.
    pub fn read(init: &InitChunk, from: IpAddr) -> Result<Self, InitRefusal> {
        if init.tag == 0 {
            return Err(InitRefusal::Silent);
        }
        if init.outbound_streams == 0 || init.inbound_streams == 0 || init.window < WINDOW_MIN {
            return Err(InitRefusal::Abort(ErrorCause::InvalidMandatoryParameter));
        }
        let mut terms = Self {
            tag: init.tag,
            window: init.window,
            outbound_streams: init.outbound_streams,
            inbound_streams: init.inbound_streams,
            first_tsn: init.first_tsn,
            addresses: vec![from.to_canonical()],
            cookie: None,
            unrecognized: Vec::new(),
            preservative: 0,
        };
        let mut reported = 0;
        for parameter in &init.parameters {
            match parameter {
                InitParameter::Address(address) => terms.add(*address),
                InitParameter::StateCookie(cookie) => terms.cookie = Some(cookie.clone()),
                InitParameter::CookiePreservative(millis) => terms.preservative = *millis,
                // The sender supports at least one of this end's address types: the type of the packet's source address.
                InitParameter::SupportedAddresses(_) | InitParameter::Unrecognized(_) => {}
                InitParameter::HostName(_) => {
                    return Err(InitRefusal::Abort(ErrorCause::UnresolvableAddress(
                        parameter.to_bytes(),
                    )));
                }
                InitParameter::Other { .. } => {
                    let whole = parameter.to_bytes();
                    let reaction = parameter.unknown();
                    reported += whole.len();
                    if reaction.is_some_and(|reaction| reaction.reports) && reported <= REPORTED_MAX {
                        terms.unrecognized.push(whole);
                    }
                    if reaction.is_some_and(|reaction| !reaction.continues) {
                        break;
                    }
                }
            }
        }
        Ok(terms)
    }

    fn add(&mut self, address: IpAddr) {
        // Without this conversion, one address could be listed twice: as IPv4, and as IPv4-mapped IPv6.
        let address = address.to_canonical();
        if is_host(address) && !self.addresses.contains(&address) && self.addresses.len() < PATHS_MAX {
            self.addresses.push(address);
        }
    }

    /// The terms as a chunk whose only parameters are the addresses. A cookie keeps this chunk.
    pub fn to_chunk(&self) -> InitChunk {
        InitChunk {
            tag: self.tag,
            window: self.window,
            outbound_streams: self.outbound_streams,
            inbound_streams: self.inbound_streams,
            first_tsn: self.first_tsn,
            parameters: self
                .addresses
                .iter()
                .copied()
                .map(InitParameter::Address)
                .collect(),
        }
    }
}
