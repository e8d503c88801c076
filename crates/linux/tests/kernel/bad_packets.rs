//! Invalid packets, and rare but valid ones. Each is treated as the primary's kernel would treat it, is counted, and disturbs
//! no connection.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proto::action::Gate;
use proto::packet::{Flags, Malformed, Segment};
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::bystander::Bystander;
use crate::support::frame::{
    DESTINATION_OPTIONS, FRAGMENT, FrameTap, HOP_BY_HOP, NO_ROUTE, PADDING, ROUTING, fix_ipv4_header, fold,
    fragment_header, icmp_error, set_checksum, with_extension, with_extensions,
};
use crate::support::lan::{Family, Lan, LanHost};
use crate::support::log::LogThread;
use crate::support::socket::tcp_info;
use crate::support::wire_on::{WireOn, options};
use crate::support::{PATIENCE, assert_same_stream, eventually, stream};

/// The LAN with the wire on the backup, and a connection through the wire. The connection has no timestamps, so its segments are easier to
/// forge.
struct BadPacketTestbed {
    lan: Lan,
    family: Family,
    wire: WireOn,
    reading: LogThread,
    bystander: Bystander,
    tap: FrameTap,
}

impl BadPacketTestbed {
    fn new(test: &str, family: Family) -> Option<Self> {
        let lan = Lan::new(test)?;
        lan.client.sysctl("ipv4/tcp_timestamps", "0");
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let reading = LogThread::of(&wire);
        let listener = lan.primary.listen(family.vip());
        let mut bystander = Bystander::new(lan.client.connect_pair(&listener));
        bystander.exchange(1000);
        let tap = FrameTap::on(&lan.client, "port2");
        Some(Self {
            lan,
            family,
            wire,
            reading,
            bystander,
            tap,
        })
    }

    /// Sends `packet` to the backup as if it came from `host`.
    fn put_as(&self, host: &LanHost, packet: &[u8]) {
        self.tap.put(self.lan.backup.mac(), host.mac(), packet);
    }

    /// Sends `packet` several times. Each copy must be counted as `reason`, and no copy may arrive at the primary.
    #[track_caller]
    fn is_dropped(&mut self, what: &str, from: &LanHost, packet: &[u8], reason: &str) {
        const TIMES: u64 = 3;
        let mut at_primary = FrameTap::on(&self.lan.primary, "eth0");
        let before = self.wire.counter(self.family, reason);
        for _ in 0..TIMES {
            self.put_as(from, packet);
        }
        eventually(&format!("{what} is counted as {reason}"), || {
            (self.wire.counter(self.family, reason) >= before + TIMES).then_some(())
        });
        self.bystander.assert_undisturbed(&self.reading);
        while let Some(arrived) = at_primary.take() {
            assert_ne!(arrived, packet, "{what} was let through");
        }
    }

    /// Sends `packet`, and asserts that it arrives at the primary.
    #[track_caller]
    fn passes(&mut self, what: &str, packet: &[u8]) {
        let mut at_primary = FrameTap::on(&self.lan.primary, "eth0");
        self.put_as(&self.lan.client, packet);
        eventually(&format!("{what} arrives at the primary"), || {
            at_primary.take().filter(|arrived| arrived == packet)
        });
    }
}

/// An IPv4 packet with `options` behind its header.
fn with_ip_options(packet: &[u8], options: &[u8]) -> Vec<u8> {
    let mut changed = packet[..20].to_vec();
    changed[0] += u8::try_from(options.len() / 4).expect("few");
    let len = u16::try_from(packet.len() + options.len()).expect("short");
    changed[2..4].copy_from_slice(&len.to_be_bytes());
    changed.extend(options);
    fix_ipv4_header(&mut changed);
    changed.extend(&packet[20..]);
    changed
}

#[test]
fn packets_without_a_whole_header_are_dropped() {
    for family in Family::BOTH {
        let Some(mut testbed) = BadPacketTestbed::new("packets_without_a_whole_header_are_dropped", family)
        else {
            return;
        };
        let client = testbed.lan.client.clone();
        let headers = if family == Family::V4 { 40 } else { 60 };
        for kept in [headers - 20, headers - 17, headers - 1] {
            let packet = &testbed.bystander.forged(&testbed.reading, b"evil").emit()[..kept];
            let what = format!("{family:?} cut off after {kept} bytes");
            testbed.is_dropped(&what, &client, packet, "dropped_malformed");
        }
        if family == Family::V4 {
            let mut packet = testbed.bystander.forged(&testbed.reading, b"evil").emit();
            packet[0] = 0x4f;
            testbed.is_dropped(
                "an IP header longer than the packet",
                &client,
                &packet,
                "dropped_malformed",
            );
        }
    }
}

#[test]
fn fragments_are_dropped() {
    for family in Family::BOTH {
        let Some(mut testbed) = BadPacketTestbed::new("fragments_are_dropped", family) else {
            return;
        };
        let client = testbed.lan.client.clone();
        for (offset, more) in [(0, true), (3, true), (3, false)] {
            let whole = testbed
                .bystander
                .forged(&testbed.reading, b"evil evil evil")
                .emit();
            let what = format!("{family:?} fragment at {offset}, more: {more}");
            if family == Family::V4 {
                let mut packet = whole;
                packet[6..8].copy_from_slice(&(offset | u16::from(more) << 13).to_be_bytes());
                fix_ipv4_header(&mut packet);
                testbed.is_dropped(&what, &client, &packet, "dropped_fragment");
                continue;
            }
            let header = fragment_header(offset, more);
            let packet = with_extension(&whole, FRAGMENT, &header);
            testbed.is_dropped(&what, &client, &packet, "dropped_fragment");
            // The fragment header names another extension header, and TCP follows that header.
            for (kind, body) in [
                (HOP_BY_HOP, PADDING),
                (ROUTING, NO_ROUTE),
                (FRAGMENT, fragment_header(0, false)),
                (DESTINATION_OPTIONS, PADDING),
            ] {
                let packet = with_extension(&with_extension(&whole, kind, &body), FRAGMENT, &header);
                let what = format!("{what}, of header {kind}");
                testbed.is_dropped(&what, &client, &packet, "dropped_fragment");
            }
        }
    }
}

#[test]
fn only_the_primary_speaks_for_the_vip() {
    for family in Family::BOTH {
        let Some(mut testbed) = BadPacketTestbed::new("only_the_primary_speaks_for_the_vip", family) else {
            return;
        };
        let mut at_client = FrameTap::on(&testbed.lan.client, "port2");
        let stranger = LanHost::new(9);
        for flags in [Flags::RST, Flags::FIN_ACK] {
            // The sequence numbers are exact, so the client would accept the segment.
            let forged = testbed.bystander.forged(&testbed.reading, b"");
            let voice = Segment {
                source: forged.destination,
                destination: forged.source,
                seq: forged.ack,
                ack: forged.seq,
                flags,
                ..forged
            };
            let packet = voice.emit();
            testbed.is_dropped("a foreign segment", &stranger, &packet, "dropped_foreign_voice");
            while let Some(arrived) = at_client.take() {
                assert_ne!(arrived, packet, "the client heard it");
            }
        }
    }
}

/// A change to a packet: its name, the expected error, and the function that makes the change.
type Spoilt = (&'static str, Malformed, fn(&mut Vec<u8>));

/// Changes that turn a good packet into one that no kernel takes. The change of the IPv4 length also corrects the checksum of the IPv4
/// header.
fn spoilt(family: Family) -> Vec<Spoilt> {
    let mut all: Vec<Spoilt> = vec![
        ("a flipped bit", Malformed::Checksum, |packet| {
            *packet.last_mut().expect("long") ^= 1
        }),
        ("no checksum", Malformed::Checksum, |packet| {
            set_checksum(packet, 0)
        }),
        ("a header longer than the packet", Malformed::Tcp, |packet| {
            let tcp = packet.len() - 24;
            packet[tcp + 12] = 0xf0;
        }),
        ("a header shorter than possible", Malformed::Tcp, |packet| {
            let tcp = packet.len() - 24;
            packet[tcp + 12] = 0x40;
        }),
        ("a packet shorter than it says", Malformed::Ip, |packet| {
            packet.pop();
        }),
    ];
    if family == Family::V4 {
        all.push(("a length shorter than the header", Malformed::Ip, |packet| {
            packet[2..4].copy_from_slice(&10_u16.to_be_bytes());
            fix_ipv4_header(packet);
        }));
        all.push(("a wrong checksum of the IP header", Malformed::Ip, |packet| {
            packet[10] ^= 1
        }));
    }
    all
}

#[test]
fn what_the_primary_will_not_take_is_not_taken_into_the_log() {
    for family in Family::BOTH {
        let test = "what_the_primary_will_not_take_is_not_taken_into_the_log";
        let Some(mut testbed) = BadPacketTestbed::new(test, family) else {
            return;
        };
        for (what, malformed, spoil) in spoilt(family) {
            let mut packet = testbed.bystander.forged(&testbed.reading, b"evil").emit();
            spoil(&mut packet);
            testbed.passes(what, &packet);
            let seen = std::mem::take(&mut testbed.reading.now().malformed);
            assert_eq!(seen, [malformed], "{family:?}: {what}");
            testbed.bystander.assert_undisturbed(&testbed.reading);
        }
    }
}

/// A checksum over the pseudo header alone is valid only inside the sender, whose hardware completes it. In a packet from outside, it is
/// wrong.
#[test]
fn an_unfinished_checksum_from_outside_is_wrong() {
    for family in Family::BOTH {
        let Some(mut testbed) = BadPacketTestbed::new("an_unfinished_checksum_from_outside_is_wrong", family)
        else {
            return;
        };
        let mut packet = testbed.bystander.forged(&testbed.reading, b"evil").emit();
        let addresses = if family == Family::V4 { 12..20 } else { 8..40 };
        let pairs = packet[addresses]
            .chunks_exact(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let tcp_and_len = 6 + 24;
        let sum = !fold(pairs.sum::<u32>() + tcp_and_len);
        set_checksum(&mut packet, sum);
        testbed.passes("an unfinished checksum", &packet);
        assert_eq!(testbed.reading.now().malformed, [Malformed::Checksum]);
        testbed.bystander.assert_undisturbed(&testbed.reading);
    }
}

/// Unusual but valid packets: the primary takes them, so they must be logged.
#[test]
fn options_and_extension_headers_are_logged_and_forwarded() {
    for family in Family::BOTH {
        let test = "options_and_extension_headers_are_logged_and_forwarded";
        let Some(mut testbed) = BadPacketTestbed::new(test, family) else {
            return;
        };
        type Wrap = fn(&[u8]) -> Vec<u8>;
        let wraps: Vec<(&str, Wrap)> = match family {
            Family::V4 => vec![
                ("no operation", |packet| with_ip_options(packet, &[1, 1, 1, 0])),
                ("router alert", |packet| with_ip_options(packet, &[0x94, 4, 0, 0])),
                ("padding behind the packet", |packet| [packet, &[0; 6]].concat()),
            ],
            Family::V6 => vec![
                ("hop by hop", |packet| {
                    with_extension(packet, HOP_BY_HOP, &PADDING)
                }),
                ("destination options", |packet| {
                    with_extension(packet, DESTINATION_OPTIONS, &PADDING)
                }),
                ("both", |packet| {
                    with_extension(
                        &with_extension(packet, DESTINATION_OPTIONS, &PADDING),
                        HOP_BY_HOP,
                        &PADDING,
                    )
                }),
                ("a fragment that is the whole", |packet| {
                    with_extension(packet, FRAGMENT, &fragment_header(0, false))
                }),
            ],
        };
        for (what, wrap) in wraps {
            let packet = wrap(&testbed.bystander.forged(&testbed.reading, b"good").emit());
            testbed.passes(what, &packet);
            let mut received = [0; 4];
            testbed.bystander.server.read_exact(&mut received).expect(what);
            assert_eq!(&received, b"good", "{what}");
            testbed.bystander.input.extend(received);
            let log = testbed.reading.now();
            assert_same_stream(
                what,
                &log.transcript(testbed.bystander.address()).input,
                &testbed.bystander.input,
            );
            assert_eq!(log.malformed, [], "{what}");
        }
        assert_eq!(testbed.wire.drops(family), []);
    }
}

/// Linux takes any number of extension headers. A packet with more of them than the wire reads may contain TCP, which must not pass
/// unlogged. So the wire drops such packets of a VIP. It does not touch such packets of other addresses.
#[test]
fn a_header_that_is_too_far_behind_is_not_let_through() {
    let test = "a_header_that_is_too_far_behind_is_not_let_through";
    let Some(mut testbed) = BadPacketTestbed::new(test, Family::V6) else {
        return;
    };
    let client = testbed.lan.client.clone();
    let evil = testbed.bystander.forged(&testbed.reading, b"evil");
    for count in [7, 8, 20] {
        let packet = with_extensions(&evil.emit(), count);
        testbed.is_dropped(&format!("behind {count}"), &client, &packet, "dropped_malformed");
    }
    let mut cut = with_extensions(&evil.emit(), 1);
    cut.truncate(40);
    cut[4..6].fill(0);
    testbed.is_dropped(
        "without the header that was announced",
        &client,
        &cut,
        "dropped_malformed",
    );
    // If the wire passed this SYN, the backup's listener would accept a connection.
    let syn = Segment {
        source: (Family::V6.address(1), 1).into(),
        flags: Flags::SYN,
        payload: b"",
        ..evil
    };
    let listener = testbed.lan.backup.listen(Family::V6.vip());
    testbed.is_dropped(
        "a SYN",
        &client,
        &with_extensions(&syn.emit(), 7),
        "dropped_malformed",
    );
    listener.set_nonblocking(true).expect("non-blocking");
    assert!(listener.accept().is_err());
    // A packet of another address goes to the local stack.
    let mut at_backup = FrameTap::on(&testbed.lan.backup, "eth0");
    let other = Segment {
        destination: (Family::V6.address(2), 80).into(),
        ..evil
    };
    let before = testbed.wire.drops(Family::V6);
    let packet = with_extensions(&other.emit(), 7);
    testbed.put_as(&client, &packet);
    eventually("it arrives", || {
        at_backup.take().filter(|arrived| *arrived == packet)
    });
    assert_eq!(testbed.wire.drops(Family::V6), before);

    let packet = with_extensions(&testbed.bystander.forged(&testbed.reading, b"good").emit(), 6);
    testbed.passes("behind six", &packet);
    let mut received = [0; 4];
    testbed.bystander.server.read_exact(&mut received).expect("read");
    assert_eq!(&received, b"good");
    assert_eq!(testbed.reading.now().malformed, []);
}

/// Sends an echo request from `host` and waits for the reply.
fn ping(host: &LanHost, to: IpAddr) -> bool {
    let (domain, protocol, request, reply) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    let header = if to.is_ipv4() { 20 } else { 0 };
    host.run(|| {
        let socket = Socket::new(domain, Type::RAW, Some(protocol)).expect("a raw socket");
        socket
            .set_read_timeout(Some(PATIENCE.min(Duration::from_secs(2))))
            .expect("a timeout");
        let mut message = vec![request, 0, 0, 0, 0x12, 0x34, 0, 1];
        if to.is_ipv4() {
            let sum = u32::from(request) << 8;
            message[2..4].copy_from_slice(&fold(sum + 0x1234 + 1).to_be_bytes());
        }
        socket
            .send_to(&message, &SocketAddr::new(to, 0).into())
            .expect("send");
        let mut received = [0; 200];
        while let Ok(count) = (&socket).read(&mut received) {
            if received[..count].get(header) == Some(&reply) {
                return true;
            }
        }
        false
    })
}

#[test]
fn a_smaller_path_mtu_reaches_the_primary_and_pings_do_not() {
    for family in Family::BOTH {
        let test = "a_smaller_path_mtu_reaches_the_primary_and_pings_do_not";
        let Some(mut testbed) = BadPacketTestbed::new(test, family) else {
            return;
        };
        assert!(
            ping(&testbed.lan.client, family.vip().ip()),
            "the VIP answers pings"
        );
        assert_eq!(testbed.wire.counter(family, "icmp_forwarded"), 0);

        let forged = testbed.bystander.forged(&testbed.reading, b"");
        let sent = Segment {
            source: forged.destination,
            destination: forged.source,
            seq: forged.ack,
            ack: forged.seq,
            ..forged
        };
        let (quoted, (kind, mtu)) = match family {
            Family::V4 => (&sent.emit()[..28], ((3, 4), 1200)),
            Family::V6 => (&sent.emit()[..], ((2, 0), 1300)),
        };
        assert_eq!(tcp_info(&testbed.bystander.server).tcpi_pmtu, 1500);
        testbed.passes("too big", &icmp_error(family, kind, mtu, quoted));
        eventually("the path MTU takes effect", || {
            (tcp_info(&testbed.bystander.server).tcpi_pmtu == mtu).then_some(())
        });
        assert_eq!(testbed.wire.counter(family, "icmp_forwarded"), 1);
        testbed.bystander.assert_undisturbed(&testbed.reading);

        // An error about a connection of another service does not go to the primary.
        let other = Segment {
            source: (family.vip().ip(), 81).into(),
            ..sent
        };
        testbed.put_as(
            &testbed.lan.client,
            &icmp_error(family, kind, mtu, &other.emit()[..]),
        );
        assert!(
            ping(&testbed.lan.client, family.vip().ip()),
            "the VIP still answers"
        );
        assert_eq!(testbed.wire.counter(family, "icmp_forwarded"), 1);

        // An error about a connection that was taken over stays on this node.
        let service = family.service();
        testbed.wire.hold(service, &[forged.source]).expect("hold");
        testbed.wire.settle(service, &[forged.source]).expect("settle");
        let client = &testbed.lan.client;
        testbed.put_as(client, &icmp_error(family, kind, mtu, quoted));
        assert!(ping(client, family.vip().ip()), "the VIP still answers");
        assert_eq!(testbed.wire.counter(family, "icmp_forwarded"), 1);
    }
}

/// The server's reply goes over a path with a smaller MTU. The client still gets the whole reply.
#[test]
fn a_transfer_goes_on_over_a_smaller_path() {
    let Some(mut testbed) = BadPacketTestbed::new("a_transfer_goes_on_over_a_smaller_path", Family::V4)
    else {
        return;
    };
    let forged = testbed.bystander.forged(&testbed.reading, b"");
    let sent = Segment {
        source: forged.destination,
        destination: forged.source,
        seq: forged.ack,
        ack: forged.seq,
        ..forged
    };
    testbed.passes(
        "too big",
        &icmp_error(Family::V4, (3, 4), 1000, &sent.emit()[..28]),
    );
    let reply = stream(7, 1 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| (&testbed.bystander.server).write_all(&reply).expect("reply"));
        let mut received = vec![0; reply.len()];
        (&testbed.bystander.client)
            .read_exact(&mut received)
            .expect("reply");
        assert_same_stream("reply", &received, &reply);
    });
    assert_eq!(tcp_info(&testbed.bystander.server).tcpi_snd_mss, 1000 - 40);
    testbed.bystander.output.extend(&reply);
    testbed.bystander.assert_undisturbed(&testbed.reading);
}
