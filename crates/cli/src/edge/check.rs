//! Checks whether this machine and its network agree with the configuration of an edge.

use std::fs;
use std::path::Path;

use linux::network::{self, Interface};

use crate::config::{ConfigError, EdgeSettings, Problem, SecretKey, StringSettings};

/// `rp_filter` in strict mode (RFC 3704): a packet is dropped unless the route to its source leaves by the interface by which the packet
/// came.
const STRICT: u8 = 1;

/// Names the features that an edge needs and this machine lacks.
pub fn missing() -> Vec<String> {
    crate::environment::missing(linux::features::missing)
}

/// Checks the ports, the addresses and the key.
///
/// # Errors
/// All problems, with file and field, or that the kernel cannot be asked.
pub fn check(file: &Path, settings: &EdgeSettings) -> anyhow::Result<()> {
    let interfaces = network::interfaces()?;
    let mut problems = Vec::new();
    let mut problem = |field: String, what: String| {
        problems.push(Problem {
            line: settings.places.line(&field),
            field,
            what,
        });
    };
    if let Err(what) = SecretKey::read(&settings.key_file) {
        problem("edge.key_file".to_owned(), what);
    }
    let find = |name: &str| interfaces.iter().find(|one| one.name == name);
    let fields = std::iter::once("outside".to_owned())
        .chain((0..settings.strings.len()).map(|index| format!("string[{index}]")));
    for (field, port) in fields.zip(settings.ports()) {
        match find(&port.interface) {
            None => {
                let names: Vec<_> = interfaces.iter().map(|one| one.name.as_str()).collect();
                let what = format!("there is no {}; there are {}", port.interface, names.join(", "));
                problem(format!("{field}.interface"), what);
            }
            Some(interface) => {
                if interface.large_receive_offload()? == Some(true) {
                    let name = &port.interface;
                    let what = format!(
                        "{name} merges packets (LRO), which must not be forwarded: ethtool -K {name} lro off"
                    );
                    problem(format!("{field}.interface"), what);
                }
            }
        }
    }
    for (index, string) in settings.strings.iter().enumerate() {
        if let Some(interface) = find(&string.port.interface) {
            if let Some(what) = address_problem(interface, string) {
                problem(format!("string[{index}].address"), what);
            }
            if let Some(what) = filter_problem(interface, string) {
                problem(format!("string[{index}].interface"), what);
            }
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(ConfigError::new(file, problems).into())
}

fn address_problem(interface: &Interface, string: &StringSettings) -> Option<String> {
    let has = interface.addresses.contains(&string.address);
    (!has).then(|| {
        let there: Vec<_> = interface.addresses.iter().map(ToString::to_string).collect();
        format!(
            "{} does not have {}; it has {}",
            interface.name,
            string.address,
            there.join(", ")
        )
    })
}

/// With a strict reverse-path filter, the kernel drops the other edge's heartbeats unless a route to their source leads through the string.
fn filter_problem(interface: &Interface, string: &StringSettings) -> Option<String> {
    let filter = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        let text = fs::read_to_string(path).ok()?;
        text.trim().parse::<u8>().ok()
    };
    let strict = filter("all").max(filter(&interface.name)) == Some(STRICT) && string.address.is_ipv4();
    let is_reached = || {
        network::route_to(string.peer_address)
            .is_ok_and(|route| route.is_some_and(|(index, _)| index == interface.index))
    };
    (strict && !is_reached()).then(|| {
        format!(
            "{} has a strict reverse-path filter, which drops the heartbeats of {}: sysctl -w \
             net.ipv4.conf.{}.rp_filter=2 (and conf.all), or a route to {} through this string",
            interface.name, string.peer_address, interface.name, string.peer_address
        )
    })
}
