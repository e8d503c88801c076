//! Children with streams of their own, and the programs that they start.
//!
//! The parent opens the child's link with the agent before it forks, because a child may not reach the agent's socket any more. In the child and
//! in the programs that it starts, the link has always the same descriptor. So the environment that names it stays right, also for a
//! child's child.

use std::env;
use std::ffi::{OsString, c_int, c_uint};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use proto::order::OnDivergence;

use crate::link::{AgentLink, ChildRole};
use crate::server::{ChildPlan, OrderedServer};
use crate::{SETTING, forked, sockets, system, with_server, with_socket};

/// The descriptor of a child's link. Below the usual limit of 1024, and beyond the descriptors that programs choose themselves.
pub const LINK: c_int = 1000;
/// The first word of the setting that a child leaves to its programs.
const CHILD: &str = "child";
pub const PRELOAD: &str = "LD_PRELOAD";

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

/// The server of a program that a child has started, or that has a stream from its beginning, from the setting after its first word.
/// `None`: the program has no stream, for example because a program without the library started it.
pub fn resume(setting: &str) -> Option<OrderedServer> {
    let mut words = setting.splitn(4, ':');
    let role = role_of(words.next()?)?;
    let stream = words.next()?.parse().ok()?;
    let mut link = AgentLink::of_child(words.next()?.parse().ok()?);
    let agent = Path::new(words.next()?);
    prepare(agent);
    if link.descriptor() != LINK && system::claim(link.descriptor()) {
        link.move_to(LINK);
        let moved = setting_with(role, stream, link.descriptor(), agent);
        // SAFETY: the process has one thread when its libraries are initialized.
        unsafe { env::set_var(SETTING, moved) };
    }
    if !system::is_owner(link.descriptor()) {
        return None;
    }
    OrderedServer::of_program(stream, link, role)
}

/// Whether this setting is one that a child has left to its programs. Returns the part after the first word.
pub fn setting_of_child(setting: &str) -> Option<&str> {
    setting.strip_prefix(CHILD)?.strip_prefix(':')
}

fn role_of(word: &str) -> Option<ChildRole> {
    match word {
        "record" => Some(ChildRole::Record),
        "play" => Some(ChildRole::Play(OnDivergence::Unprotect)),
        "trust" => Some(ChildRole::Play(OnDivergence::TrustLog)),
        _ => None,
    }
}

/// The setting of a process whose link with the agent has this descriptor.
fn setting_with(role: ChildRole, stream: u32, link: c_int, agent: &Path) -> String {
    let role = match role {
        ChildRole::Record => "record",
        ChildRole::Play(OnDivergence::Unprotect) => "play",
        ChildRole::Play(OnDivergence::TrustLog) => "trust",
    };
    format!("{CHILD}:{role}:{stream}:{link}:{}", agent.display())
}

/// Prepares a stream for a child or a program that is about to start. `None`: it has none.
pub fn plan() -> Option<ChildPlan> {
    let children = CHILDREN.get()?;
    with_server(|server| server.prepare_child(&children.agent)).flatten()
}

/// The variables that a process with this plan needs in its environment, and their values.
pub fn variables(plan: &ChildPlan) -> Vec<(&'static str, OsString)> {
    let Some(children) = CHILDREN.get() else {
        return Vec::new();
    };
    let setting = setting_with(plan.role(), plan.stream(), plan.descriptor(), &children.agent);
    let preload = children.preload.clone().map(|preload| (PRELOAD, preload));
    preload.into_iter().chain([(SETTING, setting.into())]).collect()
}

#[unsafe(no_mangle)]
extern "C" fn fork() -> libc::pid_t {
    let plan = plan();
    let child = system::fork();
    match plan {
        Some(mut plan) if child == 0 => {
            plan.move_link(LINK);
            // Leaves the library and the stream to the programs that this child starts.
            for (name, value) in variables(&plan) {
                // SAFETY: a child of `fork` has one thread.
                unsafe { env::set_var(name, value) };
            }
            forked::enter_stream();
            crate::enter_stream();
            with_server(|server| server.become_child(plan));
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

/// Whether a descriptor is the link with the agent, or the socket to the backup. A server that closes all descriptors which it does not know does
/// not mean these.
pub fn is_link(fd: c_int) -> bool {
    with_server(|server| server.links().contains(&Some(fd))) == Some(true)
}

#[unsafe(no_mangle)]
extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let bound = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
    let closes = flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0;
    let links = with_server(|server| {
        if closes {
            for fd in server.between(bound(first), bound(last)) {
                server.on_close(fd);
            }
        }
        server.links()
    });
    let links = links.into_iter().flatten().flatten();
    let mut kept: Vec<c_uint> = links
        .filter_map(|link| c_uint::try_from(link).ok())
        .filter(|link| (first..=last).contains(link))
        .collect();
    kept.sort_unstable();
    let mut outcome = Ok(0);
    let mut from = first;
    for link in kept {
        if from < link {
            outcome = outcome.and(system::close_between(from, link - 1, flags));
        }
        from = link + 1;
    }
    if from <= last {
        outcome = outcome.and(system::close_between(from, last, flags));
    }
    crate::calls::size_or_error(outcome) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn closefrom(first: c_int) {
    close_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX, 0);
}
