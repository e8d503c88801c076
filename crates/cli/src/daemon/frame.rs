//! The frame around each message between the nodes. It says which versions the sender speaks, shows which node sent the message, and lets
//! the receiver tell whether the message is new. This module does not read the contents.
//!
//! ```text
//!  0        version of what follows the header       1 lowest, 2 highest version that the sender speaks
//!  3        kind of the contents                     4 flags: 1, a tag is there    5..8 zero
//!  8..16    the sender's incarnation                16..24 sequence number, counts from 1
//! 24..32    the sender's nonce                      32..40 the receiver's nonce, as the sender heard it last
//! 40..      contents, then the tag: 32 bytes
//! ```
//!
//! Numbers are big-endian. The header and the tag are the same in every version. The tag is HMAC-SHA256 (RFC 2104) over the
//! sender's name and everything before the tag. Because of the name, a node refuses its own datagrams if an attacker sends them back to it.
//! Without a key there is no tag, and anybody who can write to the network can forge datagrams.
//!
//! Versions: a node speaks its lowest version until it has heard the other node, then the highest version that both speak.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use hmac::{Hmac, KeyInit, Mac};
use proto::anti_replay::{AntiReplay, Freshness, ReplayVerdict};
use sha2::Sha256;

use crate::config::SecretKey;

/// The versions of the contents that this program speaks.
pub const VERSIONS: RangeInclusive<u8> = 1..=5;

const HEADER: usize = 40;
const TAG: usize = 32;
/// Bytes that a frame adds to its contents.
pub const OVERHEAD: usize = HEADER + TAG;
const HAS_TAG: u8 = 1;

/// Kind of the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A heartbeat. Only the newest counts.
    Heartbeat = 1,
    /// A question about connections that are older than the wire.
    Ask = 2,
    /// The answer to `Ask`.
    Told = 3,
    /// A question about all connections of a service.
    AskAll = 4,
    /// One page of the answer to `AskAll`.
    Page = 5,
    /// A packet of the channel ([`proto::channel`]). The channel carries the messages of all other kinds except heartbeats.
    Channel = 6,
    /// A part of a snapshot.
    Part = 7,
    /// The answer to `Part`.
    Receipt = 8,
    /// A question for the first input of a relayed connection.
    AskPrefix = 9,
    /// The answer to `AskPrefix`.
    Prefix = 10,
}

impl FrameKind {
    pub fn of(byte: u8) -> Option<Self> {
        [
            Self::Heartbeat,
            Self::Ask,
            Self::Told,
            Self::AskAll,
            Self::Page,
            Self::Channel,
            Self::Part,
            Self::Receipt,
            Self::AskPrefix,
            Self::Prefix,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }

    /// Whether the contents are in postcard's format instead of JSON, which would make a snapshot's bytes several times longer.
    pub fn is_binary(self) -> bool {
        matches!(self, Self::Part | Self::Receipt | Self::AskPrefix | Self::Prefix)
    }

    /// The first version that knows this kind.
    fn since(self) -> u8 {
        match self {
            Self::Heartbeat | Self::Ask | Self::Told => 1,
            Self::AskAll | Self::Page => 2,
            Self::Channel => 3,
            Self::Part | Self::Receipt => 4,
            Self::AskPrefix | Self::Prefix => 5,
        }
    }
}

/// A datagram that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    pub kind: FrameKind,
    /// Whether a newer datagram has come before this one.
    pub is_late: bool,
    pub contents: &'a [u8],
}

/// Why a datagram was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Refused {
    /// Not a frame.
    #[error("malformed")]
    Malformed,
    /// This node has a key, and the datagram has no tag.
    #[error("not authenticated")]
    NoTag,
    /// The datagram has a tag, and this node has no key.
    #[error("authenticated, and this node has no key_file")]
    NoKey,
    /// The tag was made with another key or for another name.
    #[error("authenticated by another key or name")]
    WrongTag,
    /// The two programs have no version in common.
    #[error("of a version that this program does not speak")]
    Version,
    /// The peer's incarnation is new and has not echoed our nonce yet. Its next datagrams will echo the nonce, unless this datagram is a
    /// replay.
    #[error("not proved to be new")]
    Unproved,
    /// This datagram was heard before.
    #[error("a copy")]
    Again,
    /// This datagram is so old that this node does not know whether it was heard before.
    #[error("too old")]
    TooOld,
    /// This program does not know the kind.
    #[error("of an unknown kind")]
    Kind,
    /// The contents do not match the kind.
    #[error("unreadable")]
    Contents,
    /// The peer uses a channel, and this node has none (`[peer] transport`).
    #[error("of a transport that is not configured here")]
    Transport,
    /// The sender is not the node that `[peer] name` names.
    #[error("another node's")]
    Name,
}

/// Values that the opener stores and the sealer sends.
#[derive(Debug)]
struct Learned {
    /// This node's nonce, for the peer's next incarnation to echo.
    nonce: AtomicU64,
    /// The nonce that the peer sent last.
    echo: AtomicU64,
    /// The version that this node speaks now.
    version: AtomicU8,
}

/// Makes this node's datagrams.
pub struct Sealer {
    tagger: Option<Hmac<Sha256>>,
    versions: RangeInclusive<u8>,
    incarnation: u64,
    sequence: u64,
    learned: Arc<Learned>,
}

/// Reads the peer's datagrams.
pub struct Opener {
    tagger: Option<Hmac<Sha256>>,
    versions: RangeInclusive<u8>,
    anti_replay: AntiReplay,
    learned: Arc<Learned>,
    draw: fn() -> u64,
}

/// Position of a datagram among all datagrams of its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Number {
    incarnation: u64,
    sequence: u64,
}

impl Number {
    /// The number of a datagram that was opened.
    pub fn of(datagram: &[u8]) -> Self {
        let number = |at: usize| {
            let bytes = datagram.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_be_bytes)
        };
        Self {
            incarnation: number(8),
            sequence: number(16),
        }
    }

    /// Whether the datagram with this number was sealed after the one with `other`, or by another incarnation of the sender's agent.
    pub fn is_after(self, other: Self) -> bool {
        self.incarnation != other.incarnation || self.sequence > other.sequence
    }
}

/// The sealer and the opener of node `name` for its exchange with `peer`. `draw` gives unpredictable numbers other than 0.
pub fn open(
    (name, peer): (&str, &str),
    key: Option<&SecretKey>,
    versions: RangeInclusive<u8>,
    draw: fn() -> u64,
) -> (Sealer, Opener) {
    let nonce = draw();
    let learned = Arc::new(Learned {
        nonce: nonce.into(),
        echo: 0.into(),
        version: (*versions.start()).into(),
    });
    let sealer = Sealer {
        tagger: key.map(|key| tagger(key, name)),
        versions: versions.clone(),
        incarnation: draw(),
        sequence: 0,
        learned: Arc::clone(&learned),
    };
    let opener = Opener {
        tagger: key.map(|key| tagger(key, peer)),
        versions,
        anti_replay: AntiReplay::new(nonce),
        learned,
        draw,
    };
    (sealer, opener)
}

/// Computes the tags of the datagrams that `sender` sends. The name's length goes first, so that a name and the bytes after it cannot be
/// read as another, longer name.
fn tagger(key: &SecretKey, sender: &str) -> Hmac<Sha256> {
    let mut tagger = Hmac::<Sha256>::new_from_slice(key.bytes()).expect("any length is a key");
    tagger.update(&(sender.len() as u64).to_be_bytes());
    tagger.update(sender.as_bytes());
    tagger
}

impl Sealer {
    /// Whether the version in use knows this kind.
    pub fn speaks(&self, kind: FrameKind) -> bool {
        self.learned.version.load(Ordering::Relaxed) >= kind.since()
    }

    /// Puts `contents` into a datagram.
    pub fn seal(&mut self, kind: FrameKind, contents: &[u8]) -> Vec<u8> {
        self.sequence += 1;
        let version = self.learned.version.load(Ordering::Relaxed);
        let flags = if self.tagger.is_some() { HAS_TAG } else { 0 };
        let mut datagram = Vec::with_capacity(HEADER + contents.len() + TAG);
        datagram.extend([version, *self.versions.start(), *self.versions.end(), kind as u8]);
        datagram.extend([flags, 0, 0, 0]);
        let numbers = [
            self.incarnation,
            self.sequence,
            self.learned.nonce.load(Ordering::Relaxed),
            self.learned.echo.load(Ordering::Relaxed),
        ];
        datagram.extend(numbers.into_iter().flat_map(u64::to_be_bytes));
        datagram.extend_from_slice(contents);
        if let Some(tagger) = &self.tagger {
            let tag = tagger.clone().chain_update(&datagram).finalize().into_bytes();
            datagram.extend_from_slice(&tag);
        }
        datagram
    }
}

impl Opener {
    /// The contents of `datagram`, if it is accepted.
    ///
    /// # Errors
    /// Why the datagram is refused.
    pub fn open<'a>(&mut self, datagram: &'a [u8]) -> Result<Opened<'a>, Refused> {
        let (header, rest) = datagram.split_first_chunk::<HEADER>().ok_or(Refused::Malformed)?;
        let contents = self.verify(header, rest, datagram)?;
        let number = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        // Store the nonce even if the datagram turns out not to be new: a new incarnation of the peer accepts our datagrams only after we
        // have echoed its nonce.
        self.learned.echo.store(number(24), Ordering::Relaxed);
        let is_late = self.is_late(number(8), number(16), number(32))?;
        let theirs = header[1]..=header[2];
        let version = common(&self.versions, &theirs).ok_or(Refused::Version)?;
        self.learned.version.store(version, Ordering::Relaxed);
        if !self.versions.contains(&header[0]) {
            return Err(Refused::Version);
        }
        let kind = FrameKind::of(header[3]).ok_or(Refused::Kind)?;
        Ok(Opened {
            kind,
            is_late,
            contents,
        })
    }

    /// The contents. If this node has a key, the tag must prove that the peer wrote them.
    fn verify<'a>(
        &self,
        header: &[u8; HEADER],
        rest: &'a [u8],
        datagram: &[u8],
    ) -> Result<&'a [u8], Refused> {
        let has_tag = match header[4..8] {
            [flags, 0, 0, 0] if flags & !HAS_TAG == 0 => flags == HAS_TAG,
            _ => return Err(Refused::Malformed),
        };
        let Some(tagger) = &self.tagger else {
            return if has_tag { Err(Refused::NoKey) } else { Ok(rest) };
        };
        if !has_tag {
            return Err(Refused::NoTag);
        }
        let (contents, tag) = rest.split_last_chunk::<TAG>().ok_or(Refused::Malformed)?;
        let said = &datagram[..datagram.len() - TAG];
        let is_right = tagger.clone().chain_update(said).verify_slice(tag);
        is_right.map_err(|_| Refused::WrongTag)?;
        Ok(contents)
    }

    fn is_late(&mut self, incarnation: u64, sequence: u64, echo: u64) -> Result<bool, Refused> {
        match self.anti_replay.on_datagram(incarnation, sequence, echo) {
            Freshness::Current(ReplayVerdict::Newest) => Ok(false),
            Freshness::Current(ReplayVerdict::Late) => Ok(true),
            Freshness::Current(ReplayVerdict::Again) => Err(Refused::Again),
            Freshness::Current(ReplayVerdict::TooOld) => Err(Refused::TooOld),
            Freshness::Unproved => Err(Refused::Unproved),
            Freshness::Proved => {
                let nonce = (self.draw)();
                self.anti_replay.set_nonce(nonce);
                self.learned.nonce.store(nonce, Ordering::Relaxed);
                Ok(false)
            }
        }
    }
}

/// The highest version that both nodes speak.
fn common(ours: &RangeInclusive<u8>, theirs: &RangeInclusive<u8>) -> Option<u8> {
    let highest = *ours.end().min(theirs.end());
    (ours.contains(&highest) && theirs.contains(&highest)).then_some(highest)
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
