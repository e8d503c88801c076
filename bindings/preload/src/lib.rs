//! `libsteadfast_order.so`: recorded order for unmodified servers (docs/recorded-order.md). `LD_PRELOAD` loads it into a server that is
//! linked dynamically. Its functions take the place of the C library's functions of the same names. The environment variable
//! `STEADFAST_ORDER` says what it does: `record:FILE`, `play:FILE` or `agent:SOCKET`. Without it, each function only makes its call.
//!
//! Only the thread that has loaded the library is recorded. Rust aborts the process if a panic would leave an `extern "C"` function.

mod asked;
mod calls;
mod children;
mod datagrams;
mod deferral;
mod files;
mod forked;
mod held;
mod link;
mod look;
mod playing;
mod polled;
mod random;
mod recording;
mod refused;
mod server;
mod sockets;
mod spawned;
mod system;

use std::cell::{Cell, UnsafeCell};
use std::env;
use std::sync::atomic::{AtomicBool, Ordering};

use link::OrderRole;
use server::OrderedServer;

const SETTING: &str = "STEADFAST_ORDER";
/// Why the recording of a server ends whose child uses a connection.
const CHILD: &str = "a child of the server has used a connection of the service";

/// Writes a line to the server's standard error, unless it is a client's connection.
fn say(what: &str) {
    if !sockets::is_ordered(libc::STDERR_FILENO) {
        eprintln!("steadfast-order: {what}");
    }
}

struct ServerCell(UnsafeCell<Option<OrderedServer>>);

// SAFETY: only the first thread uses the cell, and only through `with_server`, which refuses to enter twice.
unsafe impl Sync for ServerCell {}

static SERVER: ServerCell = ServerCell(UnsafeCell::new(None));
/// Another thread has used an ordered socket.
static HAS_THREADS: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    /// A thread that is not recorded.
    Other,
    /// The first thread, in the server's code.
    Outside,
    /// The first thread, in this library.
    Inside,
}

thread_local! {
    static STATE: Cell<ThreadState> = const { Cell::new(ThreadState::Other) };
}

/// Calls `call` with the server's state. `None`: this thread's calls are not recorded, or this call comes from the library itself.
fn with_server<T>(call: impl FnOnce(&mut OrderedServer) -> T) -> Option<T> {
    if STATE.get() != ThreadState::Outside || forked::is_child() {
        return None;
    }
    STATE.set(ThreadState::Inside);
    // SAFETY: this is the first thread, and it is not inside of this function already.
    let server = unsafe { &mut *SERVER.0.get() };
    let outcome = server.as_mut().map(|server| {
        if HAS_THREADS.load(Ordering::Relaxed) {
            server.refuse("a thread other than the first has used a connection of the service");
        }
        if forked::has_used() {
            server.refuse(CHILD);
        }
        server.check_link();
        call(server)
    });
    STATE.set(ThreadState::Outside);
    outcome
}

/// As [`with_server`], for a call on an ordered socket.
fn with_socket<T>(fd: std::ffi::c_int, call: impl FnOnce(&mut OrderedServer) -> T) -> Option<T> {
    if !sockets::is_ordered(fd) {
        return None;
    }
    if forked::is_child() {
        forked::use_socket();
        return None;
    }
    if STATE.get() == ThreadState::Other {
        HAS_THREADS.store(true, Ordering::Relaxed);
    }
    with_server(call)
}

/// This process is a child with a stream of its own. The thread that has called `fork` is its first thread.
fn enter_stream() {
    STATE.set(ThreadState::Outside);
}

extern "C" fn in_child() {
    STATE.set(ThreadState::Other);
    forked::enter_child();
}

/// Programs that the server starts are not recorded.
fn forget_setting() {
    // SAFETY: the process has one thread when its libraries are initialized.
    unsafe {
        env::remove_var(SETTING);
        env::remove_var("LD_PRELOAD");
    }
}

extern "C" fn start() {
    let Some(setting) = env::var_os(SETTING) else {
        return;
    };
    if let Some(left) = setting.to_str().and_then(children::setting_of_child) {
        return if let Some(server) = children::resume(left) {
            begin(server);
        };
    }
    let role = setting.to_str().ok_or_else(|| "not UTF-8".to_owned());
    let role = match role.and_then(OrderRole::from_setting) {
        Ok(role) => role,
        Err(reason) => {
            forget_setting();
            return say(&format!(
                "{SETTING}: {reason}; the server runs without recorded order"
            ));
        }
    };
    // A program without a role may be a shell that starts the server, so its environment stays.
    let Some(mut server) = OrderedServer::new(role) else {
        return;
    };
    if let Some(agent) = setting
        .to_str()
        .and_then(|setting| setting.strip_prefix("agent:"))
    {
        children::prepare(agent.as_ref());
    }
    forget_setting();
    if std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.contains("/liburing")) {
        server.refuse("the server uses io_uring");
    }
    begin(server);
}

fn begin(server: OrderedServer) {
    forked::prepare();
    // SAFETY: no other thread exists, and no call has entered yet.
    unsafe { *SERVER.0.get() = Some(server) };
    // SAFETY: the function is valid as long as the library is loaded.
    unsafe { libc::pthread_atfork(None, Some(forked::in_parent), Some(in_child)) };
    STATE.set(ThreadState::Outside);
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
