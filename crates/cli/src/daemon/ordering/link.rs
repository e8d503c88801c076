//! The link for a record between the agents: a TCP connection that the backup opens.
//!
//! First, each side sends the magic number and a nonce. Then come frames: one byte for the kind, four for the length of the payload
//! (little-endian), the payload. If the nodes share a key, each frame ends with a tag: the first 16 bytes of HMAC-SHA256 over the direction,
//! both nonces, the frame's number and the frame. So a frame cannot be forged, replayed, left out or sent back.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use proto::role::Role;
use sha2::Sha256;

use super::state::OrderedService;
use crate::config::SecretKey;

/// Marks a link of this version.
const MAGIC: [u8; 4] = *b"SFO1";
const NONCE: usize = 16;
const TAG: usize = 16;
const HEAD: usize = 5;
/// Largest payload of a frame: all that an agent keeps.
const PAYLOAD_MAX: usize = 65 << 20;
/// The backup's first frame: how much of the record it has (8 bytes), then the VIP as text.
const HAVE: u8 = 1;
/// Bytes of the record.
pub(super) const PART: u8 = 2;
/// The backup has this many bytes (8 bytes).
const RECEIPT: u8 = 3;
/// The primary has no record for the backup, for the reason in the payload.
const REFUSED: u8 = 4;
/// Time limit for connecting and for the first frames.
const BEGIN_MAX: Duration = Duration::from_secs(1);
/// Pause before the backup connects again.
const PAUSE: Duration = Duration::from_millis(100);

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
}

/// The half of a link that sends.
pub(super) struct LinkWriter {
    stream: TcpStream,
    seal: LinkSeal,
}

/// The half of a link that receives.
struct LinkReader {
    stream: io::BufReader<TcpStream>,
    seal: LinkSeal,
}

impl LinkWriter {
    pub fn send(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = Vec::with_capacity(HEAD + payload.len() + TAG);
        frame.push(kind);
        frame.extend((payload.len() as u32).to_le_bytes());
        frame.extend(payload);
        if let Some(mac) = self.seal.tag(&frame) {
            frame.extend(&mac.finalize().into_bytes()[..TAG]);
        }
        self.stream.write_all(&frame)
    }

    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both); // fails only if it is closed already
    }
}

impl LinkReader {
    fn receive(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; HEAD];
        self.stream.read_exact(&mut head)?;
        let size = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
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
                .map_err(|_| io::Error::other("a frame of the link for recorded order has a wrong tag"))?;
        }
        Ok((head[0], frame.split_off(HEAD)))
    }
}

/// Exchanges nonces. `is_opener`: this node has opened the connection.
fn begin(
    mut stream: TcpStream,
    key: Option<&SecretKey>,
    is_opener: bool,
) -> io::Result<(LinkReader, LinkWriter)> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(BEGIN_MAX))?;
    stream.set_write_timeout(Some(BEGIN_MAX))?;
    let mut own = [0; NONCE];
    for half in own.chunks_mut(8) {
        half.copy_from_slice(&(linux::process::random_seed() as u64).to_le_bytes());
    }
    stream.write_all(&[&MAGIC[..], &own].concat())?;
    let mut greeting = [0; MAGIC.len() + NONCE];
    stream.read_exact(&mut greeting)?;
    let Some(other) = greeting.strip_prefix(&MAGIC) else {
        return Err(io::Error::other(
            "the peer speaks another version of the link for recorded order",
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
    let reader = LinkReader {
        stream: io::BufReader::with_capacity(64 << 10, stream.try_clone()?),
        seal: seal(!is_opener),
    };
    let writer = LinkWriter {
        stream,
        seal: seal(is_opener),
    };
    Ok((reader, writer))
}

/// Starts the thread that takes links of backups.
pub(super) fn serve(listener: TcpListener, services: Vec<Arc<OrderedService>>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("order-links".into())
        .spawn(move || {
            for stream in listener.incoming().flatten() {
                let services = services.clone();
                let served = std::thread::Builder::new()
                    .name("order-link".into())
                    .spawn(move || {
                        if let Err(error) = send_record(stream, &services) {
                            tracing::debug!(%error, "a link for recorded order has ended");
                        }
                    });
                if let Err(error) = served {
                    tracing::warn!(%error, "a link for recorded order is not served");
                }
            }
        })?;
    Ok(())
}

/// Serves a link of the backup.
fn send_record(stream: TcpStream, services: &[Arc<OrderedService>]) -> io::Result<()> {
    let key = services.first().and_then(|service| service.key.as_ref());
    let (mut reader, mut writer) = begin(stream, key, false)?;
    let (kind, payload) = reader.receive()?;
    let (have, vip) = payload.split_first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    let vip: Option<SocketAddr> = std::str::from_utf8(vip).ok().and_then(|vip| vip.parse().ok());
    let service = services.iter().find(|service| Some(service.vip) == vip);
    let Some(service) = service.filter(|_| kind == HAVE) else {
        return writer.send(REFUSED, b"no service with recorded order at this address");
    };
    reader.stream.get_ref().set_read_timeout(None)?;
    let mut state = service.state();
    if state.recorder.is_none() || !state.role.may_speak() {
        return Ok(()); // the backup asks again
    }
    let number = match state.link_up(u64::from_le_bytes(*have), writer) {
        Ok(number) => number,
        Err((gap, mut writer)) => return writer.send(REFUSED, gap.to_string().as_bytes()),
    };
    drop(state);
    tracing::info!(vip = %service.vip, "the backup takes the record");
    let outcome = loop {
        match reader.receive() {
            Ok((RECEIPT, payload)) => match payload.first_chunk() {
                Some(arrived) => service.state().on_receipt(u64::from_le_bytes(*arrived)),
                None => break Err(io::ErrorKind::InvalidData.into()),
            },
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    service.state().link_down(number);
    outcome
}

/// Starts the thread that takes the record while this node is the backup.
pub(super) fn follow(service: &Arc<OrderedService>) -> io::Result<()> {
    let service = Arc::clone(service);
    std::thread::Builder::new()
        .name("order-backup".into())
        .spawn(move || {
            loop {
                let state = service.wait(Duration::from_secs(1), |state| {
                    matches!(state.role, Role::Backup | Role::Returning) && !state.has_ended()
                });
                let is_backup = matches!(state.role, Role::Backup | Role::Returning) && !state.has_ended();
                drop(state);
                if is_backup && let Err(error) = take_record(&service) {
                    tracing::debug!(%error, peer = %service.peer, "no link for recorded order");
                    std::thread::sleep(PAUSE);
                }
            }
        })?;
    Ok(())
}

/// Opens a link to the primary, and takes the record until the link ends.
fn take_record(service: &OrderedService) -> io::Result<()> {
    let stream = TcpStream::connect_timeout(&service.peer, BEGIN_MAX)?;
    let inbound = stream.try_clone()?;
    let (mut reader, mut writer) = begin(stream, service.key.as_ref(), true)?;
    let have = {
        let mut state = service.state();
        state.inbound = Some(inbound);
        state.arrivals.arrived()
    };
    writer.send(
        HAVE,
        &[&have.to_le_bytes()[..], service.vip.to_string().as_bytes()].concat(),
    )?;
    reader.stream.get_ref().set_read_timeout(None)?;
    loop {
        let (kind, payload) = reader.receive()?;
        let mut state = service.state();
        if state.role.may_speak() {
            return Ok(()); // the record has ended
        }
        match kind {
            PART => {
                let arrived = state.arrivals.add(&payload);
                drop(state);
                if let Some(arrived) = arrived {
                    writer.send(RECEIPT, &arrived.to_le_bytes())?;
                }
                service.notify();
                if arrived.is_none() {
                    tracing::warn!(vip = %service.vip, "this node's server does not take the record; the record is given up");
                    return Ok(());
                }
            }
            REFUSED => {
                state.refused = Some(String::from_utf8_lossy(&payload).into_owned());
                drop(state);
                service.notify();
                return Ok(());
            }
            _ => {}
        }
    }
}
