//! Small scenarios made from what the swarm has found. The scenarios do not break a rule any more. Each defect that only the swarm has
//! found has a scenario that breaks a rule if the defect is put back. If a change of the simulator makes such a scenario useless,
//! `steadfast-lab swarm --defect NAME` finds another one.

use steadfast_sim::pair::Defect;
use steadfast_sim::swarm::{Scenario, play};

/// A scenario as the swarm has written it.
macro_rules! scenario {
    ($name:literal) => {
        toml::from_str::<Scenario>(include_str!(concat!("swarm_found/", $name, ".toml"))).expect($name)
    };
}

#[track_caller]
fn hold(scenarios: impl IntoIterator<Item = Scenario>) {
    for scenario in scenarios {
        assert_eq!(play(&scenario).violations, [], "seed {}", scenario.seed);
    }
}

/// The scenario breaks a rule because of `defect`.
#[track_caller]
fn shows(defect: Defect, mut scenario: Scenario) {
    assert_eq!(scenario.defect, Some(defect));
    assert_ne!(play(&scenario).violations, [], "{defect:?}");
    scenario.defect = None;
    hold([scenario]);
}

#[test]
fn every_defect_that_was_found_has_a_scenario() {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/swarm_found"))
        .expect("the scenarios");
    let defects: Vec<_> = files
        .map(|file| std::fs::read_to_string(file.expect("a scenario").path()).expect("text"))
        .filter_map(|text| toml::from_str::<Scenario>(&text).expect("a scenario").defect)
        .collect();
    let missing = Defect::FOUND
        .into_iter()
        .filter(|defect| !defects.contains(defect));
    assert_eq!(missing.collect::<Vec<_>>(), []);
}

/// The primary's agent had heard that a worker died, and died itself before the backup knew. Its successor told nobody: the clients
/// waited for ever.
#[test]
fn orphans_outlive_the_agent_that_was_to_tell_of_them() {
    hold([
        scenario!("seed-1101087"),
        scenario!("seed-1104511"),
        scenario!("seed-1118234"),
        scenario!("seed-20272957"),
        scenario!("seed-31421162"),
        scenario!("seed-31431253"),
        scenario!("seed-58008073"),
    ]);
    shows(Defect::ForgetOrphans, scenario!("forget-orphans"));
}

/// Three cases under `fail-stop`:
///
/// 1. The primary's agent was away for longer than the agent timeout, so the backup took over. Then the backup lost its power. The old
///    primary's sockets continued from their old state.
/// 2. The wire's agent was away, so the primary went on alone. Then the primary lost its power. The wire restored connections from its old
///    log.
/// 3. The wire's agent was stopped between its decision to take over and the first step.
#[test]
fn who_was_away_for_long_does_not_trust_what_it_finds() {
    hold([
        scenario!("seed-20263429"),
        scenario!("seed-2411002326"),
        scenario!("seed-2411011912"),
        scenario!("seed-31007000048"),
    ]);
    shows(Defect::TrustGate, scenario!("trust-gate"));
    // The cable to the clients was cut long before. This does not excuse a broken rule now.
    shows(Defect::TrustGate, scenario!("trust-gate-beside-a-cut"));
}

/// The wire had taken connections over, its agent died, and the primary went on alone. The wire's new agent answered logged input before it
/// heard that the primary was alone.
#[test]
fn a_new_wire_says_nothing_before_the_primary_has_answered() {
    hold([scenario!("seed-31440390"), scenario!("seed-58021796")]);
    shows(Defect::TrustLease, scenario!("trust-lease"));
}

/// A wire that had taken connections over was drained. It spoke for them by its lease, while the primary went on alone.
#[test]
fn a_wire_that_leaves_is_silent_first() {
    hold([scenario!("seed-58020452")]);
    shows(Defect::LeaveLate, scenario!("leave-late"));
}

/// The wire saw a SYN that was late. Then a node that had taken the connection over repeated the SYN-ACK. The wire mistook the two for the
/// beginning of a connection.
#[test]
fn a_late_handshake_opens_nothing() {
    hold([scenario!("seed-58031096")]);
    shows(Defect::TrustSyn, scenario!("trust-syn"));
}

/// A slow survivor's lease was over before the survivor had decided its connections. The primary claimed the VIP, and both applications
/// executed a request. Packets that the survivor's guard drops do not count as contradictions.
#[test]
fn who_may_not_speak_any_more_has_nothing_executed() {
    hold([scenario!("seed-58016449")]);
    shows(Defect::DecideMute, scenario!("decide-mute"));
}

/// Under `fail-stop`: a worker died, the wire took its connections over, and its agent was killed or stopped. The primary went on alone,
/// and the wire still spoke.
#[test]
fn a_wire_speaks_for_nobody_when_its_lease_is_over() {
    hold([
        scenario!("adopted-agent-killed"),
        scenario!("adopting-agent-stopped"),
    ]);
    shows(Defect::AdoptForever, scenario!("adopt-forever"));
}

/// The arbiter granted the epoch during the takeover. The judge used to excuse what the survivor did before and after such a grant.
#[test]
fn what_was_granted_later_excuses_nothing() {
    shows(Defect::TimestampBehind, scenario!("timestamp-behind"));
    shows(
        Defect::SendUnacknowledgedAhead,
        scenario!("send-unacknowledged-ahead"),
    );
}

/// The end of a reply was logged, and a segment before it was not: the connection was reset though its reply could be continued.
#[test]
fn a_reply_with_a_gap_before_its_end_is_continued() {
    hold([scenario!("seed-288")]);
}

/// The agent was stopped between planning and restoring, and packets passed unlogged meanwhile.
#[test]
fn what_passed_unlogged_since_it_was_planned_is_not_restored() {
    hold([scenario!("seed-2248")]);
}

/// A service path was broken. The node that reached the clients did not serve, or the node that did not reach them deposed the other.
#[test]
fn a_broken_path_is_survived() {
    shows(Defect::IgnoreMeet, scenario!("ignore-meet"));
    shows(Defect::TrustOutside, scenario!("trust-outside"));
    hold([scenario!("seed-52630019763")]);
}

/// A fenced node was back, and said that it was mute, before it heard that it was the wire again. It was fenced at once.
#[test]
fn a_mute_peer_is_not_fenced_at_once() {
    hold([scenario!("seed-52620024137")]);
}

/// The wire's machine was halted for longer than its lease. Its clock stood still, but its time-stamp counter went on.
#[test]
fn a_lease_is_over_when_the_counter_says_so() {
    shows(Defect::IgnorePause, scenario!("ignore-pause"));
}

/// The wire's machine was halted for longer than its lease, and its time-stamp counter stood still too. The arbiter had given the epoch to
/// the other node, which had not said anything yet.
#[test]
fn what_is_said_by_a_lease_that_a_clock_outlasted_is_lost() {
    hold([scenario!("seed-8139843843"), scenario!("seed-31410025992")]);
}

/// The agent of a wire in doubt died after it had closed the gate, and before it had noted its role. The next agent took itself for a
/// primary in doubt: the pair was never whole again.
#[test]
fn a_wires_doubt_makes_no_primary() {
    hold([scenario!("seed-31410014277")]);
}

/// The wire took over, because the path between the nodes was broken. Its kernel spoke, but its agent was stopped before it could tell the
/// primary. The primary took the agent's silence for a death.
#[test]
fn a_wire_that_answers_may_have_taken_over() {
    hold([scenario!("seed-77330123455")]);
}

/// The wire's agent was stopped. When it continued, it read an old message in which its primary yielded, and had the
/// primary fenced. Meanwhile the primary had claimed the VIP, and had the wire fenced.
#[test]
fn who_reads_that_the_other_one_claims_waits_with_its_fence() {
    hold([scenario!("seed-77340152645")]);
}

/// A primary was deposed, and the nodes swapped roles twice within 4 ms. A packet from before the swaps reached the
/// wire after them. The wire let it pass as a packet of the new primary.
#[test]
fn an_old_packet_of_a_deposed_primary_reaches_nobody() {
    hold([scenario!("seed-88460380556")]);
}

/// Both nodes failed at once, so the handshake was lost. A SYN-ACK from before reached the client afterwards.
#[test]
fn a_syn_ack_may_outlive_its_handshake() {
    hold([scenario!("seed-88430198351")]);
}

/// Segments overtook acknowledgements, so the server refused them because their acknowledgement was too old.
#[test]
fn a_segment_that_a_server_may_refuse_need_not_be_restored() {
    hold([scenario!("seed-88500617813")]);
}

/// The agent that had taken over died, and its successor did not wait out its fence delay: both nodes were fenced.
#[test]
fn a_new_agent_does_not_fence_at_once() {
    hold([scenario!("seed-361700017845")]);
}

/// The operator moved the service while the primary's agent was dead, and the node that had taken over lost its power: the primary's sockets
/// are too old to continue the connections.
#[test]
fn old_sockets_do_not_hold_a_connection() {
    hold([scenario!("seed-361700001637")]);
}

/// The replica's server on the wire died and was started again. Its copied state was lost, but replicas followed new connections.
#[test]
fn a_copied_state_dies_with_its_server() {
    hold([scenario!("server-of-wire-restarted")]);
}

/// The wire's path broke after the wire had asked for the right to speak. It left, and the primary had it fenced. When the path worked again,
/// the wire had the primary fenced because of its earlier wish.
#[test]
fn a_wire_that_had_left_fences_nobody_for_an_older_wish() {
    hold([scenario!("seed-683010088180")]);
}

/// The wire's agent was stopped after it had read the log. It heard first that it was deposed, became the wire again, and then read what
/// had been logged before.
#[test]
fn a_wire_forgets_what_was_logged_before_it_began() {
    hold([scenario!("seed-683010087464")]);
}

/// An agent was stopped. Then it acted on each of the heartbeats that had arrived, although the last one showed that the earlier ones were
/// out of date.
#[test]
fn only_the_latest_heartbeat_counts() {
    hold([scenario!("seed-683040343914"), scenario!("seed-683050425064")]);
}

/// The survivor had to send the rest of a reply again, and failed on the next request. Its reset took the rest of the reply with it.
#[test]
fn a_reset_does_not_overtake_an_earlier_reply() {
    hold([scenario!("seed-741950433400")]);
}

/// The network delivered the hook's question twice. The hook took the two answers for proof that no input was on its way to the server.
#[test]
fn an_answer_that_comes_twice_counts_once() {
    hold([scenario!("seed-851820183145")]);
}

/// Half of the probes of a kernel were lost on one link, while its agent was dead. The simulator did not send probes over the other link.
#[test]
fn a_kernel_is_probed_over_every_link() {
    hold([scenario!("seed-851830267762")]);
}

/// The primary's agent was stopped for too long. The wire's machine stood still, so it could not say that it had not taken over.
#[test]
fn a_primary_in_doubt_ends_its_connections() {
    hold([scenario!("seed-851840347569"), scenario!("seed-851840347909")]);
}

/// The wire's agent was stopped during the hold, and reported the copy long after the hold's time limit. The judge compared the states as late
/// as that.
#[test]
fn a_copy_is_compared_when_the_hold_ends() {
    hold([scenario!("seed-963000006871")]);
}

/// The wire's server died, and the agent opened a replica before it noticed. The simulated server accepted the connection.
#[test]
fn a_dead_server_takes_no_replica() {
    hold([scenario!("seed-1073510100097")]);
}

/// The wire took over while the primary's agent was stopped, lost its power and was started again. The primary took only the latest
/// heartbeat, which knew nothing of the takeover.
#[test]
fn an_earlier_agents_last_heartbeat_counts() {
    hold([scenario!("seed-1073520168076")]);
}

/// The wire's agent was stopped during a takeover. A client's input was logged meanwhile and reached no server, so no copy contains it.
#[test]
fn input_that_is_not_released_is_in_no_state() {
    hold([scenario!("seed-1073530255686")]);
}

/// A primary in doubt waited for its wire's agent, and answers of the wire's kernel were late.
#[test]
fn a_kernel_is_not_dead_because_a_few_answers_are_late() {
    hold([scenario!("seed-1073530253020")]);
    shows(Defect::ClaimInDoubt, scenario!("claim-in-doubt"));
}

/// The path lost 2 % of the packets. A client without SACK had a window of two segments, so its download of 200 kB took over a minute.
#[test]
fn a_lossy_path_has_its_time() {
    hold([scenario!("seed-1284620181828")]);
}

/// The wire's server was dead when a connection began, so the connection had no replica. Then the primary's server died, too.
#[test]
fn a_connection_that_no_server_has_is_lost() {
    hold([scenario!("seed-1395770597092")]);
}

/// A primary's machine stood still. Meanwhile its wire's path was broken for a moment, so the wire left, and had not come back yet.
#[test]
fn a_wire_that_leaves_confirms_too() {
    hold([scenario!("seed-1506890754343")]);
}
