//! The bound on all logs of a table together. When the logs reach it, the clients that hold the most memory give some of it back. So no
//! client can cost the other clients their protection, whatever it sends.
//!
//! ```text
//!   held     ▐█▌
//!            ▐█▌          ▐█▌
//!   level ───▐█▌──────────▐█▌──── what is above is given back
//!            ▐█▌  ▐█▌     ▐█▌
//!            ▐█▌  ▐█▌ ▐█▌ ▐█▌
//! ```
//!
//! The level is chosen so that the memory below it fits the bound (max-min fairness). The level is computed only when the bound is
//! exceeded. Then more than the excess is freed, so that many packets pass before the next look over all connections.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use super::open::OpenConnections;
use super::{ConnectionId, Table};
use crate::Instant;
use crate::connection::Connection;
use crate::spill::LogFull;
use crate::stream::Shelf;

/// The logs are reduced to the bound less 1/ROOM of the bound.
const ROOM: u64 = 16;

impl Table {
    /// Copies the bytes that are still needed from the shelf, before the caller clears the shelf.
    pub fn keep(&mut self, shelf: &dyn Shelf) {
        for id in self.open.take_shelved() {
            self.change(id, |connection| connection.keep(shelf));
        }
    }

    /// Changes a connection, and then accounts for its memory. If the logs are over their bound and nothing can be given back,
    /// the connection may not grow.
    pub fn change(&mut self, id: ConnectionId, change: impl FnOnce(&mut Connection)) {
        self.change_at(id, None, change);
    }

    /// As [`change`](Self::change). If a packet causes the change, `now` is the time when the packet was logged.
    /// Returns `None` if there is no such connection.
    pub(super) fn change_at<R>(
        &mut self,
        id: ConnectionId,
        now: Option<Instant>,
        change: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        if self.open.get(id).is_none() {
            return self.lingering.change(id, change);
        }
        let may_grow = !self.is_exhausted || self.memory() <= self.config.bytes_max;
        let result = self.open.change(id, now, may_grow, change);
        self.share_out();
        result
    }

    /// If the logs exceed their bound, the clients that hold the most give memory back.
    fn share_out(&mut self) {
        let most = self.config.bytes_max;
        if self.memory() <= most {
            self.is_exhausted = false;
        } else if !std::mem::replace(&mut self.is_exhausted, true) {
            self.lingering.bound(most);
            let target = (most - most / ROOM).saturating_sub(self.lingering.memory());
            level_down(&mut self.open, target);
            self.is_exhausted = self.memory() > most;
        }
    }
}

/// Brings the open connections down to `target` bytes together.
fn level_down(open: &mut OpenConnections, target: u64) {
    let mut holders = BTreeMap::<IpAddr, (u64, Vec<(u64, ConnectionId)>)>::new();
    for (id, connection) in open.iter() {
        let (held, memory) = (
            holders.entry(holder(connection.client().ip())).or_default(),
            connection.memory() as u64,
        );
        held.0 += memory;
        held.1.push((memory, id));
    }
    let level = level(holders.values().map(|(held, _)| *held).collect(), target);
    for (held, mut connections) in holders.into_values() {
        let mut excess = held.saturating_sub(level);
        // Largest first: a few connections lose much, instead of many connections losing a little.
        connections.sort_by_key(|&(memory, _)| std::cmp::Reverse(memory));
        for (memory, id) in connections {
            if excess == 0 {
                break;
            }
            let bound = usize::try_from(memory.saturating_sub(excess)).unwrap_or(usize::MAX);
            open.change(id, None, true, |connection| {
                connection.hold(bound, LogFull::Share)
            });
            let left = open.get(id).map_or(0, |connection| connection.memory() as u64);
            excess = excess.saturating_sub(memory - left);
        }
    }
}

/// The holder to which a client's memory is charged. An IPv6 user has 2⁶⁴ addresses, so a /64 counts as one holder.
fn holder(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// The level: the bytes that each holder may keep so that all holders together hold at most `target` bytes.
fn level(mut held: Vec<u64>, target: u64) -> u64 {
    held.sort_unstable();
    let mut left = target;
    for (index, &bytes) in held.iter().enumerate() {
        let share = left / (held.len() - index) as u64;
        if bytes > share {
            return share;
        }
        left -= bytes;
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::connection::{AtLimit, Protection};
    use crate::follower::RestartPolicy;
    use crate::packet::{Flags, Segment, TcpOptions};
    use crate::spill::Spills;
    use crate::spill::tests::TestDepot;
    use crate::table::{Direction, TableConfig};
    use crate::{Instant, Seq};

    const TOTAL: u64 = 1 << 20;
    const GET: &[u8] = b"GET /file HTTP/1.1\r\n\r\n";
    const POST: &[u8] = b"POST /form/with/a/name/of/some/length HTTP/1.1\r\nContent-Length: 0\r\n\r\n";

    fn table(at_limit: AtLimit) -> Table {
        Table::new(TableConfig {
            connection_bytes_max: TOTAL,
            bytes_max: TOTAL,
            at_limit,
            ..TableConfig::sample()
        })
    }

    /// A client of a table, and the number of bytes that the client and its server have sent.
    struct ShareClient {
        address: SocketAddr,
        sent: u32,
        said: u32,
    }

    impl ShareClient {
        fn open(table: &mut Table, address: &str) -> Self {
            let mut client = Self {
                address: address.parse().expect("an address"),
                sent: 0,
                said: 0,
            };
            client.pass(table, Direction::In, Flags::SYN, &[]);
            client.pass(table, Direction::Out, Flags::SYN_ACK, &[]);
            client.pass(table, Direction::In, Flags::ACK, &[]);
            client
        }

        fn pass(&mut self, table: &mut Table, direction: Direction, flags: Flags, payload: &[u8]) {
            let opened = u32::from(!flags.syn);
            let vip = table.config().vip;
            let (source, destination, seq, ack) = match direction {
                Direction::In => (self.address, vip, self.sent + opened, 1001),
                Direction::Out => (vip, self.address, 1000 + opened + self.said, self.sent + 1),
            };
            let segment = Segment {
                source,
                destination,
                seq: Seq(seq),
                ack: Seq(ack),
                flags,
                window: u16::MAX,
                options: TcpOptions {
                    window_scale: flags.syn.then_some(14),
                    ..TcpOptions::default()
                },
                payload,
            };
            table.on_packet(Instant::ZERO, direction, &segment, None);
            match direction {
                Direction::In => self.sent += payload.len() as u32,
                Direction::Out => self.said += payload.len() as u32,
            }
        }

        /// The client sends `payload`, and the server acknowledges it.
        fn send(&mut self, table: &mut Table, payload: &[u8]) {
            self.pass(table, Direction::In, Flags::ACK, payload);
            self.pass(table, Direction::Out, Flags::ACK, &[]);
        }

        /// The server sends a reply of this many bytes, and the client acknowledges nothing of it.
        fn download(&mut self, table: &mut Table, bytes: usize) {
            self.send(table, GET);
            self.pass(
                table,
                Direction::Out,
                Flags::ACK,
                b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n",
            );
            for _ in 0..bytes / 1000 {
                self.pass(table, Direction::Out, Flags::ACK, &[7; 1000]);
            }
        }

        fn protection(&self, table: &Table) -> String {
            let id = table.find(self.address).expect("it is open");
            match table.get(id).expect("it is open").protection() {
                Protection::Unprotected(cause) => cause.to_string(),
                protection => format!("{protection:?}"),
            }
        }
    }

    /// Ten clients need little memory each. Another client has many connections and takes all memory that it can get.
    #[test]
    fn one_client_cannot_take_the_protection_of_others() {
        for greedy in ["10.9.9.9", "[2001:db8::9:0:0:9]"] {
            let mut table = table(AtLimit::Unprotect);
            let mut modest: Vec<_> = (0..10)
                .map(|last| ShareClient::open(&mut table, &format!("10.0.0.{last}:4000")))
                .collect();
            modest
                .iter_mut()
                .for_each(|client| client.download(&mut table, 10_000));
            for number in 0..100 {
                let mut client = ShareClient::open(&mut table, &format!("{greedy}:{}", 4000 + number));
                client.download(&mut table, 50_000);
                assert!(table.memory() <= TOTAL + 65_536, "{}", table.memory());
            }
            for client in &mut modest {
                client.download(&mut table, 20_000);
            }
            for client in &modest {
                assert_eq!(client.protection(&table), "Protected");
            }
            let lost = table.iter().filter(|(_, connection)| {
                matches!(connection.protection(), Protection::Unprotected(cause)
                    if cause.to_string() == "all logs together reached their limit, and this client's logs are the largest")
            });
            assert!(lost.count() >= 80, "the greedy client lost protection");
        }
    }

    /// A client leaves out a byte. The bytes behind this hole are never acknowledged, so no acknowledgement gives their memory back. The
    /// memory is given back when the connection is given up.
    #[test]
    fn bytes_behind_a_hole_are_given_back() {
        // Before the hole the client has sent nothing, or the beginning of a request that would be executed again.
        for said in [
            &b""[..],
            b"PUT /big HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n",
        ] {
            let mut table = table(AtLimit::Unprotect);
            let mut modest: Vec<_> = (0..10)
                .map(|last| ShareClient::open(&mut table, &format!("10.0.0.{last}:4000")))
                .collect();
            for number in 0..30 {
                let mut client = ShareClient::open(&mut table, &format!("10.9.9.9:{}", 4000 + number));
                client.pass(&mut table, Direction::In, Flags::ACK, said);
                client.sent += 1; // the hole: a byte that nobody has seen
                for _ in 0..60 {
                    client.pass(&mut table, Direction::In, Flags::ACK, &[1; 1000]);
                    assert!(table.memory() <= TOTAL + 65_536, "{}", table.memory());
                }
            }
            for client in &mut modest {
                client.download(&mut table, 20_000);
                assert!(table.memory() <= TOTAL + 65_536, "{}", table.memory());
            }
            for client in &modest {
                assert_eq!(client.protection(&table), "Protected");
            }
        }
    }

    /// Ended connections that wait for their replicas may hold up to a quarter of the bound. Open connections cannot use that memory. If
    /// the bound is reached, the open connections that hold the most give memory back, and not the connection that needs memory next.
    #[test]
    fn what_lingers_is_given_back_by_those_that_hold_the_most() {
        let mut table = Table::new(TableConfig {
            policy: RestartPolicy::Replica,
            ..table(AtLimit::Unprotect).config().clone()
        });
        let mut modest = ShareClient::open(&mut table, "10.0.0.1:4000");
        let mut number = 0;
        while table.lingering.memory() < TOTAL / 4 - 16_384 {
            number += 1;
            let mut client = ShareClient::open(&mut table, &format!("10.0.1.1:{number}"));
            (0..10).for_each(|_| client.send(&mut table, &[1; 1000]));
            client.pass(&mut table, Direction::In, Flags::RST, &[]);
        }
        let mut greedy = ShareClient::open(&mut table, "10.9.9.9:4000");
        while table.memory() < TOTAL - 40_000 {
            greedy.send(&mut table, &[1; 1000]);
        }
        assert_eq!(greedy.protection(&table), "Protected");
        for _ in 0..100 {
            modest.send(&mut table, &[1; 1000]);
            assert!(table.memory() <= TOTAL + 65_536, "{}", table.memory());
        }
        assert_eq!(modest.protection(&table), "Protected");
        assert_eq!(
            greedy.protection(&table),
            "all logs together reached their limit, and this client's logs are the largest"
        );
    }

    /// Connections that end at the same time may hold more than the share of ended connections, until the bound is checked again.
    #[test]
    fn connections_that_end_together_cost_nobody_protection() {
        let mut table = Table::new(TableConfig {
            policy: RestartPolicy::Replica,
            ..table(AtLimit::Unprotect).config().clone()
        });
        let mut modest = ShareClient::open(&mut table, "10.0.0.1:4000");
        modest.send(&mut table, &[1; 1000]);
        for number in 0..7 {
            let mut client = ShareClient::open(&mut table, &format!("10.0.1.1:{}", 4000 + number));
            (0..100).for_each(|_| client.send(&mut table, &[1; 1000]));
            client.pass(&mut table, Direction::In, Flags::RST, &[]);
        }
        assert!(table.memory() > TOTAL / 5 * 4, "{}", table.memory());
        for _ in 0..300 {
            modest.send(&mut table, &[1; 1000]);
            assert!(table.memory() <= TOTAL + 65_536, "{}", table.memory());
        }
        assert_eq!(modest.protection(&table), "Protected");
    }

    /// A service behind a proxy has one client, which holds the memory of all logs.
    #[test]
    fn a_single_client_may_have_all() {
        let mut table = table(AtLimit::Unprotect);
        let mut clients: Vec<_> = (0..10)
            .map(|port| ShareClient::open(&mut table, &format!("10.0.0.1:{}", 4000 + port)))
            .collect();
        for client in &mut clients {
            client.download(&mut table, 50_000);
        }
        assert!(
            clients
                .iter()
                .all(|client| client.protection(&table) == "Protected")
        );
        let mut one_more = ShareClient::open(&mut table, "10.0.0.1:5000");
        one_more.download(&mut table, 600_000);
        let lost = clients.iter().chain([&one_more]);
        let lost = lost
            .filter(|client| client.protection(&table) != "Protected")
            .count();
        assert_eq!(lost, 1, "the largest");
    }

    /// Logs are spilled to files, where possible, before any connection loses its protection.
    #[test]
    fn a_greedy_upload_is_spilled() {
        let spills = Spills::new(Box::new(TestDepot::default()), u64::MAX);
        let mut table = table(AtLimit::Spill(spills));
        let mut greedy = ShareClient::open(&mut table, "10.9.9.9:4000");
        greedy.send(
            &mut table,
            b"PUT /big HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n",
        );
        for _ in 0..3 * TOTAL / 1000 {
            greedy.send(&mut table, &[1; 1000]);
        }
        assert_eq!(greedy.protection(&table), "Protected");
        assert!(table.memory() <= TOTAL, "{}", table.memory());
    }

    /// The input of a request that may not be repeated is not kept. But the table remembers that the request is unanswered, and the memory
    /// for that counts.
    #[test]
    fn unanswered_requests_count() {
        let mut table = table(AtLimit::Unprotect);
        for number in 0..100 {
            let mut client = ShareClient::open(&mut table, &format!("10.0.{number}.1:4000"));
            for _ in 0..500 {
                client.send(&mut table, POST);
            }
            assert!(table.memory() <= TOTAL, "{}", table.memory());
        }
        let kept = table.iter().map(|(_, connection)| {
            let tracker = connection.follower().tracker();
            tracker.map_or(0, |tracker| tracker.memory() as u64)
        });
        assert!(kept.sum::<u64>() <= TOTAL);
        let whys: Vec<_> = table
            .iter()
            .map(|(_, connection)| connection.protection())
            .collect();
        let given_up = whys.iter().filter(|why| {
            matches!(why, Protection::Unprotected(cause) if cause.to_string().starts_with("all logs together"))
        });
        assert!(given_up.count() > 0, "{whys:?}");
    }

    /// The bytes of an unfinished header are held a second time, beside the log.
    #[test]
    fn an_unfinished_header_counts() {
        let mut table = table(AtLimit::Unprotect);
        let mut client = ShareClient::open(&mut table, "10.0.0.1:4000");
        client.send(&mut table, b"GET / HTTP/1.1\r\nX: ");
        for _ in 0..20 {
            client.send(&mut table, &[b'x'; 1000]);
        }
        assert!(table.memory() >= 2 * 20_000, "{}", table.memory());
    }

    proptest! {
        #[test]
        fn a_level_fits_and_no_lower_one_is_needed(held in prop::collection::vec(0..1000_u64, 1..20), target in 0..10_000_u64) {
            let level = level(held.clone(), target);
            let sum: u64 = held.iter().map(|&bytes| bytes.min(level)).sum();
            prop_assert!(sum <= target);
            let next: u64 = held.iter().map(|&bytes| bytes.min(level.saturating_add(1))).sum();
            prop_assert!(level == u64::MAX || next > target || next - sum == 0);
        }
    }
}
