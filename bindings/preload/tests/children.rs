//! A server that forks for each connection is recorded by an agent. Its children, and the programs that they start, have streams of their own.
//! A second server plays the streams back, and sends the same bytes.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[path = "support/agent.rs"]
mod agent;
#[path = "support/library.rs"]
mod library;
#[path = "support/python.rs"]
mod python;

use agent::{TestAgent, ask, own_address, say, service_at};
use python::PythonServer;

/// A server whose children reply themselves, or start a shell that starts another program, as the client wants.
const SERVER: &str = "
import os, select, signal, socket, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])))
while True:
    if 'poll' in sys.argv:
        select.select([listener], [], [])
    connection, _ = listener.accept()
    if os.fork() == 0:
        if connection.recv(1, socket.MSG_PEEK) == b'p':
            connection.recv(10)
            connection.sendall(f'{time.time_ns()} {os.urandom(4).hex()} {os.getpid()}'.encode())
            os._exit(0)
        for number in range(3):
            os.dup2(connection.fileno(), number)
        os.closerange(3, 2000)
        if 'surplus' in sys.argv:
            time.time()
        os.execl('/bin/sh', 'sh', '-c', 'read line; date +%s%N; echo $$ $line; /bin/date +%N')
    connection.close()
";

/// What the server says to both kinds of clients. `setting`: what the library does.
fn replies(server: &PythonServer, ip: IpAddr, port: u16) -> [String; 2] {
    let client = |number: u16| SocketAddr::new(ip, port + number);
    [ask(server, client(0), "p\n"), ask(server, client(1), "shell\n")]
}

/// `more`: a further argument of the server that plays back.
fn check(mode: &str, more: &[&str], port: u16) {
    let Some(ip) = own_address() else {
        println!("skipped: no address besides loopback addresses");
        return;
    };
    let Some(address) = PythonServer::free_address() else {
        return;
    };
    let service = service_at(address);
    let agent = TestAgent::start(None, service.clone());
    let recorded = PythonServer::start_at(SERVER, address, &agent.setting(), &[mode]);
    let said = replies(&recorded, ip, port);
    let errors = recorded.end();
    assert_eq!(errors, "");
    assert_eq!(said[0].split(' ').count(), 3, "{said:?}");
    assert_eq!(said[1].lines().count(), 3, "{said:?}");
    let sequence = agent.sequence();

    let replica = TestAgent::start(Some(sequence), service);
    let arguments = [&[mode], more].concat();
    let played = PythonServer::start_at(SERVER, address, &replica.setting(), &arguments);
    let repeated = replies(&played, ip, port);
    let errors = played.end();
    assert_eq!(repeated, said, "{errors}");

    let plain = PythonServer::start_at(SERVER, address, "", &[mode]);
    let other = replies(&plain, ip, port);
    plain.end();
    assert!(other[0] != said[0] && other[1] != said[1]);
}

#[test]
fn children_of_a_played_back_server_send_the_same() {
    check("accept", &[], 17_310);
}

#[test]
fn so_do_those_of_a_server_that_waits_with_select() {
    check("poll", &[], 17_320);
}

/// The child takes the program's first event from the agent, because it waits for a clock that the record does not have there.
#[test]
fn a_surplus_clock_call_before_exec_leaves_the_programs_events() {
    check("accept", &["surplus"], 17_350);
}

#[test]
fn output_of_a_childs_program_waits_for_its_receipts() {
    let (Some(ip), Some(address)) = (own_address(), PythonServer::free_address()) else {
        return;
    };
    let agent = TestAgent::start(None, service_at(address));
    let server = PythonServer::start_at(SERVER, address, &agent.setting(), &["accept"]);
    agent.record.is_mute.store(true, Ordering::Relaxed);
    let mut client = say(&server, SocketAddr::new(ip, 17_330), "shell\n");
    client
        .set_read_timeout(Some(Duration::from_millis(300)))
        .expect("set");
    assert!(
        client.read(&mut [0]).is_err(),
        "the backup lacks what the output depends on"
    );
    agent.record.is_mute.store(false, Ordering::Relaxed);
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    let mut reply = String::new();
    client.read_to_string(&mut reply).expect("a reply");
    assert_eq!(reply.lines().count(), 3, "{reply}");
    assert_eq!(server.end(), "");
}
