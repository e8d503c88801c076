//! Functions whose use on a connection of the service ends the recording, because their order or their effect is not recorded.

use std::ffi::{c_int, c_void};
use std::mem;

use libc::{msghdr, off_t, off64_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::system::NextFunction;
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

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    refuse(fd, "the server calls sendmsg");
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, flags) as ssize_t }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    refuse(fd, "the server calls recvmsg");
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, flags) as ssize_t }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    refuse(to, "the server calls sendfile");
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) as ssize_t }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's contract. Both kinds of offsets have 64 bits here.
    unsafe { sendfile(to, from, offset, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    descriptors: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    type Function = unsafe extern "C" fn(
        *mut libc::pollfd,
        libc::nfds_t,
        *const libc::timespec,
        *const libc::sigset_t,
    ) -> c_int;
    static NEXT: NextFunction = NextFunction::new(c"ppoll");
    for at in 0..count as usize {
        // SAFETY: the caller's contract.
        refuse(unsafe { (*descriptors.add(at)).fd }, "the server calls ppoll");
    }
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(descriptors, count, timeout, mask) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    type Function = unsafe extern "C" fn(
        c_int,
        *mut libc::fd_set,
        *mut libc::fd_set,
        *mut libc::fd_set,
        *mut libc::timeval,
    ) -> c_int;
    static NEXT: NextFunction = NextFunction::new(c"select");
    for set in [read, write].into_iter().filter(|set| !set.is_null()) {
        for fd in 0..count {
            // SAFETY: the caller's contract: the set has `count` descriptors.
            if unsafe { libc::FD_ISSET(fd, set) } {
                refuse(fd, "the server calls select");
            }
        }
    }
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(count, read, write, except, timeout) }
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
