//! Against the kernel, in network namespaces of their own.

mod claim;
mod deposed;
mod relay;
mod set_up;

mod traffic;
mod undo;
mod verify;
mod world;

use super::*;
use world::{World, assert_same, assert_same_soon};

/// A plan of the node with services at `vips`, of which the other node has the address that ends in `peer`.
fn plan(role: Role, peer: u8, vips: &[&str]) -> Plan {
    let service = |vip: &&str| {
        let address: SocketAddr = vip.parse().unwrap();
        let (peer, application) = match address {
            SocketAddr::V4(_) => (format!("10.0.0.{peer}"), format!("127.0.0.1:{}", address.port())),
            SocketAddr::V6(_) => (format!("2001:db8::{peer}"), format!("[::1]:{}", address.port())),
        };
        Service {
            address,
            interface: "eth0".to_owned(),
            role,
            peer: peer.parse().unwrap(),
            application: application.parse().unwrap(),
        }
    };
    Plan {
        node: "test-node".to_owned(),
        services: vips.iter().map(service).collect(),
    }
}

const VIPS: &[&str] = &["10.0.0.100:80", "10.0.0.100:443", "[2001:db8::100]:80"];

fn backup_plan() -> Plan {
    plan(Role::Backup, 3, VIPS)
}

fn primary_plan() -> Plan {
    plan(Role::Primary, 2, VIPS)
}

fn set_up(plan: &Plan, journal: &Path) -> Network {
    let mut network = Network::prepare(plan, journal).unwrap();
    network.raise().unwrap();
    network
}
