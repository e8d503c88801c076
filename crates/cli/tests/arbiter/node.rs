//! A node that wants to speak.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use proto::standing::Verdict;
use steadfast::arbiter::{Arbiter, Question};
use steadfast::config::Config;

/// Longer than any bound in these tests; who waits so long has been forgotten.
pub const FORGOTTEN: Duration = Duration::from_secs(60);

pub struct Node {
    pub arbiter: Arbiter,
    wakeups: Receiver<()>,
}

impl Node {
    /// The node `name` of the pair a and b, with `arbiter` as its configuration says it.
    pub fn open(name: &str, arbiter: &str) -> Self {
        let peer = if name == "a" { "b" } else { "a" };
        let text = format!(
            "[node]\nname = \"{name}\"\n[peer]\nname = \"{peer}\"\naddress = \"192.0.2.3\"\n{arbiter}\n[[service]]\n\
             name = \"web\"\naddress = \"192.0.2.100\"\nport = 80\ninterface = \"eth0\"\npolicy = \"http\"\nprimary = \"a\"\n"
        );
        let config = Config::parse(Path::new("test.toml"), &text).unwrap();
        let (wake, wakeups) = channel();
        let arbiter = Arbiter::open(&config, move || {
            let _ = wake.send(()); // nobody waits any more
        })
        .unwrap();
        Self { arbiter, wakeups }
    }

    pub fn ask(&mut self, epoch: u64) {
        self.arbiter.confirm(Question { service: 0, epoch });
    }

    /// The next answer, of which it is woken.
    pub fn answer(&mut self) -> (u64, Verdict) {
        self.wakeups.recv_timeout(FORGOTTEN).expect("an answer");
        let (question, verdict) = self.arbiter.poll().expect("what it was woken for");
        assert_eq!(question.service, 0);
        (question.epoch, verdict)
    }

    /// Asks and waits.
    pub fn take(&mut self, epoch: u64) -> Verdict {
        self.ask(epoch);
        let (answered, verdict) = self.answer();
        assert_eq!(answered, epoch);
        verdict
    }
}
