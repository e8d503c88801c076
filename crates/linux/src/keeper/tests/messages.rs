//! Fuzz target (docs/fuzzing.md): the packets that the keeper receives over its socket.
//!
//! An input is a packet without its magic number: either a 0 and the content, or a 1 and the content that the memfd holds.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use proto::restart::http::HttpResumer;

use crate::keeper::channel::{self, Received, Room};
use crate::keeper::input::LoggedInput;
use crate::keeper::message::KeeperRequest;
use crate::keeper::{Adoption, AdoptionPlan};

/// The packet that an agent of this version would send: the magic number, then `input`.
fn packet(input: &[u8]) -> Vec<u8> {
    [channel::MAGIC.as_slice(), input].concat()
}

fn receive(input: &[u8]) -> std::io::Result<Option<Received<KeeperRequest>>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (here, there) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    let mut files = Vec::new();
    let sent = match input.split_first() {
        Some((1, content)) => {
            // First a file that holds a part of the message's data (its blob), then the memfd with the content.
            for bytes in [b"spilled", content] {
                let mut file = File::from(memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC)?);
                file.write_all(bytes)?;
                files.push(file);
            }
            packet(&[1])
        }
        _ => packet(&input[..input.len().min(channel::INLINE_MAX)]),
    };
    let raw: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    sendmsg::<()>(
        here.as_raw_fd(),
        &[IoSlice::new(&sent)],
        control,
        MsgFlags::empty(),
        None,
    )?;
    channel::receive(there.as_fd(), &mut Room::default())
}

#[test]
fn a_message_is_taken_or_refused() {
    fuzz::target!("keeper_messages", |input| {
        let Ok(received) = receive(input) else { return };
        let Received {
            message, mut blob, ..
        } = received.expect("the other end is open");
        let mut buffer = [0; 1000];
        // A file that is too short makes the read fail.
        while !blob.is_empty() && blob.read(&mut buffer).is_ok_and(|count| count > 0) {}
        let KeeperRequest::Adopt(adoption) = message else {
            return;
        };
        // The adoption does not change if it is sent and received again.
        assert_eq!(sent(&adoption), *adoption);
        if let AdoptionPlan::Http { resume, volatile, .. } = adoption.plan {
            let (mut resumer, mut to_client) = HttpResumer::with_volatile(resume, volatile);
            let said = b"HTTP/1.1 200 OK\r\nETag: \"5-e\"\r\nContent-Length: 5\r\n\r\nhello";
            let _ = resumer.on_application(said, &mut to_client);
            let _ = resumer.on_application_end(&mut to_client);
        }
    });
}

/// The adoption as the keeper receives it.
fn sent(adoption: &Adoption) -> Adoption {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (here, there) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("two sockets");
    let request = KeeperRequest::Adopt(Box::new(adoption));
    channel::send(here.as_fd(), &request, &[], &LoggedInput::default()).expect("room");
    let received = channel::receive::<KeeperRequest>(there.as_fd(), &mut Room::default());
    match received.expect("as it was sent").expect("open").message {
        KeeperRequest::Adopt(adoption) => *adoption,
        other => panic!("{other:?}"),
    }
}
