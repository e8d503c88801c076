//! Functions whose use on a connection of the service ends the recording, because their order or their effect is not recorded.

use std::ffi::{c_int, c_void};

use libc::{msghdr, size_t, sockaddr, socklen_t, ssize_t};

use crate::{calls, with_socket};

fn refuse(fd: c_int, reason: &str) {
    with_socket(fd, |server| server.refuse(reason));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    size: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_size: socklen_t,
) -> ssize_t {
    if to.is_null() {
        // SAFETY: the caller's contract.
        return unsafe { calls::send(fd, buffer, size, flags) };
    }
    refuse(fd, "the server calls sendto with an address");
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_sendto, fd, buffer, size, flags, to, to_size) as ssize_t }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    size: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_size: *mut socklen_t,
) -> ssize_t {
    if from.is_null() {
        // SAFETY: the caller's contract.
        return unsafe { calls::recv(fd, buffer, size, flags) };
    }
    refuse(fd, "the server calls recvfrom with an address");
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_recvfrom, fd, buffer, size, flags, from, from_size) as ssize_t }
}

/// Whether a message has only bytes.
fn is_plain(message: &msghdr) -> bool {
    message.msg_name.is_null() && message.msg_control.is_null()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    let sent = with_socket(fd, |server| unsafe {
        let message = message.as_ref().filter(|message| is_plain(message))?;
        Some(server.write(fd, &calls::parts(message.msg_iov, message.msg_iovlen as c_int)))
    });
    match sent {
        Some(Some(outcome)) => return calls::size_or_error(outcome),
        Some(None) => refuse(fd, "the server calls sendmsg with an address or control data"),
        None => {}
    }
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, flags) as ssize_t }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    let received = with_socket(fd, |server| unsafe {
        let message = message
            .as_mut()
            .filter(|message| message.msg_control.is_null() && flags == 0)?;
        // A short read into the first part is always allowed.
        let count = usize::try_from(message.msg_iovlen as c_int).unwrap_or(0);
        let parts = (0..count).map(|at| *message.msg_iov.add(at));
        let first = parts.into_iter().find(|part| part.iov_len > 0)?;
        (message.msg_namelen, message.msg_flags) = (0, 0); // TCP names no sender
        Some(server.read(fd, calls::bytes_mut(first.iov_base, first.iov_len), 0))
    });
    match received {
        Some(Some(outcome)) => return calls::size_or_error(outcome),
        Some(None) => refuse(fd, "the server calls recvmsg with flags or control data"),
        None => {}
    }
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, flags) as ssize_t }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    if mask.is_null() {
        // SAFETY: the caller's contract.
        return unsafe { calls::epoll_wait(epoll, events, count, timeout) };
    }
    crate::with_server(|server| {
        if server.is_watched_by(epoll) {
            server.refuse("the server calls epoll_pwait with a mask");
        }
    });
    /// Bytes of the kernel's set of signals.
    const MASK: usize = 8;
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, events, count, timeout, mask, MASK) as c_int }
}

/// Output that the library holds must go before the end of the stream.
#[unsafe(no_mangle)]
extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if how != libc::SHUT_RD {
        with_socket(fd, |server| server.settle(fd));
    }
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_shutdown, fd, how) as c_int }
}
