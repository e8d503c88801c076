//! Servers whose order cannot be recorded: the library says why, and the server goes on.

use std::io::{Read, Write};

/// A server with one connection, which it serves by the statements after these.
const BEGINNING: &str = "
import os, select, socket, sys, threading
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
connection, _ = listener.accept()
def echo():
    connection.sendall(connection.recv(10))
def clone():
    import ctypes
    return ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0) # clone with SIGCHLD, past the C library
def fork(serve, fork = os.fork):
    child = fork()
    if child == 0:
        serve()
        os._exit(0)
    os.waitpid(child, 0)
def spawn_closing_from(first):
    import ctypes
    c, actions, arguments = ctypes.CDLL(None), ctypes.create_string_buffer(256), (ctypes.c_char_p * 2)(b'true', None)
    c.posix_spawn_file_actions_init(actions)
    c.posix_spawn_file_actions_addclosefrom_np(actions, first)
    assert c.posix_spawn(None, b'/bin/true', actions, None, arguments, None) == 0
    c.posix_spawn_file_actions_destroy(actions)
    os.wait()
def spawn(**how):
    os.waitpid(os.posix_spawn('/bin/true', ['true'], {}, **how), 0)
";

/// The reason for a program without a stream.
const SPAWNED: &str = "a program that posix_spawn, system or popen starts inherits a connection of the service, and cannot be recorded";

#[path = "support/library.rs"]
mod library;
#[path = "support/python.rs"]
mod python;

use python::PythonServer;

/// What the library says of a server that ends with `statements`.
fn said(statements: &str) -> Option<String> {
    let server = PythonServer::start(&format!("{BEGINNING}{statements}"), "record:/dev/null")?;
    let mut client = server.connect();
    client.write_all(b"hello").expect("sent");
    let mut reply = [0; 5];
    client.read_exact(&mut reply).expect("the server goes on");
    assert_eq!(&reply, b"hello");
    let output = server.process.wait_with_output().expect("the server ends");
    Some(String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn a_server_that_cannot_be_recorded_says_why_and_goes_on() {
    let cases = [
        ("echo()", ""),
        (
            "poll = select.poll(); poll.register(connection); poll.poll(); select.select([connection], [], []); echo()",
            "",
        ),
        (
            "poll = select.poll(); poll.register(connection); poll.register(0); poll.poll(); echo()",
            "the server calls poll for a connection of the service and others",
        ),
        (
            "thread = threading.Thread(target=echo); thread.start(); thread.join(); connection.fileno(); listener.close()",
            "a thread other than the first has used a connection of the service",
        ),
        (
            "select.select([connection, 0], [], []); echo()",
            "the server calls select for a connection of the service and others",
        ),
        (
            "connection.recv(1, socket.MSG_WAITALL); connection.recv(4); connection.sendall(b'hello')",
            "the server calls recv with other flags than MSG_DONTWAIT, MSG_PEEK and MSG_TRUNC",
        ),
        ("connection.sendmsg([connection.recvmsg(10)[0]])", ""),
        (
            "connection.sendmsg([connection.recvmsg(10, 20)[0]])",
            "the server calls recvmsg with flags or control data",
        ),
        ("echo(); connection.shutdown(socket.SHUT_WR)", ""),
        (
            "fork(echo); connection.close()",
            "a child of the server has used a connection of the service",
        ),
        (
            "fork(lambda: (os.dup2(connection.fileno(), 0), os.execl('/bin/sh', 'sh', '-c', 'head -c 5 <&0 >&0'))); connection.close()",
            "a child of the server has used a connection of the service",
        ),
        #[cfg(target_arch = "x86_64")]
        (
            "fork(echo, clone); connection.close()",
            "a child of the server has used a connection of the service",
        ),
        // The server learns of it while it waits for something else.
        (
            "epoll = select.epoll(); epoll.register(listener, select.EPOLLIN); os.fork() or (echo(), os._exit(0)); epoll.poll(1)",
            "a child of the server has used a connection of the service",
        ),
        // A child that only has the connection, and uses a file of the same number.
        (
            "fork(lambda: (connection.close(), listener.close(), os.write(os.open('/dev/null', os.O_WRONLY), b'x'))); echo(); connection.close()",
            "",
        ),
        (
            "epoll = select.epoll(); epoll.register(connection, select.EPOLLIN | select.EPOLLET); epoll.poll(); echo()",
            "the server uses EPOLLET or EPOLLONESHOT",
        ),
    ];
    check(&cases);
}

#[test]
fn a_server_whose_program_inherits_a_connection_without_a_record_says_so() {
    // No agent is here, so no program has a stream.
    let cases = [
        (
            "connection.set_inheritable(True); os.system('true'); echo()",
            SPAWNED,
        ),
        (
            "spawn(file_actions=[(os.POSIX_SPAWN_DUP2, connection.fileno(), 0)]); echo()",
            SPAWNED,
        ),
        (
            "connection.set_inheritable(True); spawn(file_actions=[]); echo()",
            SPAWNED,
        ),
        (
            "os.system('true'); spawn(file_actions=[(os.POSIX_SPAWN_DUP2, 1, 0)]); echo()",
            "",
        ),
        (
            "connection.set_inheritable(True); spawn_closing_from(3); echo()",
            "",
        ),
        (
            "connection.set_inheritable(True); spawn_closing_from(100); echo()",
            SPAWNED,
        ),
        (
            "connection.set_inheritable(True); thread = threading.Thread(target=os.system, args=['true']); thread.start(); thread.join(); listener.close(); echo()",
            "a thread other than the first has used a connection of the service",
        ),
        (
            "connection.set_inheritable(True); fork(lambda: os.system('true')); echo(); connection.close()",
            "a child of the server has used a connection of the service",
        ),
    ];
    check(&cases);
}

/// Statements of servers, and why their order is not recorded. Empty: it is recorded.
fn check(cases: &[(&str, &str)]) {
    for &(statements, reason) in cases {
        let Some(said) = said(statements) else {
            return;
        };
        let expected = match reason {
            "" => String::new(),
            reason => format!("steadfast-order: recording has ended: {reason}\n"),
        };
        assert_eq!(said, expected, "{statements}");
    }
}
