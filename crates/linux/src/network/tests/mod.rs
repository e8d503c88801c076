//! Tests against the real kernel. Each test has its own network namespaces.

mod deposed;
mod part;
mod relay;
mod set_up;

mod traffic;
mod undo;
mod verify;
mod world;

use super::*;
use world::{RouterLan, assert_same, assert_same_soon};

/// The plan of a node with services at `vips`. The addresses of the node's peer end in `peer`.
fn plan(peer: u8, vips: &[&str]) -> NetworkPlan {
    let service = |vip: &&str| {
        let address: SocketAddr = vip.parse().unwrap();
        let (peer, application) = match address {
            SocketAddr::V4(_) => (format!("10.0.0.{peer}"), format!("127.0.0.1:{}", address.port())),
            SocketAddr::V6(_) => (format!("2001:db8::{peer}"), format!("[::1]:{}", address.port())),
        };
        NetworkService {
            address,
            interface: "eth0".to_owned(),
            peer: peer.parse().unwrap(),
            application: application.parse().unwrap(),
            staged_application: None,
            sends_directly: false,
        }
    };
    NetworkPlan {
        node: "test-node".to_owned(),
        services: vips.iter().map(service).collect(),
    }
}

const VIPS: &[&str] = &["10.0.0.100:80", "10.0.0.100:443", "[2001:db8::100]:80"];

fn backup_plan() -> NetworkPlan {
    plan(3, VIPS)
}

fn primary_plan() -> NetworkPlan {
    plan(2, VIPS)
}

/// The part of the plan's node. The backup's address ends in 2, so a node whose peer has this address is behind the wire.
fn part_of(plan: &NetworkPlan) -> NetworkPart {
    let is_behind = plan.services[0].peer.to_string().ends_with('2');
    if is_behind {
        NetworkPart::Behind
    } else {
        NetworkPart::Wire
    }
}

fn set_up(plan: &NetworkPlan, journal: &Path) -> Network {
    let mut network = Network::prepare(plan, journal).unwrap();
    raise(&mut network, plan).unwrap();
    network
}

fn raise(network: &mut Network, plan: &NetworkPlan) -> Result<(), NetworkError> {
    let mut vips = plan.services.iter().map(|service| service.address.ip());
    vips.try_for_each(|vip| network.assume(vip, part_of(plan)))
}
