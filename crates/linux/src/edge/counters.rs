//! The counters of the edge's eBPF programs.

use libbpf_rs::{MapCore, MapFlags};

use super::EdgeWire;
use super::abi::{COUNT_WORDS, COUNTERS, STRINGS_MAX, TRAFFIC_WORDS};
use crate::bpf::error::{WireError, WireStep};
use crate::clock;

/// Traffic of one string. All numbers except `active` are sums since the maps were made. Packets and bytes are counted as on the cable:
/// after segmentation, with all headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StringTraffic {
    /// Bytes that entered the cluster through the string.
    pub entering_bytes: u64,
    /// Packets that entered the cluster through the string.
    pub entering_packets: u64,
    /// Bytes that came out of the string.
    pub leaving_bytes: u64,
    /// Packets that came out of the string.
    pub leaving_packets: u64,
    /// Flows with an entering packet in the last second.
    pub active: u64,
    /// Number of TCP handshakes that were measured.
    pub handshakes: u64,
    /// Sum of the durations of these handshakes, each from the SYN to the handshake's end, in nanoseconds.
    pub handshake_ns: u64,
}

impl EdgeWire {
    /// The traffic of a string.
    ///
    /// # Errors
    /// The kernel's error at the map look-up.
    pub fn traffic(&self, string: usize) -> Result<StringTraffic, WireError> {
        assert!(string < STRINGS_MAX, "string {string}");
        let sums = self.sums()?;
        let [
            entering_bytes,
            entering_packets,
            leaving_bytes,
            leaving_packets,
            handshakes,
            handshake_ns,
        ] = traffic_words(&sums, string);
        Ok(StringTraffic {
            entering_bytes,
            entering_packets,
            leaving_bytes,
            leaving_packets,
            active: self.words.active(string, clock::now().as_nanos()),
            handshakes,
            handshake_ns,
        })
    }

    /// All counters with their names. The first four are sums over the strings.
    ///
    /// # Errors
    /// The kernel's error at the map look-up.
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, WireError> {
        const TOTALS: [&str; 4] = [
            "entering_bytes",
            "entering_packets",
            "leaving_bytes",
            "leaving_packets",
        ];
        let sums = self.sums()?;
        let totals = TOTALS.into_iter().enumerate().map(|(word, name)| {
            let of_string = |string| traffic_words(&sums, string)[word];
            (name, (0..STRINGS_MAX).map(of_string).sum())
        });
        Ok(totals
            .chain(COUNTERS.into_iter().zip(sums.iter().copied()))
            .collect())
    }

    /// The words of `struct edge_counts`, summed over the CPUs.
    fn sums(&self) -> Result<[u64; COUNT_WORDS], WireError> {
        let values = self
            .map("counts")
            .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .step(|| "reading the edge's counters".into())?
            .unwrap_or_default();
        let mut sums = [0_u64; COUNT_WORDS];
        for value in &values {
            for (sum, word) in sums.iter_mut().zip(value.chunks_exact(8)) {
                *sum += u64::from_ne_bytes(word.try_into().expect("8 bytes"));
            }
        }
        Ok(sums)
    }
}

fn traffic_words(sums: &[u64; COUNT_WORDS], string: usize) -> [u64; TRAFFIC_WORDS] {
    let at = COUNTERS.len() + string * TRAFFIC_WORDS;
    sums[at..at + TRAFFIC_WORDS].try_into().expect("as many")
}
