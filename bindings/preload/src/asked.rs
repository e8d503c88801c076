//! What a server asks the kernel about a connection: the answer depends on what has arrived, so it is recorded.

use std::ffi::{c_int, c_ulong, c_void};

use libc::socklen_t;

use crate::calls::size_or_error;
use crate::{system, with_socket};

/// Number of bytes that wait to be read.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if request == libc::FIONREAD && !argument.is_null() {
        let asked = with_socket(fd, |server| {
            server.ask(fd, || {
                // SAFETY: the caller's contract.
                let asked = unsafe { system::ioctl(fd, request, argument) };
                // SAFETY: the caller's contract: this request writes a number.
                asked.map(|_| u64::from(unsafe { argument.cast::<u32>().read_unaligned() }))
            })
        });
        if let Some(asked) = asked {
            if let Ok(bytes) = asked {
                // SAFETY: the caller's contract: this request writes a number.
                unsafe { argument.cast::<u32>().write_unaligned(bytes as u32) };
            }
            return size_or_error(asked.map(|_| 0)) as c_int;
        }
    }
    // SAFETY: the caller's contract.
    size_or_error(unsafe { system::ioctl(fd, request, argument) }) as c_int
}

/// The state of TCP, which is the first byte of `TCP_INFO`, and a connection's error. Other options do not depend on what has arrived.
#[unsafe(no_mangle)]
unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    size: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's contract.
    let get = || unsafe { system::get_option(fd, level, name, value, size) };
    let width = match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_INFO) => 1,
        (libc::SOL_SOCKET, libc::SO_ERROR) => size_of::<c_int>(),
        _ => return size_or_error(get()) as c_int,
    };
    let mut is_got = false;
    let asked = with_socket(fd, |server| {
        server.ask(fd, || {
            is_got = true;
            let got = get();
            // SAFETY: the kernel has written the option.
            got.map(|_| unsafe { first_bytes(value.cast(), width) })
        })
    });
    let outcome = match asked {
        Some(Ok(answer)) if !is_got => get().map(|_| {
            let bytes = answer.to_ne_bytes();
            // SAFETY: the kernel has written an option that is at least as long.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), width) };
            0
        }),
        Some(asked) => asked.map(|_| 0),
        None => get(),
    };
    size_or_error(outcome) as c_int
}

/// # Safety
/// `width` bytes at `value` may be read. `width` is at most 8.
unsafe fn first_bytes(value: *const u8, width: usize) -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(value, bytes.as_mut_ptr(), width) };
    u64::from_ne_bytes(bytes)
}
