//! Ways to break a node's service path while its daemon and its other networks keep working.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;

use crate::net::switch::{self, Lost, ROUTER};
use crate::net::{INTERFACE, NODE_NAMES, Topology};

/// Number of breaks of a flickering path. All breaks fit into a second.
const FLICKERS: u32 = 5;
/// Duration of each break. Shorter than the silence after which a node counts as dead.
const FLICKER_BROKEN: Duration = Duration::from_millis(40);
/// Time between two breaks.
const FLICKER_WHOLE: Duration = Duration::from_millis(110);

/// A way to break the service path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathCut {
    /// The cable is pulled at the switch: the node loses its carrier.
    #[default]
    Cable,
    /// The interface is set down on the node; it is set up and configured again later.
    Interface,
    /// The switch's port passes nothing any more, in either direction; the carrier stays.
    Port,
    /// The node's own switch loses its uplink; the carrier stays.
    Uplink,
    /// Nothing passes between the node and the router; the nodes reach each other.
    Router,
    /// Frames to the node are lost; frames from the node pass.
    ToNode,
    /// Frames from the node are lost; frames to the node pass.
    FromNode,
    /// The cable is pulled and plugged in again, several times within a second.
    Flicker,
}

impl PathCut {
    /// Breaks the path of node `index`.
    ///
    /// # Errors
    /// If an interface cannot be set down, or the switch cannot be told to drop frames.
    pub fn cut(self, network: &Topology, index: usize) -> Result<()> {
        let cable = network.cables[index].service();
        match self {
            Self::Cable => Ok(cable.pull()?),
            Self::Interface => Ok(network.nodes[index].cable(INTERFACE)?.pull()?),
            Self::Uplink => Ok(uplink(network, index)?.pull()?),
            Self::Port | Self::Router | Self::ToNode | Self::FromNode => {
                switch::lose(&network.switch, &self.lost(NODE_NAMES[index]), "")
            }
            Self::Flicker => {
                for _ in 0..FLICKERS {
                    cable.pull()?;
                    std::thread::sleep(FLICKER_BROKEN);
                    cable.plug()?;
                    std::thread::sleep(FLICKER_WHOLE);
                }
                Ok(())
            }
        }
    }

    /// Makes the path of node `index` whole again.
    ///
    /// # Errors
    /// If an interface cannot be set up or configured, or the switch cannot be told to pass all frames.
    pub fn heal(self, network: &Topology, index: usize) -> Result<()> {
        match self {
            Self::Cable => Ok(network.cables[index].service().plug()?),
            Self::Interface => Ok(network.configure(index)?),
            Self::Uplink => Ok(uplink(network, index)?.plug()?),
            Self::Port | Self::Router | Self::ToNode | Self::FromNode => switch::pass(&network.switch),
            Self::Flicker => Ok(()),
        }
    }

    /// The frames to and from the node at `port` that the switch drops.
    fn lost(self, port: &'static str) -> Vec<Lost> {
        match self {
            Self::Port => vec![Lost::from(port), Lost::to(port)],
            Self::Router => vec![Lost::between(port, ROUTER), Lost::between(ROUTER, port)],
            Self::ToNode => vec![Lost::to(port)],
            Self::FromNode => vec![Lost::from(port)],
            Self::Cable | Self::Interface | Self::Uplink | Self::Flicker => Vec::new(),
        }
    }
}

fn uplink(network: &Topology, index: usize) -> Result<&linux::netns::InterfaceControl> {
    let uplinks = network.uplinks.as_ref();
    Ok(&uplinks.context("the nodes have no switches of their own")?[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_direction_leaves_the_other_open() {
        assert_eq!(PathCut::ToNode.lost("a"), [Lost::to("a")]);
        assert_eq!(PathCut::FromNode.lost("a"), [Lost::from("a")]);
        assert_eq!(PathCut::Router.lost("b").len(), 2);
    }
}
