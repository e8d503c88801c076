//! A server loses its power in the middle of a transfer. Its connection continues, byte for byte, on a socket that is made from the log.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use proto::connection::OutputEnd;
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::fields::{ENDING, IN_FLIGHT};
use crate::support::lan::{Family, accept, patient};
use crate::support::socket::{pace, set_tcp, tcp_info};
use crate::support::testbed::{Offer, WireTestbed, say};
use crate::support::{PATIENCE, assert_same_stream, eventually, stream};

const MEGABYTE: usize = 1 << 20;
/// TCPI_OPT_TIMESTAMPS.
const TIMESTAMPS: u8 = 1;

/// The terms that the kernel and the client agreed on: MSS, both window scales, and the flags for timestamps and SACK.
fn terms(socket: &TcpStream) -> (u32, u8, u8) {
    const SACK: u8 = 2;
    let info = tcp_info(socket);
    (
        info.tcpi_snd_mss,
        info.tcpi_snd_rcv_wscale,
        info.tcpi_options & (TIMESTAMPS | SACK),
    )
}

/// Shuts a connection down when dropped, so that its transfers end if the waiting test fails.
struct EndOnDrop<'a>(&'a TcpStream);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both); // it may be closed already
    }
}

/// Sends all of `bytes`, unless the socket is shut down on the way.
fn send_while_alive(mut to: &TcpStream, bytes: &[u8]) {
    if let Err(error) = to.write_all(bytes) {
        assert!(
            matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
            "{error}"
        );
    }
}

/// Reads until the end of the stream or of the socket.
fn drain(mut from: &TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while from.read(&mut buffer).is_ok_and(|count| count > 0) {}
}

/// Transfers `upload` and `download` megabytes. The primary loses its power in the middle of the transfer. Before that, client and server
/// send at most three quarters.
fn transfer_with_a_fault(testbed: &mut WireTestbed, upload: usize, download: usize) {
    const PACE: u32 = 16 << 20; // at full speed the transfer would end before the fault
    let [input, output] =
        [(1, upload), (2, download)].map(|(seed, megabytes)| stream(seed, megabytes * MEGABYTE));
    pace(&testbed.client, PACE);
    pace(&testbed.server, PACE);
    let before = terms(&testbed.server);
    let (received, is_off) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let WireTestbed { client, server, .. } = &*testbed;
        let _end = EndOnDrop(client);
        let (input, output, received, is_off) = (&input, &output, &received, &is_off);
        let late_input = input.len() * 3 / 4;
        scope.spawn(move || {
            { client }.write_all(&input[..late_input]).expect("upload");
            eventually("the power is off", || is_off.load(Ordering::SeqCst).then_some(()));
            { client }
                .write_all(&input[late_input..])
                .expect("the rest of the upload");
        });
        scope.spawn(move || {
            let mut bytes = vec![0; output.len()];
            for chunk in bytes.chunks_mut(64 << 10) {
                { client }.read_exact(chunk).expect("download");
                received.fetch_add(chunk.len(), Ordering::SeqCst);
            }
            assert_same_stream("the output", &bytes, output);
        });
        scope.spawn(move || send_while_alive(server, &output[..output.len() * 3 / 4]));
        scope.spawn(move || drain(server));
        eventually("a quarter is over", || {
            let log = testbed.reading.now();
            let logged = log.transcript(testbed.address()).input.len();
            (received.load(Ordering::SeqCst) >= output.len() / 4 && logged >= input.len() / 4).then_some(())
        });
        testbed.power_off();
        is_off.store(true, Ordering::SeqCst);
        let mut may_differ: Vec<&[&str]> = vec![&IN_FLIGHT, &["tcpi_max_pacing_rate"]];
        if before.2 & TIMESTAMPS == 0 {
            may_differ.push(&["tcpi_snd_mss"]); // see below
        }
        if before.1 == 0 {
            may_differ.push(&["tcpi_options"]); // the restored socket has scaling, with scales of zero
        }
        let taken = testbed.take_over_in(&may_differ);
        let (mut mss, scales, options) = terms(&taken.socket);
        if options & TIMESTAMPS == 0 {
            // The kernel reserves room for timestamps at connect(), and TCP_REPAIR_OPTIONS cannot undo that.
            mss += 12;
        }
        assert_eq!((mss, scales, options), before, "MSS, window scales, options");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&taken.socket)
                    .write_all(taken.rest_of(output))
                    .expect("the rest of the output")
            });
            taken.read_input(input);
        });
        eventually("the client has all", || {
            (received.load(Ordering::SeqCst) == output.len()).then_some(())
        });
    });
    testbed.assert_window_kept();
}

#[test]
fn a_download_goes_on() {
    for family in Family::BOTH {
        let Some(mut testbed) = WireTestbed::new("a_download_goes_on", family, Offer::ALL) else {
            return;
        };
        transfer_with_a_fault(&mut testbed, 0, 8);
    }
}

#[test]
fn an_upload_goes_on() {
    for family in Family::BOTH {
        let Some(mut testbed) = WireTestbed::new("an_upload_goes_on", family, Offer::ALL) else {
            return;
        };
        transfer_with_a_fault(&mut testbed, 8, 0);
    }
}

#[test]
fn both_directions_go_on_whatever_the_client_offers() {
    for family in Family::BOTH {
        for off in 0..5 {
            let offer = Offer {
                timestamps: off != 1 && off != 4,
                sack: off != 2 && off != 4,
                scaling: off != 3 && off != 4,
            };
            let test = "both_directions_go_on_whatever_the_client_offers";
            let Some(mut testbed) = WireTestbed::new(test, family, offer) else {
                return;
            };
            eprintln!("{family:?} {offer:?}");
            transfer_with_a_fault(&mut testbed, 4, 4);
        }
    }
}

#[test]
fn an_idle_connection_goes_on() {
    for family in Family::BOTH {
        for said_before in [true, false] {
            let Some(mut testbed) = WireTestbed::new("an_idle_connection_goes_on", family, Offer::ALL) else {
                return;
            };
            if said_before {
                say(&testbed.client, &testbed.server, &stream(1, 5000));
                say(&testbed.server, &testbed.client, &stream(2, 5000));
            }
            testbed.settle();
            testbed.power_off();
            let taken = testbed.take_over();
            assert!(taken.endpoint.unacknowledged.is_empty());
            say(&taken.socket, &testbed.client, &stream(3, 100_000));
            say(&testbed.client, &taken.socket, &stream(4, 100_000));
            testbed.assert_window_kept();
        }
    }
}

/// The client's retransmission timer has backed off. The takeover wakes the client instead of waiting for this timer.
#[test]
fn a_client_that_has_backed_off_is_woken() {
    for family in Family::BOTH {
        let Some(testbed) = WireTestbed::new("a_client_that_has_backed_off_is_woken", family, Offer::ALL)
        else {
            return;
        };
        say(&testbed.client, &testbed.server, b"before");
        testbed.settle();
        testbed.power_off();
        let input = stream(1, 5000);
        (&testbed.client).write_all(&input).expect("write");
        eventually("the timer backs off", || {
            (tcp_info(&testbed.client).tcpi_backoff >= 2).then_some(())
        });
        let timeouts = tcp_info(&testbed.client).tcpi_total_rto;
        let taken = testbed.take_over();
        taken.read_input(&[b"before", &input[..]].concat());
        eventually("all is acknowledged", || {
            (tcp_info(&testbed.client).tcpi_unacked == 0).then_some(())
        });
        assert_eq!(
            tcp_info(&testbed.client).tcpi_total_rto,
            timeouts,
            "it waited for its timer"
        );
    }
}

/// Several megabytes were sent and not acknowledged. The client has all of them, or none.
#[test]
fn megabytes_of_unacknowledged_output_are_said_again() {
    for (family, delivered) in [(Family::V4, true), (Family::V6, false)] {
        let test = "megabytes_of_unacknowledged_output_are_said_again";
        let Some(mut testbed) = WireTestbed::new(test, family, Offer::ALL) else {
            return;
        };
        for (host, table) in [(&testbed.lan.client, ""), (&testbed.lan.primary, "table 100")] {
            host.sysctl("ipv4/tcp_rmem", "4096 16777216 16777216");
            host.sysctl("ipv4/tcp_wmem", "4096 16777216 16777216");
            if table.is_empty() {
                continue;
            }
            let via = family.address(2);
            let route = format!("route replace default via {via} dev eth0 {table} initcwnd 5000");
            if family == Family::V4 {
                host.ip(&route)
            } else {
                host.ip6(&route)
            }
        }
        (testbed.client, testbed.server) = testbed.lan.client.connect_pair(&testbed.listener);
        let output = stream(1, 24 * MEGABYTE);
        let (warm, rest) = output.split_at(16 * MEGABYTE);
        say(&testbed.server, &testbed.client, warm); // opens the client's window
        testbed.settle();
        if !delivered {
            testbed.deliver(false);
        }
        testbed.gag_client();
        testbed.server.set_nonblocking(true).expect("non-blocking");
        let sent = (&testbed.server).write(&rest[..5 * MEGABYTE]).expect("write");
        eventually("megabytes are out", || {
            let log = testbed.reading.now();
            let unacknowledged = log.connection(testbed.address()).1.endpoint().unacknowledged;
            (unacknowledged.end.since(unacknowledged.start) >= 3 << 20).then_some(())
        });
        testbed.power_off();
        testbed.deliver(true);
        testbed.ungag_client();
        let taken = testbed.take_over_in(&[&IN_FLIGHT]);
        let unacknowledged = &taken.endpoint.unacknowledged;
        eprintln!("{sent} written, {unacknowledged:?} loaded");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&taken.socket)
                    .write_all(taken.rest_of(&output))
                    .expect("the rest")
            });
            let mut received = vec![0; rest.len()];
            (&testbed.client).read_exact(&mut received).expect("read");
            assert_same_stream("the output", &received, rest);
        });
        say(&testbed.client, &taken.socket, &stream(2, MEGABYTE));
    }
}

#[test]
fn a_client_that_has_closed_gets_the_rest() {
    for (family, acknowledged) in [(Family::V4, true), (Family::V6, false)] {
        let Some(testbed) = WireTestbed::new("a_client_that_has_closed_gets_the_rest", family, Offer::ALL)
        else {
            return;
        };
        let output = stream(1, 2 * MEGABYTE);
        say(&testbed.server, &testbed.client, &output[..MEGABYTE]);
        testbed.settle();
        if !acknowledged {
            testbed.power_off();
        }
        (&testbed.client).write_all(b"last words").expect("write");
        testbed.client.shutdown(Shutdown::Write).expect("shutdown");
        eventually("its end is logged", || {
            let log = testbed.reading.now();
            let (_, connection) = log.connection(testbed.address());
            let heard = connection.input_acknowledged() == connection.input().frontier() || !acknowledged;
            (connection.endpoint().input_ended && heard).then_some(())
        });
        if acknowledged {
            testbed.power_off();
        }
        let taken = testbed.take_over_in(&[&ENDING, &IN_FLIGHT]);
        assert!(taken.endpoint.input_ended);
        assert_eq!(taken.input, b"last words");
        say(&taken.socket, &testbed.client, taken.rest_of(&output));
        taken.socket.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!((&testbed.client).read(&mut [0; 1]).expect("end"), 0);
    }
}

/// The server's FIN was sent. Either the client has the FIN and the client's acknowledgement was lost, or the FIN itself was lost.
#[test]
fn a_server_that_has_closed_hears_the_rest() {
    for (family, delivered) in [(Family::V4, true), (Family::V6, false)] {
        let Some(testbed) = WireTestbed::new("a_server_that_has_closed_hears_the_rest", family, Offer::ALL)
        else {
            return;
        };
        let input = stream(1, MEGABYTE);
        say(&testbed.client, &testbed.server, &input[..1000]);
        testbed.settle();
        testbed.gag_client();
        testbed.deliver(delivered);
        (&testbed.server).write_all(b"the end").expect("write");
        testbed.server.shutdown(Shutdown::Write).expect("shutdown");
        eventually("its end is logged", || {
            (testbed
                .reading
                .now()
                .connection(testbed.address())
                .1
                .endpoint()
                .output
                == OutputEnd::FinSent)
                .then_some(())
        });
        if delivered {
            let mut received = [0; 8];
            let count = (&testbed.client).read(&mut received).expect("read");
            assert_eq!(&received[..count], b"the end");
            assert_eq!((&testbed.client).read(&mut received).expect("end"), 0);
        }
        testbed.power_off();
        testbed.deliver(true);
        // Only afterwards may the client answer: on a slow machine, copies of the FIN are still on their way to it.
        let taken = testbed.take_over_in(&[&ENDING, &IN_FLIGHT]);
        testbed.ungag_client();
        assert_eq!(taken.endpoint.output, OutputEnd::FinSent);
        std::thread::scope(|scope| {
            scope.spawn(|| (&testbed.client).write_all(&input[1000..]).expect("upload"));
            taken.read_input(&input);
        });
        if !delivered {
            let mut received = Vec::new();
            (&testbed.client).read_to_end(&mut received).expect("the end");
            assert_eq!(received, b"the end");
        }
        testbed.client.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!((&taken.socket).read(&mut [0; 1]).expect("end"), 0);
    }
}

/// The client has acknowledged the server's FIN. The restored socket does not repeat the FIN.
#[test]
fn a_fin_that_was_acknowledged_is_not_repeated() {
    for family in Family::BOTH {
        let test = "a_fin_that_was_acknowledged_is_not_repeated";
        let Some(mut testbed) = WireTestbed::new(test, family, Offer::ALL) else {
            return;
        };
        let input = stream(1, MEGABYTE);
        say(&testbed.client, &testbed.server, &input[..1000]);
        say(&testbed.server, &testbed.client, b"the end");
        testbed.server.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!((&testbed.client).read(&mut [0; 1]).expect("end"), 0);
        eventually("the acknowledgement is logged", || {
            let output = testbed
                .reading
                .now()
                .connection(testbed.address())
                .1
                .endpoint()
                .output;
            (output == OutputEnd::FinAcknowledged).then_some(())
        });
        testbed.power_off();
        while testbed.tap.take().is_some() {}
        let taken = testbed.take_over_in(&[&ENDING]);
        assert_eq!(taken.endpoint.output, OutputEnd::FinAcknowledged);
        std::thread::scope(|scope| {
            scope.spawn(|| (&testbed.client).write_all(&input[1000..]).expect("upload"));
            taken.read_input(&input);
        });
        testbed.client.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!((&taken.socket).read(&mut [0; 1]).expect("end"), 0);
        set_tcp(&taken.socket, libc::TCP_REPAIR, 1); // close silently, as the keeper closes such a socket
        drop(taken);
        let vip = testbed.family.vip();
        testbed.tap.take_segments(|segment| {
            assert!(
                segment.source != vip || !(segment.flags.fin || segment.flags.rst),
                "{segment:?}"
            );
        });
    }
}

/// A connection to the testbed's listener whose sequence numbers wrap within `within` bytes, in both directions.
fn connect_near_the_wrap(testbed: &WireTestbed, within: u32) -> (TcpStream, TcpStream) {
    const SEND_QUEUE: i32 = 2;
    const OFF_WITHOUT_PROBE: i32 = -1;
    let near = |first: u32| first > within.wrapping_neg();
    let domain = Domain::for_address(testbed.family.vip());
    for attempt in 0..20_000_u32 {
        let socket = testbed
            .lan
            .client
            .run(|| Socket::new(domain, Type::STREAM, Some(Protocol::TCP)))
            .expect("socket");
        // The test chooses the client's first sequence number.
        set_tcp(&socket, libc::TCP_REPAIR, 1);
        set_tcp(&socket, libc::TCP_REPAIR_QUEUE, SEND_QUEUE);
        set_tcp(
            &socket,
            libc::TCP_QUEUE_SEQ,
            (within / 2).wrapping_neg().wrapping_sub(attempt).cast_signed(),
        );
        set_tcp(&socket, libc::TCP_REPAIR, OFF_WITHOUT_PROBE);
        socket
            .connect_timeout(&testbed.family.vip().into(), PATIENCE)
            .expect("connect");
        let client = TcpStream::from(socket);
        patient(&client);
        let server = accept(&testbed.listener);
        // The server's first sequence number is random, so the loop repeats until that number is near the wrap.
        let address = client.local_addr().expect("connected");
        let log = testbed.reading.now();
        let connection = log.connection(address).1;
        assert!(near(connection.input().first().0));
        if near(connection.output().first().0) {
            return (client, server);
        }
    }
    panic!("no server sequence number near the wrap");
}

#[test]
fn sequence_numbers_wrap_on_the_way() {
    for family in Family::BOTH {
        let Some(mut testbed) = WireTestbed::new("sequence_numbers_wrap_on_the_way", family, Offer::ALL)
        else {
            return;
        };
        (testbed.client, testbed.server) = connect_near_the_wrap(&testbed, 12 << 20);
        transfer_with_a_fault(&mut testbed, 13, 13);
    }
}

/// The client's application does not read, so the client's window is closed. It opens after the takeover.
#[test]
fn a_closed_window_of_the_client_opens_again() {
    for family in Family::BOTH {
        let Some(testbed) = WireTestbed::new("a_closed_window_of_the_client_opens_again", family, Offer::ALL)
        else {
            return;
        };
        let output = stream(1, 20 * MEGABYTE);
        testbed.server.set_nonblocking(true).expect("non-blocking");
        let mut written = 0;
        eventually("the window is closed", || {
            while let Ok(count) = (&testbed.server).write(&output[written..]) {
                written += count;
            }
            let endpoint = testbed.reading.now().connection(testbed.address()).1.endpoint();
            (endpoint.send_window == 0 && endpoint.unacknowledged.is_empty()).then_some(())
        });
        testbed.power_off();
        let taken = testbed.take_over_in(&[&IN_FLIGHT]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (&taken.socket)
                    .write_all(taken.rest_of(&output))
                    .expect("the rest")
            });
            let mut received = vec![0; output.len()];
            (&testbed.client).read_exact(&mut received).expect("read");
            assert_same_stream("the output", &received, &output);
        });
    }
}

/// The old primary's application did not read, so the window was closed and the client had to stop. The restored socket has room, and
/// announces its window before the client sends a window probe.
#[test]
fn a_closed_window_of_the_server_opens_unasked() {
    for family in Family::BOTH {
        let Some(mut testbed) =
            WireTestbed::new("a_closed_window_of_the_server_opens_unasked", family, Offer::ALL)
        else {
            return;
        };
        let input = stream(1, 20 * MEGABYTE);
        testbed.client.set_nonblocking(true).expect("non-blocking");
        let mut written = 0;
        eventually("the window is closed", || {
            while let Ok(count) = (&testbed.client).write(&input[written..]) {
                written += count;
            }
            let log = testbed.reading.now();
            let connection = log.connection(testbed.address()).1;
            let acknowledged = connection.input_acknowledged() == connection.input().frontier();
            (connection.endpoint().receive_window == 0 && acknowledged).then_some(())
        });
        testbed.gag_client();
        testbed.power_off();
        while testbed.tap.take().is_some() {}
        let taken = testbed.take_over();
        let (client, vip) = (testbed.address(), testbed.family.vip());
        let expected = taken.endpoint.send_unacknowledged;
        eventually("the window is opened", || {
            let mut opened = false;
            testbed.tap.take_segments(|segment| {
                let heard = (segment.source, segment.destination, segment.seq) == (vip, client, expected);
                opened |= heard && segment.window > 0;
            });
            opened.then_some(())
        });
        testbed.ungag_client();
        testbed.client.set_nonblocking(false).expect("blocking");
        std::thread::scope(|scope| {
            scope.spawn(|| (&testbed.client).write_all(&input[written..]).expect("the rest"));
            taken.read_input(&input);
        });
    }
}
