//! Messages between a wire and a node that takes connections of its service (docs/annex.md), over a link ([`super::super::sealed`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use proto::Seq;
use proto::annex::{AnnexId, ServingNode};
use proto::carried::TakeBackNumber;
use proto::census::{ClientTerms, Terms};
use proto::connection::Endpoint;
use proto::export::{PartReceipt, SnapshotPart};
use proto::hosting::HostGreeting;
use serde::{Deserialize, Serialize};

use crate::daemon::relay::PlannedContent;

/// Wakes the loop of an agent.
pub type WakeAgent = Arc<dyn Fn() + Send + Sync>;

/// Marks a link of this version.
pub const MAGIC: [u8; 4] = *b"SFA7";
/// The only kind of frame.
pub const MESSAGE: u8 = 1;

/// From the wire.
#[derive(Debug, Serialize, Deserialize)]
pub enum AnnexRequest {
    /// The first message.
    Hello(WireHello),
    /// Make a socket.
    Restore {
        /// From this state.
        endpoint: Box<Endpoint>,
        /// The output that the client has not acknowledged.
        #[serde(with = "serde_bytes")]
        output: Vec<u8>,
        /// The wire's clock, in nanoseconds.
        now: u64,
    },
    /// Let the socket speak, and give it to the relay.
    Start(Box<StartRequest>),
    /// Close the socket without sending anything.
    Drop(SocketAddr),
    /// To an annex: the number of the wire's last take-back (`proto::carried`).
    TakeBack(TakeBackNumber),
    /// To the primary: where connections live. `None`: on the primary, or nowhere.
    Lives {
        /// Clients, and the annexes that have their connections.
        places: Vec<(SocketAddr, Option<AnnexId>)>,
        /// These are all that do not live on the primary.
        is_all: bool,
    },
    /// To an annex: what are the terms of the connections of these clients?
    Ask(Vec<SocketAddr>),
    /// To an annex: where its snapshot stands.
    Receipt(PartReceipt),
    /// The wire lives.
    Ping,
}

/// Lets a socket speak.
#[derive(Debug, Serialize, Deserialize)]
pub struct StartRequest {
    /// The client.
    pub client: SocketAddr,
    /// The input that was logged since the socket was made.
    #[serde(with = "serde_bytes")]
    pub late: Vec<u8>,
    /// The socket need not send anything at once.
    pub is_quiet: bool,
    /// The client's latest acknowledgement. It may have acknowledged more since the socket was made.
    pub acknowledged: Seq,
    /// How the application's side goes on.
    pub content: PlannedContent,
}

/// Says who the wire is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WireHello {
    /// The node that the sender calls. Another node does not answer.
    pub to: ServingNode,
    /// Where the sender has connected. A node that has accepted the connection elsewhere does not answer: somebody passes the link on, and
    /// could read it.
    pub at: SocketAddr,
    /// The service.
    pub vip: SocketAddr,
    /// The wire's MAC address on the service interface.
    pub mac: [u8; 6],
    /// The wire's address on the service interface, of the VIP's family.
    pub address: IpAddr,
    /// What the receiver decides about.
    pub greeting: HostGreeting,
}

/// To the wire.
#[derive(Debug, Serialize, Deserialize)]
pub enum AnnexReply {
    /// The answer to `Hello`.
    Welcome {
        /// The sender's MAC address on the service interface.
        mac: [u8; 6],
        /// The clients whose connections it has. From the primary: of those in the greeting.
        has: Vec<SocketAddr>,
        /// From the primary: what it carries, and for which annexes.
        carries: Vec<(SocketAddr, AnnexId)>,
    },
    /// The receiver is not obeyed any more: another node has begun a link.
    Superseded,
    /// The socket is made.
    Restored {
        /// The client.
        client: SocketAddr,
        /// The number of the latest snapshot that the sender has exported.
        exported: u64,
    },
    /// The connection cannot be had, or is lost.
    Refused {
        /// The client.
        client: SocketAddr,
        /// Why.
        reason: String,
    },
    /// There is no socket of this client any more.
    Dropped(SocketAddr),
    /// The socket speaks, and has woken its client.
    Live(SocketAddr),
    /// The answer to `Ask`.
    Told(Vec<SentTerms>),
    /// A part of a snapshot that an annex's application has exported.
    Part(SnapshotPart),
    /// A sign of life of the node that takes connections.
    Pong,
}

/// [`ClientTerms`] with each field, because this encoding does not name fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentTerms {
    client: SocketAddr,
    /// `None`: there is no such connection.
    terms: Option<EachTerm>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct EachTerm {
    mss: u16,
    window_scale: Option<(u8, u8)>,
    sack: bool,
    timestamps: bool,
    microseconds: bool,
}

impl From<ClientTerms> for SentTerms {
    fn from((client, terms): ClientTerms) -> Self {
        let each = |terms| {
            let Terms {
                mss,
                window_scale,
                sack,
                timestamps,
                microseconds,
            } = terms;
            EachTerm {
                mss,
                window_scale,
                sack,
                timestamps,
                microseconds,
            }
        };
        let terms = terms.map(each);
        Self { client, terms }
    }
}

impl From<SentTerms> for ClientTerms {
    fn from(SentTerms { client, terms }: SentTerms) -> Self {
        let all = |each| {
            let EachTerm {
                mss,
                window_scale,
                sack,
                timestamps,
                microseconds,
            } = each;
            Terms {
                mss,
                window_scale,
                sack,
                timestamps,
                microseconds,
            }
        };
        (client, terms.map(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_arrive_as_they_were_sent() {
        let client = ([10, 0, 0, 1], 4000).into();
        let terms = Terms {
            mss: 1460,
            window_scale: Some((7, 9)),
            sack: true,
            timestamps: false,
            microseconds: false,
        };
        for told in [(client, Some(terms)), (client, None)] {
            let reply = AnnexReply::Told(vec![told.into()]);
            let bytes = postcard::to_stdvec(&reply).unwrap();
            let AnnexReply::Told(sent) = postcard::from_bytes(&bytes).unwrap() else {
                panic!("another message");
            };
            let [sent] = <[SentTerms; 1]>::try_from(sent).unwrap();
            assert_eq!(ClientTerms::from(sent), told);
        }
    }
}
