//! A reply is cut, and a second application's output continues it. The test checks that the client gets exactly one whole, correct reply.

use steadfast_proto::restart::http::{HttpResume, HttpResumer, REFUSAL};

use super::other::KawaEnd;
use super::replies::{asked, final_reply};

/// The bytes that the client gets if the application sends `regenerated` in pieces of `step` bytes. `None` if the connection is cut off.
fn continued(resume: HttpResume, regenerated: &[u8], step: usize) -> Option<(Vec<u8>, HttpResumer)> {
    let (mut resumer, mut to_client) = HttpResumer::new(resume);
    for piece in regenerated.chunks(step) {
        resumer.on_application(piece, &mut to_client).ok()?;
    }
    resumer.on_application_end(&mut to_client).ok()?;
    Some((to_client, resumer))
}

/// Whether all bytes are printable ASCII, blanks, tabs and line ends, and every LF follows a CR. Steadfast's parser and Kawa read such a
/// stream alike.
fn is_plain(stream: &[u8]) -> bool {
    let text = |byte: &u8| byte.is_ascii_graphic() || b" \t\r\n".contains(byte);
    let ends_line = |at: usize| stream[at] != b'\n' || stream[..at].ends_with(b"\r");
    stream.iter().all(text) && (0..stream.len()).all(ends_line)
}

#[test]
fn a_continued_reply_is_one_reply() {
    fuzz::target!("http_continued", |input| {
        let [requests, said, regenerated] = super::parts(input);
        let Some((mut tracker, to_head)) = asked(requests) else {
            return;
        };
        tracker.on_output(said);
        let answered = to_head.len() - tracker.unanswered();
        let Ok(resume @ HttpResume::Again { .. }) = tracker.resume() else {
            return;
        };
        let whole = continued(resume.clone(), regenerated, usize::MAX);
        // Pieces of 1 and of 7 bytes for short streams. The pieces are larger for long streams, to limit the time.
        for step in [1, 7].map(|step| step + regenerated.len() / 1000) {
            let again = continued(resume.clone(), regenerated, step);
            let streams =
                |one: &Option<(Vec<u8>, HttpResumer)>| one.as_ref().map(|(stream, _)| stream.clone());
            assert!(
                streams(&again) == streams(&whole),
                "the output depends on the size of the pieces: {step}"
            );
        }
        let Some((continuation, resumer)) = whole else {
            return;
        };
        if resumer.refusal().is_some() {
            assert!(continuation.ends_with(REFUSAL));
            return;
        }
        let client = [said, continuation.as_slice()].concat();
        let mut begin = 0;
        for &to_head in &to_head[..answered] {
            let (interim, reply) = final_reply(&client[begin..], to_head);
            let KawaEnd::At(length) = reply.end else { return };
            begin += interim + length;
        }
        let (_, cut) = final_reply(&said[begin.min(said.len())..], to_head[answered]);
        if matches!(cut.end, KawaEnd::Wrong) {
            return; // Kawa refuses the bytes before the cut, for example a status line without a space after the code
        }
        let (_, told) = final_reply(&client[begin..], to_head[answered]);
        let (_, made) = final_reply(regenerated, to_head[answered]);
        if matches!(made.end, KawaEnd::Wrong | KawaEnd::Open) || made.status == 101 || !is_plain(&client) {
            return;
        }
        assert!(
            matches!(told.end, KawaEnd::At(_) | KawaEnd::WithStream),
            "{:?}: {}",
            told.end,
            client.escape_ascii()
        );
        if made.status == 206 && told.status == 200 {
            assert!(
                told.payload.ends_with(&made.payload),
                "the partial reply is the end of the whole reply"
            );
        } else {
            assert_eq!(told.status, made.status);
            assert_eq!(told.payload, made.payload);
        }
    });
}
