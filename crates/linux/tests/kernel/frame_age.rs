//! The age of a frame that waited in a packet socket.

use std::thread;
use std::time::{Duration, Instant};

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
        thread::sleep(waits);
        let found = eventually("the frame", || {
            let (length, age) = socket.receive_with_age(&mut frame).unwrap()?;
            frame[..length].ends_with(PACKET).then_some(age)
        });
        (found, sent.elapsed())
    };
    assert_eq!(age(Duration::ZERO).0, Duration::ZERO, "nothing is noted yet");
    socket.note_arrivals().unwrap();
    let (age, since_sent) = age(Duration::from_millis(40));
    assert!(
        age >= Duration::from_millis(20) && age <= since_sent,
        "{age:?}, {since_sent:?} since it was sent"
    );
}
