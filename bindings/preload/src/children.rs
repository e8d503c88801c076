//! Children with streams of their own, and the programs that they start.
//!
//! The parent opens the child's link with the agent before it forks, because a child may not reach the agent's socket any more. In the child and
//! in the programs that it starts, the link has always the same descriptor. So the environment that names it stays right, also for a
//! child's child.

use std::ffi::{CStr, OsString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, mem};

use proto::order::OnDivergence;

use crate::link::{AgentLink, ChildRole};
use crate::server::{ChildPlan, OrderedServer};
use crate::system::{self, NextFunction};
use crate::{SETTING, forked, sockets, with_server, with_socket};

/// The descriptor of a child's link. Below the usual limit of 1024, and beyond the descriptors that programs choose themselves.
const LINK: c_int = 1000;
/// The first word of the setting that a child leaves to its programs.
const CHILD: &str = "child";
const PRELOAD: &str = "LD_PRELOAD";

/// What children need.
struct ChildSetting {
    /// The agent's socket.
    agent: PathBuf,
    /// `LD_PRELOAD` as this process found it.
    preload: Option<OsString>,
}

static CHILDREN: OnceLock<ChildSetting> = OnceLock::new();

/// Remembers what children need, before this process's environment changes. Only a server with an agent has children with streams.
pub fn prepare(agent: &Path) {
    let setting = ChildSetting {
        agent: agent.to_owned(),
        preload: env::var_os(PRELOAD),
    };
    let _ = CHILDREN.set(setting); // called once
}

/// The server of a program that a child has started, from the setting after its first word. `None`: the program has no stream, for example
/// because `posix_spawn` started it.
pub fn resume(setting: &str) -> Option<OrderedServer> {
    let mut words = setting.splitn(3, ':');
    let role = match words.next()? {
        "record" => ChildRole::Record,
        "play" => ChildRole::Play(OnDivergence::Unprotect),
        "trust" => ChildRole::Play(OnDivergence::TrustLog),
        _ => return None,
    };
    let stream = words.next()?.parse().ok()?;
    prepare(Path::new(words.next()?));
    if !system::is_owner(LINK) {
        return None;
    }
    OrderedServer::of_program(stream, AgentLink::of_child(LINK), role)
}

/// Whether this setting is one that a child has left to its programs. Returns the part after the first word.
pub fn setting_of_child(setting: &str) -> Option<&str> {
    setting.strip_prefix(CHILD)?.strip_prefix(':')
}

/// Leaves the library and the stream to the programs that this child starts.
fn leave_setting(plan: &ChildPlan, children: &ChildSetting) {
    let role = match plan.role() {
        ChildRole::Record => "record",
        ChildRole::Play(OnDivergence::Unprotect) => "play",
        ChildRole::Play(OnDivergence::TrustLog) => "trust",
    };
    let setting = format!("{CHILD}:{role}:{}:{}", plan.stream(), children.agent.display());
    // SAFETY: a child of `fork` has one thread.
    unsafe {
        env::set_var(SETTING, setting);
        if let Some(preload) = &children.preload {
            env::set_var(PRELOAD, preload);
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn fork() -> libc::pid_t {
    let Some(children) = CHILDREN.get() else {
        return system::fork();
    };
    let plan = with_server(|server| server.prepare_child(&children.agent)).flatten();
    let child = system::fork();
    match plan {
        Some(plan) if child == 0 => {
            leave_setting(&plan, children);
            forked::enter_stream();
            crate::enter_stream();
            with_server(|server| server.become_child(plan, LINK));
        }
        Some(plan) => drop(system::close(plan.descriptor())),
        None => {}
    }
    child
}

/// A child of `vfork` may not call functions of this library, so it becomes a child of `fork`. POSIX allows this.
#[unsafe(no_mangle)]
extern "C" fn vfork() -> libc::pid_t {
    fork()
}

type SpawnFunction = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    *const *mut c_char,
    *const *mut c_char,
) -> c_int;

/// The environment without this library. A program that `posix_spawn` starts has no stream.
///
/// # Safety
/// `environment` is null, or ends with a null pointer.
unsafe fn plain_environment(environment: *const *mut c_char) -> Vec<*mut c_char> {
    let is_ours = |variable: &CStr| {
        let text = variable.to_bytes();
        [SETTING, PRELOAD].iter().any(|name| {
            text.strip_prefix(name.as_bytes())
                .is_some_and(|rest| rest.starts_with(b"="))
        })
    };
    let mut kept = Vec::new();
    let mut at = environment;
    // SAFETY: the caller's contract.
    while !at.is_null() && !unsafe { *at }.is_null() {
        // SAFETY: the caller's contract: a C string.
        let (variable, next) = unsafe { (*at, at.add(1)) };
        // SAFETY: the caller's contract: a C string.
        if !is_ours(unsafe { CStr::from_ptr(variable) }) {
            kept.push(variable);
        }
        at = next;
    }
    kept.push(std::ptr::null_mut());
    kept
}

/// # Safety
/// As for `posix_spawn`.
unsafe fn spawn(
    next: &NextFunction,
    child: *mut libc::pid_t,
    program: *const c_char,
    (actions, attributes): (*const c_void, *const c_void),
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> c_int {
    // SAFETY: the C library's functions of these names have this type.
    let function = unsafe { mem::transmute::<*mut c_void, SpawnFunction>(next.address()) };
    if system::is_owner(LINK) {
        // SAFETY: the caller's contract.
        let environment = unsafe { plain_environment(environment) };
        // SAFETY: the caller's contract, and the environment ends with a null pointer.
        return unsafe {
            function(
                child,
                program,
                actions,
                attributes,
                arguments,
                environment.as_ptr(),
            )
        };
    }
    // SAFETY: the caller's contract.
    unsafe { function(child, program, actions, attributes, arguments, environment) }
}

/// Defines the C library's function `$name`, which starts a program.
macro_rules! spawning {
    ($name:ident, $symbol:literal) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            child: *mut libc::pid_t,
            program: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: *const *mut c_char,
            environment: *const *mut c_char,
        ) -> c_int {
            static NEXT: NextFunction = NextFunction::new($symbol);
            let how = (actions, attributes);
            // SAFETY: the caller's contract.
            unsafe { spawn(&NEXT, child, program, how, arguments, environment) }
        }
    };
}
spawning!(posix_spawn, c"posix_spawn");
spawning!(posix_spawnp, c"posix_spawnp");

/// Copies a descriptor by `copy`, to `to` or to a free number. A child without a stream that does so with an ordered socket is about to use
/// it, or gives it to the program that it starts.
fn copied(fd: c_int, to: Option<c_int>, copy: impl FnOnce() -> c_int) -> c_int {
    if forked::is_child() {
        if sockets::is_ordered(fd) && to != Some(fd) {
            forked::use_socket();
        }
        if let Some(to) = to {
            sockets::forget(to);
        }
        return copy();
    }
    if let Some(to) = to.filter(|&to| to != fd) {
        with_socket(to, |server| server.on_close(to));
    }
    let copied = copy();
    if copied >= 0 && copied != fd {
        with_socket(fd, |server| server.on_copy(fd, copied));
    }
    copied
}

#[unsafe(no_mangle)]
extern "C" fn dup(fd: c_int) -> c_int {
    copied(fd, None, || system::dup(fd))
}

#[unsafe(no_mangle)]
extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    copied(fd, Some(to), || system::dup2(fd, to))
}

#[unsafe(no_mangle)]
extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    copied(fd, Some(to), || system::dup3(fd, to, flags))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: std::ffi::c_long) -> c_int {
    // SAFETY: the caller's contract.
    let control = || unsafe { system::control(fd, command, argument) };
    if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
        return copied(fd, None, control);
    }
    control()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: std::ffi::c_long) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { fcntl(fd, command, argument) }
}

/// Whether a descriptor is the link with the agent. A server that closes all descriptors which it does not know does not mean this one.
pub fn is_link(fd: c_int) -> bool {
    with_server(|server| server.link() == Some(fd)) == Some(true)
}

#[unsafe(no_mangle)]
extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let bound = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
    let closes = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0;
    let link = with_server(|server| {
        if closes {
            for fd in server.between(bound(first), bound(last)) {
                server.on_close(fd);
            }
        }
        server.link()
    });
    let link = link.flatten().and_then(|link| c_uint::try_from(link).ok());
    let outcome = match link.filter(|link| (first..=last).contains(link)) {
        None => system::close_between(first, last, flags),
        Some(link) => {
            let before = if first < link {
                system::close_between(first, link - 1, flags)
            } else {
                Ok(0)
            };
            before.and_then(|_| {
                if link < last {
                    system::close_between(link + 1, last, flags)
                } else {
                    Ok(0)
                }
            })
        }
    };
    crate::calls::size_or_error(outcome) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn closefrom(first: c_int) {
    close_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX, 0);
}
