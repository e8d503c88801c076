//! Admits connections to an application only while its listener's accept queue has room. If the queue is full, the kernel drops the SYN,
//! and TCP repeats it only after a second. With SYN cookies, the kernel accepts the SYN but answers a later segment with a RST. After a
//! takeover thousands of connections may come at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::network::sockets::room_in_queue;

/// Pause before a full queue is checked again.
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// How long a look at a queue stays valid. Short, because other clients use the queue, too.
const FRESH: Duration = Duration::from_millis(2);

/// The doors of all applications.
#[derive(Default)]
pub(super) struct Doors(RefCell<BTreeMap<SocketAddr, Rc<Mutex<Door>>>>);

/// The door of one application.
#[derive(Default)]
struct Door {
    /// Number of connections that may enter without another look at the queue.
    room: u32,
    /// When room was last seen.
    seen: Option<Instant>,
    /// Since when the queue has been full.
    full_since: Option<Instant>,
    /// Counts admitted connections that the kernel has possibly not put into the queue yet: each connection holds a clone of this `Rc`. A
    /// look at the queue may miss these connections.
    entering: Rc<()>,
}

/// Held for an admitted connection until it is connected or has failed.
pub(super) struct DoorEntry(#[expect(dead_code, reason = "it is counted")] Rc<()>);

impl Doors {
    /// Waits until the accept queue of `application` has room for `client`. Earlier callers go first. If the queue cannot be looked at,
    /// it counts as having room.
    ///
    /// # Errors
    /// The queue has had no room for `limit`.
    pub async fn pass(
        &self,
        client: SocketAddr,
        application: SocketAddr,
        limit: Duration,
    ) -> io::Result<DoorEntry> {
        let door = Rc::clone(self.0.borrow_mut().entry(application).or_default());
        let mut door = door.lock().await; // callers get the lock in order, so only the first one looks at the queue
        if door.seen.is_none_or(|seen| seen.elapsed() > FRESH) {
            door.room = 0;
        }
        while door.room == 0 {
            let entering = u32::try_from(Rc::strong_count(&door.entering) - 1).unwrap_or(u32::MAX);
            match room_in_queue(application, client) {
                Ok(Some(free)) if free <= entering => {
                    let since = *door.full_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > limit {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    sleep(FULL_PAUSE).await;
                }
                Ok(Some(free)) => door.find((free - entering).div_ceil(2)),
                Ok(None) => door.find(1), // nobody listens, as the caller learns when it connects
                Err(error) => {
                    tracing::debug!(%application, %error, "cannot read the listener's accept queue; the connection is not delayed");
                    door.find(1);
                }
            }
        }
        door.room -= 1;
        Ok(DoorEntry(Rc::clone(&door.entering)))
    }
}

impl Door {
    fn find(&mut self, room: u32) {
        (self.room, self.seen, self.full_since) = (room, Some(Instant::now()), None);
    }
}
