//! Which programs get a role at the socket for the library.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, bail};
use linux::executable::file_of;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Uid, User};

use crate::config::RecordedOrderSettings;

/// The processes that may get a role: those of one user and of root, or only those of them that run one program.
pub(super) struct LibraryAccess {
    user: Uid,
    program: Option<PathBuf>,
}

/// Why a process gets no role.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AccessRefusal {
    /// The process runs as another user.
    User(Uid),
    /// The process runs another program, for example a shell that starts the server.
    Program(PathBuf),
}

impl LibraryAccess {
    /// As configured.
    ///
    /// # Errors
    /// If the user does not exist.
    pub fn new(settings: &RecordedOrderSettings) -> anyhow::Result<Self> {
        let user = match &settings.user {
            None => Uid::effective(),
            Some(name) => match User::from_name(name).context("looking up recorded_order_user")? {
                Some(user) => user.uid,
                None => bail!("recorded_order_user: there is no user {name}"),
            },
        };
        // `/proc` names a program by its path without symbolic links.
        let program = settings.program.as_ref();
        let program = program.map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone()));
        Ok(Self { user, program })
    }

    /// Lets only the user and root connect to the socket at `path`.
    pub fn restrict(&self, path: &Path) -> io::Result<()> {
        chown(path, Some(self.user.as_raw()), None)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
    }

    /// Whether the process at the other end may have a stream for a child. A recorded server's child may run another program.
    pub fn admits_child(&self, stream: &UnixStream) -> io::Result<bool> {
        let user = Uid::from_raw(getsockopt(stream, PeerCredentials)?.uid());
        Ok(user == self.user || user.is_root())
    }

    /// The process at the other end, or why it gets no role.
    pub fn admit(&self, stream: &UnixStream) -> io::Result<Result<i32, AccessRefusal>> {
        let peer = getsockopt(stream, PeerCredentials)?;
        let user = Uid::from_raw(peer.uid());
        if user != self.user && !user.is_root() {
            return Ok(Err(AccessRefusal::User(user)));
        }
        if let Some(program) = &self.program {
            let running = file_of(peer.pid())?;
            if running != *program {
                return Ok(Err(AccessRefusal::Program(running)));
            }
        }
        Ok(Ok(peer.pid()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn access(user: Uid, program: Option<PathBuf>) -> LibraryAccess {
        LibraryAccess { user, program }
    }

    #[test]
    fn only_the_configured_user_and_program_get_a_role() {
        let (stream, _other) = UnixStream::pair().expect("a pair");
        let (own, pid) = (Uid::effective(), std::process::id().cast_signed());
        let program = file_of(pid).expect("this test runs");
        let admit = |access: LibraryAccess| access.admit(&stream).expect("credentials");
        assert_eq!(admit(access(own, None)), Ok(pid));
        let other = access(own, Some("/usr/bin/other".into()));
        assert!(other.admits_child(&stream).expect("credentials"));
        assert_eq!(admit(access(own, Some(program.clone()))), Ok(pid));
        let other = Some("/usr/bin/other".into());
        assert_eq!(admit(access(own, other)), Err(AccessRefusal::Program(program)));
        if !own.is_root() {
            let stranger = access(Uid::from_raw(own.as_raw() + 1), None);
            assert!(!stranger.admits_child(&stream).expect("credentials"));
            assert_eq!(admit(stranger), Err(AccessRefusal::User(own)));
        }
    }

    #[test]
    fn the_socket_is_closed_to_others() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o666)).expect("set");
        access(Uid::effective(), None)
            .restrict(file.path())
            .expect("restricted");
        let found = file.path().metadata().expect("it is there");
        assert_eq!(
            (found.mode() & 0o777, found.uid()),
            (0o600, Uid::effective().as_raw())
        );
    }
}
