//! A recorded server starts programs by `system`, `posix_spawn` and `popen`. The programs have streams of their own. A second server plays
//! the streams back, and its programs send the same bytes.

use std::net::{IpAddr, SocketAddr};

#[path = "support/agent.rs"]
mod agent;
#[path = "support/library.rs"]
mod library;
#[path = "support/python.rs"]
mod python;

use agent::{TestAgent, ask, own_address, service_at};
use python::PythonServer;

/// A server whose programs reply to the client. The client's first byte says how they start. With `fork`, a child starts them.
const SERVER: &str = "
import ctypes, os, socket, sys
libc = ctypes.CDLL(None)
libc.popen.restype = ctypes.c_void_p
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])))
script = 'read line; date +%s%N; echo $$ $line; /bin/date +%N'
def serve(connection):
    fd = connection.fileno()
    how = connection.recv(1)
    if how != b'p':
        os.set_inheritable(fd, True)
    if how == b's':
        status = os.system(f'({script}) <&{fd} >&{fd}; exit 7')
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    elif how == b'o':
        libc.pclose(ctypes.c_void_p(libc.popen(f'({script}) <&{fd} >&{fd}'.encode(), b'w')))
    elif how == b'p':
        copies = [(os.POSIX_SPAWN_DUP2, fd, number) for number in range(2)]
        os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', script], {}, file_actions=copies), 0)
    connection.sendall(str(os.getpid()).encode())
while True:
    connection, _ = listener.accept()
    if 'fork' not in sys.argv:
        serve(connection)
    elif os.fork() == 0:
        serve(connection)
        os._exit(0)
    else:
        os.wait()
    connection.close()
";

/// What the server's programs say to three clients.
fn replies(server: &PythonServer, ip: IpAddr, port: u16) -> [String; 3] {
    let of = |number: u16, line| ask(server, SocketAddr::new(ip, port + number), line);
    [of(0, "system\n"), of(1, "open\n"), of(2, "p spawn\n")]
}

fn check(mode: &str, port: u16) {
    let (Some(ip), Some(address)) = (own_address(), PythonServer::free_address()) else {
        return;
    };
    let service = service_at(address);
    let agent = TestAgent::start(None, service.clone());
    let recorded = PythonServer::start_at(SERVER, address, &agent.setting(), &[mode]);
    let said = replies(&recorded, ip, port);
    assert_eq!(recorded.end(), "");
    for (reply, word) in said.iter().zip(["ystem", "pen", "spawn"]) {
        assert!(
            reply.lines().count() == 4 && reply.contains(&format!(" {word}\n")),
            "{reply}"
        );
    }
    assert!(said[0].lines().last().is_some_and(|last| last.starts_with('7')));

    let replica = TestAgent::start(Some(agent.sequence()), service);
    let played = PythonServer::start_at(SERVER, address, &replica.setting(), &[mode]);
    let repeated = replies(&played, ip, port);
    let errors = played.end();
    assert_eq!(repeated, said, "{errors}");

    let plain = PythonServer::start_at(SERVER, address, "", &[mode]);
    let other = replies(&plain, ip, port);
    plain.end();
    assert!((0..3).all(|one| other[one] != said[one]));
}

#[test]
fn programs_of_a_played_back_server_send_the_same() {
    check("no", 17_360);
}

#[test]
fn so_do_those_of_its_children() {
    check("fork", 17_370);
}
