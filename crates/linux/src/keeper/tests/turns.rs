//! Who goes first.

use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::lab::*;
use crate::keeper::Options;
use crate::keeper::kept::{Keeper, Kept};
use crate::keeper::turns::{PATIENCE, STUCK};

const GET: &str = "GET / HTTP/1.1\r\n\r\n";
const REPLY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A keeper with two connections; the client of the first has had its first byte.
fn two() -> (std::rc::Rc<Keeper>, [std::rc::Rc<Kept>; 2]) {
    let keeper = Keeper::new(Options::new("unused".into()));
    let kept = [1, 2].map(|id| {
        let adoption = adoption(id, &connection(), nobody(), idle());
        keeper.enter(adoption).expect("a number of its own")
    });
    let turns = &keeper.scratch.turns;
    turns.begin(&kept[0]);
    turns.end(&kept[0]);
    (std::rc::Rc::new(keeper), kept)
}

async fn waited(keeper: &Keeper, kept: &Kept) -> Duration {
    let begun = Instant::now();
    keeper.scratch.turns.give_way(kept).await;
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn who_is_served_gives_way_until_all_are() {
    let (keeper, [served, waits]) = two();
    let turns = &keeper.scratch.turns;
    assert_eq!(waited(&keeper, &served).await, Duration::ZERO, "nobody waits");
    turns.begin(&waits);
    assert_eq!(
        waited(&keeper, &waits).await,
        Duration::ZERO,
        "it is first itself"
    );
    let soon = STUCK / 5;
    let (length, ()) = tokio::join!(waited(&keeper, &served), async {
        tokio::time::sleep(soon).await;
        turns.end(&waits);
    });
    assert!((soon..STUCK).contains(&length), "{length:?}");
    assert_eq!(waited(&keeper, &served).await, Duration::ZERO);
}

/// However long the application takes for its reply.
#[tokio::test(start_paused = true)]
async fn a_slow_application_holds_nobody_else_up() {
    let (keeper, [served, waits]) = two();
    keeper.scratch.turns.begin(&waits);
    let length = waited(&keeper, &served).await;
    assert!((STUCK..2 * STUCK).contains(&length), "{length:?}");
    assert_eq!(waited(&keeper, &served).await, Duration::ZERO);
}

/// Nor others who come again and again.
#[tokio::test(start_paused = true)]
async fn giving_way_has_an_end() {
    let (keeper, [served, waits]) = two();
    let turns = &keeper.scratch.turns;
    let come = async {
        loop {
            turns.begin(&waits);
            tokio::time::sleep(STUCK / 5).await;
            turns.end(&waits);
            turns.begin(&waits);
        }
    };
    let length = tokio::select! {
        length = waited(&keeper, &served) => length,
        () = come => unreachable!("it has no end"),
    };
    assert!(length < PATIENCE + STUCK, "{length:?}");
}

/// A connection that ends unserved is not waited for.
#[test]
fn who_is_gone_is_not_waited_for() {
    let mut lab = Lab::new();
    let (slow, application_of_slow) = application(|mut stream| {
        read_request(&mut stream);
        thread::sleep(Duration::from_millis(200));
    });
    let connection_of_slow = connection();
    let plan = http(GET.as_bytes(), b"");
    let adoption_of_slow = adoption(1, &connection_of_slow, slow, plan.clone());
    drop(lab.adopt(adoption_of_slow, connection_of_slow, &[GET.as_bytes()]));
    let (address, application) = application(|mut stream| {
        for _ in 0..2 {
            read_request(&mut stream);
            say(&mut stream, REPLY);
        }
    });
    let connection = connection();
    let adoption = adoption(2, &connection, address, plan);
    let mut client = lab.adopt(adoption, connection, &[GET.as_bytes()]);
    assert_eq!(read_exactly(&mut client, REPLY.len()), REPLY.as_bytes());
    say(&mut client, GET);
    assert_eq!(read_to_end(&mut client).unwrap(), REPLY.as_bytes());
    application.join().unwrap();
    application_of_slow.join().unwrap();
    lab.ended(1);
}
