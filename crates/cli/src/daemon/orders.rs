//! Carries out the operator's orders.

use agent::Core;
use proto::action::ServiceIndex;
use proto::service::ServiceInput;

use super::kernel::LinuxKernel;
use crate::control::Order;

/// Passes an order to the node.
///
/// # Errors
/// Why the order is not carried out, as a sentence.
pub fn give(node: &mut Core, kernel: &LinuxKernel, order: &Order) -> Result<(), String> {
    let now = linux::clock::now();
    let all = 0..ServiceIndex::try_from(node.config().services.len()).expect("few");
    match order {
        Order::Handover { service } => {
            let index = find(kernel, all, service)?;
            node.handle_handover(now, index)
                .map_err(|why| format!("service {service} cannot be handed over: {why}"))
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

fn find(
    kernel: &LinuxKernel,
    mut all: std::ops::Range<ServiceIndex>,
    name: &str,
) -> Result<ServiceIndex, String> {
    all.find(|&index| kernel.service_name(index) == name)
        .ok_or_else(|| format!("this node has no service {name}"))
}
