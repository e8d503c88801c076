//! Two hosts with two cables.

use anyhow::Result;
use linux::netns::Netns;

use crate::net::{CableEnd, batch, cable};
use crate::teardown::{Resource, Teardown};

/// Rules of nftables that drop everything that arrives over the first cable, without an error at either end.
pub const CUT_FIRST: &str =
    "table inet cut { chain in { type filter hook prerouting priority -300\niifname \"p0\" drop\n}\n}\n";

/// The two hosts.
pub struct PathsNetwork {
    /// The host of the clients, with the tunnel's opening end.
    pub near: Netns,
    /// The host of the servers, with the tunnel's serving end.
    pub far: Netns,
}

impl PathsNetwork {
    /// Builds the network of `run`.
    ///
    /// # Errors
    /// The step that failed.
    pub fn build(run: &str, teardown: &Teardown) -> Result<Self> {
        let names = [format!("sf{run}-near"), format!("sf{run}-far")];
        for name in &names {
            teardown.will_create(&Resource::Namespace(name.clone()))?;
        }
        let [near, far] = &names;
        let add = names.iter().map(|name| format!("netns add {name}"));
        let cables = (0..2).map(|path| {
            let port = format!("p{path}");
            cable(CableEnd::new(near, &port), CableEnd::new(far, &port))
        });
        batch(None, &add.chain(cables).collect::<Vec<_>>())?;
        for (name, last) in [(near, 1), (far, 2)] {
            let mut lines = vec!["link set lo up".to_owned()];
            for path in 0..2 {
                lines.push(format!("link set p{path} up"));
                lines.push(format!("addr add 10.{}.0.{last}/24 dev p{path}", path + 1));
            }
            batch(Some(name), &lines)?;
        }
        Ok(Self {
            near: Netns::open(near)?,
            far: Netns::open(far)?,
        })
    }
}
