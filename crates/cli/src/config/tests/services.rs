//! The fields of a service.

use super::*;

#[test]
fn roles_follow_from_the_two_names() {
    assert_one(
        &with("primary", r#"primary = "gamma""#),
        r#"14: service[0].primary: is "gamma"; allowed: "alpha" (this node) or "beta" (its peer)"#,
    );
    let same = SMALLEST.replace("alpha", "beta");
    assert_one(
        &wrong(&same),
        r#"5: peer.name: is "beta", as [node] name; the two must differ"#,
    );
}

#[test]
fn addresses_that_no_service_can_have_are_refused() {
    for address in [
        "127.0.0.5",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "169.254.1.1",
        "::1",
        "fe80::1",
        "10.0.0.100/24",
    ] {
        assert_one(
            &with("address = \"10.0.0.100", &format!("address = {address:?}")),
            &format!(
                "10: service[0].address: is {address:?}; allowed: an IPv4 or IPv6 unicast address, neither loopback nor link-local"
            ),
        );
    }
    assert_one(
        &with("address = \"10.0.0.100", "address = \"10.0.0.3\""),
        "10: service[0].address: 10.0.0.3 is the peer's own address; allowed: a free address",
    );
}

#[test]
fn address_families_agree() {
    assert_one(
        &with("address = \"10.0.0.100", "address = \"2001:db8::100\""),
        "8: service[0].peer_address: the peer's address 10.0.0.3 and the service's address 2001:db8::100 are of \
         different families; allowed: the peer's IPv6 address on the service's interface",
    );
    assert_one(
        &and("application = \"[::1]:80\"\n"),
        "15: service[0].application: [::1]:80 and the service's address 10.0.0.100 are of different families; \
         allowed: an IPv4 address",
    );
}

#[test]
fn the_application_is_not_at_a_services_address() {
    assert_one(
        &and("application = \"10.0.0.100:8080\"\n"),
        "15: service[0].application: 10.0.0.100:8080 is at a service's address, where relayed connections would \
         collide with the clients' own; allowed: another address of this node, such as loopback",
    );
    assert_one(
        &and("application = \"127.0.0.1\"\n"),
        "15: service[0].application: is \"127.0.0.1\"; allowed: \"ADDRESS:PORT\" or \"[ADDRESS]:PORT\" with an \
         address of this node",
    );
}

#[test]
fn input_is_kept_for_services_whose_log_has_both_directions() {
    let replay = SMALLEST.replace("\"http\"", "\"replay\"");
    let kept = |more: &str| parse(&format!("{replay}{more}")).unwrap().services[0].keep_input;
    assert!(kept("keep_input = true\n") && !kept(""));
    assert_one(
        &and("keep_input = true\n"),
        "15: service[0].keep_input: belongs to policy = \"replay\" only",
    );
    assert_one(
        &wrong(&format!("{replay}commit = \"pr\"\nkeep_input = true\n")),
        "16: service[0].keep_input: needs commit = \"prs\"",
    );
}

#[test]
fn an_order_is_recorded_for_services_whose_output_is_compared() {
    let replica = SMALLEST.replace("\"http\"", "\"replica\"");
    let recorded = "recorded_order = \"/run/order.sock\"\n";
    assert!(parse(&format!("{replica}{recorded}")).is_ok());
    for commit in ["pr", "immediate"] {
        assert_one(
            &wrong(&format!("{replica}commit = \"{commit}\"\n{recorded}")),
            "16: service[0].recorded_order: needs commit = \"prs\"",
        );
    }
}

#[test]
fn an_application_behind_a_stage_belongs_to_a_service_that_exports_its_state() {
    let snapshot = SMALLEST.replace("\"http\"", "\"snapshot\"");
    let config = parse(&format!("{snapshot}staged_application = \"127.0.0.1:8080\"\n")).unwrap();
    let staged = config.services[0].staged_application;
    assert_eq!(staged, Some("127.0.0.1:8080".parse().unwrap()));
    assert_one(
        &and("staged_application = \"127.0.0.1:8080\"\n"),
        "15: service[0].staged_application: belongs to policy = \"snapshot\" only",
    );
    for (address, what) in [
        (
            "127.0.0.1:80",
            "service[0].staged_application: 127.0.0.1:80 is the address of the stage itself; allowed: another address or port",
        ),
        (
            "[::1]:8080",
            "[::1]:8080 and the service's address 10.0.0.100 are of different families; allowed: an IPv4 address",
        ),
    ] {
        let text = format!("{snapshot}staged_application = \"{address}\"\n");
        let problems = wrong(&text);
        assert!(
            problems.iter().any(|problem| problem.contains(what)),
            "{problems:?}"
        );
    }
}

#[test]
fn services_do_not_get_in_each_others_way() {
    assert_one(
        &second("name = \"web\"\naddress = \"10.0.0.101\"\nport = 81\n"),
        r#"20: service[1].name: "web" is the name of service[0] too; names must be unique"#,
    );
    assert_one(
        &second("name = \"api\"\naddress = \"10.0.0.100\"\nport = 80\n"),
        "22: service[1].port: 10.0.0.100:80 is service[0] too; allowed: another address or port",
    );
    assert_one(
        &second("name = \"api\"\naddress = \"10.0.0.101\"\nport = 80\n"),
        "16: service[1].application: 127.0.0.1:80 is also the application of service[0]: relayed connections of one \
         client to both services could have the same addresses and ports; allowed: another local address, such as \
         127.0.0.2:80",
    );
    let place = "differs from service[0], which has the same address; the two must agree";
    let problems = and(
        "\n[[service]]\nname = \"tls\"\naddress = \"10.0.0.100\"\nport = 443\npolicy = \"http\"\n\
         interface = \"eth1\"\nprimary = \"alpha\"\npeer_address = \"10.0.0.4\"\n",
    );
    let expected = [(21, "interface"), (22, "primary"), (23, "peer_address")]
        .map(|(line, key)| format!("steadfast.toml:{line}: service[1].{key}: {place}"));
    assert_eq!(problems, expected);
}

#[test]
fn what_becomes_of_a_full_log_is_said_in_one_word() {
    let of_all = parse(&format!("{SMALLEST}[log]\nat_limit = \"spill\"\n")).unwrap();
    assert_eq!(of_all.services[0].at_limit, AtLimitSetting::Spill);
    assert_eq!(of_all.log.spill_dir.to_str(), Some("/var/tmp"));
    let of_one = parse(&format!(
        "{SMALLEST}at_limit = \"spill\"\n[log]\nspill_mb = 100\n"
    ))
    .unwrap();
    assert_eq!(of_one.services[0].at_limit, AtLimitSetting::Spill);
    assert_eq!(
        (of_one.log.at_limit, of_one.log.spill_bytes),
        (AtLimitSetting::Unprotect, 100 << 20)
    );
    assert_one(
        &and("[log]\nat_limit = \"drop\"\n"),
        "16: log.at_limit: is \"drop\"; allowed: \"unprotect\", \"spill\" or \"slow\"",
    );
    assert_one(
        &and("[log]\nspill_mb = 100\n"),
        "16: log.spill_mb: is of no use: no service has at_limit = \"spill\"",
    );
    assert_one(
        &and("[log]\nat_limit = \"spill\"\nspill_dir = \"spill\"\n"),
        "17: log.spill_dir: is \"spill\"; allowed: an absolute path",
    );
}

#[test]
fn limits_hold_between_fields() {
    assert_one(
        &and("[log]\nper_connection_mb = 3000\n"),
        "16: log.per_connection_mb: is 3000 MB, more than total_mb (2048 MB); allowed: at most total_mb",
    );
    assert_one(
        &and("[detector]\nheartbeat_ms = 1000\n"),
        "1: node.agent_timeout_ms: is 1000 ms, shorter than detection (heartbeat_ms × missed = 4000 ms); allowed: \
         at least that",
    );
}

#[test]
fn headers_and_exit_codes_are_checked_one_by_one() {
    assert_one(
        &and("volatile_headers = [\"Date\", \"X Y\"]\n"),
        "15: service[0].volatile_headers: element 1 is \"X Y\"; allowed: the name of an HTTP header \
         that neither frames nor identifies the reply",
    );
    assert_one(
        &and("crash_exit_codes = [1, 0]\n"),
        "15: service[0].crash_exit_codes: element 1 is 0; allowed: an integer from 1 to 255",
    );
    assert_one(
        &and("volatile_headers = [\"ETag\"]\n"),
        "15: service[0].volatile_headers: element 0 is \"ETag\"; allowed: the name of an HTTP header \
         that neither frames nor identifies the reply",
    );
    let replica = SMALLEST.replace("\"http\"", "\"replica\"") + "volatile_headers = []\n";
    assert_one(
        &wrong(&replica),
        "15: service[0].volatile_headers: belongs to policy = \"http\" only",
    );
}

#[test]
fn what_is_chosen_for_http_is_a_word() {
    for (key, wrong_word, allowed) in [
        ("opaque", "proxy", ["unprotected", "replica"]),
        ("after_takeover", "reset", ["keep", "close"]),
        ("cut_replies", "half", ["rest", "whole"]),
    ] {
        let [default, other] = allowed;
        assert_one(
            &and(&format!("{key} = {wrong_word:?}\n")),
            &format!("15: service[0].{key}: is {wrong_word:?}; allowed: {default:?} or {other:?}"),
        );
        let replica = SMALLEST.replace("\"http\"", "\"replica\"") + &format!("{key} = {other:?}\n");
        assert_one(
            &wrong(&replica),
            &format!("15: service[0].{key}: belongs to policy = \"http\" only"),
        );
    }
}

#[test]
fn state_is_copied_for_replicas_only_by_a_command_and_within_bounds() {
    let replica = SMALLEST.replace("\"http\"", "\"replica\"");
    assert_eq!(parse(&replica).unwrap().services[0].state_sync, None);
    let state_sync = parse(&format!("{replica}state_sync = [\"copy\"]\n"))
        .unwrap()
        .services[0]
        .state_sync
        .clone()
        .unwrap();
    assert_eq!(
        (state_sync.timeout, state_sync.hold),
        (Duration::from_secs(10), Duration::from_millis(500))
    );
    assert_one(
        &and("state_sync = [\"copy\"]\n"),
        "15: service[0].state_sync: belongs to policy = \"replica\" only",
    );
    for (keys, expected) in [
        (
            "state_sync = []",
            "15: service[0].state_sync: names no program; allowed: an array of a program and its arguments",
        ),
        (
            "state_sync = \"copy\"",
            "15: service[0].state_sync: is of type string; allowed: an array",
        ),
        (
            "state_sync_hold_ms = 100",
            "15: service[0].state_sync_hold_ms: is of no use without state_sync",
        ),
        (
            "state_sync = [\"copy\"]\nstate_sync_hold_ms = 9",
            "16: service[0].state_sync_hold_ms: is 9; allowed: an integer from 10 to 10000",
        ),
        (
            "state_sync = [\"copy\"]\nstate_sync_timeout_ms = 0",
            "16: service[0].state_sync_timeout_ms: is 0; allowed: an integer from 100 to 3600000",
        ),
    ] {
        assert_one(&wrong(&format!("{replica}{keys}\n")), expected);
    }
}

#[test]
fn a_rule_of_re_execution_is_a_word_or_a_list() {
    for (text, rule) in [
        ("\"safe\"", Reexecute::SAFE),
        ("\"idempotent\"", Reexecute::IDEMPOTENT),
        ("\"all\"", Reexecute::ALL),
        ("[\"GET\", \"HEAD\", \"OPTIONS\", \"TRACE\"]", Reexecute::SAFE),
    ] {
        let config = parse(&format!("{SMALLEST}reexecute = {text}\n")).unwrap();
        assert_eq!(config.services[0].reexecute, rule, "{text}");
    }
    assert_one(
        &and("reexecute = \"none\"\n"),
        "15: service[0].reexecute: is \"none\"; allowed: \"safe\", \"idempotent\", \"all\" or an array of methods and \
         \"Idempotency-Key\"",
    );
    assert_one(
        &and("reexecute = [\"GET\", \"post\"]\n"),
        "15: service[0].reexecute: element 1 is \"post\"; allowed: a method of RFC 9110 or 5789 but CONNECT, in capitals, \
         or \"Idempotency-Key\"",
    );
    let replica = SMALLEST.replace("\"http\"", "\"replica\"") + "reexecute = \"all\"\n";
    assert_one(
        &wrong(&replica),
        "15: service[0].reexecute: belongs to policy = \"http\" only",
    );
}
