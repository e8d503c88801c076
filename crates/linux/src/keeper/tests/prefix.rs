//! The input that is kept for a node that becomes the cold backup.

use std::thread;
use std::time::{Duration, Instant};

use proto::restart::prefix::{KeepLimits, PrefixAsk, PrefixPart};
use proto::restart::replay::{EarlierOutput, Repetition, ReplayTracker};
use proto::{Offset, Seq};

use super::lab::*;
use crate::keeper::{Adoption, AdoptionPlan, KeepInput};

const BEGIN: (Seq, Seq) = (Seq(u32::MAX - 10), Seq(77));

fn replay(resume: Repetition, earlier: Option<EarlierOutput>) -> AdoptionPlan {
    AdoptionPlan::Replay {
        resume,
        earlier,
        state: None,
        begins_at: BEGIN,
    }
}

fn keep(connection_bytes_max: u64, files: bool) -> KeepInput {
    KeepInput {
        limits: KeepLimits {
            connection_bytes_max,
            bytes_max: u64::MAX,
        },
        files: files.then(|| (std::env::temp_dir(), u64::MAX)),
    }
}

/// Asks for the input before byte `size` until it has come. Returns it with the output so far.
fn fetch(lab: &mut KeeperLab, client: std::net::SocketAddr, size: u64) -> (Vec<u8>, EarlierOutput) {
    let mut input = Vec::new();
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "{} bytes of {size}", input.len());
        let ask = PrefixAsk {
            client,
            input: Offset(size).to_seq(BEGIN.0),
            from: input.len() as u64,
        };
        let answer = lab.agent().prefix("web", &ask).unwrap().expect("it is kept");
        let PrefixPart {
            begins_at,
            bytes,
            output,
            ..
        } = answer.content.expect("it is kept");
        assert_eq!(begins_at, BEGIN);
        input.extend(bytes);
        match output {
            Some(output) if input.len() as u64 == size => return (input, output),
            _ => thread::sleep(Duration::from_millis(2)),
        }
    }
}

#[test]
fn the_whole_input_is_kept_in_memory_and_in_files() {
    let logged = pattern(100_000);
    let later = pattern(300_000);
    for files in [false, true] {
        let mut lab = KeeperLab::new();
        let (address, application) = application(|mut stream| {
            say(&mut stream, "hello");
            read_to_end(&mut stream).unwrap()
        });
        let connection = connection();
        let mut said = ReplayTracker::new();
        said.on_output(b"lo");
        let mut earlier = ReplayTracker::new();
        earlier.on_output(b"hel");
        let Repetition { bytes, hash, .. } = earlier.repetition();
        let plan = replay(said.repetition(), Some(EarlierOutput { bytes, hash }));
        let limit = if files { 100_000 } else { u64::MAX };
        let adoption = Adoption {
            keep: Some(keep(limit, files)),
            ..adoption(1, &connection, address, plan)
        };
        let address = adoption.client;
        let mut client = lab.adopt(adoption, connection, &[&logged]);
        say(&mut client, &later);
        let (input, output) = fetch(&mut lab, address, 400_000);
        assert!(input == [&*logged, &later].concat());
        let mut all = ReplayTracker::new();
        all.on_output(b"hello");
        let Repetition { bytes, hash, .. } = all.repetition();
        assert_eq!(output, EarlierOutput { bytes, hash });
        let sums = lab.status().services["web"].clone();
        assert_eq!((sums.kept, sums.kept_given_up), (1, 0));
        end(&client);
        assert!(application.join().unwrap() == input);
        lab.ended(1);
        let client = address;
        let ask = PrefixAsk {
            client,
            input: BEGIN.0,
            from: 0,
        };
        assert_eq!(lab.agent().prefix("web", &ask).unwrap(), None);
        assert_eq!(lab.status().services["web"].kept, 0);
    }
}

#[test]
fn input_beyond_the_limit_is_given_up_and_the_connection_goes_on() {
    let mut lab = KeeperLab::new();
    let (address, application) = application(|mut stream| read_to_end(&mut stream).unwrap());
    let connection = connection();
    let adoption = Adoption {
        keep: Some(keep(100_000, false)),
        ..adoption(
            1,
            &connection,
            address,
            replay(ReplayTracker::new().repetition(), None),
        )
    };
    let ask = PrefixAsk {
        client: adoption.client,
        input: BEGIN.0,
        from: 0,
    };
    let mut client = lab.adopt(adoption, connection, &[]);
    say(&mut client, pattern(200_000));
    end(&client);
    assert_eq!(application.join().unwrap(), pattern(200_000));
    let sums = lab.status().services["web"].clone();
    assert_eq!((sums.kept, sums.kept_given_up), (0, 1));
    if let Some(answer) = lab.agent().prefix("web", &ask).unwrap() {
        assert!(answer.content.is_err());
    }
    lab.ended(1);
}
