//! Captures that are incomplete or broken, and frames that the judge must ignore.

use super::*;

#[test]
fn frames_cut_behind_the_headers_are_judged_by_their_lengths() {
    let (mut run, expected) = takeover(false);
    // Enough for the headers of Ethernet and IPv4, and of TCP with all options of a SYN. A data segment keeps 4 bytes of its data.
    run.snap = 14 + 20 + 36;
    let verdict = run.judge(&expected);
    assert!(verdict.holds(), "{verdict:#?}");
    let in_the_last_two = "derful".len() as u64 - 4;
    assert_eq!(verdict.contents.not_captured, 2 * in_the_last_two);
    run.snap = 14 + 20 + 35;
    let verdict = run.judge(&expected);
    assert!(!verdict.holds());
    assert!(
        verdict.unproven.iter().any(|one| one.contains("cannot be read")),
        "{verdict:#?}"
    );
}

#[test]
fn a_capture_with_losses_proves_no_absence_and_accuses_nobody() {
    let mut run = SyntheticRun::new();
    run.open();
    run.hello_past_the_wire();
    run.primary(Say { ack: 5, ..SAY });
    run.dropped[Point::NodeB as usize] = 1;
    let verdict = run.judge(&run.expected(None));
    assert_eq!(verdict.violations, []);
    assert!(!verdict.holds());
    assert!(
        verdict.unproven[0].contains("node-b missed packets"),
        "{:?}",
        verdict.unproven
    );
    assert!(
        verdict.unproven[1].contains("commit rules"),
        "{:?}",
        verdict.unproven
    );
}

#[test]
fn broken_files_are_errors_that_name_the_file() {
    let (run, expected) = takeover(false);
    let directory = TempDir::new().unwrap();
    let captures = run.write(&directory);
    let path: PathBuf = captures[2].path.clone();
    let whole = std::fs::read(&path).unwrap();
    let error = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        format!("{:#}", check(&captures, &expected).unwrap_err())
    };
    let cut = error(&whole[..whole.len() - 1]);
    assert!(
        cut.contains("node-a") && cut.contains("cut off in the data"),
        "{cut}"
    );
    assert!(error(b"hello, world").contains("cut off in the file header"));
    let mut garbled = whole.clone();
    garbled[32..36].fill(0xff);
    assert!(error(&garbled).contains("garbled at packet 0"));
    let mut clock_set = whole.clone();
    clock_set[24..28].fill(0xff);
    assert!(error(&clock_set).contains("was the clock set?"));
    std::fs::remove_file(&path).unwrap();
    let error = format!("{:#}", check(&captures, &expected).unwrap_err());
    assert!(error.contains("node-a"), "{error}");
}

#[test]
fn a_file_with_fewer_packets_than_were_captured_proves_nothing() {
    let (run, expected) = takeover(false);
    let directory = TempDir::new().unwrap();
    let mut captures = run.write(&directory);
    captures[1].packets += 1;
    let verdict = check(&captures, &expected).unwrap();
    assert!(verdict.unproven[0].contains("router"), "{:?}", verdict.unproven);
}

#[test]
fn contradictory_expectations_are_refused() {
    let (run, mut expected) = takeover(false);
    expected.wires.push(expected.wires[0]);
    let directory = TempDir::new().unwrap();
    let error = check(&run.write(&directory), &expected).unwrap_err().to_string();
    assert!(error.contains("wires[1] begins before"), "{error}");
}

/// The wire's cable is cut. The switch forgets the wire's port, and floods frames for the wire to all ports.
#[test]
fn a_frame_that_is_flooded_to_the_router_is_not_shown() {
    const FLOODED: PacketRoute = &[(Point::NodeA, MAC_A, MAC_B), (Point::Router, MAC_A, MAC_B)];
    let mut run = SyntheticRun::new();
    run.open();
    run.exchange();
    let reply = Say {
        at: 3,
        data: b"der",
        ack: 5,
        ..SAY
    };
    run.say(true, FLOODED, reply);
    assert_eq!(run.broken(&run.expected(None)), []);
    run.say(true, PAST_THE_WIRE, reply);
    assert_eq!(
        run.broken(&run.expected(None)),
        [JudgeRule::OutputCommit, JudgeRule::ThroughWire]
    );
}
