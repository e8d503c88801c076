//! The functions that take the place of the C library's.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::slice;

use libc::{epoll_event, iovec, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval};
use proto::order::{Outcome, RANDOM_MAX};

use crate::server::{CLOCK_GETTIMEOFDAY, CLOCK_TIME};
use crate::sockets::OrderedWatch;
use crate::system::{self, NextFunction, RawAddress};
use crate::{children, forked, sockets, with_server, with_socket};

/// Flags of `recv` that are recorded.
const RECORDED_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_PEEK | libc::MSG_TRUNC;
/// Largest number of bytes that one call discards.
const DISCARD_MAX: usize = 1 << 20;

pub fn size_or_error(outcome: Outcome<u64>) -> ssize_t {
    outcome.map_or_else(
        |error| {
            system::set_errno(error);
            -1
        },
        |size| size as ssize_t,
    )
}

/// # Safety
/// `size` bytes at `buffer` may be written, and are used by nobody else.
pub unsafe fn bytes_mut<'a>(buffer: *mut c_void, size: usize) -> &'a mut [u8] {
    if size == 0 {
        return &mut [];
    }
    // SAFETY: the caller's contract.
    unsafe { slice::from_raw_parts_mut(buffer.cast(), size) }
}

/// # Safety
/// `size` bytes at `buffer` may be read.
unsafe fn bytes<'a>(buffer: *const c_void, size: usize) -> &'a [u8] {
    if size == 0 {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { slice::from_raw_parts(buffer.cast(), size) }
}

/// # Safety
/// `parts` points to `count` valid parts.
pub unsafe fn parts<'a>(parts: *const iovec, count: c_int) -> Vec<&'a [u8]> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller's contract.
    let parts = (0..count).map(|at| unsafe { *parts.add(at) });
    // SAFETY: the caller's contract.
    parts
        .map(|part| unsafe { bytes(part.iov_base, part.iov_len) })
        .collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller's contract.
    let ordered = with_socket(fd, |server| {
        server.read(fd, unsafe { bytes_mut(buffer, size) }, 0)
    });
    // SAFETY: the caller's contract.
    size_or_error(ordered.unwrap_or_else(|| unsafe { system::read(fd, buffer, size) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buffer: *mut c_void, size: size_t, flags: c_int) -> ssize_t {
    let ordered = with_socket(fd, |server| {
        if flags & !RECORDED_FLAGS != 0 {
            server.refuse("the server calls recv with other flags than MSG_DONTWAIT, MSG_PEEK and MSG_TRUNC");
            return None;
        }
        if flags & libc::MSG_TRUNC != 0 {
            // TCP discards the bytes. The server's buffer may be null.
            return Some(server.read(fd, &mut vec![0; size.min(DISCARD_MAX)], flags));
        }
        // SAFETY: the caller's contract.
        Some(server.read(fd, unsafe { bytes_mut(buffer, size) }, flags))
    });
    // SAFETY: the caller's contract.
    size_or_error(
        ordered
            .flatten()
            .unwrap_or_else(|| unsafe { system::recv(fd, buffer, size, flags) }),
    )
}

/// `read` in programs that were compiled with `_FORTIFY_SOURCE`. `room` is the size of the buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(fd: c_int, buffer: *mut c_void, size: size_t, room: size_t) -> ssize_t {
    assert!(size <= room, "the buffer is too small");
    // SAFETY: the caller's contract.
    unsafe { read(fd, buffer, size) }
}

/// `recv` in programs that were compiled with `_FORTIFY_SOURCE`. `room` is the size of the buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    size: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    assert!(size <= room, "the buffer is too small");
    // SAFETY: the caller's contract.
    unsafe { recv(fd, buffer, size, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let ordered = with_socket(fd, |server| {
        // A short read into the first part is always allowed.
        // SAFETY: the caller's contract.
        let first = (0..usize::try_from(count).unwrap_or(0)).map(|at| unsafe { *parts.add(at) });
        let first = first.into_iter().find(|part| part.iov_len > 0)?;
        // SAFETY: the caller's contract.
        Some(server.read(fd, unsafe { bytes_mut(first.iov_base, first.iov_len) }, 0))
    });
    // SAFETY: the caller's contract.
    size_or_error(
        ordered
            .flatten()
            .unwrap_or_else(|| unsafe { system::readv(fd, parts, count) }),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller's contract.
    let ordered = with_socket(fd, |server| server.write(fd, &[unsafe { bytes(buffer, size) }]));
    // SAFETY: the caller's contract.
    size_or_error(ordered.unwrap_or_else(|| unsafe { system::write(fd, buffer, size) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buffer: *const c_void, size: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    let ordered = with_socket(fd, |server| server.write(fd, &[unsafe { bytes(buffer, size) }]));
    // SAFETY: the caller's contract.
    size_or_error(ordered.unwrap_or_else(|| unsafe { system::send(fd, buffer, size, flags) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's contract.
    let ordered = with_socket(fd, |server| server.write(fd, &unsafe { parts(vector, count) }));
    // SAFETY: the caller's contract.
    size_or_error(ordered.unwrap_or_else(|| unsafe { system::writev(fd, vector, count) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { accept4(fd, address, size, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(fd: c_int, address: *mut sockaddr, size: *mut socklen_t, flags: c_int) -> c_int {
    let outcome = match with_socket(fd, |server| server.accept(fd, flags)) {
        // SAFETY: the caller's contract.
        None => unsafe { system::accept4(fd, address, size, flags) },
        Some(accepted) => accepted.map(|(connection, client)| {
            if !address.is_null() && !size.is_null() {
                // SAFETY: the caller's contract: `size` is the room at `address`.
                unsafe { copy_address(&client, address, &mut *size) };
            }
            connection as u64
        }),
    };
    size_or_error(outcome) as c_int
}

/// # Safety
/// `size` bytes at `to` may be written.
unsafe fn copy_address(from: &RawAddress, to: *mut sockaddr, size: &mut socklen_t) {
    let count = (*size).min(from.size) as usize;
    // SAFETY: the caller's contract, and no address is longer than the storage.
    unsafe { std::ptr::copy_nonoverlapping((&raw const from.storage).cast::<u8>(), to.cast::<u8>(), count) };
    *size = from.size;
}

#[unsafe(no_mangle)]
extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let outcome = system::listen(fd, backlog);
    if outcome.is_ok() {
        with_server(|server| server.on_listen(fd));
    }
    size_or_error(outcome) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    if forked::is_child() {
        sockets::forget(fd);
    } else if children::is_link(fd) {
        system::set_errno(libc::EBADF);
        return -1;
    } else {
        with_socket(fd, |server| server.on_close(fd));
    }
    size_or_error(system::close(fd)) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // A child without a stream that watches a socket does not use it yet. For example, it opens its parent's epoll instance anew.
    // SAFETY: the caller's contract.
    let in_kernel = if forked::is_child() {
        None
    } else {
        unsafe { watched(epoll, operation, fd, event) }
    };
    if in_kernel == Some(false) {
        return 0;
    }
    // SAFETY: the caller's contract.
    size_or_error(unsafe { system::epoll_ctl(epoll, operation, fd, event) }) as c_int
}

/// What `epoll_ctl` means for an ordered socket: whether the kernel's epoll instance is to do the same. `None`: the socket is not ordered.
///
/// # Safety
/// `event` is null or valid.
unsafe fn watched(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> Option<bool> {
    with_socket(fd, |server| {
        let watch = match operation {
            libc::EPOLL_CTL_DEL => None,
            _ if event.is_null() => None,
            _ => {
                // SAFETY: the caller's contract, and the pointer is not null.
                let event = unsafe { *event };
                Some(OrderedWatch {
                    events: event.events,
                    data: event.u64,
                })
            }
        };
        server.on_watch(epoll, fd, watch)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    let ordered = with_server(|server| {
        let count = usize::try_from(count).ok().filter(|&count| count > 0)?;
        // SAFETY: the caller's contract.
        let events = unsafe { slice::from_raw_parts_mut(events, count) };
        server.wait(epoll, events, timeout)
    });
    let outcome = match ordered.flatten() {
        Some(outcome) => outcome.map(|count| count as u64),
        // SAFETY: the caller's contract.
        None => unsafe { system::epoll_wait(epoll, events, count, timeout) },
    };
    size_or_error(outcome) as c_int
}

/// Whether the record has a clock. Others count a thread's or a process's time.
fn is_recorded(clock: c_int) -> bool {
    matches!(
        clock,
        libc::CLOCK_REALTIME
            | libc::CLOCK_MONOTONIC
            | libc::CLOCK_MONOTONIC_RAW
            | libc::CLOCK_BOOTTIME
            | libc::CLOCK_REALTIME_COARSE
            | libc::CLOCK_MONOTONIC_COARSE
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut timespec) -> c_int {
    let nanos = if is_recorded(clock) && !time.is_null() {
        with_server(|server| server.clock(clock as u8, || system::nanos(clock)))
    } else {
        None
    };
    let Some(nanos) = nanos else {
        // SAFETY: the caller's contract.
        return unsafe { system::clock_gettime(clock, time) };
    };
    let value = timespec {
        tv_sec: (nanos / 1_000_000_000) as libc::time_t,
        tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the caller's contract, and the pointer is not null.
    unsafe { *time = value };
    0
}

fn micros() -> u64 {
    system::nanos(libc::CLOCK_REALTIME) / 1000 * 1000
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(time: *mut timeval, _zone: *mut c_void) -> c_int {
    if time.is_null() {
        return 0;
    }
    let nanos = with_server(|server| server.clock(CLOCK_GETTIMEOFDAY, micros)).unwrap_or_else(micros);
    let value = timeval {
        tv_sec: (nanos / 1_000_000_000) as libc::time_t,
        tv_usec: (nanos % 1_000_000_000 / 1000) as libc::suseconds_t,
    };
    // SAFETY: the caller's contract, and the pointer is not null.
    unsafe { *time = value };
    0
}

fn seconds() -> u64 {
    system::nanos(libc::CLOCK_REALTIME_COARSE) / 1_000_000_000 * 1_000_000_000
}

#[unsafe(no_mangle)]
unsafe extern "C" fn time(to: *mut libc::time_t) -> libc::time_t {
    let nanos = with_server(|server| server.clock(CLOCK_TIME, seconds)).unwrap_or_else(seconds);
    let value = (nanos / 1_000_000_000) as libc::time_t;
    if !to.is_null() {
        // SAFETY: the caller's contract, and the pointer is not null.
        unsafe { *to = value };
    }
    value
}

#[unsafe(no_mangle)]
extern "C" fn getpid() -> libc::pid_t {
    with_server(|server| server.pid()).unwrap_or_else(system::getpid) as libc::pid_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, size: size_t, flags: u32) -> ssize_t {
    let is_done = size <= RANDOM_MAX
        && with_server(|server| {
            // SAFETY: the caller's contract.
            server.random(unsafe { bytes_mut(buffer, size) }, |bytes| {
                // SAFETY: the slice is valid.
                let got = unsafe { system::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), flags) };
                got == Ok(bytes.len() as u64)
            })
        }) == Some(true);
    if is_done {
        return size as ssize_t;
    }
    // SAFETY: the caller's contract.
    size_or_error(unsafe { system::getrandom(buffer, size, flags) })
}

type FopenFunction = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
type FreadFunction = unsafe extern "C" fn(*mut c_void, size_t, size_t, *mut libc::FILE) -> size_t;
type FcloseFunction = unsafe extern "C" fn(*mut libc::FILE) -> c_int;

/// # Safety
/// Both are C strings.
unsafe fn open_stream(next: &NextFunction, path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, FopenFunction>(next.address()) };
    // SAFETY: the caller's contract.
    let (stream, path) = unsafe { (function(path, mode), CStr::from_ptr(path)) };
    if !stream.is_null() && (path == c"/dev/urandom" || path == c"/dev/random") {
        with_server(|server| server.add_random_stream(stream as usize));
    }
    stream
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    static NEXT: NextFunction = NextFunction::new(c"fopen");
    // SAFETY: the caller's contract.
    unsafe { open_stream(&NEXT, path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    static NEXT: NextFunction = NextFunction::new(c"fopen64");
    // SAFETY: the caller's contract.
    unsafe { open_stream(&NEXT, path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fread(
    buffer: *mut c_void,
    size: size_t,
    count: size_t,
    stream: *mut libc::FILE,
) -> size_t {
    static NEXT: NextFunction = NextFunction::new(c"fread");
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, FreadFunction>(NEXT.address()) };
    let total = size.saturating_mul(count);
    let is_done = total <= RANDOM_MAX
        && with_server(|server| {
            if !server.is_random_stream(stream as usize) {
                return false;
            }
            // SAFETY: the caller's contract.
            server.random(unsafe { bytes_mut(buffer, total) }, |bytes| {
                // SAFETY: the slice is valid, and the stream is open.
                unsafe { function(bytes.as_mut_ptr().cast(), 1, total, stream) == total }
            })
        }) == Some(true);
    if is_done {
        return count;
    }
    // SAFETY: the caller's contract.
    unsafe { function(buffer, size, count, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(stream: *mut libc::FILE) -> c_int {
    static NEXT: NextFunction = NextFunction::new(c"fclose");
    with_server(|server| server.remove_random_stream(stream as usize));
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, FcloseFunction>(NEXT.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(stream) }
}
