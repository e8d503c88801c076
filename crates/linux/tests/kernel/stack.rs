//! A takeover with a client that is not Linux: smoltcp, in this process, behind a router.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proto::action::Gate;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};

use crate::support::lan::{Family, Lan, accept};
use crate::support::log::LogThread;
use crate::support::socket::{set_tcp, tcp_info};
use crate::support::takeover::take_over;
use crate::support::tun::Tun;
use crate::support::wire_on::{WireOn, options};
use crate::support::{PATIENCE, assert_same_stream, eventually, stream};

const MEGABYTE: usize = 1 << 20;
/// Bytes that the client sends between the primary's end and the takeover. Less than any window.
const HELD: usize = 20_000;

/// The TUN interface as a device of smoltcp.
struct TunDevice(Tun);

struct Arrived(Vec<u8>);

struct Leaving<'a>(&'a Tun);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut packet = vec![0; len];
        let outcome = write(&mut packet);
        self.0.put(&packet);
        outcome
    }
}

impl Device for TunDevice {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Leaving<'_>)> {
        Some((Arrived(self.0.take()?), Leaving(&self.0)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&self.0))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.max_transmission_unit = 1500;
        capabilities.medium = Medium::Ip;
        capabilities
    }
}

/// The address of smoltcp, behind the client's host.
fn address_of(family: Family) -> IpAddr {
    match family {
        Family::V4 => [10, 1, 0, 2].into(),
        Family::V6 => "fd01::2".parse().expect("an address"),
    }
}

/// The smoltcp stack with one connection.
struct Stack {
    port: TunDevice,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
}

impl Stack {
    /// The stack behind the client's host, which becomes a router. `None`, with a message, if this machine has no TUN device.
    ///
    /// ```text
    ///   smoltcp (10.1.0.2, fd01::2) ── tun0: client's host, a router ── lan
    /// ```
    fn behind(lan: &Lan, family: Family, timestamps: bool) -> Option<Self> {
        let tun = match Tun::on(&lan.client, "tun0") {
            Ok(tun) => tun,
            Err(error) => {
                eprintln!("skipped: /dev/net/tun: {error}");
                return None;
            }
        };
        lan.client.sysctl("ipv4/ip_forward", "1");
        lan.client.sysctl("ipv6/conf/all/forwarding", "1");
        lan.client.ip("link set tun0 up
             addr add 10.1.0.1/24 dev tun0
             addr add fd01::1/64 dev tun0 nodad");
        lan.backup.ip("route add 10.1.0.0/24 via 10.0.0.1 dev eth0");
        lan.backup.ip6("route add fd01::/64 via fd00::1 dev eth0");
        let mut port = TunDevice(tun);
        let config = Config::new(HardwareAddress::Ip);
        let mut interface = Interface::new(config, &mut port, Instant::now());
        interface.update_ip_addrs(|addresses| {
            let own = IpCidr::new(address_of(family).into(), 0);
            addresses.push(own).expect("room for one");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; 128 << 10]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        if timestamps {
            socket.set_tsval_generator(Some(milliseconds));
        }
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(socket);
        Some(Self {
            port,
            interface,
            sockets,
            socket,
        })
    }

    fn connect(&mut self, to: SocketAddr) -> SocketAddr {
        let from: SocketAddr = (
            address_of(if to.is_ipv4() { Family::V4 } else { Family::V6 }),
            49_152,
        )
            .into();
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.socket);
        socket
            .connect(self.interface.context(), to, from)
            .expect("connect");
        from
    }

    /// Lets the stack work once. Returns its socket.
    fn work(&mut self) -> &mut tcp::Socket<'static> {
        let Self {
            port,
            interface,
            sockets,
            socket,
        } = self;
        interface.poll(Instant::now(), port, sockets);
        sockets.get_mut(*socket)
    }

    /// Sends `input`, closes its own side, and reads until the connection is over. Sends and reads only as far as
    /// `bounds` allows. Returns the received bytes.
    fn talk(&mut self, input: &[u8], bounds: &ClientBounds) -> Vec<u8> {
        let deadline = std::time::Instant::now() + PATIENCE;
        let (mut said, mut heard) = (0, Vec::new());
        loop {
            assert!(
                std::time::Instant::now() < deadline,
                "{said} said, {} heard",
                heard.len()
            );
            let socket = self.work();
            let may_say = bounds.may_say.load(Ordering::SeqCst).min(input.len());
            let may_hear = bounds.may_hear.load(Ordering::SeqCst) - heard.len();
            if socket.can_send() && said < may_say {
                said += socket.send_slice(&input[said..may_say]).expect("send");
            }
            if socket.can_recv() && may_hear > 0 {
                let take = |bytes: &mut [u8]| {
                    let count = bytes.len().min(may_hear);
                    (count, heard.extend_from_slice(&bytes[..count]))
                };
                socket.recv(take).expect("receive");
                bounds.heard.store(heard.len(), Ordering::SeqCst);
            }
            if said == input.len() && socket.may_send() {
                socket.close();
            }
            let is_over = matches!(socket.state(), tcp::State::TimeWait | tcp::State::Closed);
            if is_over && !socket.can_recv() {
                return heard;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

// A TCP timestamp has 32 bits and wraps.
fn milliseconds() -> u32 {
    Instant::now().total_millis() as u32
}

/// How far the client's application may send and read.
struct ClientBounds {
    may_say: AtomicUsize,
    may_hear: AtomicUsize,
    heard: AtomicUsize,
}

/// Both directions carry data when the primary loses its power, with bytes in flight and bytes not yet read.
#[test]
fn a_second_stack_goes_on() {
    for (family, timestamps) in [(Family::V4, true), (Family::V6, false), (Family::V6, true)] {
        let Some(lan) = Lan::new("a_second_stack_goes_on") else {
            return;
        };
        let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Gate::Wire);
        let reading = LogThread::of(&wire);
        let listener = lan.primary.listen(family.vip());
        // smoltcp 0.12 ignores the size of the timestamp option when it fills a segment. Such a segment exceeds the MTU, so smoltcp cannot
        // send it.
        set_tcp(&listener, libc::TCP_MAXSEG, 1400);
        let Some(mut stack) = Stack::behind(&lan, family, timestamps) else {
            return;
        };
        let (input, output) = (stream(1, 2 * MEGABYTE), stream(2, 2 * MEGABYTE));
        let bounds = ClientBounds {
            may_say: AtomicUsize::new(MEGABYTE),
            may_hear: AtomicUsize::new(MEGABYTE),
            heard: AtomicUsize::new(0),
        };
        let address = stack.connect(family.vip());
        std::thread::scope(|scope| {
            let client = scope.spawn(|| stack.talk(&input, &bounds));
            let server = accept(&listener);
            assert_eq!(tcp_info(&server).tcpi_options & 1 != 0, timestamps);
            server.set_nonblocking(true).expect("non-blocking");
            let (mut written, mut read) = (0, vec![0; 64 << 10]);
            eventually("half of each stream has arrived", || {
                written += (&server).write(&output[written..]).unwrap_or(0);
                while (&server).read(&mut read).is_ok() {}
                let is_half_heard = bounds.heard.load(Ordering::SeqCst) == MEGABYTE;
                let log = reading.now();
                let is_half_said = log.connection(address).1.input_acknowledged().0 == MEGABYTE as u64;
                (is_half_heard && is_half_said).then_some(())
            });
            lan.power_off_primary();
            bounds.may_say.store(MEGABYTE + HELD, Ordering::SeqCst);
            eventually("the bytes that no server receives are logged", || {
                (reading.now().transcript(address).input.len() == MEGABYTE + HELD).then_some(())
            });
            let taken = take_over(&lan.backup, &wire, &reading, address, family);
            assert!(!taken.rest_of(&output).is_empty(), "too late");
            bounds.may_say.store(usize::MAX, Ordering::SeqCst);
            bounds.may_hear.store(usize::MAX, Ordering::SeqCst);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let rest = taken.rest_of(&output);
                    (&taken.socket).write_all(rest).expect("the rest");
                    taken.socket.shutdown(Shutdown::Write).expect("shutdown");
                });
                let mut whole = taken.input.clone();
                (&taken.socket).read_to_end(&mut whole).expect("the rest");
                assert_same_stream("the input", &whole, &input);
            });
            let heard = client.join().expect("the client does not panic");
            assert_same_stream("the output", &heard, &output);
        });
    }
}
