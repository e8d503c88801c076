//! Programs that `posix_spawn`, `system` and `popen` start. For them, the C library clones the process without calling `fork`. So the program
//! gets its stream in its environment, and its link with the agent as a descriptor without an owner. The program makes itself the owner
//! when it starts.

use std::ffi::{CStr, CString, c_char, c_int, c_short, c_void};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::children::{self, LINK, PRELOAD};
use crate::server::ChildPlan;
use crate::system::{NextFunction, RawAddress};
use crate::{SETTING, sockets, system, with_socket};

/// Why the recording of a server ends that starts a program without a stream.
const PROGRAM: &str = "a program that posix_spawn, system or popen starts inherits a connection of the service, and cannot be recorded";
const SHELL: &CStr = c"/bin/sh";
/// What `system` returns if there is no shell, as `waitpid` would.
const NO_SHELL: c_int = 127 << 8;

type SpawnFunction = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    *const *mut c_char,
    *const *mut c_char,
) -> c_int;

unsafe extern "C" {
    static mut environ: *const *mut c_char;
}

static POSIX_SPAWN: NextFunction = NextFunction::new(c"posix_spawn");

/// What a server wants to happen with descriptors before a program starts.
#[derive(Clone, Copy)]
enum FileAction {
    /// The program gets a copy of this descriptor.
    Copies(c_int),
    /// The descriptors from this one on are closed.
    ClosesFrom(c_int),
}

/// The actions of this process, each with the address of the object that it belongs to.
static ACTIONS: Mutex<Vec<(usize, FileAction)>> = Mutex::new(Vec::new());

fn actions() -> MutexGuard<'static, Vec<(usize, FileAction)>> {
    ACTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection of the service that a program inherits which starts after these file actions.
fn inherited(object: *const c_void) -> Option<c_int> {
    let is_connection = |fd: c_int| sockets::is_ordered(fd) && RawAddress::of_peer(fd).is_ok();
    let mut end = sockets::DESCRIPTORS_MAX as c_int;
    let mut copy = None;
    for (_, action) in actions().iter().filter(|(at, _)| *at == object as usize) {
        match *action {
            FileAction::Copies(fd) if is_connection(fd) => copy = Some(fd),
            FileAction::Copies(_) => {}
            FileAction::ClosesFrom(first) => end = end.min(first),
        }
    }
    copy.or_else(|| (0..end).find(|&fd| is_connection(fd) && system::stays_on_exec(fd)))
}

/// Prepares a stream for a program that is about to start. `None`: it has none. If it inherits a connection then, the recording ends.
fn plan(object: *const c_void) -> Option<ChildPlan> {
    let belongs = |(at, action): &(usize, FileAction)| {
        *at == object as usize && matches!(action, FileAction::ClosesFrom(_))
    };
    let closes_link = !object.is_null() && actions().iter().any(belongs);
    if !closes_link && let Some(mut plan) = children::plan() {
        plan.leave_link(LINK + 1);
        return Some(plan);
    }
    if let Some(fd) = inherited(object) {
        with_socket(fd, |server| server.refuse_program(PROGRAM));
    }
    None
}

/// An environment for a program: another one without this library's variables, and then these `variables`.
struct ProgramEnvironment {
    pointers: Vec<*mut c_char>,
    _variables: Vec<CString>,
}

impl ProgramEnvironment {
    /// # Safety
    /// `other` is null, or ends with a null pointer, and its variables live as long as this one.
    unsafe fn new(other: *const *mut c_char, plan: Option<&ChildPlan>) -> Self {
        let is_ours = |variable: &CStr| {
            let text = variable.to_bytes();
            [SETTING, PRELOAD].iter().any(|name| {
                text.strip_prefix(name.as_bytes())
                    .is_some_and(|rest| rest.starts_with(b"="))
            })
        };
        let mut pointers = Vec::new();
        let mut at = other;
        // SAFETY: the caller's contract.
        while !at.is_null() && !unsafe { *at }.is_null() {
            // SAFETY: the caller's contract.
            let (variable, next) = unsafe { (*at, at.add(1)) };
            // SAFETY: the caller's contract: a C string.
            if !is_ours(unsafe { CStr::from_ptr(variable) }) {
                pointers.push(variable);
            }
            at = next;
        }
        let variables = plan.into_iter().flat_map(children::variables);
        let variables: Vec<CString> = variables
            .filter_map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok())
            .collect();
        pointers.extend(variables.iter().map(|variable| variable.as_ptr().cast_mut()));
        pointers.push(std::ptr::null_mut());
        Self {
            pointers,
            _variables: variables,
        }
    }
}

/// The arguments of `posix_spawn`, except the environment.
struct SpawnCall {
    child: *mut libc::pid_t,
    program: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *mut c_char,
}

/// Starts a program by the C library's function `next`, with this plan.
///
/// # Safety
/// As for `posix_spawn`.
unsafe fn spawn(
    next: &NextFunction,
    call: &SpawnCall,
    environment: *const *mut c_char,
    plan: Option<ChildPlan>,
) -> c_int {
    // SAFETY: the C library's functions of these names have this type.
    let function = unsafe { mem::transmute::<*mut c_void, SpawnFunction>(next.address()) };
    let start = |environment| {
        // SAFETY: the caller's contract, and the environment ends with a null pointer.
        unsafe {
            function(
                call.child,
                call.program,
                call.actions,
                call.attributes,
                call.arguments,
                environment,
            )
        }
    };
    if plan.is_none() && !system::is_owner(LINK) {
        return start(environment);
    }
    // SAFETY: the caller's contract.
    let own = unsafe { ProgramEnvironment::new(environment, plan.as_ref()) };
    let outcome = start(own.pointers.as_ptr());
    if let Some(plan) = plan {
        let _ = system::close(plan.descriptor());
    }
    outcome
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
            let call = SpawnCall {
                child,
                program,
                actions,
                attributes,
                arguments,
            };
            // SAFETY: the caller's contract.
            unsafe { spawn(&NEXT, &call, environment, plan(actions)) }
        }
    };
}
spawning!(posix_spawn, c"posix_spawn");
spawning!(posix_spawnp, c"posix_spawnp");

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_adddup2(object: *mut c_void, fd: c_int, to: c_int) -> c_int {
    type Function = unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
    static NEXT: NextFunction = NextFunction::new(c"posix_spawn_file_actions_adddup2");
    actions().push((object as usize, FileAction::Copies(fd)));
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(object, fd, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_addclosefrom_np(object: *mut c_void, first: c_int) -> c_int {
    type Function = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
    static NEXT: NextFunction = NextFunction::new(c"posix_spawn_file_actions_addclosefrom_np");
    actions().push((object as usize, FileAction::ClosesFrom(first)));
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(object, first) }
}

/// Forgets the actions of an object, which begins or ends by the C library's function `next`.
///
/// # Safety
/// `object` is as this function demands.
unsafe fn forget_actions(next: &NextFunction, object: *mut c_void) -> c_int {
    type Function = unsafe extern "C" fn(*mut c_void) -> c_int;
    actions().retain(|(at, _)| *at != object as usize);
    // SAFETY: the C library's functions of these names have this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(next.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(object) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_init(object: *mut c_void) -> c_int {
    static NEXT: NextFunction = NextFunction::new(c"posix_spawn_file_actions_init");
    // SAFETY: the caller's contract.
    unsafe { forget_actions(&NEXT, object) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_destroy(object: *mut c_void) -> c_int {
    static NEXT: NextFunction = NextFunction::new(c"posix_spawn_file_actions_destroy");
    // SAFETY: the caller's contract.
    unsafe { forget_actions(&NEXT, object) }
}

/// `system` of the C library, if the shell has no stream.
#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    type Function = unsafe extern "C" fn(*const c_char) -> c_int;
    static NEXT: NextFunction = NextFunction::new(c"system");
    let plan = if command.is_null() {
        None
    } else {
        plan(std::ptr::null())
    };
    if let Some(plan) = plan {
        // SAFETY: the caller's contract.
        return unsafe { run_shell(command, plan) };
    }
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    // SAFETY: the caller's contract.
    unsafe { function(command) }
}

/// The signals of a process as they are while it waits for a shell: it ignores two, and a third one waits.
struct ShellSignals {
    mask: libc::sigset_t,
    actions: [libc::sigaction; 2],
}

/// The signals that `system` ignores.
const IGNORED: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

impl ShellSignals {
    fn set() -> Self {
        // SAFETY: the types have only numbers and pointers, for which 0 is valid.
        let mut old: Self = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut ignore: libc::sigaction = unsafe { mem::zeroed() };
        ignore.sa_sigaction = libc::SIG_IGN;
        for (signal, action) in IGNORED.into_iter().zip(&mut old.actions) {
            // SAFETY: the pointers are valid.
            unsafe { libc::sigaction(signal, &raw const ignore, action) };
        }
        let mut child = empty_set();
        // SAFETY: the pointers are valid.
        unsafe {
            libc::sigaddset(&raw mut child, libc::SIGCHLD);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const child, &raw mut old.mask);
        }
        old
    }

    /// The signals that the shell does not ignore, because this process did not.
    fn defaults(&self) -> libc::sigset_t {
        let mut set = empty_set();
        for (signal, action) in IGNORED.into_iter().zip(&self.actions) {
            if action.sa_sigaction != libc::SIG_IGN {
                // SAFETY: the pointer is valid.
                unsafe { libc::sigaddset(&raw mut set, signal) };
            }
        }
        set
    }
}

impl Drop for ShellSignals {
    fn drop(&mut self) {
        for (signal, action) in IGNORED.into_iter().zip(&self.actions) {
            // SAFETY: the pointers are valid.
            unsafe { libc::sigaction(signal, action, std::ptr::null_mut()) };
        }
        // SAFETY: the pointers are valid.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, std::ptr::null_mut()) };
    }
}

fn empty_set() -> libc::sigset_t {
    // SAFETY: the type has only numbers, and the pointer is valid.
    unsafe {
        let mut set = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        set
    }
}

/// Runs a command as `system` does, in a shell that has a stream.
///
/// # Safety
/// `command` is a C string.
unsafe fn run_shell(command: *const c_char, plan: ChildPlan) -> c_int {
    let arguments = [
        c"sh".as_ptr(),
        c"-c".as_ptr(),
        c"--".as_ptr(),
        command,
        std::ptr::null(),
    ];
    let signals = ShellSignals::set();
    let defaults = signals.defaults();
    let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
    let mut child = 0;
    // SAFETY: the pointers are valid, and the attributes are initialized before they are used.
    let outcome = unsafe {
        let mut attributes: libc::posix_spawnattr_t = mem::zeroed();
        libc::posix_spawnattr_init(&raw mut attributes);
        libc::posix_spawnattr_setsigmask(&raw mut attributes, &raw const signals.mask);
        libc::posix_spawnattr_setsigdefault(&raw mut attributes, &raw const defaults);
        libc::posix_spawnattr_setflags(&raw mut attributes, flags as c_short);
        let call = SpawnCall {
            child: &raw mut child,
            program: SHELL.as_ptr(),
            actions: std::ptr::null(),
            attributes: (&raw const attributes).cast(),
            arguments: arguments.as_ptr().cast(),
        };
        let outcome = spawn(&POSIX_SPAWN, &call, environ, Some(plan));
        libc::posix_spawnattr_destroy(&raw mut attributes);
        outcome
    };
    if outcome != 0 {
        system::set_errno(outcome);
        return NO_SHELL;
    }
    system::wait_for(child).unwrap_or_else(|error| {
        system::set_errno(error);
        -1
    })
}

/// The C library's function makes the pipe and starts the shell, which gets its stream in this process's environment. The environment is
/// back before this call returns.
#[unsafe(no_mangle)]
unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    type Function = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
    static NEXT: NextFunction = NextFunction::new(c"popen");
    // SAFETY: the C library's function of this name has this type.
    let function = unsafe { mem::transmute::<*mut c_void, Function>(NEXT.address()) };
    let Some(plan) = plan(std::ptr::null()) else {
        // SAFETY: the caller's contract.
        return unsafe { function(command, mode) };
    };
    // SAFETY: the C library keeps a valid environment. The other one lives until the call has returned.
    let stream = unsafe {
        let old = environ;
        let own = ProgramEnvironment::new(old, Some(&plan));
        environ = own.pointers.as_ptr();
        let stream = function(command, mode);
        environ = old;
        stream
    };
    let _ = system::close(plan.descriptor());
    stream
}
