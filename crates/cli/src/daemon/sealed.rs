//! Frames of a TCP link between two nodes. First, each side sends the link's magic number and a nonce. Then come frames, as between
//! agent and library ([`proto::order::frames`]), but with other kinds. If the nodes share a key, each frame ends with a tag: the first 16
//! bytes of HMAC-SHA256 over the direction, both nonces, the frame's number and the frame. So a frame cannot be forged, replayed, left out
//! or sent back.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use proto::order::frames::{HEAD, frame, payload_len};
use sha2::Sha256;

use crate::config::SecretKey;

/// Length of a link's magic number, which also says its version.
const MAGIC: usize = 4;
const NONCE: usize = 16;
const TAG: usize = 16;
/// Length of a secret that is derived from a link.
const SECRET: usize = 16;
/// Largest payload in bytes of a frame: all that an agent keeps of a record, and the input of a connection with its limits.
const PAYLOAD_MAX: usize = 65 << 20;
/// Time limit for connecting and for the first frames.
pub const BEGIN_MAX: Duration = Duration::from_secs(1);

/// Makes and checks the tags of one direction.
struct LinkSeal {
    key: Option<SecretKey>,
    /// The direction and both nonces.
    context: Vec<u8>,
    count: u64,
}

impl LinkSeal {
    fn tag(&mut self, frame: &[u8]) -> Option<Hmac<Sha256>> {
        let key = self.key.as_ref()?;
        let mut mac = Hmac::<Sha256>::new_from_slice(key.bytes()).expect("any length is a key");
        mac.update(&self.context);
        mac.update(&self.count.to_le_bytes());
        mac.update(frame);
        self.count += 1;
        Some(mac)
    }

    /// A secret of both ends of this link, for this use. Without a key, whoever reads the link can compute it.
    fn secret(&self, label: &[u8]) -> [u8; SECRET] {
        const OF_SECRETS: u8 = 2; // 0 and 1 are the directions of frames
        let key = self.key.as_ref().map_or(&[][..], |key| &key.bytes()[..]);
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length is a key");
        mac.update(&[OF_SECRETS]);
        mac.update(&self.context[1..]);
        mac.update(label);
        *mac.finalize().into_bytes().first_chunk().expect("32 bytes")
    }
}

/// The half of a link that sends.
pub struct SealedWriter {
    stream: TcpStream,
    seal: LinkSeal,
}

/// The half of a link that receives.
pub struct SealedReader {
    pub stream: io::BufReader<TcpStream>,
    seal: LinkSeal,
}

impl SealedWriter {
    /// Sends a frame.
    pub fn send(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = frame(kind, payload);
        if let Some(mac) = self.seal.tag(&frame) {
            frame.extend(&mac.finalize().into_bytes()[..TAG]);
        }
        self.stream.write_all(&frame)
    }

    /// Ends the link.
    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both); // fails only if it is closed already
    }
}

impl SealedReader {
    /// A secret of both ends of this link. Links have other secrets, and so have other labels.
    pub fn secret(&self, label: &[u8]) -> [u8; SECRET] {
        self.seal.secret(label)
    }

    /// Receives a frame: its kind and its payload.
    pub fn receive(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; HEAD];
        self.stream.read_exact(&mut head)?;
        let size = payload_len(&head);
        if size > PAYLOAD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut frame = head.to_vec();
        // Without a key, a wrong length must not take memory at once.
        (&mut self.stream).take(size as u64).read_to_end(&mut frame)?;
        if frame.len() < HEAD + size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(mac) = self.seal.tag(&frame) {
            let mut tag = [0; TAG];
            self.stream.read_exact(&mut tag)?;
            mac.verify_truncated_left(&tag)
                .map_err(|_| io::Error::other("a frame of a link has a wrong tag"))?;
        }
        Ok((head[0], frame.split_off(HEAD)))
    }
}

/// Exchanges nonces. `magic` marks the link's use and version. `is_opener`: this node has opened the connection.
pub fn begin(
    mut stream: TcpStream,
    magic: [u8; MAGIC],
    key: Option<&SecretKey>,
    is_opener: bool,
) -> io::Result<(SealedReader, SealedWriter)> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(BEGIN_MAX))?;
    stream.set_write_timeout(Some(BEGIN_MAX))?;
    let mut own = [0; NONCE];
    for half in own.chunks_mut(8) {
        half.copy_from_slice(&(linux::process::random_seed() as u64).to_le_bytes());
    }
    stream.write_all(&[&magic[..], &own].concat())?;
    let mut greeting = [0; MAGIC + NONCE];
    stream.read_exact(&mut greeting)?;
    let Some(other) = greeting.strip_prefix(&magic) else {
        return Err(io::Error::other(
            "the other node speaks another version of the link",
        ));
    };
    let nonces = if is_opener {
        [&own, other].concat()
    } else {
        [other, &own].concat()
    };
    let seal = |is_from_opener: bool| LinkSeal {
        key: key.cloned(),
        context: [&[u8::from(is_from_opener)], &nonces[..]].concat(),
        count: 0,
    };
    let reader = SealedReader {
        stream: io::BufReader::with_capacity(64 << 10, stream.try_clone()?),
        seal: seal(!is_opener),
    };
    let writer = SealedWriter {
        stream,
        seal: seal(is_opener),
    };
    Ok((reader, writer))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn key(digit: &str) -> SecretKey {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(digit.repeat(64).as_bytes()).expect("written");
        SecretKey::read(file.path()).expect("a key")
    }

    /// Both ends of a link, with these keys: the opener's, and the other's.
    fn link(keys: [Option<SecretKey>; 2]) -> [(SealedReader, SealedWriter); 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("bound");
        let [opener, other] = keys;
        let opened = std::thread::spawn(move || {
            let stream = TcpStream::connect(address).expect("connected");
            begin(stream, *b"TEST", opener.as_ref(), true).expect("the other end begins too")
        });
        let (stream, _) = listener.accept().expect("accepted");
        let accepted = begin(stream, *b"TEST", other.as_ref(), false).expect("the opener begins too");
        [opened.join().expect("no panic"), accepted]
    }

    #[test]
    fn frames_arrive_in_both_directions() {
        for key in [None, Some(key("a"))] {
            let [(mut from_other, mut to_other), (mut from_opener, mut to_opener)] = link([key.clone(), key]);
            for payload in [&b"abc"[..], b"", &[7; 100_000]] {
                to_other.send(2, payload).expect("sent");
                assert_eq!(from_opener.receive().expect("a frame"), (2, payload.to_vec()));
            }
            to_opener.send(3, b"12345678").expect("sent");
            assert_eq!(from_other.receive().expect("a frame"), (3, b"12345678".to_vec()));
        }
    }

    #[test]
    fn both_ends_of_a_link_have_its_secrets() {
        let secrets = |keys: [Option<SecretKey>; 2], labels: [&[u8]; 2]| {
            let [(opener, _), (other, _)] = link(keys);
            [opener.secret(labels[0]), other.secret(labels[1])]
        };
        for key in [None, Some(key("a"))] {
            let [one, same] = secrets([key.clone(), key.clone()], [b"a"; 2]);
            assert_eq!(one, same);
            let [later, another] = secrets([key.clone(), key], [b"a", b"b"]);
            assert_ne!(later, one, "another link");
            assert_ne!(later, another, "another label");
        }
        let [one, other] = secrets([Some(key("a")), Some(key("b"))], [b"a"; 2]);
        assert_ne!(one, other, "another key");
    }

    #[test]
    fn frames_of_another_key_and_repeated_frames_are_refused() {
        let [(_, mut to_other), (mut from_opener, _)] = link([Some(key("a")), Some(key("b"))]);
        to_other.send(2, b"abc").expect("sent");
        from_opener.receive().expect_err("another key");

        let [(_, mut to_other), (mut from_opener, _)] = link([Some(key("a")), Some(key("a"))]);
        to_other.send(2, b"abc").expect("sent");
        from_opener.receive().expect("a frame");
        to_other.seal.count = 0;
        to_other.send(2, b"abc").expect("sent");
        from_opener.receive().expect_err("the same frame again");
    }
}
