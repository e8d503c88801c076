//! Carries out the operator's orders.

use std::net::SocketAddr;
use std::time::Duration;

use agent::Core;
use proto::action::ServiceIndex;
use proto::annex::AnnexId;
use proto::service::ServiceInput;

use super::kernel::LinuxKernel;
use crate::control::{ChosenClient, Order};

/// Passes an order to the node. `peer` is the other node's name.
///
/// # Errors
/// Why the order is not carried out, as a sentence.
pub fn give(node: &mut Core, kernel: &LinuxKernel, peer: &str, order: &Order) -> Result<(), String> {
    let now = linux::clock::now();
    let all = 0..ServiceIndex::try_from(node.config().services.len()).expect("few");
    match order {
        Order::Handover { service } => {
            let index = find(kernel, all, service)?;
            node.handle_handover(now, index)
                .map_err(|why| format!("service {service} cannot be handed over: {why}"))
        }
        Order::Migrate {
            service,
            to,
            client,
            within_ms,
        } => {
            let index = find(kernel, all, service)?;
            let annex = kernel.annexes.annexes(index).find(|(name, _)| *name == to);
            let annex = annex.map(|(_, id)| id);
            if to != peer && annex.is_none() {
                return Err(format!("the other node of {service} is {peer}, not {to}"));
            }
            migrate(node, index, (*client, annex), *within_ms)
                .map_err(|why| format!("no connection of {service} can move: {why}"))
        }
        Order::Leave { service, leaves } => {
            let indices: Vec<_> = match service {
                Some(service) => vec![find(kernel, all, service)?],
                None => all.collect(),
            };
            // Refuse the order for all services if it cannot be carried out for one.
            for &index in &indices {
                if let Some(why) = node.would_be_lost(now, index).filter(|_| *leaves) {
                    let service = kernel.service_name(index);
                    return Err(format!("nobody would serve {service}: {why}"));
                }
            }
            for index in indices {
                node.handle(now, index, ServiceInput::Leave(*leaves));
            }
            Ok(())
        }
    }
}

/// Orders connections to move to the other node, or to an annex. On a wire, the connections of annexes can move, too.
fn migrate(
    node: &mut Core,
    index: ServiceIndex,
    (chosen, annex): (Option<ChosenClient>, Option<AnnexId>),
    within_ms: u64,
) -> Result<(), String> {
    let now = linux::clock::now();
    if let Some(why) = node.cannot_migrate(now, index) {
        return Err(why.to_string());
    }
    let vip = node.service(index).vip();
    let open = linux::network::sockets::open_behind(vip, None).map_err(|error| error.to_string())?;
    let guests = node.service(index).guests().map(|(client, _)| client);
    let clients = open.into_iter().map(|(client, _)| client).chain(guests);
    let clients: Vec<SocketAddr> = clients
        .filter(|client| chosen.is_none_or(|chosen| chosen.has(client)))
        .collect();
    if clients.is_empty() {
        return Err(chosen.map_or("it has no connections here".to_owned(), |client| {
            format!("it has no connection of {client} here")
        }));
    }
    let until = now + Duration::from_millis(within_ms);
    node.handle(
        now,
        index,
        ServiceInput::Migrate {
            clients,
            annex,
            until,
        },
    );
    Ok(())
}

fn find(
    kernel: &LinuxKernel,
    mut all: std::ops::Range<ServiceIndex>,
    name: &str,
) -> Result<ServiceIndex, String> {
    all.find(|&index| kernel.service_name(index) == name)
        .ok_or_else(|| format!("this node has no service {name}"))
}
