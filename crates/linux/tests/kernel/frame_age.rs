//! The age of a frame that waited in a packet socket.

use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv};
use steadfast_linux::packet_socket::{FRAME_MAX, PacketSocket};

use crate::support::eventually;
use crate::support::frame::FrameTap;
use crate::support::lan::Lan;

/// Begins like an IP packet of version 4.
const PACKET: &[u8] = b"E: how long has this waited?";

#[test]
fn a_frame_tells_how_long_it_has_waited() {
    let Some(lan) = Lan::new("a_frame_tells_how_long_it_has_waited") else {
        return;
    };
    let socket = lan.backup.run(|| PacketSocket::open("eth0")).unwrap();
    let mut frame = vec![0; FRAME_MAX];
    let mut age = |waits: Duration| {
        let sent = Instant::now();
        FrameTap::on(&lan.client, "port2").put(lan.backup.mac(), lan.client.mac(), PACKET);
        // The frame waits from its arrival on, however late it arrives. Other frames may come before it.
        eventually("the frame", || {
            let peeked = recv(
                socket.as_fd().as_raw_fd(),
                &mut frame,
                MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT,
            );
            let is_there = frame[..peeked.ok()?].ends_with(PACKET);
            if !is_there {
                socket.receive(&mut frame).unwrap();
            }
            is_there.then_some(())
        });
        thread::sleep(waits);
        let (_, found) = socket.receive_with_age(&mut frame).unwrap().expect("it is there");
        (found, sent.elapsed())
    };
    assert_eq!(age(Duration::ZERO).0, Duration::ZERO, "nothing is noted yet");
    socket.note_arrivals().unwrap();
    let waits = Duration::from_millis(40);
    let (age, since_sent) = age(waits);
    assert!(
        age >= waits && age <= since_sent,
        "{age:?}, {since_sent:?} since it was sent"
    );
}
