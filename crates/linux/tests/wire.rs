//! The eBPF programs on the real kernel: they load, attach, and leave nothing behind.

use std::net::{IpAddr, Ipv4Addr};

use linux::wire::{Mode, Wire, WireOptions, WireService};
use steadfast_linux as linux;

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Runs `body` in a network namespace of its own, in a thread of its own.
fn in_namespace(body: impl FnOnce() + Send + 'static) {
    let outcome = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("unshare");
        body();
    })
    .join();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn load_attach_remove(name: &'static str, chunks_only: bool) {
    if !is_root() {
        eprintln!("skipped: {name} needs root");
        return;
    }
    in_namespace(move || {
        let node = format!("{name}-{}", std::process::id());
        let options = WireOptions { ring_bytes: 1 << 20, chunks_only, ..WireOptions::default() };
        let mut wire = Wire::load(&node, &options).expect("load");
        let service =
            WireService { address: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 80, ifindex: 1, own_mac: [2; 6] };
        wire.add_service(0, &service).expect("add_service");
        assert_eq!(wire.attach().expect("attach"), None);
        wire.set_mode(0, Mode::Wire);
        let (ring, ring_open) = wire.rings().expect("rings");
        assert_eq!((ring.fill(), ring_open.fill()), (0, 0));
        assert_eq!(wire.counters(0).expect("counters").iter().sum::<u64>(), 0);
        assert!(Wire::load(&node, &options).is_err(), "leftovers are refused");
        wire.remove().expect("remove");
        let pins = std::path::Path::new(linux::wire::PIN_ROOT).join(&node);
        assert!(!pins.exists());
        let filters = std::process::Command::new("tc").args(["qdisc", "show", "dev", "lo"]).output().expect("tc");
        assert!(!String::from_utf8_lossy(&filters.stdout).contains("clsact"), "{filters:?}");
    });
}

#[test]
fn programs_load_attach_and_leave_nothing() {
    load_attach_remove("load", false);
}

#[test]
fn the_fallback_for_older_kernels_loads_too() {
    load_attach_remove("chunks", true);
}
