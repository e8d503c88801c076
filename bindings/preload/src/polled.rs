//! `poll` and `select`. Recorded are calls that wait for one ordered socket and nothing else. Others end the recording.

use std::ffi::{c_int, c_short, c_void};
use std::mem;
use std::slice;

use libc::{fd_set, pollfd, sigset_t, timespec, timeval};

use crate::calls::size_or_error;
use crate::system::{self, NextFunction};
use crate::with_socket;

/// Nanoseconds of a millisecond.
const MILLI: i64 = 1_000_000;

/// Ends the recording if one of several sockets is ordered.
fn refuse(descriptors: impl Iterator<Item = c_int>, reason: &str) {
    for fd in descriptors {
        with_socket(fd, |server| server.refuse(reason));
    }
}

/// # Safety
/// `count` descriptors at `descriptors` are valid.
unsafe fn slice_of<'a>(descriptors: *mut pollfd, count: libc::nfds_t) -> &'a mut [pollfd] {
    match count {
        0 => &mut [],
        // SAFETY: the caller's contract.
        _ => unsafe { slice::from_raw_parts_mut(descriptors, count as usize) },
    }
}

/// The recorded answer, if the call waits for one ordered socket.
fn wait_for_one(descriptors: &mut [pollfd], timeout: c_int) -> Option<c_int> {
    let [one] = descriptors else {
        return None;
    };
    let outcome = with_socket(one.fd, |server| server.wait_for_one(one.fd, one.events, timeout)).flatten()?;
    one.revents = outcome.unwrap_or(0);
    Some(size_or_error(outcome.map(|ready| u64::from(ready != 0))) as c_int)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(descriptors: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's contract.
    let descriptors = unsafe { slice_of(descriptors, count) };
    if let Some(answer) = wait_for_one(descriptors, timeout) {
        return answer;
    }
    if descriptors.len() > 1 {
        let all = descriptors.iter().map(|one| one.fd);
        refuse(
            all,
            "the server calls poll for a connection of the service and others",
        );
    }
    size_or_error(system::poll(descriptors, timeout)) as c_int
}

/// `poll` in programs that were compiled with `_FORTIFY_SOURCE`. `room` is the size of the array.
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    descriptors: *mut pollfd,
    count: libc::nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    assert!(
        count as usize <= room / size_of::<pollfd>(),
        "the array is too small"
    );
    // SAFETY: the caller's contract.
    unsafe { poll(descriptors, count, timeout) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    descriptors: *mut pollfd,
    count: libc::nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    type Function =
        unsafe extern "C" fn(*mut pollfd, libc::nfds_t, *const timespec, *const sigset_t) -> c_int;
    static NEXT: NextFunction = NextFunction::new(c"ppoll");
    // SAFETY: the caller's contract.
    let (all, limit) = unsafe { (slice_of(descriptors, count), timeout.as_ref()) };
    if mask.is_null()
        && let Some(answer) = wait_for_one(all, limit.map_or(-1, |limit| millis(limit.tv_sec, limit.tv_nsec)))
    {
        return answer;
    }
    refuse(all.iter().map(|one| one.fd), "the server calls ppoll");
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(descriptors, count, timeout, mask) }
}

/// Milliseconds, rounded up.
fn millis(seconds: i64, nanos: i64) -> c_int {
    let all = seconds
        .saturating_mul(1000)
        .saturating_add((nanos + MILLI - 1) / MILLI);
    c_int::try_from(all).unwrap_or(c_int::MAX)
}

/// The descriptors of a set.
///
/// # Safety
/// The set is null or has `count` descriptors.
unsafe fn members(count: c_int, set: *mut fd_set) -> Vec<c_int> {
    let count = if set.is_null() { 0 } else { count };
    // SAFETY: the caller's contract.
    (0..count)
        .filter(|&fd| unsafe { libc::FD_ISSET(fd, set) })
        .collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
    static NEXT: NextFunction = NextFunction::new(c"select");
    let sets = [
        (read, libc::POLLIN),
        (write, libc::POLLOUT),
        (except, libc::POLLPRI),
    ];
    // SAFETY: the caller's contract.
    let members = sets.map(|(set, events)| (set, events, unsafe { members(count, set) }));
    let mut all: Vec<c_int> = members
        .iter()
        .flat_map(|(.., members)| members.iter().copied())
        .collect();
    all.sort_unstable();
    all.dedup();
    if let [fd] = all[..] {
        let asked = members.iter().filter(|(.., members)| !members.is_empty());
        let events = asked.fold(0, |events, (_, one, _)| events | one);
        let mut one = [pollfd {
            fd,
            events,
            revents: 0,
        }];
        // SAFETY: the caller's contract.
        let limit = unsafe { timeout.as_ref() };
        let limit = limit.map_or(-1, |limit| millis(limit.tv_sec, limit.tv_usec * 1000));
        if let Some(answer) = wait_for_one(&mut one, limit) {
            if answer < 0 {
                return answer;
            }
            // SAFETY: the caller's contract.
            return unsafe { fill_sets(fd, &members, one[0].revents) };
        }
    } else {
        refuse(
            all.into_iter(),
            "the server calls select for a connection of the service and others",
        );
    }
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(count, read, write, except, timeout) }
}

/// Leaves the only member in the sets whose events it has. Returns in how many.
///
/// # Safety
/// The sets are null or valid.
unsafe fn fill_sets(fd: c_int, sets: &[(*mut fd_set, c_short, Vec<c_int>)], ready: c_short) -> c_int {
    let ends = libc::POLLHUP | libc::POLLERR;
    let mut count = 0;
    for (set, events, members) in sets {
        let wakes = if *events == libc::POLLPRI {
            *events
        } else {
            *events | ends
        };
        if members.is_empty() {
            continue;
        }
        if ready & wakes != 0 {
            count += 1;
        } else {
            // SAFETY: the caller's contract, and a set with a member is not null.
            unsafe { libc::FD_CLR(fd, *set) };
        }
    }
    count
}
