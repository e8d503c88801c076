//! A takeover in each state of a connection. Each test then uses the connection until its end. docs/takeover.md lists all states. Takeovers
//! in plain transfers, with closed windows, and after one side's FIN are in `restore.rs`.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use proto::action::Gate;
use proto::connection::{OutputEnd, Protection, UnprotectedCause};
use proto::packet::{Flags, Segment, TcpOptions};
use socket2::{SockRef, TcpKeepalive};
use steadfast_linux::raw::RawSender;

use crate::support::eventually;
use crate::support::fields::{DIFFER, ENDING, IN_FLIGHT, MAY_DIFFER, differences};
use crate::support::lan::{Family, accept};
use crate::support::socket::{tcp_info, tcp_state};
use crate::support::takeover::take_over;
use crate::support::talk::Talk;
use crate::support::testbed::{Offer, WireTestbed};

/// TCP states as in TCP_INFO (`net/tcp_states.h`).
mod state {
    pub const FIN_WAIT2: u8 = 5;
    pub const LAST_ACK: u8 = 9;
    pub const CLOSING: u8 = 11;
}

fn state(socket: &TcpStream) -> u8 {
    tcp_info(socket).tcpi_state
}

/// A testbed in which both sides have sent data.
fn opened(test: &str, family: Family) -> Option<(WireTestbed, Talk)> {
    let testbed = WireTestbed::new(test, family, Offer::ALL)?;
    let mut talk = Talk::new();
    talk.exchange(&testbed.client, &testbed.server, 5000);
    testbed.settle();
    Some((testbed, talk))
}

/// Waits until the log has the expected state of the testbed's connection.
#[track_caller]
fn wait_until_logged(testbed: &WireTestbed, what: &str, output: OutputEnd, input_ended: bool) {
    eventually(what, || {
        let endpoint = testbed.reading.now().connection(testbed.address()).1.endpoint();
        ((endpoint.output, endpoint.input_ended) == (output, input_ended)).then_some(())
    });
}

/// SYN-SENT, without an answer: the client's next SYN opens a connection to the survivor.
#[test]
fn a_syn_that_nobody_answered_is_answered_here() {
    for family in Family::BOTH {
        let test = "a_syn_that_nobody_answered_is_answered_here";
        let Some((testbed, _)) = opened(test, family) else {
            return;
        };
        testbed.power_off();
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| testbed.lan.client.connect(family.vip()));
            eventually("the SYN is logged", || {
                (testbed.reading.now().handshakes(family) == 1).then_some(())
            });
            testbed.wire.set_gates(Gate::Takeover);
            assert_eq!(testbed.reading.now().open_pending(family), 0);
            let listener = testbed.lan.backup.listen(family.vip());
            testbed.wire.set_gates(Gate::Sole); // all connections are decided
            let client = connecting.join().expect("connect");
            let server = accept(&listener);
            Talk::new().exchange(&client, &server, 300_000);
        });
    }
}

/// SYN-RECEIVED: the SYN-ACK was sent. Either the SYN-ACK or the client's answer was lost.
#[test]
fn a_handshake_that_was_answered_goes_on() {
    for (family, delivered) in [(Family::V4, true), (Family::V6, false), (Family::V4, false)] {
        let test = "a_handshake_that_was_answered_goes_on";
        let Some((testbed, _)) = opened(test, family) else {
            return;
        };
        let logged = testbed.wire.counter(family, "logged_out_packets");
        testbed.deliver(false);
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| testbed.lan.client.connect(family.vip()));
            testbed.wire.wait_for(family, "logged_out_packets", logged + 1);
            if delivered {
                testbed.gag_client();
                testbed.deliver(true);
                eventually("the client has the SYN-ACK", || {
                    connecting.is_finished().then_some(())
                });
            }
            testbed.power_off();
            testbed.wire.set_gates(Gate::Takeover);
            testbed.ungag_client_if(delivered);
            testbed.deliver(true);
            let pending = testbed.reading.now().open_pending_with_answers(family);
            let [(address, syn_ack)] = &pending[..] else {
                panic!("{pending:?}");
            };
            let (lan, wire) = (&testbed.lan, &testbed.wire);
            let taken = take_over(&lan.backup, wire, &testbed.reading, *address, family);
            let raw = lan.backup.run(RawSender::open).expect("raw sockets");
            raw.send(syn_ack).expect("the SYN-ACK");
            let client = connecting.join().expect("connect");
            Talk::new().carry_to_the_end(&client, &taken);
        });
    }
}

/// The first window was sent, and nothing of it was acknowledged.
#[test]
fn a_server_in_slow_start_goes_on() {
    for family in Family::BOTH {
        let Some((testbed, talk)) = opened("a_server_in_slow_start_goes_on", family) else {
            return;
        };
        testbed.gag_client();
        testbed.server.set_nonblocking(true).expect("non-blocking");
        let written = (&testbed.server)
            .write(&talk.output[talk.client_read..])
            .expect("write");
        let old = eventually("the first window is out", || {
            let info = tcp_info(&testbed.server);
            (info.tcpi_unacked >= info.tcpi_snd_cwnd).then_some(info)
        });
        assert!(old.tcpi_snd_cwnd < old.tcpi_snd_ssthresh, "not in slow start");
        testbed.power_off();
        testbed.ungag_client();
        let taken = testbed.take_over_in(&[&IN_FLIGHT]);
        let unacknowledged = &taken.endpoint.unacknowledged;
        let sent = unacknowledged.end.since(unacknowledged.start);
        assert!(0 < sent && sent < written as u64, "{sent} of {written} are out");
        talk.carry_to_the_end(&testbed.client, &taken);
    }
}

/// Both applications read slowly. The survivor's application gets the input that the old server has not read. The client reads the
/// output that its own kernel already holds.
#[test]
fn what_nobody_has_read_is_read_once() {
    for family in Family::BOTH {
        let Some((testbed, mut talk)) = opened("what_nobody_has_read_is_read_once", family) else {
            return;
        };
        talk.client_writes(&testbed.client, 50_000);
        let unread = &talk.output[talk.client_read..][..50_000];
        (&testbed.server).write_all(unread).expect("write");
        testbed.settle();
        let mut one = [0; 1];
        assert_eq!(testbed.server.peek(&mut one).expect("it is unread"), 1);
        testbed.power_off();
        let taken = testbed.take_over();
        assert!(taken.endpoint.unacknowledged.is_empty());
        assert_eq!(taken.input.len(), 55_000);
        talk.carry_to_the_end(&testbed.client, &taken);
    }
}

/// Sends the second of the client's next two kilobytes of input, but not the first. This leaves a gap.
fn put_ahead(testbed: &WireTestbed, talk: &Talk) {
    let endpoint = testbed.reading.now().connection(testbed.address()).1.endpoint();
    let segment = Segment {
        source: endpoint.client,
        destination: endpoint.vip,
        seq: endpoint.receive_next + 1000,
        ack: endpoint.send_unacknowledged,
        flags: Flags::ACK,
        window: 1000,
        options: TcpOptions {
            timestamps: endpoint.timestamps.map(|clock| proto::packet::Timestamps {
                value: clock.echo,
                echo: clock.value,
            }),
            ..TcpOptions::default()
        },
        payload: &talk.input[talk.client_wrote + 1000..][..1000],
    };
    let (backup, client) = (testbed.lan.backup.mac(), testbed.lan.client.mac());
    testbed.tap.put(backup, client, &segment.emit());
    eventually("the server holds it", || {
        (tcp_info(&testbed.server).tcpi_rcv_ooopack == 1).then_some(())
    });
}

/// A segment of the client arrived before an earlier segment. The old primary's kernel holds the later segment, but the survivor's kernel
/// does not. So the client must send the later segment again.
#[test]
fn input_out_of_order_is_said_again() {
    for family in Family::BOTH {
        let Some((testbed, talk)) = opened("input_out_of_order_is_said_again", family) else {
            return;
        };
        put_ahead(&testbed, &talk);
        assert!(
            testbed
                .reading
                .now()
                .connection(testbed.address())
                .1
                .input()
                .has_holes()
        );
        testbed.power_off();
        let taken = testbed.take_over_in(&[&["tcpi_snd_wnd"]]);
        assert_eq!(taken.input.len(), talk.client_wrote);
        talk.carry_to_the_end(&testbed.client, &taken);
    }
}

/// One segment of the server was lost, and the next segment arrived. The client has told only the old primary that it holds the next
/// segment. So the survivor sends both segments again.
#[test]
fn output_that_the_client_holds_out_of_order_is_completed() {
    for family in Family::BOTH {
        let test = "output_that_the_client_holds_out_of_order_is_completed";
        let Some(mut testbed) = WireTestbed::new(test, family, Offer::ALL) else {
            return;
        };
        // The server must not retransmit the lost segment, even if this machine is slow. The setting applies to the first timeout too.
        let via = family.address(2);
        let patient = format!("route replace default via {via} dev eth0 table 100 rto_min 60s");
        match family {
            Family::V4 => testbed.lan.primary.ip(&patient),
            Family::V6 => testbed.lan.primary.ip6(&patient),
        }
        (testbed.client, testbed.server) = testbed.lan.client.connect_pair(&testbed.listener);
        testbed.server.set_nodelay(true).expect("set");
        let mut talk = Talk::new();
        talk.exchange(&testbed.client, &testbed.server, 5000);
        testbed.settle();
        let says = |at: usize| {
            let output = &talk.output[talk.client_read + at..][..1000];
            (&testbed.server).write_all(output).expect("write");
            eventually("it is logged", || {
                let log = testbed.reading.now();
                let unacknowledged = log.connection(testbed.address()).1.endpoint().unacknowledged;
                (unacknowledged.end.since(unacknowledged.start) == at as u64 + 1000).then_some(())
            });
        };
        testbed.gag_client();
        testbed.deliver(false);
        says(0);
        testbed.deliver(true);
        says(1000);
        eventually("the client holds the second segment", || {
            (tcp_info(&testbed.client).tcpi_rcv_ooopack > 0).then_some(())
        });
        testbed.power_off();
        testbed.ungag_client();
        let taken = testbed.take_over_in(&[&IN_FLIGHT, &["tcpi_rto"]]);
        talk.carry_to_the_end(&testbed.client, &taken);
    }
}

/// CLOSING: both sides have closed at the same time, and the server's FIN is not acknowledged.
#[test]
fn both_have_closed_at_once() {
    for family in Family::BOTH {
        let Some((testbed, mut talk)) = opened("both_have_closed_at_once", family) else {
            return;
        };
        testbed.deliver(false);
        (&testbed.server)
            .write_all(&talk.output[talk.client_read..][..1000])
            .expect("write");
        talk.server_closes(&testbed.server, talk.client_read + 1000);
        wait_until_logged(&testbed, "the server's end", OutputEnd::FinSent, false);
        talk.client_writes(&testbed.client, 1000);
        talk.client_closes(&testbed.client);
        eventually("the server is in CLOSING", || {
            (state(&testbed.server) == state::CLOSING).then_some(())
        });
        wait_until_logged(&testbed, "both ends", OutputEnd::FinSent, true);
        testbed.power_off_only();
        testbed.deliver(true);
        let taken = testbed.take_over_in(&[&ENDING, &IN_FLIGHT]);
        talk.carry_to_the_end(&testbed.client, &taken);
    }
}

/// LAST-ACK: the client has closed, then the server. Either the server's last data and FIN were lost, or the client's acknowledgement of
/// them was.
#[test]
fn a_server_that_closes_last_is_heard() {
    for (family, delivered) in [(Family::V4, true), (Family::V6, false), (Family::V4, false)] {
        let Some((testbed, mut talk)) = opened("a_server_that_closes_last_is_heard", family) else {
            return;
        };
        talk.client_writes(&testbed.client, 1000);
        talk.client_closes(&testbed.client);
        wait_until_logged(&testbed, "the client's end", OutputEnd::Open, true);
        testbed.settle();
        if delivered {
            testbed.gag_client();
        } else {
            testbed.deliver(false);
        }
        (&testbed.server)
            .write_all(&talk.output[talk.client_read..][..1000])
            .expect("write");
        talk.server_closes(&testbed.server, talk.client_read + 1000);
        wait_until_logged(&testbed, "both ends", OutputEnd::FinSent, true);
        assert_eq!(state(&testbed.server), state::LAST_ACK);
        if delivered {
            eventually("the client has all", || {
                tcp_state(&testbed.client).closed.then_some(())
            });
        }
        testbed.power_off_only();
        testbed.ungag_client_if(delivered);
        testbed.deliver(true);
        let taken = testbed.take_over_in(&[&ENDING, &IN_FLIGHT]);
        talk.carry_to_the_end(&testbed.client, &taken);
        eventually("the FIN is acknowledged", || {
            (state(&taken.socket) == state::FIN_WAIT2).then_some(())
        });
    }
}

/// TIME-WAIT: both sides have closed, the server first, but the server's last acknowledgement was lost. The client repeats its FIN. The
/// survivor answers without a socket.
#[test]
fn a_fin_that_is_repeated_after_the_end_is_answered() {
    for family in Family::BOTH {
        let test = "a_fin_that_is_repeated_after_the_end_is_answered";
        let Some((testbed, mut talk)) = opened(test, family) else {
            return;
        };
        talk.server_closes(&testbed.server, talk.client_read);
        assert_eq!((&testbed.client).read(&mut [0; 1]).expect("end"), 0);
        wait_until_logged(&testbed, "the server's end", OutputEnd::FinAcknowledged, false);
        testbed.deliver(false);
        talk.client_closes(&testbed.client);
        eventually("the connection is over in the log", || {
            (testbed.reading.now().open_connections() == 0).then_some(())
        });
        assert_eq!((&testbed.server).read(&mut [0; 1]).expect("end"), 0);
        assert!(tcp_state(&testbed.server).closed, "the server is in TIME-WAIT");
        assert_eq!(state(&testbed.client), state::LAST_ACK);
        testbed.lan.power_off_primary();
        testbed.wire.set_gates(Gate::Takeover);
        testbed.reading.now().answers.clear();
        testbed.deliver(true);
        let answer = eventually("the client asks again", || testbed.reading.now().answers.pop());
        let raw = testbed.lan.backup.run(RawSender::open).expect("raw sockets");
        raw.send(&answer).expect("the answer");
        eventually("the client is at its end", || {
            tcp_state(&testbed.client).closed.then_some(())
        });
        assert!(testbed.client.take_error().expect("no error").is_none());
    }
}

/// Both sides send keepalive probes. The client's probes were unanswered for a while, and are answered after the takeover.
#[test]
fn keepalive_probes_are_answered() {
    let often = TcpKeepalive::new()
        .with_time(Duration::from_secs(1))
        .with_interval(Duration::from_secs(1));
    for family in Family::BOTH {
        let Some((testbed, talk)) = opened("keepalive_probes_are_answered", family) else {
            return;
        };
        let segments = tcp_info(&testbed.client).tcpi_segs_in;
        SockRef::from(&testbed.server)
            .set_tcp_keepalive(&often)
            .expect("keepalive");
        eventually("the server asks", || {
            (tcp_info(&testbed.client).tcpi_segs_in > segments).then_some(())
        });
        testbed.reading.now().assert_protected(testbed.address());
        testbed.power_off_only();
        SockRef::from(&testbed.client)
            .set_tcp_keepalive(&often)
            .expect("keepalive");
        eventually("the client asks in vain", || {
            (tcp_info(&testbed.client).tcpi_probes > 0).then_some(())
        });
        let taken = testbed.take_over();
        assert_eq!(taken.input.len(), talk.client_wrote, "a probe is no input");
        eventually("it is answered", || {
            (tcp_info(&testbed.client).tcpi_probes == 0).then_some(())
        });
        // The restored socket's probes are answered too.
        let segments = tcp_info(&testbed.client).tcpi_segs_in;
        SockRef::from(&taken.socket)
            .set_tcp_keepalive(&often)
            .expect("keepalive");
        eventually("the survivor asks", || {
            (tcp_info(&testbed.client).tcpi_segs_in > segments).then_some(())
        });
        talk.carry_to_the_end(&testbed.client, &taken);
    }
}

/// The log contains the urgent byte. A program reads that byte in its stream only if it has set SO_OOBINLINE, which no packet shows. So it
/// is unknown which bytes the server has read, and which bytes the client will read.
#[test]
fn urgent_data_is_not_protected() {
    for (family, of_client) in [(Family::V4, true), (Family::V6, false)] {
        let Some((testbed, _)) = opened("urgent_data_is_not_protected", family) else {
            return;
        };
        let (from, to) = match of_client {
            true => (&testbed.client, &testbed.server),
            false => (&testbed.server, &testbed.client),
        };
        let from = SockRef::from(from);
        from.send(b"ab").expect("send");
        from.send_out_of_band(b"!").expect("send");
        from.send(b"cd").expect("send");
        let mut read = [0; 4];
        { to }.read_exact(&mut read[..2]).expect("before it"); // a read ends at the urgent byte
        { to }.read_exact(&mut read[2..]).expect("behind it");
        assert_eq!(&read, b"abcd");
        let log = testbed.reading.now();
        let protection = log.connection(testbed.address()).1.protection();
        assert_eq!(protection, Protection::Unprotected(UnprotectedCause::Urgent));
    }
}

/// Creates the traffic that `case`, from 0 to 4, selects. Then waits until no bytes are in flight.
fn bring_to_rest(testbed: &WireTestbed, talk: &mut Talk, case: usize) {
    match case {
        0 => {}
        1 => talk.client_writes(&testbed.client, 10_000), // the server does not read it
        2 => {
            talk.client_closes(&testbed.client);
            wait_until_logged(testbed, "the client's end", OutputEnd::Open, true);
        }
        3 => {
            put_ahead(testbed, talk);
            talk.client_writes(&testbed.client, 2000);
        }
        _ => {
            testbed.deliver(false);
            (&testbed.server)
                .write_all(&talk.output[talk.client_read..][..10_000])
                .expect("write");
            eventually("the server repeats it", || {
                (tcp_info(&testbed.server).tcpi_total_rto > 0).then_some(())
            });
            testbed.deliver(true);
        }
    }
    testbed.settle();
}

/// Finds the fields in which the restored socket of a connection at rest differs from the old one, and compares them with `DIFFER`. The
/// connection comes to rest after a plain exchange, unread input, a FIN of the client, input out of order, or lost output.
#[test]
fn the_fields_that_may_differ_are_these() {
    let mut differed = BTreeSet::new();
    for family in Family::BOTH {
        for case in 0..5 {
            let Some((testbed, mut talk)) = opened("the_fields_that_may_differ_are_these", family) else {
                return;
            };
            bring_to_rest(&testbed, &mut talk, case);
            let old = tcp_info(&testbed.server);
            testbed.power_off_only();
            let taken = testbed.take_over_in(&[&ENDING]);
            eprintln!("{family:?}, case {case}:");
            differed.extend(differences(&old, &tcp_info(&taken.socket)));
            talk.carry_to_the_end(&testbed.client, &taken);
        }
    }
    differed.retain(|name| !MAY_DIFFER.contains(name));
    // After the client's FIN, a restored socket is ESTABLISHED instead of CLOSE-WAIT (docs/takeover.md).
    assert!(differed.remove("tcpi_state"));
    assert_eq!(differed, BTreeSet::from(DIFFER));
}
