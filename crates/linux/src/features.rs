//! Probes whether this kernel has the features that a node needs. Nothing is derived from the kernel's version.

use std::path::Path;

use libbpf_rs::{MapType, ProgramType};

/// The helpers that the programs of `bpf/` call and that not every kernel has: number, name, and the first kernel version that has it.
const HELPERS: [(u32, &str, &str); 4] = [
    (99, "bpf_skc_lookup_tcp", "5.2"),
    (152, "bpf_redirect_neigh", "5.10"),
    (198, "bpf_ringbuf_reserve_dynptr", "5.19"),
    (201, "bpf_dynptr_read", "5.19"),
];

/// The features that this kernel lacks, each with its remedy. Empty if a node can run here.
pub fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        missing.push("/sys/kernel/btf/vmlinux: a kernel with CONFIG_DEBUG_INFO_BTF".to_owned());
    }
    if !MapType::RingBuf.is_supported().unwrap_or(false) {
        missing.push("eBPF ring buffers: Linux 5.8 or newer, and the right to use eBPF (CAP_BPF)".to_owned());
        return missing; // without the right to use eBPF, every other probe would fail too
    }
    for (id, name, since) in HELPERS {
        if !ProgramType::SchedCls.is_helper_supported(id).unwrap_or(false) {
            missing.push(format!("the eBPF helper {name}: Linux {since} or newer"));
        }
    }
    if let Err(error) = can_repair() {
        missing.push(format!(
            "TCP_REPAIR: a kernel with CONFIG_CHECKPOINT_RESTORE, and CAP_NET_ADMIN ({error})"
        ));
    }
    missing
}

fn can_repair() -> Result<(), crate::repair::RestoreError> {
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    crate::repair::Pool::new(nowhere).fill(1, 1).map(drop)
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_is_missing_where_the_kernel_tests_run() {
        if nix::unistd::geteuid().is_root() {
            assert_eq!(super::missing(), Vec::<String>::new());
        } else {
            assert!(!super::missing().is_empty());
        }
    }
}
