//! The networks in which guides are played: the hosts and the cables that a guide may name.

/// A network with hosts, as a guide sees it.
#[derive(Debug, PartialEq, Eq)]
pub struct GuideTopology {
    /// Its name in a guide.
    pub name: &'static str,
    /// The hosts on which the guide installs something. They have systemd. In a guide, `both` means these two hosts.
    pub machines: [&'static str; 2],
    /// All other hosts. They only run commands.
    pub others: &'static [&'static str],
    /// The cables that a person may pull.
    pub cables: &'static [&'static str],
}

/// A client, a router, and a switch with two nodes.
pub const PAIR: GuideTopology = GuideTopology {
    name: "pair",
    machines: ["alpha", "beta"],
    others: &["client"],
    cables: &["alpha", "beta"],
};

/// Two switches, with two forwarding nodes between them, a client and a server. The cables are those between R1 and each node.
pub const EDGE: GuideTopology = GuideTopology {
    name: "edge",
    machines: ["r1", "r2"],
    others: &["client", "server", "node-a", "node-b"],
    cables: &["node-a", "node-b"],
};

/// Two sites with two links between them, and a client at one site.
pub const TUNNEL: GuideTopology = GuideTopology {
    name: "tunnel",
    machines: ["north", "south"],
    others: &["client"],
    cables: &["link-1", "link-2"],
};

/// All topologies.
pub const TOPOLOGIES: [&GuideTopology; 3] = [&PAIR, &EDGE, &TUNNEL];

/// A host of a guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuideHost {
    /// The index of a host with systemd.
    Machine(usize),
    /// The index of another host.
    Other(usize),
}

impl GuideTopology {
    /// The host with this name.
    pub fn host(&self, name: &str) -> Option<GuideHost> {
        let index_in = |names: &[&str]| names.iter().position(|one| *one == name);
        let machine = index_in(&self.machines).map(GuideHost::Machine);
        machine.or_else(|| index_in(self.others).map(GuideHost::Other))
    }

    /// The index of the host with this name, if it has systemd.
    pub fn machine(&self, name: &str) -> Option<usize> {
        self.machines.iter().position(|machine| *machine == name)
    }

    /// The index of the host with this name, if it only runs commands.
    pub fn other(&self, name: &str) -> Option<usize> {
        self.others.iter().position(|other| *other == name)
    }

    /// The index of the cable with this name.
    pub fn cable(&self, name: &str) -> Option<usize> {
        self.cables.iter().position(|cable| *cable == name)
    }

    /// The name of a host.
    pub fn name_of(&self, host: GuideHost) -> &'static str {
        match host {
            GuideHost::Machine(index) => self.machines[index],
            GuideHost::Other(index) => self.others[index],
        }
    }
}
