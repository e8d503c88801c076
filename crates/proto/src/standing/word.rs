//! The table that gives the event for this node, from this node's role and the peer's word.

use super::{Arbiter, Fitness, Role, RoleEvent, Standing, StandingBeat};
use crate::Instant;

impl Standing {
    /// The event that the peer's `word` causes at this node, if any.
    #[expect(clippy::too_many_lines, reason = "one table")]
    pub(super) fn event_of(&self, now: Instant, word: &StandingBeat) -> Option<RoleEvent> {
        let (later, same) = (word.epoch > self.epoch, word.epoch == self.epoch);
        let may_serve_it = !word.leaves && self.may_return(now);
        let Fitness { serves, begins, .. } = self.fitness;
        match (self.role, word.role) {
            (Role::Joining, Role::Joining) => {
                let is_first = self.config.is_primary && serves || begins;
                (self.knows && is_first).then_some(RoleEvent::Begins)
            }
            // The peer is mute because this node was to serve. But this node has begun anew and has forgotten that. So neither node
            // serves.
            (Role::Joining, Role::Standby | Role::Returning) => {
                (self.knows && serves).then_some(RoleEvent::Begins)
            }
            // This node is mute because the peer was to serve. The peer has begun anew and has forgotten that, and clients do not reach
            // it. So this node begins.
            (Role::Standby, Role::Joining) => (begins && !self.leaves()).then_some(RoleEvent::Begins),
            // This node has spoken alone in a later epoch, and the peer has not heard what this node said. So the peer's connections are
            // out of date.
            (Role::Joining, Role::Primary | Role::Claiming)
                if word.epoch < self.epoch && self.has_forgotten =>
            {
                self.knows.then_some(RoleEvent::Begins)
            }
            (Role::Joining, Role::Primary | Role::Claiming) => {
                (self.knows && may_serve_it).then_some(RoleEvent::PeerServes)
            }
            (Role::Standby, Role::Primary | Role::Claiming) => {
                (may_serve_it && word.epoch >= self.epoch).then_some(RoleEvent::PeerServes)
            }
            // The peer returns in this node's epoch, or in a later epoch that this node forgot when it began anew. A peer that is about to
            // be fenced may not return.
            (Role::Primary | Role::Sole, Role::Returning) => {
                let is_wanted = !word.leaves && !self.has_failed && !self.is_fencing;
                ((same || later) && is_wanted).then_some(RoleEvent::PeerReturns)
            }
            (Role::Claiming, Role::Returning) => {
                ((same || later) && !word.leaves && !self.has_asked).then_some(RoleEvent::PeerReturns)
            }
            // The arbiter gave the peer an epoch that it has not used.
            (Role::Primary | Role::Claiming, Role::Backup) if later => Some(RoleEvent::PeerBack),
            (Role::Claiming, Role::Backup) => {
                // If the arbiter was asked and has not answered, it may give this node the epoch at any moment.
                let is_given =
                    self.config.arbiter == Arbiter::Witness && self.confirmed == Some(self.epoch + 1);
                let is_known = !self.has_asked || is_given;
                (same && !word.leaves && is_known).then_some(RoleEvent::PeerBack)
            }
            (Role::Returning, Role::Primary) => later.then_some(RoleEvent::Consented),
            // The peer was refused the right to serve, or has forgotten that it served. It is mute, so neither node serves.
            (Role::Returning, Role::Standby) => serves.then_some(RoleEvent::Begins),
            // Both nodes are mute. The arbiter gave the right to one of them, but that node left meanwhile or has forgotten it. One node
            // begins, in an epoch that is later than the epochs of both.
            (Role::Standby, Role::Standby) | (Role::Returning, Role::Returning) => {
                let is_first = word.leaves || word.epoch < self.epoch || same && self.config.is_primary;
                (is_first && !self.leaves() && serves).then_some(RoleEvent::Begins)
            }
            // The arbiter gave the peer an epoch that the peer's last agent did not use. This wire's log has no gap, so the wire could
            // follow the peer into that epoch. But it becomes mute and returns, which is safe however the peer got to that epoch.
            (Role::Backup, Role::Primary | Role::Claiming) if later => Some(RoleEvent::PeerSpeaks),
            // Both began. Clients hear neither, since each may speak through the other's wire only.
            (Role::Primary | Role::Claiming, Role::Primary | Role::Claiming) => {
                (later || same && !self.config.is_primary).then_some(RoleEvent::PeerSpeaks)
            }
            (Role::Primary, Role::Backup) => (same && word.leaves).then_some(RoleEvent::PeerLeaves),
            // The arbiter gave the epoch to this node's earlier agent and refused it to the peer. The peer lets no packet pass now.
            (Role::Primary, Role::Standby) if later || same => Some(RoleEvent::PeerLeaves),
            // If either node leaves, the peer does not return. Otherwise there is no event: the peer may have sent this word before it
            // heard that it may return.
            (Role::Primary, Role::Standby | Role::Joining) => {
                (word.leaves || self.leaves()).then_some(RoleEvent::PeerSilent)
            }
            (Role::Backup, Role::Primary) => {
                (same && word.yields && self.may_follow(now)).then_some(RoleEvent::PeerYields)
            }
            // The peer was the primary of this epoch and has begun anew. Only this node has its connections.
            (Role::Backup, Role::Joining) => Some(RoleEvent::PeerYields),
            // The arbiter gave the epoch to this node's earlier agent and refused it to the peer. The agent died before the answer came.
            // Only this node can go on.
            (Role::Backup, Role::Standby) => (later || same).then_some(RoleEvent::PeerYields),
            // The peer is taking over or speaks alone.
            (Role::Joining, Role::TakingOver | Role::Sole) => Some(RoleEvent::PeerSpeaks),
            (Role::Returning | Role::Primary | Role::Claiming, Role::TakingOver | Role::Sole) => {
                later.then_some(RoleEvent::PeerSpeaks)
            }
            // The peer may have forgotten its epoch, and have reached the same epoch again.
            (Role::Backup, Role::TakingOver | Role::Sole) => (later || same).then_some(RoleEvent::PeerSpeaks),
            // The peer has claimed the VIP. This can happen if this node was stopped right after it had decided to take over. Then this
            // node has said nothing yet, so it gives up.
            (Role::TakingOver, Role::Sole) => (later || same).then_some(RoleEvent::PeerSpeaks),
            (Role::Sole, Role::TakingOver) => later.then_some(RoleEvent::PeerSpeaks),
            // If both nodes speak in the same epoch, the configured primary goes on.
            (Role::TakingOver, Role::TakingOver) | (Role::Sole, Role::Sole) => {
                (later || same && !self.config.is_primary).then_some(RoleEvent::PeerSpeaks)
            }
            (Role::Standby, Role::Sole) => (may_serve_it && (later || same)).then_some(RoleEvent::PeerServes),
            // The peer will hear this node's word, and change first; or neither node has to change.
            (Role::Joining, Role::Backup)
            | (Role::Claiming, Role::Joining | Role::Standby)
            | (Role::Returning, Role::Joining | Role::Claiming | Role::Backup)
            | (Role::Backup, Role::Claiming | Role::Returning | Role::Backup)
            | (Role::Sole, Role::Joining | Role::Primary | Role::Claiming | Role::Backup | Role::Standby)
            | (Role::Standby, Role::Returning | Role::Backup | Role::TakingOver) => None,
            // This node still decides which connections it restores and which it gives up. Its role changes afterwards.
            (
                Role::TakingOver,
                Role::Joining
                | Role::Primary
                | Role::Claiming
                | Role::Returning
                | Role::Backup
                | Role::Standby,
            ) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::time::Duration;

    use super::*;
    use crate::standing::{InheritedStanding, StandingConfig};

    /// The event that a word means under `fail-stop`, for a node in epoch 5 that works.
    fn event(is_primary: bool, own: Role, word: StandingBeat) -> Option<RoleEvent> {
        let config = StandingConfig {
            is_primary,
            arbiter: Arbiter::FailStop,
            lease: Duration::from_millis(300),
            fence_delay: Duration::ZERO,
            sends_directly: false,
        };
        let found = InheritedStanding {
            role: own,
            epoch: 5,
            is_confirmed: true,
        };
        let mut standing = Standing::new(config, Some(found), Instant::ZERO);
        standing.lease_until = Some(Instant::from_nanos(1));
        standing.event_of(Instant::ZERO, &word)
    }

    /// One line for each pair of roles that has an event. Its three columns are for words of an earlier epoch, of the
    /// same epoch, and of a later epoch. A column shows three events if they differ: for a plain word, for a node that
    /// leaves and yields, and for a node that only yields.
    fn matrix(is_primary: bool) -> String {
        let mut table = String::new();
        for own in Role::ALL {
            for role in Role::ALL {
                let events = [4, 5, 6].map(|epoch| {
                    [(false, false), (true, true), (false, true)].map(|(leaves, yields)| {
                        let echo = None;
                        let word = StandingBeat {
                            role,
                            epoch,
                            leaves,
                            yields,
                            echo,
                            direct: false,
                        };
                        event(is_primary, own, word)
                            .map_or_else(|| "-".to_owned(), |event| format!("{event:?}"))
                    })
                });
                let [earlier, same, later] = events.map(|[plain, leaves, yields]| {
                    if plain == leaves && plain == yields {
                        plain
                    } else {
                        format!("{plain}/{leaves}/{yields}")
                    }
                });
                if (&earlier, &same, &later) != (&"-".to_owned(), &"-".to_owned(), &"-".to_owned()) {
                    writeln!(table, "{own:?} hears {role:?}: {earlier} | {same} | {later}").expect("text");
                }
            }
        }
        table
    }

    #[test]
    fn the_whole_matrix_of_the_configured_primary() {
        insta::assert_snapshot!(matrix(true), @r"
        Joining hears Joining: Begins | Begins | Begins
        Joining hears Primary: PeerServes/-/PeerServes | PeerServes/-/PeerServes | PeerServes/-/PeerServes
        Joining hears Claiming: PeerServes/-/PeerServes | PeerServes/-/PeerServes | PeerServes/-/PeerServes
        Joining hears Returning: Begins | Begins | Begins
        Joining hears TakingOver: PeerSpeaks | PeerSpeaks | PeerSpeaks
        Joining hears Sole: PeerSpeaks | PeerSpeaks | PeerSpeaks
        Joining hears Standby: Begins | Begins | Begins
        Primary hears Joining: -/PeerSilent/- | -/PeerSilent/- | -/PeerSilent/-
        Primary hears Primary: - | - | PeerSpeaks
        Primary hears Claiming: - | - | PeerSpeaks
        Primary hears Returning: - | PeerReturns/-/PeerReturns | PeerReturns/-/PeerReturns
        Primary hears Backup: - | -/PeerLeaves/- | PeerBack
        Primary hears TakingOver: - | - | PeerSpeaks
        Primary hears Sole: - | - | PeerSpeaks
        Primary hears Standby: -/PeerSilent/- | PeerLeaves | PeerLeaves
        Claiming hears Primary: - | - | PeerSpeaks
        Claiming hears Claiming: - | - | PeerSpeaks
        Claiming hears Returning: - | PeerReturns/-/PeerReturns | PeerReturns/-/PeerReturns
        Claiming hears Backup: - | PeerBack/-/PeerBack | PeerBack
        Claiming hears TakingOver: - | - | PeerSpeaks
        Claiming hears Sole: - | - | PeerSpeaks
        Returning hears Primary: - | - | Consented
        Returning hears Returning: Begins | Begins | -/Begins/-
        Returning hears TakingOver: - | - | PeerSpeaks
        Returning hears Sole: - | - | PeerSpeaks
        Returning hears Standby: Begins | Begins | Begins
        Backup hears Joining: PeerYields | PeerYields | PeerYields
        Backup hears Primary: - | -/PeerYields/PeerYields | PeerSpeaks
        Backup hears Claiming: - | - | PeerSpeaks
        Backup hears TakingOver: - | PeerSpeaks | PeerSpeaks
        Backup hears Sole: - | PeerSpeaks | PeerSpeaks
        Backup hears Standby: - | PeerYields | PeerYields
        TakingOver hears TakingOver: - | - | PeerSpeaks
        TakingOver hears Sole: - | PeerSpeaks | PeerSpeaks
        Sole hears Returning: - | PeerReturns/-/PeerReturns | PeerReturns/-/PeerReturns
        Sole hears TakingOver: - | - | PeerSpeaks
        Sole hears Sole: - | - | PeerSpeaks
        Standby hears Primary: - | PeerServes/-/PeerServes | PeerServes/-/PeerServes
        Standby hears Claiming: - | PeerServes/-/PeerServes | PeerServes/-/PeerServes
        Standby hears Sole: - | PeerServes/-/PeerServes | PeerServes/-/PeerServes
        Standby hears Standby: Begins | Begins | -/Begins/-
        ");
    }

    /// The rows in which the configured backup differs.
    #[test]
    fn the_configured_backup_differs_where_both_could_go_on() {
        let primary = matrix(true);
        let backup = matrix(false);
        let differs = |row: &&str| !primary.lines().any(|other| other == *row);
        let rows: Vec<_> = backup.lines().filter(differs).collect();
        insta::assert_snapshot!(rows.join("\n"), @r"
        Primary hears Primary: - | PeerSpeaks | PeerSpeaks
        Primary hears Claiming: - | PeerSpeaks | PeerSpeaks
        Claiming hears Primary: - | PeerSpeaks | PeerSpeaks
        Claiming hears Claiming: - | PeerSpeaks | PeerSpeaks
        Returning hears Returning: Begins | -/Begins/- | -/Begins/-
        TakingOver hears TakingOver: - | PeerSpeaks | PeerSpeaks
        Sole hears Sole: - | PeerSpeaks | PeerSpeaks
        Standby hears Standby: Begins | -/Begins/- | -/Begins/-
        ");
    }
}
