//! A node's part in the path of a VIP. The part changes while connections live.
//!
//! ```text
//!            Wire                                 Behind                              Alone
//!  in    client ─▶ [this] ─▶ peer        client ─▶ peer ─▶ [this]           client ─▶ [this]
//!  out   client ◀─ [this] ◀─ peer        client ◀─ peer ◀─ [this]           client ◀─ [this]
//!        VIP on the interface            VIP on lo, rule from VIP           VIP on lo and on the interface
//! ```
//!
//! Sockets do not notice a change, because the VIP is always on some interface. `arp_ignore` and `arp_announce` need not change: with
//! them, the kernel answers neighbours for an address on the interface, but not for an address on `lo`. An
//! [`Announcer`](super::Announcer) tells the neighbours of a change. [`OutsideHosts`](crate::probe::OutsideHosts) verify that the
//! neighbours have learned it.

/// A node's part in the path of a VIP's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetworkPart {
    /// Between the clients and the peer. A wire keeps this part after a takeover, although it then serves without a peer.
    Wire,
    /// Behind the peer's wire.
    Behind,
    /// Neither in front of a peer nor behind its wire: the part of a node that was `Behind` and has claimed the VIP.
    Alone,
}
