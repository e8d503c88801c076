//! The wire's side: a link to each node that may take connections of a service.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::action::ServiceIndex;
use proto::annex::{AnnexId, ServingNode};
use proto::hosting::Greeting;

use super::super::sealed::{BEGIN_MAX, SealedReader, begin};
use super::message::{AnnexReply, AnnexRequest, MAGIC, MESSAGE, WakeAgent, WireHello};
use crate::config::SecretKey;

/// Interval of signs of life.
pub(super) const PING_EVERY: Duration = Duration::from_millis(50);
/// A node that is silent for longer is not there.
pub(super) const SILENT_MAX: Duration = Duration::from_millis(500);
/// Pause before the wire connects again.
const PAUSE: Duration = Duration::from_millis(200);

/// What a link says to the agent.
pub enum LinkEvent {
    /// The node is there.
    Up {
        /// Its MAC address on the service interface.
        mac: [u8; 6],
        /// The clients whose connections it has.
        has: Vec<SocketAddr>,
        /// Of the primary: what it carries, and for which annexes.
        carries: Vec<(SocketAddr, AnnexId)>,
    },
    /// The node is not there any more.
    Down,
    /// An answer.
    Reply(AnnexReply),
}

/// An event of a link.
pub struct FromLink {
    pub service: ServiceIndex,
    pub node: ServingNode,
    pub event: LinkEvent,
}

/// What a link needs to know.
#[derive(Clone)]
pub struct LinkPlace {
    pub service: ServiceIndex,
    pub node: ServingNode,
    pub vip: SocketAddr,
    pub mac: [u8; 6],
}

/// Whether the other end has closed the link, or the network has. The node may be there nevertheless: if this process stands still for
/// [`SILENT_MAX`], the annex closes the link. So a wire calls the annex again, before it takes over the connections that the annex has.
fn is_cut(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
    )
}

/// A link. Its thread connects again and again.
pub struct AnnexLink {
    requests: Sender<AnnexRequest>,
    guests: Arc<Mutex<Vec<SocketAddr>>>,
    /// `None`: there is to be no link.
    greeting: Arc<Mutex<Option<Greeting>>>,
    is_up: Arc<AtomicBool>,
    /// Where the node listens.
    address: Arc<Mutex<SocketAddr>>,
}

impl AnnexLink {
    /// Starts the thread of a link to the node that listens at `to`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        (place, to): (LinkPlace, SocketAddr),
        key: SecretKey,
        events: Sender<FromLink>,
        waker: WakeAgent,
    ) -> io::Result<Self> {
        let (requests, inbox) = channel();
        let guests = Arc::<Mutex<Vec<SocketAddr>>>::default();
        let is_up = Arc::<AtomicBool>::default();
        let greeting = Arc::<Mutex<Option<Greeting>>>::default();
        let address = Arc::new(Mutex::new(to));
        let link = Self {
            requests,
            guests: Arc::clone(&guests),
            greeting: Arc::clone(&greeting),
            is_up: Arc::clone(&is_up),
            address: Arc::clone(&address),
        };
        let thread = LinkThread {
            place,
            key,
            events,
            waker,
            guests,
            greeting,
            is_up,
            address,
        };
        std::thread::Builder::new()
            .name("annex-link".into())
            .spawn(move || thread.run(&inbox))?;
        Ok(link)
    }

    /// What the next greeting says. `None`: there is to be no link. If only the number of the take-back changes, the node is told.
    pub fn set_greeting(&self, greeting: Option<&Greeting>) {
        let mut known = self.greeting.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref() == greeting {
            return;
        }
        let before = std::mem::replace(&mut *known, greeting.copied());
        drop(known);
        match (before, greeting) {
            (Some(before), Some(now)) if before.asks == now.asks => {
                self.send(AnnexRequest::TakeBack(now.take_back));
            }
            _ => drop(self.requests.send(AnnexRequest::Ping)), // wakes the thread
        }
    }

    /// Whether the node is there.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Where the node listens. A link that is there stays.
    pub fn set_address(&self, address: SocketAddr) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    /// Sends a request, if the node is there.
    pub fn send(&self, request: AnnexRequest) {
        if self.is_up() {
            let _ = self.requests.send(request); // fails only if the thread has panicked
        }
    }

    /// The clients whose connections the node has. A new link tells it.
    pub fn set_guests(&self, guests: Vec<SocketAddr>) {
        *self.guests.lock().unwrap_or_else(PoisonError::into_inner) = guests;
    }
}

struct LinkThread {
    place: LinkPlace,
    key: SecretKey,
    events: Sender<FromLink>,
    waker: WakeAgent,
    guests: Arc<Mutex<Vec<SocketAddr>>>,
    greeting: Arc<Mutex<Option<Greeting>>>,
    is_up: Arc<AtomicBool>,
    address: Arc<Mutex<SocketAddr>>,
}

impl LinkThread {
    fn run(&self, inbox: &Receiver<AnnexRequest>) {
        // Whether the agent believes that the node is there.
        let mut is_known = false;
        loop {
            let to = *self.address.lock().unwrap_or_else(PoisonError::into_inner);
            let greeting = self.greeting();
            let outcome = greeting.map_or(Ok(()), |greeting| self.serve(to, &greeting, inbox));
            let was_up = self.is_up.swap(false, Ordering::AcqRel);
            while inbox.try_recv().is_ok() {} // they were for the link that has ended
            is_known |= was_up;
            let is_of_wire = greeting.is_some_and(|greeting| !greeting.asks);
            let is_cut = outcome.as_ref().err().is_some_and(is_cut);
            if was_up && is_cut && is_of_wire && self.place.node != ServingNode::Primary {
                continue;
            }
            if std::mem::take(&mut is_known) {
                let why = outcome.err().map_or_else(String::new, |error| error.to_string());
                tracing::warn!(node = %to, vip = %self.place.vip, why, "the annex is not there any more");
                if !self.tell(LinkEvent::Down) {
                    return;
                }
            }
            match inbox.recv_timeout(PAUSE) {
                Err(RecvTimeoutError::Disconnected) => return,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn greeting(&self) -> Option<Greeting> {
        *self.greeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the agent. Returns false if there is no agent any more.
    fn tell(&self, event: LinkEvent) -> bool {
        let told = self.events.send(FromLink {
            service: self.place.service,
            node: self.place.node,
            event,
        });
        (self.waker)();
        told.is_ok()
    }

    /// Opens a link to `to`, and serves it until it ends.
    fn serve(&self, to: SocketAddr, greeting: &Greeting, inbox: &Receiver<AnnexRequest>) -> io::Result<()> {
        let stream = TcpStream::connect_timeout(&to, BEGIN_MAX)?;
        let (mut reader, mut writer) = begin(stream, MAGIC, Some(&self.key), true)?;
        let mut send = |request: &AnnexRequest| {
            let bytes = postcard::to_stdvec(request).map_err(io::Error::other)?;
            writer.send(MESSAGE, &bytes)
        };
        let guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        send(&AnnexRequest::Hello(WireHello {
            to: self.place.node,
            at: to,
            vip: self.place.vip,
            mac: self.place.mac,
            address: linux::network::own_address(to)?,
            greeting: greeting.to_host_of(&guests),
        }))?;
        let AnnexReply::Welcome { mac, has, carries } = receive(&mut reader)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        reader.stream.get_ref().set_read_timeout(Some(SILENT_MAX))?;
        let stream = reader.stream.get_ref().try_clone()?;
        self.is_up.store(true, Ordering::Release);
        self.tell(LinkEvent::Up { mac, has, carries });
        tracing::info!(node = %to, vip = %self.place.vip, "the annex is there");
        std::thread::scope(|scope| {
            let listens = scope.spawn(|| self.listen(&mut reader));
            let outcome = loop {
                let request = match inbox.recv_timeout(PING_EVERY) {
                    Ok(request) => request,
                    Err(RecvTimeoutError::Timeout) => AnnexRequest::Ping,
                    Err(RecvTimeoutError::Disconnected) => break Some(Ok(())),
                };
                if self.greeting().is_none_or(|now| now.asks != greeting.asks) {
                    break Some(Ok(()));
                }
                if listens.is_finished() {
                    break None;
                }
                if let Err(error) = send(&request) {
                    break Some(Err(error));
                }
            };
            let _ = stream.shutdown(std::net::Shutdown::Both); // fails only if it is closed already
            let heard = listens
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the link's thread panicked")));
            outcome.unwrap_or(heard)
        })
    }

    /// Passes the node's replies to the agent.
    fn listen(&self, reader: &mut SealedReader) -> io::Result<()> {
        loop {
            match receive(reader)? {
                AnnexReply::Pong => {}
                AnnexReply::Superseded => return Err(io::Error::other("it obeys another node")),
                reply => {
                    if !self.tell(LinkEvent::Reply(reply)) {
                        return Ok(());
                    }
                }
            }
        }
    }
}

fn receive(reader: &mut SealedReader) -> io::Result<AnnexReply> {
    let (_, bytes) = reader.receive()?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}
