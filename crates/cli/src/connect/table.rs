//! The open links of a proxy or of a server's half, by number.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;

use proto::session::server::SessionLink;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::link::{LinkFrame, LinkReader, LinkWriter};

/// The links. Each has a task that writes its messages.
#[derive(Default)]
pub struct LinkTable {
    links: BTreeMap<SessionLink, TableLink>,
    last: SessionLink,
}

struct TableLink {
    commands: UnboundedSender<LinkCommand>,
    urgent: UnboundedSender<LinkFrame>,
    peer: Option<SocketAddr>,
    /// A descriptor of its socket, for TCP's counters.
    socket: Option<OwnedFd>,
}

enum LinkCommand {
    Send(LinkFrame),
    Close,
}

/// The receiving end of a link in the table.
pub struct SessionLinkReader {
    /// Number of the link.
    pub number: SessionLink,
    reader: LinkReader,
    closed: Rc<Notify>,
}

impl LinkTable {
    /// Adds a link. `is_watched`: its retransmissions are asked for.
    pub fn add(&mut self, (reader, writer): (LinkReader, LinkWriter), is_watched: bool) -> SessionLinkReader {
        self.last += 1;
        let (commands, queue) = unbounded_channel();
        let (urgent, urgent_queue) = unbounded_channel();
        let stream = writer.stream();
        let link = TableLink {
            commands,
            urgent,
            peer: stream.peer_addr().ok(),
            socket: is_watched
                .then(|| stream.as_fd().try_clone_to_owned().ok())
                .flatten(),
        };
        self.links.insert(self.last, link);
        let closed = Rc::new(Notify::new());
        tokio::task::spawn_local(write(writer, queue, urgent_queue, Rc::clone(&closed)));
        SessionLinkReader {
            number: self.last,
            reader,
            closed,
        }
    }

    /// Sends a message. Nothing happens if the link is lost. An urgent message does not wait until those before it are sent.
    pub fn send(&self, link: SessionLink, frame: LinkFrame) {
        let Some(link) = self.links.get(&link) else {
            return;
        };
        // Both fail if the link is lost.
        if frame.is_urgent() {
            let _ = link.urgent.send(frame);
        } else {
            let _ = link.commands.send(LinkCommand::Send(frame));
        }
    }

    /// Closes the link after all messages were sent.
    pub fn close(&self, link: SessionLink) {
        if let Some(link) = self.links.get(&link) {
            let _ = link.commands.send(LinkCommand::Close); // fails if the link is lost
        }
    }

    /// Forgets a link that is lost.
    pub fn remove(&mut self, link: SessionLink) {
        self.links.remove(&link);
    }

    /// The address of the other end.
    pub fn peer(&self, link: SessionLink) -> Option<SocketAddr> {
        self.links.get(&link)?.peer
    }

    /// TCP's count of retransmitted segments. `None` if the link is not watched.
    pub fn retransmissions(&self, link: SessionLink) -> Option<u32> {
        let socket = self.links.get(&link)?.socket.as_ref()?;
        linux::application::retransmissions(socket).ok()
    }
}

impl SessionLinkReader {
    /// The next message. `None`: the link has ended.
    pub async fn next(&mut self) -> Option<LinkFrame> {
        tokio::select! {
            frame = self.reader.read() => frame.ok(),
            () = self.closed.notified() => None,
        }
    }
}

async fn write(
    mut writer: LinkWriter,
    mut commands: UnboundedReceiver<LinkCommand>,
    mut urgent: UnboundedReceiver<LinkFrame>,
    closed: Rc<Notify>,
) {
    loop {
        let frame = tokio::select! {
            biased;
            Some(frame) = urgent.recv() => frame,
            command = commands.recv() => match command {
                Some(LinkCommand::Send(frame)) => frame,
                Some(LinkCommand::Close) | None => break,
            },
        };
        if writer
            .write_with(&frame, || urgent.try_recv().ok())
            .await
            .is_err()
        {
            break;
        }
    }
    closed.notify_one();
}
