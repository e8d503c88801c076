//! Netlink messages as bytes (`linux/netlink.h`), for protocols of which only a few messages are needed.

use std::io;

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_CREATE: u16 = 0x400;

pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;

/// `struct nlmsghdr`.
const HEADER: usize = 16;

/// One message: its type, and the bytes after its header.
pub(crate) struct RawNetlinkMessage<'a> {
    pub(crate) kind: u16,
    pub(crate) body: &'a [u8],
}

impl RawNetlinkMessage<'_> {
    /// `COUNT` bytes of the body from `at` on. Zeroes if the body is too short.
    pub(crate) fn bytes<const COUNT: usize>(&self, at: usize) -> [u8; COUNT] {
        let bytes = self.body.get(at..at + COUNT);
        bytes.map_or([0; COUNT], |bytes| bytes.try_into().expect("as many"))
    }

    /// The outcome of a request, read from an NLMSG_ERROR message. Code 0 means success.
    pub(crate) fn outcome(&self) -> io::Result<()> {
        match (self.kind, i32::from_ne_bytes(self.bytes(0))) {
            (NLMSG_ERROR, 0) if self.body.len() >= 4 => Ok(()),
            (NLMSG_ERROR, code) if self.body.len() >= 4 => Err(io::Error::from_raw_os_error(-code)),
            _ => Err(not_understood()),
        }
    }
}

/// The messages of one datagram, up to the first message that is incomplete.
pub(crate) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = RawNetlinkMessage<'_>> {
    std::iter::from_fn(move || {
        let header = datagram.get(..HEADER)?;
        let length = u32::from_ne_bytes(header[..4].try_into().expect("4 bytes")) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let body = datagram.get(HEADER..length)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(RawNetlinkMessage { kind, body })
    })
}

/// The first message of an answer.
pub(crate) fn first(answer: &[u8]) -> io::Result<RawNetlinkMessage<'_>> {
    messages(answer).next().ok_or_else(not_understood)
}

fn not_understood() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "unexpected netlink answer from the kernel",
    )
}

/// A message to the kernel.
pub(crate) fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).expect("requests are short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    bytes.extend([0; 8]); // sequence number and port
    bytes.extend(body);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_taken_apart() {
        let two = [message(7, 0, &[1, 2, 3, 4, 5, 0, 0, 0]), message(8, 0, &[9])].concat();
        let taken: Vec<_> = messages(&two)
            .map(|message| (message.kind, message.body.len(), message.bytes::<2>(3)))
            .collect();
        assert_eq!(taken, [(7, 8, [4, 5]), (8, 1, [0, 0])]);
        for len in 0..24 {
            assert_eq!(messages(&two[..len]).count(), 0, "{len} bytes");
        }
    }

    #[test]
    fn a_length_that_cannot_be_ends_it() {
        for length in [0_u32, 15, 1000, u32::MAX] {
            let mut wrong = message(7, 0, &[0; 8]);
            wrong[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&[wrong, message(8, 0, &[])].concat()).count(), 0);
        }
    }

    #[test]
    fn an_error_is_the_outcome() {
        let answer = |code: i32| message(NLMSG_ERROR, 0, &code.to_ne_bytes());
        assert!(first(&answer(0)).unwrap().outcome().is_ok());
        let error = first(&answer(-libc::ENOENT)).unwrap().outcome().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        for strange in [message(NLMSG_ERROR, 0, &[]), message(7, 0, &[0; 8])] {
            assert!(first(&strange).unwrap().outcome().is_err());
        }
    }
}
