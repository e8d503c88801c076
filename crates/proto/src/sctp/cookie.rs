//! The state cookie: everything that the receiver of an INIT knows of the association, signed. The receiver sends the cookie in its INIT
//! ACK, and keeps no state until the peer sends the cookie back (RFC 9260 §5.1.3, §5.1.5).
//!
//! ```text
//!   ┌─────────┬─────────┬────────┬────────┬──────────────┬───────────┬────────────┬───────────┬────────────────────────────────┐
//!   │ HMAC 32 │ epoch 8 │ made 8 │ life 4 │ tag 4, TSN 4 │ ties 4, 4 │ ports 2, 2 │ source 16 │ the peer's INIT, without its   │
//!   │         │         │        │        │              │           │            │           │ first 4 bytes (chunk header)   │
//!   └─────────┴─────────┴────────┴────────┴──────────────┴───────────┴────────────┴───────────┴────────────────────────────────┘
//! ```
//!
//! The numbers are sizes in bytes. The fields from `made` to `ports` are those of [`CookieContent`]. `source` is the address from which the
//! INIT came. An IPv4 address is written as an IPv4-mapped IPv6 address.
//!
//! The key of the HMAC changes with the cookie's epoch. Here an epoch is the number of cookie lives since the clock's origin. A cookie is
//! valid for one life. A peer may ask for a longer time, and gets at most one life more. So cookies of the present epoch and of the two
//! epochs before it can be valid.

use std::net::IpAddr;
use std::time::Duration;

use bytes::{Buf, Bytes};

use super::chunk::SctpChunk;
use super::secret::SctpSecret;
use super::terms::InitTerms;
use super::tsn::Tsn;
use crate::Instant;

/// The content of a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CookieContent {
    pub made_at: Instant,
    pub life: Duration,
    /// The tag and the first TSN that this end offered.
    pub local_tag: u32,
    pub local_tsn: Tsn,
    /// The tags of the association that existed when the INIT came: this end's and the peer's. Both are 0 if there was none.
    pub tie_tags: (u32, u32),
    pub local_port: u16,
    pub peer_port: u16,
    pub peer: InitTerms,
}

/// Verdict on a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CookieVerdict {
    /// This endpoint made the cookie, and the cookie's life has not ended.
    Valid(CookieContent),
    /// This endpoint made the cookie, but the cookie came back too late. The duration says by how much.
    Stale(CookieContent, Duration),
    /// This endpoint did not make the cookie, or made it more than [`STALE_EPOCHS`] epochs ago.
    Forged,
}

const TAG: usize = 32;

/// Time that is added to a cookie's life for a peer that asks for `preservative` milliseconds more. At most one more life.
fn extension(preservative: u32, life: Duration) -> Duration {
    Duration::from_millis(preservative.into()).min(life)
}

impl CookieContent {
    /// The life of a cookie for a peer that asks for `preservative` milliseconds more.
    pub fn life(preservative: u32, life: Duration) -> Duration {
        life + extension(preservative, life)
    }

    /// The source address of the INIT, to which the INIT ACK went. A cookie that comes back proves that the peer has this address (RFC 9260
    /// §5.4).
    pub fn source(&self) -> Option<IpAddr> {
        self.peer.addresses.first().copied()
    }

    /// The cookie's bytes. `life` is the configured life.
    pub fn sign(&self, secret: &SctpSecret, life: Duration) -> Bytes {
        let epoch = epoch(self.made_at, life);
        let mut out = vec![0; TAG];
        out.extend_from_slice(&epoch.to_be_bytes());
        out.extend_from_slice(&self.made_at.as_nanos().to_be_bytes());
        // A life is at most twice the configured life: far below 2³² milliseconds.
        out.extend_from_slice(&(self.life.as_millis() as u32).to_be_bytes());
        for word in [self.local_tag, self.local_tsn.0, self.tie_tags.0, self.tie_tags.1] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(&self.local_port.to_be_bytes());
        out.extend_from_slice(&self.peer_port.to_be_bytes());
        let source = match self.peer.addresses.first() {
            Some(IpAddr::V4(address)) => address.to_ipv6_mapped().octets(),
            Some(IpAddr::V6(address)) => address.octets(),
            None => [0; 16],
        };
        out.extend_from_slice(&source);
        out.extend_from_slice(&SctpChunk::Init(Box::new(self.peer.to_chunk())).to_bytes()[4..]);
        let tag = secret.sign(epoch, &out[TAG..]);
        out[..TAG].copy_from_slice(&tag);
        out.into()
    }

    /// Checks a cookie that came back.
    pub fn verify(cookie: &Bytes, secret: &SctpSecret, life: Duration, now: Instant) -> CookieVerdict {
        let Some((tag, content)) = cookie.split_at_checked(TAG) else {
            return CookieVerdict::Forged;
        };
        let Some(made_in) = content.first_chunk().copied().map(u64::from_be_bytes) else {
            return CookieVerdict::Forged;
        };
        // Cookies of older epochs are refused, so a stolen old cookie proves nothing.
        let age = epoch(now, life).checked_sub(made_in);
        if age.is_none_or(|age| age > STALE_EPOCHS) || !secret.has_signed(made_in, content, tag) {
            return CookieVerdict::Forged;
        }
        let Some(content) = Self::parse(cookie.slice(TAG + 8..)) else {
            return CookieVerdict::Forged;
        };
        let late = now.since(content.made_at).saturating_sub(content.life);
        if late.is_zero() {
            CookieVerdict::Valid(content)
        } else {
            CookieVerdict::Stale(content, late)
        }
    }

    fn parse(mut bytes: Bytes) -> Option<Self> {
        let made_at = Instant::from_nanos(bytes.try_get_u64().ok()?);
        let life = Duration::from_millis(bytes.try_get_u32().ok()?.into());
        let local_tag = bytes.try_get_u32().ok()?;
        let local_tsn = Tsn(bytes.try_get_u32().ok()?);
        let tie_tags = (bytes.try_get_u32().ok()?, bytes.try_get_u32().ok()?);
        let (local_port, peer_port) = (bytes.try_get_u16().ok()?, bytes.try_get_u16().ok()?);
        let source = IpAddr::from(bytes.try_get_u128().ok()?.to_be_bytes()).to_canonical();
        let SctpChunk::Init(init) = SctpChunk::parse(1, 0, bytes).ok()? else {
            return None;
        };
        Some(Self {
            made_at,
            life,
            local_tag,
            local_tsn,
            tie_tags,
            local_port,
            peer_port,
            peer: InitTerms::read(&init, source).ok()?,
        })
    }
}

/// Number of epochs after which a cookie counts as forged. A cookie that comes back too late, but within this number of epochs, is stale.
const STALE_EPOCHS: u64 = 4;

/// Number of lives from the clock's origin to `at`.
fn epoch(at: Instant, life: Duration) -> u64 {
    let life = u64::try_from(life.as_nanos()).unwrap_or(u64::MAX).max(1);
    at.as_nanos() / life
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Duration = Duration::from_secs(60);

    fn content() -> CookieContent {
        CookieContent {
            made_at: Instant::from_nanos(5_000_000_000_000),
            life: LIFE,
            local_tag: 1,
            local_tsn: Tsn(2),
            tie_tags: (3, 4),
            local_port: 5,
            peer_port: 6,
            peer: InitTerms {
                tag: 7,
                window: 8000,
                outbound_streams: 9,
                inbound_streams: 10,
                first_tsn: Tsn(11),
                addresses: vec![IpAddr::from([10, 0, 0, 1]), IpAddr::from([0xfe; 16])],
                cookie: None,
                unrecognized: Vec::new(),
                preservative: 0,
            },
        }
    }

    #[test]
    fn it_returns_as_it_went_and_grows_stale() {
        let (secret, content) = (SctpSecret::new([9; 32]), content());
        let cookie = content.sign(&secret, LIFE);
        let verify = |after| CookieContent::verify(&cookie, &secret, LIFE, content.made_at + after);
        assert_eq!(verify(Duration::ZERO), CookieVerdict::Valid(content.clone()));
        assert_eq!(verify(LIFE), CookieVerdict::Valid(content.clone()));
        let late = Duration::from_millis(5);
        assert_eq!(verify(LIFE + late), CookieVerdict::Stale(content.clone(), late));
        assert_eq!(verify(LIFE * 9), CookieVerdict::Forged, "the cookie is too old");
    }

    #[test]
    fn no_bit_of_it_can_be_changed() {
        let (secret, content) = (SctpSecret::new([9; 32]), content());
        let cookie = content.sign(&secret, LIFE);
        for bit in 0..cookie.len() * 8 {
            let mut forged = cookie.to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            let verdict = CookieContent::verify(&forged.into(), &secret, LIFE, content.made_at);
            assert_eq!(verdict, CookieVerdict::Forged, "bit {bit}");
        }
        for length in 0..cookie.len() {
            let verdict = CookieContent::verify(&cookie.slice(..length), &secret, LIFE, content.made_at);
            assert_eq!(verdict, CookieVerdict::Forged, "{length} bytes");
        }
    }
}
