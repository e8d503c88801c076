//! Reads and writes capture files in the classic pcap format. The reader reads packet by packet, in bounded memory.
//! It does not trust any number in the file.
//!
//! Two crates read this format, but neither is suitable here. pcap-parser (0.17) drops the reason of an I/O error and does not say where a
//! file is cut off. The stable release of pcap-file (2.0) does not say where a file is cut off either, and version 3.0 exists only as
//! release candidates.
//!
//! Format: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-04.html>.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The reason why a file cannot be read further.
#[derive(Debug, Error)]
#[error("{path}: {fault}")]
pub struct PcapError {
    /// The file.
    pub path: PathBuf,
    /// The fault.
    #[source]
    pub fault: PcapErrorKind,
}

/// A fault of a file.
#[derive(Debug, Error)]
pub enum PcapErrorKind {
    /// An I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not in this format (it may be pcapng).
    #[error("not a pcap file: it begins with {0:#010x}")]
    Magic(u32),
    /// The link type is not Ethernet.
    #[error("link type {0}, but only Ethernet (1) is understood")]
    LinkType(u32),
    /// The file ends within its own header or a record.
    #[error("cut off in {part} of packet {packet} at byte {position}")]
    CutOff {
        /// Number of packets before the incomplete one.
        packet: u64,
        /// Offset in the file, in bytes, at which the incomplete part begins.
        position: u64,
        /// The incomplete part.
        part: &'static str,
    },
    /// A record contradicts itself.
    #[error("garbled at packet {packet}, byte {position}: {what}")]
    Garbled {
        /// Number of packets before this record.
        packet: u64,
        /// Offset in the file, in bytes, at which the record begins.
        position: u64,
        /// The contradiction.
        what: String,
    },
}

/// One captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapRecord<'a> {
    /// Time of capture, in nanoseconds of the capture's clock.
    pub at_ns: u64,
    /// The first bytes of the frame, as many as the capture kept.
    pub frame: &'a [u8],
    /// Length of the whole frame, in bytes.
    pub original_len: u32,
}

/// An open capture file.
pub struct PcapReader<R = BufReader<File>> {
    path: PathBuf,
    input: R,
    layout: Layout,
    packets: u64,
    position: u64,
    frame: Vec<u8>,
}

/// How numbers are written in a file.
#[derive(Clone, Copy)]
struct Layout {
    big_endian: bool,
    /// Length in nanoseconds of one unit of a record's second time field (1, or 1000 for microseconds).
    fraction_ns: u64,
}

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;
const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;
/// Maximum length of a frame in bytes. No capture tool keeps more bytes of a frame.
const FRAME_MAX: u32 = 256 << 10;

impl PcapReader {
    /// Opens `path` and reads the file header.
    ///
    /// # Errors
    /// Names the file and what is wrong.
    pub fn open(path: &Path) -> Result<Self, PcapError> {
        let file = File::open(path).map_err(|error| PcapError {
            path: path.to_owned(),
            fault: error.into(),
        })?;
        Self::new(path, BufReader::with_capacity(1 << 20, file))
    }
}

impl<R: BufRead> PcapReader<R> {
    /// Reads the file header from `input`. `path` is the file's name in errors.
    ///
    /// # Errors
    /// Names the file and what is wrong.
    pub fn new(path: &Path, input: R) -> Result<Self, PcapError> {
        let mut reader = Self {
            path: path.to_owned(),
            input,
            layout: Layout {
                big_endian: false,
                fraction_ns: 1,
            },
            packets: 0,
            position: 0,
            frame: Vec::new(),
        };
        reader.read_file_header().map_err(|fault| reader.error(fault))?;
        Ok(reader)
    }

    /// The next frame; `None` after the last.
    ///
    /// # Errors
    /// Names the file, the packet and what is wrong.
    pub fn next_record(&mut self) -> Result<Option<PcapRecord<'_>>, PcapError> {
        match self.read_record() {
            Ok(None) => Ok(None),
            Ok(Some((at_ns, original_len))) => Ok(Some(PcapRecord {
                at_ns,
                frame: &self.frame,
                original_len,
            })),
            Err(fault) => Err(self.error(fault)),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read_file_header(&mut self) -> Result<(), PcapErrorKind> {
        let mut header = [0; FILE_HEADER_LEN];
        self.fill(&mut header, "the file header")?;
        let magic = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        self.layout = match magic {
            MAGIC_MICROSECONDS => Layout::new(false, 1000),
            MAGIC_NANOSECONDS => Layout::new(false, 1),
            _ if magic.swap_bytes() == MAGIC_MICROSECONDS => Layout::new(true, 1000),
            _ if magic.swap_bytes() == MAGIC_NANOSECONDS => Layout::new(true, 1),
            _ => return Err(PcapErrorKind::Magic(magic)),
        };
        // The upper half may contain the length of a frame check sequence.
        match self.layout.word(&header, 5) & 0xffff {
            ETHERNET => Ok(()),
            other => Err(PcapErrorKind::LinkType(other)),
        }
    }

    /// Reads the next frame into `self.frame`. Returns its time and original length.
    fn read_record(&mut self) -> Result<Option<(u64, u32)>, PcapErrorKind> {
        if self.input.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut header = [0; RECORD_HEADER_LEN];
        self.fill(&mut header, "the header")?;
        let [seconds, fraction, kept, original] = [0, 1, 2, 3].map(|i| self.layout.word(&header, i));
        let fraction_ns = u64::from(fraction) * self.layout.fraction_ns;
        if fraction_ns >= 1_000_000_000 {
            return Err(self.garbled(format!("{fraction_ns} ns within a second")));
        }
        if kept > original || kept > FRAME_MAX {
            return Err(self.garbled(format!("{kept} bytes kept of {original}")));
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.resize(kept as usize, 0);
        let filled = self.fill(&mut frame, "the data");
        self.frame = frame;
        filled?;
        self.packets += 1;
        Ok(Some((u64::from(seconds) * 1_000_000_000 + fraction_ns, original)))
    }

    /// Fills `bytes` from the file.
    fn fill(&mut self, bytes: &mut [u8], part: &'static str) -> Result<(), PcapErrorKind> {
        match self.input.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(self.cut_off(part)),
            filled => {
                self.position += bytes.len() as u64;
                Ok(filled?)
            }
        }
    }

    fn cut_off(&self, part: &'static str) -> PcapErrorKind {
        PcapErrorKind::CutOff {
            packet: self.packets,
            position: self.position,
            part,
        }
    }

    fn garbled(&self, what: String) -> PcapErrorKind {
        PcapErrorKind::Garbled {
            packet: self.packets,
            position: self.position - RECORD_HEADER_LEN as u64,
            what,
        }
    }

    fn error(&self, fault: PcapErrorKind) -> PcapError {
        PcapError {
            path: self.path.clone(),
            fault,
        }
    }
}

impl Layout {
    fn new(big_endian: bool, fraction_ns: u64) -> Self {
        Self {
            big_endian,
            fraction_ns,
        }
    }

    fn word(self, header: &[u8], index: usize) -> u32 {
        let bytes = header[index * 4..][..4].try_into().expect("four bytes");
        if self.big_endian {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        }
    }
}

/// Writes a file header for whole Ethernet frames with times in nanoseconds. The byte order is little endian on every machine.
///
/// # Errors
/// An error of the writer.
pub fn write_header(to: &mut impl Write) -> io::Result<()> {
    const VERSION: u32 = 0x0004_0002; // 2.4
    for word in [MAGIC_NANOSECONDS, VERSION, 0, 0, FRAME_MAX, ETHERNET] {
        to.write_all(&word.to_le_bytes())?;
    }
    Ok(())
}

/// Writes a whole frame, captured at `at_ns`.
///
/// # Errors
/// An error of the writer, or if the time or the frame's length does not fit into 32 bits.
pub fn write_record(to: &mut impl Write, at_ns: u64, frame: &[u8]) -> io::Result<()> {
    let word = |number: u64| u32::try_from(number).map_err(io::Error::other);
    let len = word(frame.len() as u64)?;
    for word in [
        word(at_ns / 1_000_000_000)?,
        word(at_ns % 1_000_000_000)?,
        len,
        len,
    ] {
        to.write_all(&word.to_le_bytes())?;
    }
    to.write_all(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(big_endian: bool, words: &[u32]) -> Vec<u8> {
        words
            .iter()
            .flat_map(|word| {
                if big_endian {
                    word.to_be_bytes()
                } else {
                    word.to_le_bytes()
                }
            })
            .collect()
    }

    fn file(big_endian: bool, magic: u32) -> Vec<u8> {
        // Magic, version, two reserved words, snap length, link type.
        let mut file = words(big_endian, &[magic, 0x0002_0004, 0, 0, 256, ETHERNET]);
        file.extend(words(big_endian, &[3, 5, 4, 60]));
        file.extend(b"abcd");
        file.extend(words(big_endian, &[4, 0, 0, 0]));
        file
    }

    fn read(bytes: &[u8]) -> Result<Vec<(u64, Vec<u8>, u32)>, String> {
        let mut reader = PcapReader::new(Path::new("some.pcap"), bytes).map_err(|error| error.to_string())?;
        let mut records = Vec::new();
        while let Some(record) = reader.next_record().map_err(|error| error.to_string())? {
            records.push((record.at_ns, record.frame.to_vec(), record.original_len));
        }
        Ok(records)
    }

    #[test]
    fn all_four_layouts_are_read() {
        for big_endian in [false, true] {
            for (magic, unit) in [(MAGIC_MICROSECONDS, 1000), (MAGIC_NANOSECONDS, 1)] {
                let records = read(&file(big_endian, magic)).unwrap();
                let first = (3_000_000_000 + 5 * unit, b"abcd".to_vec(), 60);
                assert_eq!(records, [first, (4_000_000_000, vec![], 0)]);
            }
        }
    }

    #[test]
    fn a_file_cut_anywhere_but_between_packets_is_an_error() {
        let whole = file(false, MAGIC_NANOSECONDS);
        for len in 0..whole.len() {
            let result = read(&whole[..len]);
            assert_eq!(result.is_ok(), [24, 44].contains(&len), "{len}: {result:?}");
        }
        let error = read(&whole[..42]).unwrap_err();
        assert_eq!(error, "some.pcap: cut off in the data of packet 0 at byte 40");
    }

    #[test]
    fn nonsense_is_named() {
        assert!(read(&[0x0a; 24]).unwrap_err().contains("not a pcap file"));
        let mut other = file(false, MAGIC_NANOSECONDS);
        other[20] = 113;
        assert!(read(&other).unwrap_err().contains("link type 113"));
        let mut huge = file(false, MAGIC_NANOSECONDS);
        huge[32..40].fill(0xff);
        assert!(read(&huge).unwrap_err().contains("garbled at packet 0, byte 24"));
        let mut late = file(false, MAGIC_NANOSECONDS);
        late[28..32].fill(0xff);
        assert!(read(&late).unwrap_err().contains("within a second"));
    }
}
