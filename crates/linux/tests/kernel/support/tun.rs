//! A network that this program implements. The program reads the packets that the kernel sends. The kernel receives a packet as soon as
//! the program writes it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use super::lan::LanHost;

/// A TUN interface. The kernel processes a packet on the thread that writes it. So when [`Tun::put`] returns, the socket has
/// processed the packet, and the answers can be read.
pub struct Tun {
    file: File,
}

impl Tun {
    /// Makes the interface `name`, at most 15 bytes long, on `host`. Dropping the value removes it.
    pub fn on(host: &LanHost, name: &str) -> io::Result<Self> {
        // SAFETY: an interface request of zeroes is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(15)) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI).expect("small");
        let file = host.run(|| {
            File::options()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open("/dev/net/tun")
        })?;
        // SAFETY: the kernel reads and writes one interface request.
        let outcome = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if outcome < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file })
    }

    /// Hands an IP packet to the kernel.
    pub fn put(&self, packet: &[u8]) {
        let written = (&self.file).write(packet).expect("write to the interface");
        assert_eq!(written, packet.len());
    }

    /// The next IP packet that the kernel sent.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut packet = vec![0; 1 << 16];
        match (&self.file).read(&mut packet) {
            Ok(len) => {
                packet.truncate(len);
                Some(packet)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("read from the interface: {error}"),
        }
    }
}
