//! A node that asks the arbiter for the right to speak.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use proto::standing::ArbiterVerdict;
use steadfast::arbiter::{ArbiterClient, ArbiterQuestion};
use steadfast::config::Config;

/// Longest wait for an answer. Longer than all timeouts in these tests, so an answer that takes longer is lost.
pub const FORGOTTEN: Duration = Duration::from_secs(60);

pub struct ArbiterNode {
    pub arbiter: ArbiterClient,
    wakeups: Receiver<()>,
}

impl ArbiterNode {
    /// Opens the node `name`, which is `a` or `b`. `arbiter` is the section of its configuration that describes the arbiter.
    pub fn open(name: &str, arbiter: &str) -> Self {
        let peer = if name == "a" { "b" } else { "a" };
        let text = format!(
            "[node]\nname = \"{name}\"\n[peer]\nname = \"{peer}\"\naddress = \"192.0.2.3\"\n{arbiter}\n[[service]]\n\
             name = \"web\"\naddress = \"192.0.2.100\"\nport = 80\ninterface = \"eth0\"\npolicy = \"http\"\nprimary = \"a\"\n"
        );
        let config = Config::parse(Path::new("test.toml"), &text).unwrap();
        let (wake, wakeups) = channel();
        let arbiter = ArbiterClient::open(&config, move || {
            let _ = wake.send(()); // fails only if the test has ended
        })
        .unwrap();
        Self { arbiter, wakeups }
    }

    pub fn ask(&mut self, epoch: u64) {
        self.arbiter.confirm(ArbiterQuestion { service: 0, epoch });
    }

    /// Waits for the wake-up of the next answer and returns the answer.
    pub fn answer(&mut self) -> (u64, ArbiterVerdict) {
        self.wakeups.recv_timeout(FORGOTTEN).expect("an answer");
        let (question, verdict) = self.arbiter.poll().expect("the announced answer");
        assert_eq!(question.service, 0);
        (question.epoch, verdict)
    }

    /// Asks for an epoch and waits for the answer.
    pub fn take(&mut self, epoch: u64) -> ArbiterVerdict {
        self.ask(epoch);
        let (answered, verdict) = self.answer();
        assert_eq!(answered, epoch);
        verdict
    }
}
