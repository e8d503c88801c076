//! Tests that clients that wait for their first byte go first.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::lab::*;
use crate::keeper::kept::{Keeper, KeptConnection};
use crate::keeper::turns::{PATIENCE, STUCK};
use crate::keeper::{ConnectionEnding, KeeperOptions};

/// A keeper with two connections. The client of the first connection has received its first byte.
fn two() -> (Rc<Keeper>, [Rc<KeptConnection>; 2]) {
    let keeper = Keeper::new(KeeperOptions::new("unused".into()));
    let kept = [1, 2].map(|id| {
        let adoption = adoption(id, &connection(), nobody(), idle());
        keeper.enter(adoption).expect("a number of its own")
    });
    let turns = &keeper.scratch.turns;
    turns.begin(&kept[0].turn);
    turns.end(&kept[0].turn);
    (Rc::new(keeper), kept)
}

async fn waited(keeper: &Keeper, kept: &KeptConnection) -> Duration {
    let begun = Instant::now();
    keeper.scratch.turns.give_way(&kept.turn).await;
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn who_is_served_gives_way_until_all_are() {
    let (keeper, [served, waits]) = two();
    let turns = &keeper.scratch.turns;
    assert_eq!(waited(&keeper, &served).await, Duration::ZERO, "nobody waits");
    turns.begin(&waits.turn);
    assert_eq!(
        waited(&keeper, &waits).await,
        Duration::ZERO,
        "a waiting client does not give way"
    );
    let soon = STUCK / 5;
    let (length, ()) = tokio::join!(waited(&keeper, &served), async {
        tokio::time::sleep(soon).await;
        turns.end(&waits.turn);
    });
    assert!((soon..STUCK).contains(&length), "{length:?}");
    assert_eq!(waited(&keeper, &served).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_slow_application_holds_nobody_else_up() {
    let (keeper, [served, waits]) = two();
    keeper.scratch.turns.begin(&waits.turn);
    let length = waited(&keeper, &served).await;
    assert!((STUCK..2 * STUCK).contains(&length), "{length:?}");
    assert_eq!(waited(&keeper, &served).await, Duration::ZERO);
}

/// Even if waiting clients keep arriving, a served client is held up for at most [`PATIENCE`].
#[tokio::test(start_paused = true)]
async fn giving_way_has_an_end() {
    let (keeper, [served, waits]) = two();
    let turns = &keeper.scratch.turns;
    let come = async {
        loop {
            turns.begin(&waits.turn);
            tokio::time::sleep(STUCK / 5).await;
            turns.end(&waits.turn);
            turns.begin(&waits.turn);
        }
    };
    let length = tokio::select! {
        length = waited(&keeper, &served) => length,
        () = come => unreachable!("it has no end"),
    };
    assert!(length < PATIENCE + STUCK, "{length:?}");
}

/// A served client does not wait for a connection that has ended without being served.
#[tokio::test(start_paused = true)]
async fn who_is_gone_is_not_waited_for() {
    let (keeper, [served, waits]) = two();
    keeper.scratch.turns.begin(&waits.turn);
    keeper.leave(&waits, ConnectionEnding::Failed, String::new());
    assert_eq!(waited(&keeper, &served).await, Duration::ZERO);
}
