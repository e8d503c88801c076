//! Fuzz target (docs/fuzzing.md) for the peer's datagrams.
//!
//! If an input begins with the digit of a [`FrameKind`], the bytes after the digit are the contents of a frame of this kind. The test seals
//! these contents into a valid frame. Any other input is a whole datagram.

use serde::Serialize;

use super::{PeerMessage, draw};
use crate::daemon::frame::{self, FrameKind, Opener, Sealer, VERSIONS};

/// The peer's sealer and this node's opener, after each node has accepted a datagram of the other one.
fn ends() -> (Sealer, Opener) {
    let (mut to, mut from_peer) = frame::open(("a", "b"), None, VERSIONS, draw);
    let (mut peer, mut from_us) = frame::open(("b", "a"), None, VERSIONS, draw);
    let _ = from_us.open(&to.seal(FrameKind::Heartbeat, b"")); // refused: this heartbeat does not echo the peer's nonce yet
    from_peer
        .open(&peer.seal(FrameKind::Heartbeat, b""))
        .expect("an echo");
    from_us
        .open(&to.seal(FrameKind::Heartbeat, b""))
        .expect("an echo");
    (peer, from_peer)
}

/// The bytes that a node would send as the contents of `message`.
fn told(message: &PeerMessage) -> Vec<u8> {
    fn json(told: &impl Serialize) -> Vec<u8> {
        serde_json::to_vec(told).expect("what is said has a JSON form")
    }
    fn binary(told: &impl Serialize) -> Vec<u8> {
        postcard::to_stdvec(told).expect("what is said has a binary form")
    }
    match message {
        PeerMessage::Heartbeat(heartbeat) => json(heartbeat),
        PeerMessage::Ask(about) => json(about),
        PeerMessage::Told(about) => json(about),
        PeerMessage::AskAll(about) => json(about),
        PeerMessage::Page(about) => json(about),
        PeerMessage::Part(about) => binary(about),
        PeerMessage::Receipt(about) => binary(about),
        PeerMessage::AskPrefix(about) => binary(about),
        PeerMessage::Prefix(about) => binary(about),
    }
}

#[test]
fn a_datagram_is_read_or_refused() {
    fuzz::target!("peer_frames", |input| {
        let (mut peer, mut opener) = ends();
        let kinds = [
            FrameKind::Heartbeat,
            FrameKind::Ask,
            FrameKind::Told,
            FrameKind::AskAll,
            FrameKind::Page,
            FrameKind::Channel,
            FrameKind::Part,
            FrameKind::Receipt,
            FrameKind::AskPrefix,
            FrameKind::Prefix,
        ];
        let kind = input.split_first().and_then(|(digit, contents)| {
            let kind = kinds.into_iter().find(|kind| b'0' + *kind as u8 == *digit)?;
            Some((kind, contents))
        });
        let Some((kind, contents)) = kind else {
            if let Ok(opened) = opener.open(input) {
                assert!(input.ends_with(opened.contents));
                let _ = PeerMessage::read(opened.kind, opened.contents);
            }
            return;
        };
        let datagram = peer.seal(kind, contents);
        let opened = opener.open(&datagram).expect("the peer's next");
        assert_eq!(
            (opened.kind, opened.is_late, opened.contents),
            (kind, false, contents)
        );
        let Ok(message) = PeerMessage::read(kind, contents) else {
            return;
        };
        let said = told(&message);
        let again = PeerMessage::read(kind, &said).expect("what was read can be told");
        assert_eq!(told(&again), said);
        // A copy of a datagram is refused, whatever its contents.
        opener.open(&datagram).expect_err("a copy");
    });
}
