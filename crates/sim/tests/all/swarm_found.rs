//! Small scenarios in which the swarm (docs/swarm.md) found a broken rule. Today none of them breaks a rule, unless its nodes have a
//! defect. Each comment describes the run that broke the rule. For each defect that only the swarm has found, one scenario breaks a rule if
//! the defect is put back. If a change of the simulator makes this scenario hold, `steadfast-lab swarm --defect NAME` finds another
//! scenario.

use steadfast_sim::pair::Defect;
use steadfast_sim::swarm::{Scenario, play};

/// Reads a scenario file that the swarm has written.
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

/// Checks that the scenario breaks a rule with `defect`, and none without it.
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

/// Connections moved from the primary to its backup, and the backup's machine stood still after the primary had released one. The primary
/// began to claim the address, and then went on with the backup. It no longer said that it had released the connection, so the backup gave
/// it back, and no node had it.
#[test]
fn a_released_connection_is_not_given_back() {
    hold([scenario!("seed-20261127242764")]);
}

/// The primary's agent was killed between the release of a connection and the heartbeat that said so. The backup gave the connection back, but
/// the primary's kernel still logged it for the backup. So the client's segments ran in a circle between the nodes, for ever.
#[test]
fn segments_do_not_run_in_a_circle() {
    hold([scenario!("marked-segment-in-a-circle")]);
}

/// A worker of the primary died while connections moved to the backup. The backup said at once that it had adopted the worker's
/// connections, but the wire did not hold them yet. The primary destroyed their sockets, and its kernel answered a client with a RST.
#[test]
fn orphans_keep_their_sockets_until_the_wire_holds_them() {
    hold([scenario!("seed-20261127231196")]);
}

/// A worker of the primary died. The primary's agent noticed this, but died before it had told the backup. The next agent did not tell the
/// backup either, so the worker's clients waited for ever.
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

/// Three cases under `fail-stop`, which has no arbiter:
///
/// 1. The primary's agent was away for longer than the agent timeout, so the backup took over. Then the backup lost its power. The old
///    primary's sockets continued from their old state.
/// 2. The wire's agent was away, so the primary went on alone. Then the primary lost its power. The wire restored connections from its old
///    log.
/// 3. The wire's agent was stopped between its decision to take over and the first step of the takeover.
#[test]
fn who_was_away_for_long_does_not_trust_what_it_finds() {
    hold([
        scenario!("seed-20263429"),
        scenario!("seed-2411002326"),
        scenario!("seed-2411011912"),
        scenario!("seed-31007000048"),
    ]);
    shows(Defect::TrustGate, scenario!("trust-gate"));
    // The cable to the clients was cut long before the rule was broken, so the judge must not accept the cut as an excuse.
    shows(Defect::TrustGate, scenario!("trust-gate-beside-a-cut"));
}

/// The wire had taken over some connections. Then its agent died, and the primary went on alone. The wire's new agent answered logged input
/// of these connections before it heard that the primary was alone.
#[test]
fn a_new_wire_says_nothing_before_the_primary_has_answered() {
    hold([scenario!("seed-31440390"), scenario!("seed-58021796")]);
    shows(Defect::TrustLease, scenario!("trust-lease"));
}

/// A wire that had taken over some connections was drained. Its lease still let it speak for these connections while the primary went on
/// alone.
#[test]
fn a_wire_that_leaves_is_silent_first() {
    hold([scenario!("seed-58020452")]);
    shows(Defect::LeaveLate, scenario!("leave-late"));
}

/// A late copy of an old SYN came to the wire. Then the node that had taken over this SYN's connection repeated the SYN-ACK. The wire
/// mistook these two packets for the beginning of a new connection.
#[test]
fn a_late_handshake_opens_nothing() {
    hold([scenario!("seed-58031096")]);
    shows(Defect::TrustSyn, scenario!("trust-syn"));
}

/// A survivor was so slow that its lease ended before it had restored all connections. The primary claimed the VIP, and both applications
/// executed a request. Packets that the survivor's guard drops are not contradictions for the judge, because no client gets them.
#[test]
fn who_may_not_speak_any_more_has_nothing_executed() {
    hold([scenario!("seed-58016449")]);
    shows(Defect::DecideMute, scenario!("decide-mute"));
}

/// Under `fail-stop`: a worker died, and the wire took over the worker's connections. Then the wire's agent was killed or stopped. The
/// primary went on alone, but the wire still spoke for these connections.
#[test]
fn a_wire_speaks_for_nobody_when_its_lease_is_over() {
    hold([
        scenario!("adopted-agent-killed"),
        scenario!("adopting-agent-stopped"),
    ]);
    shows(Defect::AdoptForever, scenario!("adopt-forever"));
}

/// The arbiter granted the epoch during the takeover. The judge used to excuse everything that the survivor did before and after such a
/// grant.
#[test]
fn what_was_granted_later_excuses_nothing() {
    shows(Defect::TimestampBehind, scenario!("timestamp-behind"));
    shows(
        Defect::SendUnacknowledgedAhead,
        scenario!("send-unacknowledged-ahead"),
    );
}

/// The end of a reply was logged, but a segment before the end was not. The survivor reset the connection, although it could continue the
/// reply.
#[test]
fn a_reply_with_a_gap_before_its_end_is_continued() {
    hold([scenario!("seed-288")]);
}

/// The agent was stopped after it had planned a connection's takeover and before it restored the connection. Packets passed unlogged
/// meanwhile.
#[test]
fn what_passed_unlogged_since_it_was_planned_is_not_restored() {
    hold([scenario!("seed-2248")]);
}

/// A service path was broken. Either the node that reached the clients did not serve, or the node that did not reach the clients deposed
/// the other node.
#[test]
fn a_broken_path_is_survived() {
    shows(Defect::IgnoreMeet, scenario!("ignore-meet"));
    shows(Defect::TrustOutside, scenario!("trust-outside"));
    hold([scenario!("seed-52630019763")]);
}

/// A fenced node came back. It had not heard yet that it was the wire again, so it told its peer that it was mute. So the peer fenced the
/// node immediately.
#[test]
fn a_mute_peer_is_not_fenced_at_once() {
    hold([scenario!("seed-52620024137")]);
}

/// The wire's machine was halted for longer than the wire's lease. The machine's clock stood still, but its time-stamp counter went on.
#[test]
fn a_lease_is_over_when_the_counter_says_so() {
    shows(Defect::IgnorePause, scenario!("ignore-pause"));
}

/// The wire's machine was halted for longer than the wire's lease, and its time-stamp counter stood still, too. Meanwhile the
/// arbiter had given the epoch to the other node, which had not sent anything yet.
#[test]
fn what_is_said_by_a_lease_that_a_clock_outlasted_is_lost() {
    hold([scenario!("seed-8139843843"), scenario!("seed-31410025992")]);
}

/// The agent of a wire in doubt died after it had closed the gate and before it had stored its role. The next agent mistook its node for a
/// primary in doubt, and the pair never became duplex again.
#[test]
fn a_wires_doubt_makes_no_primary() {
    hold([scenario!("seed-31410014277")]);
}

/// The wire took over, because the path between the nodes was broken. The wire's agent was stopped before it could tell the primary, but
/// its kernel still answered. The primary concluded from the agent's silence that the wire was dead.
#[test]
fn a_wire_that_answers_may_have_taken_over() {
    hold([scenario!("seed-77330123455")]);
}

/// The wire's agent was stopped. When it continued, it read an old message in which its primary yielded the service. So the agent fenced
/// the primary. But meanwhile the primary had claimed the VIP and fenced the wire, too.
#[test]
fn who_reads_that_the_other_one_claims_waits_with_its_fence() {
    hold([scenario!("seed-77340152645")]);
}

/// A primary was deposed, and the nodes swapped roles twice within 4 ms. A packet that the primary had sent before the swaps
/// reached the wire after the swaps. The wire let this packet pass as a packet of the new primary.
#[test]
fn an_old_packet_of_a_deposed_primary_reaches_nobody() {
    hold([scenario!("seed-88460380556")]);
}

/// Both nodes failed at the same time, so no node knew a handshake that was under way. Afterwards, the SYN-ACK that had been sent before
/// reached the client.
#[test]
fn a_syn_ack_may_outlive_its_handshake() {
    hold([scenario!("seed-88430198351")]);
}

/// A client's segments came after later acknowledgements of the same client had overtaken them. The server refused these segments, because
/// the acknowledgement numbers in them were too old.
#[test]
fn a_segment_that_a_server_may_refuse_need_not_be_restored() {
    hold([scenario!("seed-88500617813")]);
}

/// An agent that had taken over died. The next agent did not wait for its fence delay before it fenced the peer, so both nodes were fenced.
#[test]
fn a_new_agent_does_not_fence_at_once() {
    hold([scenario!("seed-361700017845")]);
}

/// The operator moved the service to the other node while the primary's agent was dead. Then the other node lost its power. The old
/// primary's sockets were too old to continue the connections.
#[test]
fn old_sockets_do_not_hold_a_connection() {
    hold([scenario!("seed-361700001637")]);
}

/// The wire's server died and was started again. The copied state of the primary's server was lost, but replicas still followed new
/// connections.
#[test]
fn a_copied_state_dies_with_its_server() {
    hold([scenario!("server-of-wire-restarted")]);
}

/// The wire's path broke after the wire had asked for the right to speak. So the wire left, and the primary fenced the wire. When the path
/// worked again, the wire still acted on its earlier request and fenced the primary.
#[test]
fn a_wire_that_had_left_fences_nobody_for_an_older_wish() {
    hold([scenario!("seed-683010088180")]);
}

/// The wire's agent was stopped after it had read the log. When it continued, it first heard that it was deposed, then became the wire
/// again, and only then read the records that had been logged before it was deposed.
#[test]
fn a_wire_forgets_what_was_logged_before_it_began() {
    hold([scenario!("seed-683010087464")]);
}

/// An agent was stopped. When it continued, it acted on each heartbeat that had arrived meanwhile, although the last heartbeat showed that
/// the earlier ones were out of date.
#[test]
fn only_the_latest_heartbeat_counts() {
    hold([scenario!("seed-683040343914"), scenario!("seed-683050425064")]);
}

/// The survivor still had to send the rest of a reply when the next request failed. The survivor reset the connection immediately, so the
/// client did not get the rest of the reply.
#[test]
fn a_reset_does_not_overtake_an_earlier_reply() {
    hold([scenario!("seed-741950433400")]);
}

/// The network delivered a question of the state-sync hook twice. From the two equal answers, the hook concluded that no input was on its
/// way to the server.
#[test]
fn an_answer_that_comes_twice_counts_once() {
    hold([scenario!("seed-851820183145")]);
}

/// While an agent was dead, half of the probes of its node's kernel were lost on one link. The simulator sent no probes over the other
/// link.
#[test]
fn a_kernel_is_probed_over_every_link() {
    hold([scenario!("seed-851830267762")]);
}

/// The primary's agent was stopped for longer than the agent timeout. So the primary needed the wire's confirmation that the wire had not
/// taken over. The wire's machine stood still and could not confirm this.
#[test]
fn a_primary_in_doubt_ends_its_connections() {
    hold([scenario!("seed-851840347569"), scenario!("seed-851840347909")]);
}

/// The wire's agent was stopped during the hold of a state copy (docs/state-sync.md), and reported the copy long after the hold's time
/// limit. The judge compared the servers' states at the time of the report, and not at the end of the hold.
#[test]
fn a_copy_is_compared_when_the_hold_ends() {
    hold([scenario!("seed-963000006871")]);
}

/// The wire's server died, and the agent opened a replica before it noticed the death. The dead simulated server accepted the connection.
#[test]
fn a_dead_server_takes_no_replica() {
    hold([scenario!("seed-1073510100097")]);
}

/// While the primary's agent was stopped, the wire took over, lost its power and was started again. When the primary's agent continued, it
/// handled only the latest heartbeat, which did not mention the takeover.
#[test]
fn an_earlier_agents_last_heartbeat_counts() {
    hold([scenario!("seed-1073520168076")]);
}

/// The wire's agent was stopped during a takeover. Meanwhile a client's input was logged but reached no server, so no copied state contains
/// it.
#[test]
fn input_that_is_not_released_is_in_no_state() {
    hold([scenario!("seed-1073530255686")]);
}

/// A primary in doubt waited for the wire's agent. Meanwhile a few answers of the wire's kernel were late.
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

/// The wire's server was dead when a connection began, so this connection had no replica. Then the primary's server died, too.
#[test]
fn a_connection_that_no_server_has_is_lost() {
    hold([scenario!("seed-1395770597092")]);
}

/// The primary's machine stood still. Meanwhile the wire's path was broken for a moment, so the wire left. The wire had not come back when
/// the primary went on.
#[test]
fn a_wire_that_leaves_confirms_too() {
    hold([scenario!("seed-1506890754343")]);
}

/// A connection moved to the backup, and a segment that the primary had sent before was late. The backup took it for a segment of its own
/// socket that had come back from the primary's log, and passed it on to the client.
#[test]
fn what_a_primary_said_before_a_move_is_not_passed_on() {
    hold([scenario!("seed-20261129092784")]);
}

/// Connections had moved to the backup, and its machine stood still. The primary took them over. Then the machine went on, with segments that
/// had come back from the primary's log before, and passed them on.
#[test]
fn a_backup_that_stood_still_passes_nothing_on() {
    hold([scenario!("seed-20261129092991")]);
}

/// A connection moved to the backup just before its process died on the primary. The backup adopted it once more, as an orphan.
#[test]
fn a_connection_that_has_moved_is_no_orphan() {
    hold([scenario!("seed-20261129090563")]);
}

/// In commit mode `pr`, the client had output whose acknowledgement was on its way. The restored socket was to send this output before the
/// acknowledgement came, but held the second segment back, because it did not fit the rest of the window. So it ignored the acknowledgement
/// for ever.
#[test]
fn a_socket_that_holds_a_segment_back_takes_what_was_sent_as_sent() {
    hold([scenario!("seed-202611290931387")]);
}

/// A wire took connections back from a silent annex while the primary still had an order to move them. So it took them from the primary, too,
/// and the primary followed them. When the annex was there again, the wire's list of its connections made the primary forget them.
#[test]
fn what_is_taken_back_from_an_annex_does_not_come_from_the_primary() {
    hold([scenario!("seed-20261201100031")]);
}

/// A primary stood still after connections had moved to its backup. While it was in doubt, its simulated kernel forgot these connections, so
/// their clients' segments no longer reached the backup. The real kernel forgets nothing at this gate.
#[test]
fn a_doubt_forgets_no_reversed_connection() {
    hold([scenario!("seed-20261201500408")]);
}

/// An operator ordered the same move again while a connection was on its way to an annex. When it was there, it was to move from this annex to
/// the same annex, which already had its socket. So the move failed, and the wire asked the annex to drop the socket.
#[test]
fn a_connection_does_not_move_to_the_annex_where_it_is() {
    hold([scenario!("seed-20261201952592")]);
}

/// A connection had just moved from an annex back to the primary, and moved on to the backup before the primary had said that it had started
/// it. The primary's answer, that it had not, made the wire take over what it had already. Then it sent this connection's output without a
/// log.
#[test]
fn a_connection_does_not_move_on_before_it_is_said_to_be_started() {
    hold([scenario!("seed-2026120230086")]);
}

/// A wire took the service over, and the annexes did not hear that they were to drop their connections. The old primary came back as the wire,
/// and failed before any annex obeyed it. Its number of the last take-back, from another clock, was lower than the one that the annexes
/// knew. So they gave their old connections, and the node that had taken these over passed their packets.
#[test]
fn the_numbers_of_two_wires_come_from_different_clocks() {
    hold([scenario!("seed-2026120240224")]);
}

/// An annex's agent was killed while a connection moved there, and its kernel answered the client's next segment with a RST before the wire
/// had noticed.
#[test]
fn an_annex_that_has_lost_a_socket_resets_nobody() {
    hold([scenario!("seed-2026120410224")]);
}

/// A wire's agent was killed just after connections had moved to an annex. Its successor came while the primary claimed the address, and stood
/// down. It asked the annex to end the connections, for which the primary was about to ask.
#[test]
fn a_wire_that_stands_down_ends_nothing_at_its_annexes() {
    hold([scenario!("wire-agent-back-during-a-claim")]);
}

/// A wire waited until an annex had dropped a connection that moved back. The link was reset before the request was sent, so the wire left the
/// connection on the annex. Then the annex got the request over the new link.
#[test]
fn a_request_to_drop_outlives_its_link() {
    hold([scenario!("seed-2026120712048")]);
}
