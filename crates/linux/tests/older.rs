//! Connections that are older than the log: the primary's kernel tells what their handshakes agreed on, and once they are learnt
//! they go on as if all of them had been logged.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use proto::connection::Endpoint;
use proto::follower::Policy;
use proto::learn::Terms;
use proto::restart::http::Reexecute;
use proto::table::{Direction, Table, TableConfig};
use steadfast_linux::network::sockets;
use steadfast_linux::wire::Mode;

use support::eventually;
use support::lan::{Family, Host, Lan, accept, patient};
use support::log::Reading;
use support::scene::Offer;
use support::socket::tcp_info;
use support::wire_on::{WireOn, options};

fn offer(client: &Host, offer: Offer) {
    for (name, on) in [
        ("timestamps", offer.timestamps),
        ("sack", offer.sack),
        ("window_scaling", offer.scaling),
    ] {
        client.sysctl(&format!("ipv4/tcp_{name}"), if on { "1" } else { "0" });
    }
}

fn offers() -> impl Iterator<Item = Offer> {
    (0..8).map(|bits| Offer {
        timestamps: bits & 1 != 0,
        sack: bits & 2 != 0,
        scaling: bits & 4 != 0,
    })
}

fn terms(lan: &Lan, family: Family, client: SocketAddr) -> Option<Terms> {
    let told = lan.primary.run(|| sockets::terms(family.vip(), &[client]));
    let told = told.expect("the kernel answers");
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].0, client);
    told[0].1
}

/// What a log that saw the handshake knows of it.
fn agreed(endpoint: &Endpoint) -> Terms {
    Terms {
        mss: endpoint.mss,
        window_scale: endpoint.window_scale,
        sack: endpoint.sack,
        timestamps: endpoint.timestamps.is_some(),
    }
}

#[test]
fn the_kernel_tells_what_the_handshake_agreed_on() {
    let Some(lan) = Lan::new("the_kernel_tells_what_the_handshake_agreed_on") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Mode::Wire);
    let reading = Reading::of(&wire);
    for family in Family::BOTH {
        let listener = lan.primary.listen(family.vip());
        for offered in offers() {
            offer(&lan.client, offered);
            let (client, server) = lan.client.connect_pair(&listener);
            let address = client.local_addr().expect("connected");
            (&client).write_all(b"x").expect("write");
            (&server).read_exact(&mut [0]).expect("read");
            let logged = agreed(&reading.now().connection(address).1.endpoint());
            assert_eq!(
                terms(&lan, family, address),
                Some(logged),
                "{family:?} {offered:?}"
            );
            let mut other = address;
            other.set_port(address.port() ^ 1);
            assert_eq!(terms(&lan, family, other), None, "only a listener is there");
        }
        drop(listener);
        assert_eq!(terms(&lan, family, (family.address(1), 9).into()), None);
    }
}

#[test]
fn a_socket_for_both_families_is_found_by_an_ipv4_client() {
    let Some(lan) = Lan::new("a_socket_for_both_families_is_found_by_an_ipv4_client") else {
        return;
    };
    let wire = WireOn::new(&lan.backup, &lan.primary, &options(), Mode::Wire);
    let reading = Reading::of(&wire);
    let listener = lan.primary.run(|| TcpListener::bind("[::]:80").expect("listen"));
    let client = lan
        .client
        .run(|| TcpStream::connect(Family::V4.vip()).expect("connect"));
    patient(&client);
    let server = accept(&listener);
    let address = client.local_addr().expect("connected");
    (&client).write_all(b"x").expect("write");
    (&server).read_exact(&mut [0]).expect("read");
    let logged = agreed(&reading.now().connection(address).1.endpoint());
    assert_eq!(terms(&lan, Family::V4, address), Some(logged));
    let info = tcp_info(&server);
    assert!(info.tcpi_advmss > 0 && server.as_raw_fd() > 0);
}
