//! Makes a reply the last one of its connection by `Connection: close` (RFC 9112 §9.6), so that the client reconnects.
//!
//! The last reply is the first reply that begins while no other request waits. So each request that came before the last reply is answered.
//! The bytes of a connection that does not look like HTTP/1, or that ends by itself, pass unchanged.

use std::collections::VecDeque;

use super::REQUESTS_MAX;
use super::body::Body;
use super::head::{Method, ReplyHead, RequestHead};
use super::section::{HttpFault, take_section};

/// Follows the input and output of an application's connection, from the start of the connection on.
#[derive(Debug, Default)]
pub(super) struct LastReply {
    receiving: HttpStreamState,
    /// One entry for each request without a complete reply: true for a HEAD, whose reply has no body.
    unanswered: VecDeque<bool>,
    replying: HttpStreamState,
    state: LastReplyState,
}

/// Position in a stream of messages.
#[derive(Debug, Default)]
enum HttpStreamState {
    #[default]
    Between,
    Head(Vec<u8>),
    Body(Body),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastReplyState {
    /// No suitable reply yet.
    #[default]
    Looking,
    /// The last reply is being sent. The application gets no further input.
    Saying,
    /// The last reply is complete.
    Said,
    /// No reply will be made the last one.
    Off,
}

impl LastReply {
    /// Whether no reply will be made the last one: everything passes unchanged.
    pub fn is_off(&self) -> bool {
        self.state == LastReplyState::Off
    }

    /// Whether the last reply is complete.
    pub fn is_said(&self) -> bool {
        self.state == LastReplyState::Said
    }

    /// Takes the next bytes for the application. Returns how many of them the application may get; drop the rest.
    pub fn on_input(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            LastReplyState::Looking => {
                if self.receive(bytes).is_err() {
                    self.state = LastReplyState::Off;
                }
                bytes.len()
            }
            LastReplyState::Saying | LastReplyState::Said => 0,
            LastReplyState::Off => bytes.len(),
        }
    }

    /// A regenerated reply is complete (`HttpResumer`). Such a reply does not pass through [`on_output`](Self::on_output).
    pub fn on_answered(&mut self) {
        self.unanswered.pop_front();
    }

    /// Takes the application's next bytes. Appends to `to_client` the bytes that the client is to get.
    pub fn on_output(&mut self, mut bytes: &[u8], to_client: &mut Vec<u8>) {
        while !bytes.is_empty() && !matches!(self.state, LastReplyState::Said | LastReplyState::Off) {
            let before = bytes;
            let followed = self.reply(&mut bytes, to_client);
            match (followed, self.state) {
                (Ok(()), _) => {}
                // The reply's end is unknown, and the client's later input was dropped. The output ends here, so the client sees that
                // the reply is cut.
                (Err(_), LastReplyState::Saying) => self.state = LastReplyState::Said,
                (Err(_), _) => {
                    self.state = LastReplyState::Off;
                    if let HttpStreamState::Head(begun) = std::mem::take(&mut self.replying) {
                        to_client.extend(begun);
                    }
                    bytes = before;
                }
            }
        }
        if self.state == LastReplyState::Off {
            to_client.extend_from_slice(bytes);
        }
    }

    fn receive(&mut self, mut bytes: &[u8]) -> Result<(), HttpFault> {
        while !bytes.is_empty() {
            match &mut self.receiving {
                HttpStreamState::Between => match bytes[0] {
                    b'\r' | b'\n' => bytes = &bytes[1..],
                    first if first.is_ascii_alphabetic() => {
                        self.receiving = HttpStreamState::Head(Vec::new())
                    }
                    _ => {
                        self.state = LastReplyState::Off;
                        return Ok(());
                    }
                },
                HttpStreamState::Head(head) => {
                    if take_section(head, &mut bytes)? {
                        let request = RequestHead::parse(head)?;
                        if request.method == Method::Connect || self.unanswered.len() == REQUESTS_MAX {
                            self.state = LastReplyState::Off;
                        }
                        self.unanswered.push_back(request.method == Method::Head);
                        self.receiving = request
                            .body
                            .map_or(HttpStreamState::Between, HttpStreamState::Body);
                    }
                }
                HttpStreamState::Body(body) => {
                    body.next(&mut bytes)?;
                    if body.is_complete() {
                        self.receiving = HttpStreamState::Between;
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes one step. On an error, the bytes of this step are still in `bytes`.
    fn reply(&mut self, bytes: &mut &[u8], to_client: &mut Vec<u8>) -> Result<(), HttpFault> {
        match &mut self.replying {
            HttpStreamState::Between if self.unanswered.is_empty() || bytes[0] != b'H' => {
                self.state = LastReplyState::Off
            }
            HttpStreamState::Between => self.replying = HttpStreamState::Head(Vec::new()),
            HttpStreamState::Head(head) => {
                let (mut section, mut rest) = (std::mem::take(head), *bytes);
                let taken = take_section(&mut section, &mut rest);
                let is_whole = match taken {
                    Ok(is_whole) => is_whole,
                    Err(fault) => {
                        section.truncate(section.len() - (bytes.len() - rest.len()));
                        self.replying = HttpStreamState::Head(section);
                        return Err(fault);
                    }
                };
                *bytes = rest;
                if is_whole {
                    self.on_head(section, to_client);
                } else {
                    self.replying = HttpStreamState::Head(section);
                }
            }
            HttpStreamState::Body(body) => {
                let mut rest = *bytes;
                body.next(&mut rest)?;
                to_client.extend_from_slice(&bytes[..bytes.len() - rest.len()]);
                *bytes = rest;
                if body.is_complete() {
                    self.on_end();
                }
            }
        }
        Ok(())
    }

    fn on_head(&mut self, section: Vec<u8>, to_client: &mut Vec<u8>) {
        self.replying = HttpStreamState::Between;
        let is_alone = self.unanswered.len() == 1 && matches!(self.receiving, HttpStreamState::Between);
        let to_head = self.unanswered.front().copied();
        let reply = to_head.and_then(|to_head| ReplyHead::parse(&section, to_head).ok());
        let Some(reply) = reply.filter(|reply| reply.persists && reply.status != 101) else {
            // The reply was not asked for, is not HTTP, ends the connection anyway, or changes the protocol (101).
            self.state = LastReplyState::Off;
            to_client.extend(section);
            return;
        };
        if is_alone && !reply.is_interim() {
            self.state = LastReplyState::Saying;
            to_client.extend(closing(&section));
        } else {
            to_client.extend(section);
        }
        match reply.body {
            _ if reply.is_interim() => {}
            Some(body) => self.replying = HttpStreamState::Body(body),
            None => self.on_end(),
        }
    }

    fn on_end(&mut self) {
        self.replying = HttpStreamState::Between;
        self.unanswered.pop_front();
        if self.state == LastReplyState::Saying {
            self.state = LastReplyState::Said;
        }
    }
}

/// Returns the header section of a reply with the connection option `close` in place of keep-alive options. Other options stay.
fn closing(section: &[u8]) -> Vec<u8> {
    let mut closing = Vec::with_capacity(section.len() + 32);
    let mut options = b"close".to_vec();
    let mut blank = &b"\r\n"[..];
    for line in section.split_inclusive(|&byte| byte == b'\n') {
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(0);
        let (name, value) = line.split_at(colon);
        if line.trim_ascii().is_empty() {
            blank = line;
        } else if name.eq_ignore_ascii_case(b"connection") {
            let kept = value[1..].split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
            for option in kept.filter(|option| !is_of_keeping(option)) {
                options.extend_from_slice(b", ");
                options.extend_from_slice(option);
            }
        } else if !name.eq_ignore_ascii_case(b"keep-alive") {
            closing.extend_from_slice(line);
        }
    }
    closing.extend_from_slice(b"Connection: ");
    closing.extend(options);
    closing.extend_from_slice(b"\r\n");
    closing.extend_from_slice(blank);
    closing
}

fn is_of_keeping(option: &[u8]) -> bool {
    option.is_empty() || option.eq_ignore_ascii_case(b"close") || option.eq_ignore_ascii_case(b"keep-alive")
}
