//! The way from the library to the backup's kernel and back: datagrams with the record, and receipts. The agent gives the socket to the
//! library when the backup takes datagrams. They may be lost, so the agent gets the record as well, but later and less often.

use std::ffi::c_int;

use proto::order::{DatagramSeal, OrderRecorder, RECEIPT_LEN};

use crate::system;

/// Descriptors from this one on are out of the server's way. Below the links of children and of programs, which begin at 1000.
const DESCRIPTOR: c_int = 960;
/// Number of datagrams that are read at a time.
const RECEIVE_MAX: usize = 64;

/// A socket that is connected to the backup, whose kernel takes the record from it.
pub struct DatagramLink {
    socket: c_int,
    seal: DatagramSeal,
    /// The backup has answered the last offer that it had time to answer.
    is_trusted: bool,
}

impl DatagramLink {
    /// The link that the payload of the agent's frame names. `None`: there is none any more.
    pub fn new(payload: &[u8], socket: Option<c_int>) -> Option<Self> {
        let socket = socket?;
        let named = payload
            .split_first_chunk()
            .and_then(|(cookie, secret)| Some((u64::from_le_bytes(*cookie), *secret.first_chunk()?)));
        let Some((cookie, secret)) = named else {
            let _ = system::close(socket);
            return None;
        };
        let socket = system::move_from(socket, DESCRIPTOR);
        let seal = DatagramSeal::new(cookie, secret);
        Some(Self {
            socket,
            seal,
            is_trusted: false,
        })
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> c_int {
        self.socket
    }

    /// Whether the record may go over the agents later, because the backup's kernel answers.
    pub fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// The backup's kernel has not answered in time.
    pub fn distrust(&mut self) {
        self.is_trusted = false;
    }

    /// Sends what has no receipt, unless that was done before. Takes the receipts that come at once. Returns whether anything was sent.
    pub fn offer(&mut self, recorder: &mut OrderRecorder) -> bool {
        let Some((from, bytes)) = recorder.offer() else {
            return false;
        };
        for datagram in self.seal.datagrams(from, bytes) {
            let _ = system::send_now(self.socket, &datagram); // a lost datagram has no receipt
        }
        recorder.offered();
        self.receive(recorder);
        true
    }

    /// Takes receipts.
    pub fn receive(&mut self, recorder: &mut OrderRecorder) {
        let mut buffer = [0; RECEIPT_LEN + 1];
        for _ in 0..RECEIVE_MAX {
            match system::receive_now(self.socket, &mut buffer, 0) {
                Ok(count) => {
                    let have = self.seal.receipt(&buffer[..count as usize]);
                    if have.is_some_and(|have| recorder.kernel_receipt(have)) {
                        self.is_trusted = true;
                        if recorder.may_write() {
                            return;
                        }
                    }
                }
                Err(libc::EAGAIN) => return,
                Err(libc::EINTR) => {}
                Err(_) => self.distrust(), // the socket reports each error once
            }
        }
    }

    /// Closes the socket.
    pub fn close(self) {
        let _ = system::close(self.socket);
    }
}
