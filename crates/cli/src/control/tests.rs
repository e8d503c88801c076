use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::samples::status as a_status;
use super::*;

fn some_connections() -> Connections {
    Connections {
        connections: vec![ConnectionStatus {
            service: "web".to_owned(),
            client: "[2001:db8::9]:4242".parse().unwrap(),
            protection: ProtectionStatus::Ambiguous,
            reason: "conflicting copies".to_owned(),
            in_offset: 1,
            out_offset: 2,
            log_bytes: 3,
            spilled_bytes: 4,
            lag: Lag::default(),
        }],
    }
}

fn some_restored() -> RestoredConnections {
    RestoredConnections {
        connections: vec![RestoredStatus {
            service: "web".to_owned(),
            client: "192.0.2.9:4242".parse().unwrap(),
            live_ns: 5,
            lives: false,
            reason: "why".to_owned(),
        }],
    }
}

/// Runs `work` with a node that answers calls for the status, connections, restored connections and orders.
fn with_node(work: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    let (woken, wake) = channel();
    let (server, _, calls) = ControlServer::open(dir.path(), move || woken.send(()).unwrap()).unwrap();
    let node = std::thread::spawn(move || {
        for call in calls {
            match call {
                Call::Status(reply) => reply.send(a_status()),
                Call::Connections(reply) => reply.send(some_connections()),
                Call::Restored(reply) => reply.send(some_restored()),
                Call::Edge(_)
                | Call::Annex(_)
                | Call::Tunnel(_)
                | Call::Connect(_)
                | Call::Accept(_)
                | Call::Export(..)
                | Call::HasMoved(..)
                | Call::Died(..) => {}
                Call::Order(Order::Handover { service }, reply) => {
                    reply.send(Err(format!("service {service} cannot be handed over")));
                }
                Call::Order(_, reply) => reply.send(Ok(())),
            }
        }
    });
    work(dir.path());
    drop(server);
    node.join().unwrap();
    drop(wake);
    assert!(!socket(dir.path()).exists(), "the socket is removed");
}

use std::sync::mpsc::channel;

fn raw(state_dir: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket(state_dir)).unwrap();
    // The server may hang up while the request is written. Its answer can still be read.
    let _ = stream.write_all(request);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn a_client_gets_what_the_node_answers() {
    with_node(|dir| {
        assert_eq!(status(dir).unwrap(), a_status());
        assert_eq!(connections(dir).unwrap(), some_connections());
        assert_eq!(restored(dir).unwrap(), some_restored());
    });
}

#[test]
fn the_json_is_the_documented_one() {
    let status = r#"{"node":"alpha","peer":{"name":"beta","address":"10.0.0.3","alive":true,"heartbeat_age_ns":20000000,"authenticated":true,"links":[{"address":"10.0.0.3","heard_age_ns":20000000}],"refused":{"a copy":4}},"services":[{"name":"web","address":"10.0.0.100","port":80,"policy":"http","commit":"prs","role":"backup","mode":"duplex","epoch":3,"connections":{"protected":20,"unprotected":1,"ambiguous":0},"connections_complete":true,"log_bytes":4096,"ring_fill_bytes":0,"takeovers":[{"declared_ns":1,"gate_closed_ns":2,"first_live_ns":3,"last_live_ns":null,"connections":4,"restored":5,"reset":6}],"takeover_sums":{"takeovers":1,"restored":3,"reset":0},"migrations":{"pending":1,"moved":2,"stayed":1,"reasons":[["192.0.2.1:4000","it hangs"]]},"annexes":[{"name":"gamma","is_up":true,"connections":7,"address":"10.0.0.4:7402","is_configured":false,"is_registered":true}],"registry":{"read_age_ns":35000000000,"is_stale":true,"error":null,"problems":["/steadfast/annexes/delta: is malformed"]},"reversed":4,"counters":{"records":9},"state":"backup","history":[{"at_ns":8,"state":"backup","epoch":3}],"peer_state":"primary","simplex_reason":null,"failure":null,"application":"alive","peer_application":"hung","reasons":{"older than the wire":1},"relayed":0,"lag":{"unfollowed_bytes":10,"unacknowledged_bytes":11},"log_limit_bytes":8192,"connection_log_bytes":2048,"connection_log_limit_bytes":4096,"spilled_bytes":1024,"spill_limit_bytes":16384,"slowed":2,"lease":{"configured_ns":300,"left_ns":null,"may_speak_ns":null},"state_sync":null,"recorded_order":null,"path":{"fault":null,"carrier":true,"outside":"reached","peer_outside":"unknown","hears_peer":null,"peer_hears":null,"losses":0}}],"rings":{"connections":{"fill_bytes":0,"size_bytes":64},"opening":{"fill_bytes":1,"size_bytes":32}},"arbiter":"etcd","witness":{"reachable":true,"answer_age_ns":1500000000,"error":null,"owners":{"web":{"epoch":7,"owner":"beta"}},"nodes":["alpha","beta"]}}"#;
    assert_eq!(serde_json::to_string(&a_status()).unwrap(), status);
    let connections = r#"{"connections":[{"service":"web","client":"[2001:db8::9]:4242","protection":"ambiguous","reason":"conflicting copies","in_offset":1,"out_offset":2,"log_bytes":3,"spilled_bytes":4,"lag":{"unfollowed_bytes":0,"unacknowledged_bytes":0}}]}"#;
    let restored = r#"{"connections":[{"service":"web","client":"192.0.2.9:4242","live_ns":5,"lives":false,"reason":"why"}]}"#;
    assert_eq!(serde_json::to_string(&some_connections()).unwrap(), connections);
    assert_eq!(serde_json::to_string(&some_restored()).unwrap(), restored);
    with_node(|dir| {
        assert_eq!(
            raw(dir, b"{\"request\":\"status\"}\n"),
            format!("{{\"ok\":{status}}}\n")
        );
    });
}

#[test]
fn only_the_owner_may_connect() {
    with_node(|dir| {
        let mode = std::fs::metadata(socket(dir)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn nonsense_is_answered_and_the_next_client_served() {
    with_node(|dir| {
        for nonsense in [
            &b"\n"[..],
            b"hello\n",
            b"{\"request\":\"reboot\"}\n",
            b"\xff\xfe\n",
        ] {
            let answer = raw(dir, nonsense);
            assert!(answer.starts_with("{\"error\":\"not a request: "), "{answer}");
        }
        assert_eq!(raw(dir, &[b'x'; 100_000]), "", "an endless line is hung up on");
        drop(UnixStream::connect(socket(dir)).unwrap());
        assert_eq!(status(dir).unwrap(), a_status());
    });
}

#[test]
fn a_node_that_stops_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, _, calls) = ControlServer::open(dir.path(), || ()).unwrap();
    drop(calls);
    let error = status(dir.path()).unwrap_err();
    assert_eq!(error.to_string(), "the node answers: the node is stopping");
}

#[test]
fn a_dead_nodes_socket_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let error = status(dir.path()).unwrap_err();
    assert!(matches!(error, ControlClientError::NoNode { .. }), "{error}");
    drop(std::os::unix::net::UnixListener::bind(socket(dir.path())).unwrap());
    let error = status(dir.path()).unwrap_err();
    assert!(matches!(error, ControlClientError::NoNode { .. }), "{error}");
    let (_server, _, _calls) = ControlServer::open(dir.path(), || ()).unwrap();
    assert!(UnixStream::connect(socket(dir.path())).is_ok());
}
