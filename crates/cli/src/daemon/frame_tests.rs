use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

fn draw() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn key(digit: char) -> SecretKey {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), digit.to_string().repeat(64)).unwrap();
    std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o600)).unwrap();
    SecretKey::read(file.path()).unwrap()
}

/// One node's end of the exchange of datagrams.
struct DatagramEnd(Sealer, Opener);

fn end(name: &str, peer: &str, key: Option<&SecretKey>) -> DatagramEnd {
    speaking(name, peer, key, VERSIONS)
}

fn speaking(name: &str, peer: &str, key: Option<&SecretKey>, versions: RangeInclusive<u8>) -> DatagramEnd {
    let (sealer, opener) = super::open((name, peer), key, versions, draw);
    DatagramEnd(sealer, opener)
}

impl DatagramEnd {
    fn say(&mut self, words: &str) -> Vec<u8> {
        self.0.seal(FrameKind::Heartbeat, words.as_bytes())
    }

    fn hear(&mut self, datagram: &[u8]) -> Result<String, Refused> {
        let opened = self.1.open(datagram)?;
        Ok(String::from_utf8(opened.contents.to_vec()).unwrap())
    }
}

/// Two ends that have echoed each other's nonce. So each end knows that the other's datagrams are not a recording.
fn pair(key: Option<&SecretKey>) -> (DatagramEnd, DatagramEnd) {
    let (mut a, mut b) = (end("a", "b", key), end("b", "a", key));
    assert_eq!(b.hear(&a.say("1")), Err(Refused::Unproved));
    assert_eq!(a.hear(&b.say("2")).as_deref(), Ok("2"));
    assert_eq!(b.hear(&a.say("3")).as_deref(), Ok("3"));
    (a, b)
}

#[test]
fn what_is_said_is_heard_once() {
    for key in [None, Some(&key('7'))] {
        let (mut a, mut b) = pair(key);
        let (first, second) = (a.say("first"), a.say(""));
        assert_eq!(b.hear(&second).as_deref(), Ok(""));
        let late = b.1.open(&first).unwrap();
        assert!(late.is_late && late.contents == b"first");
        assert_eq!(b.hear(&first), Err(Refused::Again));
    }
}

#[test]
fn only_the_peer_with_the_key_is_heard() {
    let key = key('7');
    let (mut a, mut b) = pair(Some(&key));
    assert_eq!(b.hear(&end("a", "b", None).say("x")), Err(Refused::NoTag));
    assert_eq!(
        b.hear(&end("a", "b", Some(&self::key('8'))).say("x")),
        Err(Refused::WrongTag)
    );
    assert_eq!(
        b.hear(&end("c", "b", Some(&key)).say("x")),
        Err(Refused::WrongTag)
    );
    let own = b.say("x");
    assert_eq!(b.hear(&own), Err(Refused::WrongTag), "its own words, sent back");
    assert_eq!(
        end("b", "a", None).hear(&a.say("x")),
        Err(Refused::NoKey),
        "a node without a key could not tell tagged datagrams from forged ones"
    );
}

#[test]
fn no_bit_can_be_changed() {
    let (mut a, mut b) = pair(Some(&key('7')));
    let datagram = a.say("words");
    for bit in 0..8 * datagram.len() {
        let mut forged = datagram.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(b.hear(&forged).is_err(), "bit {bit}");
    }
    for length in 0..datagram.len() {
        assert!(b.hear(&datagram[..length]).is_err(), "{length} bytes");
    }
    assert_eq!(b.hear(&datagram).as_deref(), Ok("words"));
}

#[test]
fn a_recording_is_not_heard_after_either_end_was_started_anew() {
    let key = key('7');
    let (mut a, mut b) = pair(Some(&key));
    let recording: Vec<_> = (0..200).map(|_| a.say("old")).collect();
    let mut b_again = end("b", "a", Some(&key));
    for datagram in &recording {
        assert_eq!(b_again.hear(datagram), Err(Refused::Unproved));
    }
    // Now node a starts anew. Node b runs on and has heard nothing of the recording.
    let mut a_again = end("a", "b", Some(&key));
    assert_eq!(a_again.hear(&b.say("x")), Err(Refused::Unproved));
    assert_eq!(b.hear(&a_again.say("new")).as_deref(), Ok("new"));
    for datagram in &recording {
        assert_eq!(b.hear(datagram), Err(Refused::Unproved));
    }
    assert_eq!(b.hear(&a_again.say("newer")).as_deref(), Ok("newer"));
}

#[test]
fn both_speak_the_highest_version_that_both_speak() {
    let cases = [
        (1..=1, 1..=1, Some(1)),
        (1..=3, 2..=5, Some(3)),
        (2..=5, 1..=3, Some(3)),
        (1..=2, 3..=4, None),
    ];
    for (ours, theirs, expected) in cases {
        assert_eq!(common(&ours, &theirs), expected, "{ours:?} and {theirs:?}");
    }
    let (mut old, mut new) = (speaking("a", "b", None, 1..=2), speaking("b", "a", None, 1..=3));
    let first = new.say("");
    assert_eq!(first[0], 1, "an unheard peer may know only this version");
    let _ = old.hear(&first);
    let _ = new.hear(&old.say(""));
    let _ = old.hear(&new.say(""));
    assert_eq!((old.say("")[0], new.say("")[0]), (2, 2));
    let mut newest = speaking("b", "a", None, 4..=4);
    let _ = newest.hear(&old.say(""));
    let said = newest.say("");
    assert_eq!(old.hear(&said), Err(Refused::Version));
}

/// Lets both ends talk. Then returns the version that each end speaks, or `None` if the other end refuses it.
fn versions_of(one: &mut DatagramEnd, two: &mut DatagramEnd) -> [Option<u8>; 2] {
    for _ in 0..3 {
        let _ = two.hear(&one.say(""));
        let _ = one.hear(&two.say(""));
    }
    let [of_one, of_two] = [one.say("words"), two.say("words")];
    let heard = |end: &mut DatagramEnd, said: &[u8]| end.hear(said).map(|_| said[0]).ok();
    [heard(two, &of_one), heard(one, &of_two)]
}

#[test]
fn ends_of_different_versions_come_to_the_highest_common_one_from_wherever_they_begin() {
    for (ours, theirs) in [(1..=1, 1..=2), (1..=3, 2..=5), (2..=5, 1..=3), (1..=4, 4..=4)] {
        let common = common(&ours, &theirs);
        let mut one = speaking("a", "b", None, ours.clone());
        let mut two = speaking("b", "a", None, theirs.clone());
        assert_eq!(
            versions_of(&mut one, &mut two),
            [common; 2],
            "{ours:?} and {theirs:?}"
        );
    }
    let (mut one, mut two) = (speaking("a", "b", None, 1..=2), speaking("b", "a", None, 3..=4));
    assert_eq!(versions_of(&mut one, &mut two), [None; 2]);
}

#[test]
fn a_pair_is_upgraded_node_by_node_and_back() {
    let old = |name, peer| speaking(name, peer, None, 1..=1);
    let new = |name, peer| speaking(name, peer, None, 1..=2);
    let (mut a, mut b) = (old("a", "b"), old("b", "a"));
    assert_eq!(versions_of(&mut a, &mut b), [Some(1); 2]);
    a = new("a", "b");
    assert_eq!(versions_of(&mut a, &mut b), [Some(1); 2], "one is new");
    b = new("b", "a");
    assert_eq!(versions_of(&mut a, &mut b), [Some(2); 2], "both are new");
    a = old("a", "b");
    assert_eq!(versions_of(&mut a, &mut b), [Some(1); 2], "one is old again");
}

#[test]
fn what_is_no_frame_is_refused() {
    let mut b = end("b", "a", None);
    assert_eq!(b.hear(b""), Err(Refused::Malformed));
    assert_eq!(
        b.hear(br#"{"node":"a","incarnation":1,"sequence":1,"services":[]}"#),
        Err(Refused::Malformed)
    );
    let mut a = end("a", "b", None);
    let _ = a.hear(&b.say(""));
    let mut strange = a.say("");
    strange[3] = 99;
    assert_eq!(b.hear(&strange), Err(Refused::Kind));
}
