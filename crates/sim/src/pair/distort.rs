//! How nodes with a [`Defect`] distort what they hear.

use agent::LogReader;
use proto::Instant;
use proto::action::ApplicationState;
use proto::action::{Echo, Heartbeat, ServiceBeat};
use proto::orphans::Orphans;
use proto::packet::{Checksum, Segment};
use proto::role::Role;
use proto::table::Direction;

use super::defect::Defect;
use super::machine::Machine;
use super::station::Station;
use super::wire::LoggedPacket;

impl Station {
    /// Changes a heartbeat of the peer into what a node with a defect reads.
    pub(super) fn distort_heartbeat(&mut self, now: Instant, mut heartbeat: Heartbeat) -> Heartbeat {
        let service = self.core.service(0);
        let (role, epoch) = (service.role(), service.epoch());
        if self.machine.is(Defect::WithoutConsent) && role == Role::Returning {
            // The node takes any heartbeat for the consent that it waits for.
            for beat in &mut heartbeat.services {
                (beat.role, beat.epoch) = (Role::Primary, epoch + 1);
            }
        }
        if self.machine.is(Defect::LeaseFromHearing)
            && let Some(echo) = &mut heartbeat.echo
        {
            echo.sent = now.as_nanos();
        }
        for beat in &mut heartbeat.services {
            if let Some(path) = beat.path.as_mut().filter(|_| self.machine.is(Defect::IgnoreMeet)) {
                path.hears = Some(true);
            }
            if self.machine.is(Defect::SpeakUnheard) && role == Role::Backup {
                beat.take_back = beat.take_back.map(|_| u64::MAX);
            }
            if self.machine.is(Defect::IgnoreEpoch) && role.may_speak() {
                beat.epoch = beat.epoch.min(epoch.saturating_sub(1));
            }
        }
        heartbeat
    }

    /// Tells the core that the primary has answered this agent, although the agent has sent nothing yet.
    pub(super) fn forge_echo(&mut self, now: Instant) {
        let config = &self.machine.config.core;
        let beat = ServiceBeat {
            vip: self.machine.vip,
            role: Role::Primary,
            epoch: self.machine.wire.gate().1,
            configured_primary: !config.services[0].is_primary,
            mac: [0; 6],
            server: ApplicationState::Alive,
            leaves: false,
            hands_over: false,
            orphans: Orphans::default(),
            adopted: 0,
            migration: None,
            path: None,
            direct: false,
            immediate: false,
            take_back: None,
        };
        let heartbeat = Heartbeat {
            node: String::new(),
            incarnation: 0,
            sequence: 0,
            sent: 0,
            echo: Some(Echo {
                incarnation: self.machine.agent.number,
                sent: now.as_nanos(),
            }),
            services: vec![beat],
        };
        self.core.handle_heartbeat(now, heartbeat);
    }
}

impl Machine {
    /// Remembers each handshake until the client completes it. After every segment of the server except a SYN-ACK, gives the reader the
    /// client's unfinished handshake once more.
    pub(super) fn repeat_handshake(&mut self, record: &LoggedPacket, reader: &mut dyn LogReader) {
        let Ok(segment) = Segment::parse(&record.packet, Checksum::Trusted) else {
            return;
        };
        let (client, opens) = match record.direction {
            Direction::In => (segment.source, segment.flags.syn),
            Direction::Out => (segment.destination, segment.flags.syn),
        };
        match record.direction {
            Direction::In if opens => drop(self.handshakes.insert(client, vec![record.clone()])),
            Direction::In => {
                let answers = |known: &Vec<LoggedPacket>| {
                    let syn_ack = known
                        .get(1)
                        .map(|syn_ack| Segment::parse(&syn_ack.packet, Checksum::Trusted));
                    matches!(syn_ack, Some(Ok(syn_ack)) if segment.ack == syn_ack.seq + 1)
                };
                if self.handshakes.get(&client).is_some_and(answers) {
                    self.handshakes.remove(&client);
                }
            }
            Direction::Out if opens => {
                if let Some(known) = self.handshakes.get_mut(&client) {
                    known.truncate(1);
                    known.push(record.clone());
                }
            }
            Direction::Out => {
                for known in self.handshakes.get(&client).cloned().unwrap_or_default() {
                    known.tell(reader, None);
                }
            }
        }
    }
}
