//! Sample statuses, for tests.

use std::collections::BTreeMap;

use proto::follower::RestartPolicy;

use super::*;

/// A peer that is well.
pub fn peer() -> PeerStatus {
    PeerStatus {
        name: "beta".to_owned(),
        address: "10.0.0.3".parse().unwrap(),
        alive: true,
        heartbeat_age_ns: Some(20_000_000),
        authenticated: true,
        links: vec![LinkStatus {
            address: "10.0.0.3".parse().unwrap(),
            heard_age_ns: Some(20_000_000),
        }],
        refused: BTreeMap::from([("a copy".to_owned(), 4)]),
        channel: None,
    }
}

/// A witness that answers.
pub fn witness() -> WitnessStatus {
    WitnessStatus {
        reachable: true,
        answer_age_ns: Some(1_500_000_000),
        error: None,
        owners: BTreeMap::from([(
            "web".to_owned(),
            OwnerStatus {
                epoch: 7,
                owner: "beta".to_owned(),
            },
        )]),
        nodes: vec!["alpha".to_owned(), "beta".to_owned()],
    }
}

fn connections() -> ConnectionCounts {
    ConnectionCounts {
        protected: 20,
        unprotected: 1,
        ambiguous: 0,
    }
}

fn annex() -> AnnexStatus {
    AnnexStatus {
        name: "gamma".to_owned(),
        is_up: true,
        connections: 7,
        address: Some("10.0.0.4:7402".parse().unwrap()),
        is_configured: false,
        is_registered: true,
    }
}

fn registry() -> RegistryStatus {
    RegistryStatus {
        read_age_ns: Some(35_000_000_000),
        is_stale: true,
        error: None,
        problems: vec!["/steadfast/annexes/delta: is malformed".to_owned()],
    }
}

fn migrations() -> MigrationStatus {
    MigrationStatus {
        pending: 1,
        moved: 2,
        stayed: 1,
        reasons: vec![("192.0.2.1:4000".parse().unwrap(), "it hangs".to_owned())],
    }
}

/// A service for which this node is the wire.
pub fn service() -> ServiceStatus {
    ServiceStatus {
        name: "web".to_owned(),
        address: "10.0.0.100".parse().unwrap(),
        port: 80,
        policy: RestartPolicy::Http,
        role: NodeRole::Backup,
        mode: ServiceMode::Duplex,
        epoch: 3,
        connections: connections(),
        connections_complete: true,
        log_bytes: 4096,
        ring_fill_bytes: 0,
        takeovers: vec![TakeoverStatus {
            declared_ns: 1,
            gate_closed_ns: 2,
            first_live_ns: Some(3),
            last_live_ns: None,
            connections: 4,
            restored: 5,
            reset: 6,
        }],
        takeover_sums: TakeoverTotals {
            takeovers: 1,
            restored: 3,
            reset: 0,
        },
        migrations: migrations(),
        annexes: vec![annex()],
        registry: Some(registry()),
        reversed: 4,
        commit: Commit::Prs,
        counters: [("records".to_owned(), 9)].into(),
        state: State::Backup,
        history: vec![StateSince {
            at_ns: 8,
            state: State::Backup,
            epoch: 3,
        }],
        peer_state: Some(State::Primary),
        simplex_reason: None,
        failure: None,
        application: Application::Alive,
        peer_application: Some(Application::Hung),
        reasons: [("older than the wire".to_owned(), 1)].into(),
        relayed: 0,
        lag: Lag {
            unfollowed_bytes: 10,
            unacknowledged_bytes: 11,
        },
        log_limit_bytes: 8192,
        connection_log_bytes: 2048,
        connection_log_limit_bytes: 4096,
        spilled_bytes: 1024,
        spill_limit_bytes: 16384,
        slowed: 2,
        lease: LeaseStatus {
            configured_ns: 300,
            left_ns: None,
            may_speak_ns: None,
        },
        state_sync: None,
        recorded_order: None,
        path: PathStatus {
            carrier: true,
            outside: Reachability::Reached,
            ..PathStatus::default()
        },
    }
}

/// A node with one service, of which it is the wire.
pub fn status() -> NodeStatus {
    NodeStatus {
        node: "alpha".to_owned(),
        peer: peer(),
        services: vec![service()],
        rings: RingsStatus {
            connections: RingStatus {
                fill_bytes: 0,
                size_bytes: 64,
            },
            opening: RingStatus {
                fill_bytes: 1,
                size_bytes: 32,
            },
        },
        arbiter: ArbiterKind::Etcd,
        witness: Some(witness()),
    }
}

/// A tunnel's opening end whose first path has failed.
pub fn tunnel() -> TunnelStatus {
    let path = |last: u8, state: &str| TunnelPathStatus {
        address: [10, last, 0, 2].into(),
        state: state.to_owned(),
        current: state == "active",
        rtt_ms: (state == "active").then_some(12.34),
        rto_ms: 212.0,
        window_bytes: 65_536,
        mtu: 1500,
        errors: 1,
        failures: 2,
        timeouts: 3,
        retransmissions: 4,
        lost_heartbeats: 5,
        sent_bytes: 3 << 20,
        received_bytes: 7_000,
    };
    TunnelStatus {
        name: "north".to_owned(),
        role: "opening".to_owned(),
        sealed: true,
        services: vec![TunnelServiceStatus {
            name: "web".to_owned(),
            address: "127.0.0.1:8080".parse().unwrap(),
        }],
        associations: vec![TunnelAssociationStatus {
            ready: true,
            connections: 7,
            unacknowledged_bytes: 2048,
            paths: vec![path(1, "failed"), path(2, "active")],
        }],
        connections_limit: 256,
        opened: 1000,
        reset: 20,
        refused: 3,
        sent_bytes: 5 << 20,
        received_bytes: 6 << 20,
        associations_ended: 1,
        counters: [("malformed", 5), ("strays", 0)]
            .map(|(name, count)| (name.to_owned(), count))
            .into(),
    }
}

/// A proxy with one session.
pub fn proxy() -> ConnectStatus {
    ConnectStatus {
        name: "laptop".to_owned(),
        sealed: true,
        services: vec![ConnectServiceStatus {
            name: "web".to_owned(),
            listen: "127.0.0.1:80".parse().unwrap(),
            sessions: vec![SessionStatus {
                client: "127.0.0.1:4000".parse().unwrap(),
                server: "a".to_owned(),
                phase: "served".to_owned(),
                sent_bytes: 10,
                received_bytes: 2048,
            }],
            opened: 3,
            plain: 1,
            refused: 2,
            lost: 4,
            sent_bytes: 100,
            received_bytes: 200_000,
            migrations: migrations(),
        }],
    }
}

/// A server's half that owns a session, and keeps a copy of another one.
pub fn half() -> AcceptStatus {
    AcceptStatus {
        name: "a".to_owned(),
        sealed: true,
        draining: true,
        refused: 6,
        services: vec![AcceptServiceStatus {
            name: "web".to_owned(),
            application: "127.0.0.1:7000".parse().unwrap(),
            opened: 3,
            came: 2,
            left: 1,
            ended: 4,
            failed: 5,
            received_bytes: 100,
            sent_bytes: 200_000,
        }],
        sessions: vec![
            AcceptedSessionStatus {
                session: "00ff".repeat(8),
                service: Some("web".to_owned()),
                proxy: Some("10.0.0.4:40000".parse().unwrap()),
                state: "owner".to_owned(),
                epoch: 3,
                snapshots: 2,
                snapshot_bytes: 4096,
                log_bytes: 512,
                received_bytes: 10,
                sent_bytes: 2048,
            },
            AcceptedSessionStatus {
                session: "11ee".repeat(8),
                state: "copy".to_owned(),
                epoch: 1,
                snapshots: 1,
                snapshot_bytes: 100,
                ..AcceptedSessionStatus::default()
            },
        ],
    }
}
