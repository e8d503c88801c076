//! System calls that do not pass through this library's own functions of the same names.

use std::ffi::{c_int, c_long, c_void};
use std::mem;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicPtr, Ordering};

use proto::order::Outcome;

/// A function of the C library that this library replaces.
pub struct NextFunction {
    name: &'static std::ffi::CStr,
    address: AtomicPtr<c_void>,
}

impl NextFunction {
    /// Looked up at its first use.
    pub const fn new(name: &'static std::ffi::CStr) -> Self {
        let address = AtomicPtr::new(std::ptr::null_mut());
        Self { name, address }
    }

    /// The function's address.
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        assert!(!found.is_null(), "the C library has no {:?}", self.name);
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

static CLOCK_GETTIME: NextFunction = NextFunction::new(c"clock_gettime");

/// Reads a clock through the vDSO. Returns 0 or -1, as `clock_gettime` does.
///
/// # Safety
/// `time` is null or points to a `timespec`.
pub unsafe fn clock_gettime(clock: c_int, time: *mut libc::timespec) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *mut libc::timespec) -> c_int;
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(CLOCK_GETTIME.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(clock, time) }
}

/// The value of a clock in nanoseconds.
pub fn nanos(clock: c_int) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is valid.
    unsafe { clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The number of the last error.
pub fn errno() -> i32 {
    // SAFETY: the C library returns this thread's variable.
    unsafe { *libc::__errno_location() }
}

/// Sets the number of the last error.
pub fn set_errno(error: i32) {
    // SAFETY: the C library returns this thread's variable.
    unsafe { *libc::__errno_location() = error };
}

fn outcome(value: c_long) -> Outcome<u64> {
    u64::try_from(value).map_err(|_| errno())
}

/// `read`, as far as the C library has not recorded it as a point of cancellation.
///
/// # Safety
/// `size` bytes at `buffer` may be written.
pub unsafe fn read(fd: c_int, buffer: *mut c_void, size: usize) -> Outcome<u64> {
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_read, fd, buffer, size) })
}

/// `recv`.
///
/// # Safety
/// `size` bytes at `buffer` may be written.
pub unsafe fn recv(fd: c_int, buffer: *mut c_void, size: usize, flags: c_int) -> Outcome<u64> {
    let none = std::ptr::null::<c_void>();
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_recvfrom, fd, buffer, size, flags, none, none) })
}

/// `write`.
///
/// # Safety
/// `size` bytes at `buffer` may be read.
pub unsafe fn write(fd: c_int, buffer: *const c_void, size: usize) -> Outcome<u64> {
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_write, fd, buffer, size) })
}

/// `writev`.
///
/// # Safety
/// `parts` points to `count` valid parts.
pub unsafe fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> Outcome<u64> {
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_writev, fd, parts, count) })
}

/// `readv`.
///
/// # Safety
/// `parts` points to `count` valid parts.
pub unsafe fn readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> Outcome<u64> {
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_readv, fd, parts, count) })
}

/// `send`.
///
/// # Safety
/// `size` bytes at `buffer` may be read.
pub unsafe fn send(fd: c_int, buffer: *const c_void, size: usize, flags: c_int) -> Outcome<u64> {
    let none = std::ptr::null::<c_void>();
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_sendto, fd, buffer, size, flags, none, 0) })
}

/// Sends to a socket without SIGPIPE and without waiting.
pub fn send_now(fd: c_int, bytes: &[u8]) -> Outcome<u64> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the slice is valid.
    unsafe { send(fd, bytes.as_ptr().cast(), bytes.len(), flags) }
}

/// Reads from a socket without waiting.
pub fn receive_now(fd: c_int, buffer: &mut [u8], flags: c_int) -> Outcome<u64> {
    // SAFETY: the slice is valid.
    unsafe {
        recv(
            fd,
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            flags | libc::MSG_DONTWAIT,
        )
    }
}

/// Reads from a local socket without waiting. A descriptor may come with the bytes. It is closed on exec.
pub fn receive_with(fd: c_int, buffer: &mut [u8]) -> Outcome<(u64, Option<c_int>)> {
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // Room for one descriptor, aligned as the kernel demands.
    let mut control = [0_u64; 3];
    // SAFETY: the type has only numbers and pointers, for which 0 is valid.
    let mut message = unsafe { mem::zeroed::<libc::msghdr>() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message, its part and its control data are valid.
    let count = outcome(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, flags) })?;
    // SAFETY: the kernel has filled the control data. A header of this kind has a descriptor.
    let passed = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message).as_ref();
        let is_descriptor = |header: &&libc::cmsghdr| {
            header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS
        };
        header
            .filter(is_descriptor)
            .map(|header| libc::CMSG_DATA(header).cast::<c_int>().read_unaligned())
    };
    Ok((count, passed))
}

/// `accept4` with raw arguments.
///
/// # Safety
/// `address` and `size` are null or valid, as for `accept`.
pub unsafe fn accept4(
    fd: c_int,
    address: *mut libc::sockaddr,
    size: *mut libc::socklen_t,
    flags: c_int,
) -> Outcome<u64> {
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_accept4, fd, address, size, flags) })
}

/// `listen`.
pub fn listen(fd: c_int, backlog: c_int) -> Outcome<u64> {
    // SAFETY: no pointers.
    outcome(unsafe { libc::syscall(libc::SYS_listen, fd, backlog) })
}

/// `close`.
pub fn close(fd: c_int) -> Outcome<u64> {
    // SAFETY: no pointers. The caller owns the descriptor.
    outcome(unsafe { libc::syscall(libc::SYS_close, fd) })
}

/// `dup`. Returns the new descriptor, or -1, as the C library does.
pub fn dup(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_dup, fd) as c_int }
}

/// `dup2`. Returns the new descriptor, or -1, as the C library does.
pub fn dup2(fd: c_int, to: c_int) -> c_int {
    if fd == to {
        // Not all machines have the system call `dup2`, and `dup3` refuses equal descriptors.
        // SAFETY: no pointers.
        let is_open = unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
        return if is_open { to } else { -1 };
    }
    dup3(fd, to, 0)
}

/// `dup3`. Returns the new descriptor, or -1, as the C library does.
pub fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_dup3, fd, to, flags) as c_int }
}

/// Zeroed memory of this size that the process shares with its children. `None`: there is none.
pub fn share_memory(size: usize) -> Option<*mut c_void> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping overlaps no other memory.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory)
}

/// Zeroed memory of this size that the kernel zeroes again for each child. `None`: there is none.
pub fn wiped_memory(size: usize) -> Option<*mut c_void> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping overlaps no other memory.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, -1, 0) };
    if memory == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping is this function's own.
    let is_wiped = unsafe { libc::madvise(memory, size, libc::MADV_WIPEONFORK) } == 0;
    is_wiped.then_some(memory)
}

/// A second descriptor of the same socket, closed on exec.
pub fn duplicate(fd: c_int) -> Outcome<c_int> {
    // SAFETY: no pointers.
    match unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) } {
        -1 => Err(errno()),
        copy => Ok(copy),
    }
}

/// A second descriptor of the same socket, which is the first free one from `from` on and stays open on exec.
pub fn duplicate_from(fd: c_int, from: c_int) -> Outcome<c_int> {
    // SAFETY: no pointers.
    match unsafe { control(fd, libc::F_DUPFD, c_long::from(from)) } {
        -1 => Err(errno()),
        copy => Ok(copy),
    }
}

/// Moves a descriptor to the first free number from `from` on, if that is possible. It is closed on exec. Returns its number.
pub fn move_from(fd: c_int, from: c_int) -> c_int {
    // SAFETY: no pointers.
    let moved = unsafe { control(fd, libc::F_DUPFD_CLOEXEC, c_long::from(from)) };
    if moved < 0 {
        return fd; // the limit of open files is below that number
    }
    let _ = close(fd);
    moved
}

/// Leaves a descriptor open on exec.
pub fn keep_on_exec(fd: c_int) {
    // SAFETY: no pointers.
    unsafe { control(fd, libc::F_SETFD, 0) };
}

/// Whether a program that this process starts inherits a descriptor.
pub fn stays_on_exec(fd: c_int) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { control(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Makes a descriptor blocking or not, and sets whether exec closes it.
pub fn set_flags(fd: c_int, flags: c_int) {
    let nonblocking = if flags & libc::SOCK_NONBLOCK != 0 {
        libc::O_NONBLOCK
    } else {
        0
    };
    let cloexec = if flags & libc::SOCK_CLOEXEC != 0 {
        libc::FD_CLOEXEC
    } else {
        0
    };
    // SAFETY: no pointers.
    unsafe {
        let old = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, old & !libc::O_NONBLOCK | nonblocking);
        libc::fcntl(fd, libc::F_SETFD, cloexec);
    }
}

/// `getpid`.
pub fn getpid() -> u32 {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

/// `getrandom`.
///
/// # Safety
/// `size` bytes at `buffer` may be written.
pub unsafe fn getrandom(buffer: *mut c_void, size: usize, flags: u32) -> Outcome<u64> {
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_getrandom, buffer, size, flags) })
}

/// `sendfile`. Without an offset, the file's own position is used.
pub fn send_file(to: c_int, from: c_int, offset: Option<&mut libc::off_t>, size: usize) -> Outcome<u64> {
    let offset = offset.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: the offset is null or valid.
    outcome(unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, size) })
}

/// Reads from this position of a file, which does not change the file's own position.
pub fn read_at(file: c_int, buffer: &mut [u8], at: libc::off_t) -> Outcome<u64> {
    // SAFETY: the slice is valid.
    let count = unsafe { libc::pread(file, buffer.as_mut_ptr().cast(), buffer.len(), at) };
    outcome(count as c_long)
}

/// Moves a file's own position by `change` bytes. Returns the position.
pub fn position(file: c_int, change: libc::off_t) -> Outcome<libc::off_t> {
    // SAFETY: no pointers.
    let at = unsafe { libc::lseek(file, change, libc::SEEK_CUR) };
    outcome(at as c_long).map(u64::cast_signed)
}

/// `ioctl`.
///
/// # Safety
/// `argument` is as the request demands.
pub unsafe fn ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> Outcome<u64> {
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) })
}

/// `getsockopt`.
///
/// # Safety
/// The pointers are as the option demands.
pub unsafe fn get_option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    size: *mut libc::socklen_t,
) -> Outcome<u64> {
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, size) })
}

/// A random number.
pub fn random_number() -> u32 {
    let mut bytes = [0; 4];
    // SAFETY: the array is valid. If the kernel gives nothing, the number is not random, and the agent refuses it the second time.
    let _ = unsafe { getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u32::from_ne_bytes(bytes)
}

/// `fork` of the C library.
pub fn fork() -> libc::pid_t {
    type Function = unsafe extern "C" fn() -> libc::pid_t;
    static NEXT: NextFunction = NextFunction::new(c"fork");
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    // SAFETY: the caller is a function that takes the place of `fork`.
    unsafe { function() }
}

/// Waits for a child to end. Returns its status, as `waitpid` does.
pub fn wait_for(child: libc::pid_t) -> Outcome<c_int> {
    let mut status = 0;
    loop {
        // SAFETY: the pointer is valid.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
            return Ok(status);
        }
        match errno() {
            libc::EINTR => {}
            error => return Err(error),
        }
    }
}

/// `fcntl`. Returns -1 after an error, as the C library does.
///
/// # Safety
/// `argument` is as the command demands.
pub unsafe fn control(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) as c_int }
}

/// Names this process as the owner of a descriptor. A program that it starts by `exec` remains the owner.
pub fn own(fd: c_int) {
    // SAFETY: no pointers.
    unsafe { control(fd, libc::F_SETOWN, c_long::from(getpid())) };
}

/// Makes this process the owner of a descriptor that has none. Returns false if it has one, or is not open.
pub fn claim(fd: c_int) -> bool {
    // SAFETY: no pointers.
    let is_free = unsafe { control(fd, libc::F_GETOWN, 0) } == 0;
    if is_free {
        own(fd);
    }
    is_free
}

/// Whether this process is the owner of a descriptor.
pub fn is_owner(fd: c_int) -> bool {
    // SAFETY: no pointers.
    i64::from(unsafe { control(fd, libc::F_GETOWN, 0) }) == i64::from(getpid())
}

/// Closes these descriptors, inclusive.
pub fn close_between(first: u32, last: u32, flags: c_int) -> Outcome<u64> {
    // SAFETY: no pointers.
    outcome(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) })
}

/// `epoll_ctl`.
///
/// # Safety
/// `event` is null or valid.
pub unsafe fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> Outcome<u64> {
    // SAFETY: the caller's contract.
    outcome(unsafe { libc::syscall(libc::SYS_epoll_ctl, epoll, operation, fd, event) })
}

/// Adds a socket to an epoll instance.
pub fn epoll_add(epoll: c_int, fd: c_int, mut event: libc::epoll_event) -> Outcome<u64> {
    // SAFETY: the event is valid.
    unsafe { epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) }
}

/// Removes a socket from an epoll instance.
pub fn epoll_remove(epoll: c_int, fd: c_int) {
    // SAFETY: this operation has no event. An error means that the socket was not there.
    let _ = unsafe { epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
}

/// `epoll_wait`.
///
/// # Safety
/// `count` events at `events` may be written.
pub unsafe fn epoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: c_int,
) -> Outcome<u64> {
    let mask = std::ptr::null::<c_void>();
    // SAFETY: the caller's contract. Without a mask, the system call is `epoll_wait`.
    outcome(unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, events, count, timeout, mask, 0) })
}

/// Waits until one of the descriptors has one of its events, at most `timeout` milliseconds, or without a limit if negative.
pub fn poll(descriptors: &mut [libc::pollfd], timeout: c_int) -> Outcome<u64> {
    let time = libc::timespec {
        tv_sec: libc::time_t::from(timeout / 1000),
        tv_nsec: libc::c_long::from(timeout % 1000) * 1_000_000,
    };
    let limit = if timeout < 0 {
        std::ptr::null()
    } else {
        &raw const time
    };
    let mask = std::ptr::null::<c_void>();
    // SAFETY: the slice and the time are valid.
    outcome(unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            descriptors.as_mut_ptr(),
            descriptors.len(),
            limit,
            mask,
            0,
        )
    })
}

/// The time that is left of a timeout.
pub struct PollTimeout {
    begun: u64,
    timeout: c_int,
}

impl PollTimeout {
    /// A timeout in milliseconds that begins now. Negative: it never ends.
    pub fn new(timeout: c_int) -> Self {
        let begun = nanos(libc::CLOCK_MONOTONIC);
        Self { begun, timeout }
    }

    /// The milliseconds that are left. -1: without an end.
    pub fn millis(&self) -> c_int {
        let waited = (nanos(libc::CLOCK_MONOTONIC) - self.begun) / 1_000_000;
        let waited = c_int::try_from(waited).unwrap_or(c_int::MAX);
        if self.timeout < 0 {
            -1
        } else {
            self.timeout.saturating_sub(waited).max(0)
        }
    }

    /// The milliseconds that are left, but at most `limit`.
    pub fn at_most(&self, limit: c_int) -> c_int {
        match self.millis() {
            left if (0..limit).contains(&left) => left,
            _ => limit,
        }
    }

    /// Whether nothing is left.
    pub fn is_over(&self) -> bool {
        self.millis() == 0
    }
}

/// A descriptor to wait for input of.
pub fn readable(fd: c_int) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// A socket address as the kernel writes it.
pub struct RawAddress {
    /// The address, of any family.
    pub storage: libc::sockaddr_storage,
    /// Its length.
    pub size: libc::socklen_t,
}

impl RawAddress {
    /// Room for any address.
    pub fn room() -> Self {
        // SAFETY: the type has only numbers.
        let storage = unsafe { mem::zeroed::<libc::sockaddr_storage>() };
        let size = size_of_val(&storage) as libc::socklen_t;
        Self { storage, size }
    }

    /// The address of this socket itself.
    pub fn of_socket(fd: c_int) -> Outcome<Self> {
        let mut address = Self::room();
        let storage = (&raw mut address.storage).cast();
        // SAFETY: the pointers are valid.
        match unsafe { libc::getsockname(fd, storage, &raw mut address.size) } {
            0 => Ok(address),
            _ => Err(errno()),
        }
    }

    /// The address of the other end of this socket.
    pub fn of_peer(fd: c_int) -> Outcome<Self> {
        let mut address = Self::room();
        let storage = (&raw mut address.storage).cast();
        // SAFETY: the pointers are valid.
        match unsafe { libc::getpeername(fd, storage, &raw mut address.size) } {
            0 => Ok(address),
            _ => Err(errno()),
        }
    }

    /// The address, if it is of IPv4 or IPv6. An IPv4 address in IPv6's form is returned as IPv4.
    pub fn internet(&self) -> Option<SocketAddr> {
        let storage = &raw const self.storage;
        match c_int::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says that it is this type, and the storage has room for it.
                let address = unsafe { *storage.cast::<libc::sockaddr_in>() };
                let ip = IpAddr::from(address.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(ip, u16::from_be(address.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that it is this type, and the storage has room for it.
                let address = unsafe { *storage.cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr).to_canonical();
                Some(SocketAddr::new(ip, u16::from_be(address.sin6_port)))
            }
            _ => None,
        }
    }
}

/// Accepts a connection, and returns its descriptor and its client's address.
pub fn accept(fd: c_int, flags: c_int) -> Outcome<(c_int, RawAddress)> {
    let mut address = RawAddress::room();
    let storage = (&raw mut address.storage).cast();
    // SAFETY: the pointers are valid.
    let connection = unsafe { accept4(fd, storage, &raw mut address.size, flags) }?;
    Ok((connection as c_int, address))
}

/// Whether calls on this descriptor wait.
pub fn is_blocking(fd: c_int) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK == 0 }
}

/// Whether a call that reads would return at once.
pub fn is_readable(fd: c_int) -> bool {
    poll(&mut [readable(fd)], 0) == Ok(1)
}

/// Waits until a socket takes output, at most `timeout` milliseconds, or without a limit if negative.
pub fn wait_writable(fd: c_int, timeout: c_int) {
    let events = libc::POLLOUT;
    // An error, such as an interruption, makes the caller try again.
    let _ = poll(
        &mut [libc::pollfd {
            fd,
            events,
            revents: 0,
        }],
        timeout,
    );
}

/// Writes several parts to a socket, without SIGPIPE.
pub fn send_parts(fd: c_int, parts: &[&[u8]]) -> Outcome<u64> {
    if let [part] = parts {
        // SAFETY: the slice is valid.
        return unsafe { send(fd, part.as_ptr().cast(), part.len(), libc::MSG_NOSIGNAL) };
    }
    let parts: Vec<_> = parts
        .iter()
        .map(|part| libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        })
        .collect();
    // SAFETY: the type has only numbers and pointers, for which 0 is valid.
    let mut message = unsafe { mem::zeroed::<libc::msghdr>() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: the message and its parts are valid, and are only read.
    outcome(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, libc::MSG_NOSIGNAL) })
}

/// Waits for events of an epoll instance. Returns their number.
pub fn wait_for_events(epoll: c_int, events: &mut [libc::epoll_event], timeout: c_int) -> Outcome<usize> {
    let count = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    // SAFETY: the slice is valid.
    unsafe { epoll_wait(epoll, events.as_mut_ptr(), count, timeout) }.map(|count| count as usize)
}
