//! Prepared conversations are cut at every byte. A second execution, whose `Date` header differs, continues them.

mod conversations;
mod cuts;
mod last_replies;
mod rests;
mod resumers;
mod stages;
mod trackers;
mod writes;

use super::*;
use crate::Offset;

/// A tracker that has seen `input` and `output` in pieces of `step` bytes.
fn tracker(input: &[u8], output: &[u8], step: usize) -> Tracker {
    let mut tracker = Tracker::new(Rules::default());
    input.chunks(step).for_each(|piece| tracker.on_input(piece));
    output.chunks(step).for_each(|piece| tracker.on_output(piece));
    tracker
}

/// Output to the client when the application sends `application` in pieces of `step` bytes and then ends its stream.
fn continued(
    resume: HttpResume,
    application: &[u8],
    step: usize,
) -> Result<Vec<u8>, (HttpMismatch, Vec<u8>)> {
    let (mut resumer, mut to_client) = HttpResumer::new(resume);
    for piece in application.chunks(step) {
        if let Err(mismatch) = resumer.on_application(piece, &mut to_client) {
            return Err((mismatch, to_client));
        }
    }
    resumer
        .on_application_end(&mut to_client)
        .map_err(|mismatch| (mismatch, to_client.clone()))?;
    assert!(resumer.is_transparent() || resumer.is_finished());
    Ok(to_client)
}
