//! The program of recorded order: the kernel takes datagrams with a record into a ring, and sends them back as receipts.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use proto::order::DatagramSeal;
use steadfast_linux::order::OrderProgram;

use crate::support::PATIENCE;
use crate::support::lan::{Family, Lan, LanHost};

const PORT: u16 = 7000;
/// Time in which a receipt would have come.
const SOON: Duration = Duration::from_millis(100);

fn seal(cookie: u64) -> DatagramSeal {
    DatagramSeal::new(cookie, [7; 16])
}

/// The program on the backup, and a socket of the primary that is connected to it.
struct OrderTestbed {
    lan: Lan,
    program: OrderProgram,
    socket: UdpSocket,
}

impl OrderTestbed {
    fn new(test: &str, family: Family) -> Option<Self> {
        let lan = Lan::new(test)?;
        let program = lan.backup.run(|| {
            let mut program = OrderProgram::load(PORT).expect("the verifier accepts it");
            program
                .attach(if_nametoindex("eth0").expect("eth0"))
                .expect("attached");
            program
        });
        let backup = SocketAddr::new(lan.backup.address(family), PORT);
        let any = SocketAddr::new(lan.primary.address(family), 0);
        let socket = lan.primary.run(|| UdpSocket::bind(any)).expect("a socket");
        socket.connect(backup).expect("a route");
        Some(Self { lan, program, socket })
    }

    fn send(&self, seal: &DatagramSeal, from: u64, bytes: &[u8]) {
        for datagram in seal.datagrams(from, bytes) {
            self.socket.send(&datagram).expect("sent");
        }
    }

    /// The next receipt of this link. `None`: none comes.
    fn receipt(&self, seal: &DatagramSeal, limit: Duration) -> Option<u64> {
        self.socket.set_read_timeout(Some(limit)).expect("set");
        let mut buffer = [0; 2048];
        match self.socket.recv(&mut buffer) {
            Ok(count) => Some(seal.receipt(&buffer[..count]).expect("a receipt of the link")),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The pieces in the ring: their links, positions and bytes.
    fn taken(&self) -> Vec<(u64, u64, Vec<u8>)> {
        let mut taken = Vec::new();
        self.program
            .drain(|piece| taken.push((piece.cookie, piece.from, piece.bytes.to_vec())));
        taken
    }
}

/// Lets the kernel compute the checksums of packets from this host's network device, or leaves them to the device, which does not.
fn offload_checksums(host: &LanHost, offloads: bool) {
    let value = if offloads { "on" } else { "off" };
    let changed = host.run(|| Command::new("ethtool").args(["-K", "eth0", "tx", value]).output());
    assert!(changed.expect("ethtool can be run").status.success());
}

#[test]
fn the_kernel_takes_a_record_and_gives_receipts() {
    for family in Family::BOTH {
        let Some(testbed) = OrderTestbed::new("the_kernel_takes_a_record_and_gives_receipts", family) else {
            return;
        };
        let seal = seal(1);
        testbed.program.open_link(&seal, 1000).expect("added");
        // A receiver checks a checksum if it was computed by the sender's kernel, and by the kernel that turns the datagram round.
        for (primary, backup) in [(true, true), (false, true), (true, false), (false, false)] {
            offload_checksums(&testbed.lan.primary, primary);
            offload_checksums(&testbed.lan.backup, backup);
            testbed.program.set_have(1000);
            for len in [1, 7, 8, 9, 33, 1279, 1280] {
                let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
                testbed.send(&seal, 1000, &bytes);
                let have = testbed.receipt(&seal, PATIENCE);
                let lens = if (primary, backup) == (true, true) {
                    len
                } else {
                    1280
                };
                assert_eq!(
                    have,
                    Some(1000 + lens),
                    "{family:?}, {len} bytes, {primary}, {backup}"
                );
                assert_eq!(testbed.taken(), [(1, 1000, bytes)]);
            }
        }
        let bytes = [5; 3000];
        testbed.send(&seal, 2280, &bytes);
        let receipts = [(); 3].map(|()| testbed.receipt(&seal, PATIENCE));
        assert_eq!(receipts, [3560, 4840, 5280].map(Some));
        assert_eq!(
            testbed
                .taken()
                .into_iter()
                .flat_map(|(.., bytes)| bytes)
                .collect::<Vec<_>>(),
            bytes
        );
        assert_eq!(testbed.program.refused(), 0);
    }
}

#[test]
fn a_gap_and_a_wrong_tag_give_no_receipt() {
    let Some(testbed) = OrderTestbed::new("a_gap_and_a_wrong_tag_give_no_receipt", Family::V4) else {
        return;
    };
    let own = seal(1);
    testbed.program.open_link(&own, 10).expect("added");
    testbed.send(&own, 11, b"later");
    testbed.send(&DatagramSeal::new(1, [8; 16]), 10, b"forged");
    let mut changed = own.datagrams(10, b"changed").next().expect("one");
    *changed.last_mut().expect("it has bytes") ^= 1;
    testbed.socket.send(&changed).expect("sent");
    let longer = [own.datagrams(10, b"longer").next().expect("one"), vec![0]].concat();
    testbed.socket.send(&longer).expect("sent");
    assert_eq!(testbed.receipt(&own, SOON), None);
    assert_eq!((testbed.taken(), testbed.program.refused()), (vec![], 4));

    testbed.send(&own, 10, b"a");
    assert_eq!(testbed.receipt(&own, PATIENCE), Some(11));
    testbed.program.set_have(20); // over TCP
    testbed.send(&own, 20, b"bc");
    assert_eq!(testbed.receipt(&own, PATIENCE), Some(22));
    testbed.send(&own, 0, b"again");
    assert_eq!(
        testbed.receipt(&own, PATIENCE),
        Some(22),
        "the receipt may have been lost"
    );
    let places: Vec<_> = testbed.taken().into_iter().map(|(_, from, _)| from).collect();
    assert_eq!(places, [10, 20, 0]);
}

#[test]
fn a_full_ring_gives_no_receipt() {
    let Some(testbed) = OrderTestbed::new("a_full_ring_gives_no_receipt", Family::V4) else {
        return;
    };
    let seal = seal(1);
    testbed.program.open_link(&seal, 0).expect("added");
    let mut have = 0;
    loop {
        testbed.send(&seal, have, &[3; 1280]);
        let Some(receipt) = testbed.receipt(&seal, SOON) else {
            break;
        };
        assert_eq!(receipt, have + 1280);
        have = receipt;
        assert!(have < 8 << 20, "the ring has no end");
    }
    assert!(have > 3 << 20, "the ring is full after {have} bytes");
    let taken: usize = testbed.taken().iter().map(|(.., bytes)| bytes.len()).sum();
    assert_eq!(taken as u64, have);
    testbed.send(&seal, have, b"more");
    assert_eq!(testbed.receipt(&seal, PATIENCE), Some(have + 4));
}

#[test]
fn packets_of_others_pass_untouched() {
    for family in Family::BOTH {
        let Some(testbed) = OrderTestbed::new("packets_of_others_pass_untouched", family) else {
            return;
        };
        let (own, other) = (seal(1), seal(2));
        testbed.program.open_link(&own, 0).expect("added");
        let at = |port| SocketAddr::new(testbed.lan.backup.address(family), port);
        let bind = |port| {
            testbed
                .lan
                .backup
                .run(|| UdpSocket::bind(at(port)))
                .expect("a socket")
        };
        let expect = |socket: &UdpSocket, datagram: &[u8]| {
            socket.set_read_timeout(Some(PATIENCE)).expect("set");
            let mut buffer = [0; 4096];
            let count = socket.recv(&mut buffer).expect("a datagram");
            assert_eq!(&buffer[..count], datagram);
        };
        let (same, elsewhere) = (bind(PORT), bind(PORT + 1));
        let datagram = |seal: &DatagramSeal| seal.datagrams(0, b"abc").next().expect("one");
        let large = [datagram(&own), vec![1; 3000]].concat(); // comes in fragments
        for foreign in [
            &b"foreign"[..],
            &[9; 1400],
            &datagram(&other),
            &own.make_receipt(3),
            &large,
        ] {
            testbed.socket.send(foreign).expect("sent");
            expect(&same, foreign);
        }
        let sender = testbed.socket.try_clone().expect("a copy");
        sender.connect(at(PORT + 1)).expect("a route");
        sender.send(&datagram(&own)).expect("sent");
        expect(&elsewhere, &datagram(&own));
        assert_eq!((testbed.taken(), testbed.program.refused()), (vec![], 0));

        testbed.socket.connect(at(PORT)).expect("a route");
        testbed.send(&own, 0, b"abc");
        assert_eq!(testbed.receipt(&own, PATIENCE), Some(3));
        testbed.program.close_link(1);
        testbed.send(&own, 3, b"def");
        assert_eq!(testbed.receipt(&own, SOON), None, "the link has ended");
        expect(&same, &own.datagrams(3, b"def").next().expect("one"));
        assert_eq!(testbed.taken(), [(1, 0, b"abc".to_vec())]);
    }
}
