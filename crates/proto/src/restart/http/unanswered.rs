//! Requests that wait for their replies.

use std::collections::VecDeque;
use std::ops::Deref;

use super::LABEL_MAX;
use super::body::Body;
use super::head::{Method, RequestHead};
use super::reason::HttpReason;
use super::resume::PendingRequest;
use super::rules::Reexecute;
use crate::Offset;
use crate::spill::LogFull;

/// Capacity, in requests, kept when the queue is empty. Few connections pipeline, and most send another request.
const KEPT: usize = 4;

/// Requests in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    requests: VecDeque<Unanswered>,
    /// Bytes of the requests' labels.
    labels: usize,
}

impl Deref for RequestQueue {
    type Target = VecDeque<Unanswered>;

    fn deref(&self) -> &Self::Target {
        &self.requests
    }
}

impl RequestQueue {
    pub fn push(&mut self, request: Unanswered) {
        self.labels += request.label.len();
        self.requests.push_back(request);
    }

    pub fn forget_first(&mut self) {
        let first = self.requests.pop_front();
        self.labels -= first.map_or(0, |first| first.label.len());
        if self.requests.is_empty() && self.requests.capacity() > KEPT {
            self.requests = VecDeque::new();
        }
    }

    pub fn front_mut(&mut self) -> Option<&mut Unanswered> {
        self.requests.front_mut()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Unanswered> {
        self.requests.iter_mut()
    }

    /// Heap memory of the queue in bytes.
    pub fn memory(&self) -> usize {
        self.requests.capacity() * size_of::<Unanswered>() + self.labels
    }
}

#[derive(Debug)]
pub(super) struct Unanswered {
    /// Offset in the input at which the request begins.
    pub start: Offset,
    pub label: Box<str>,
    pub method: Method,
    pub persists: bool,
    /// The request may be changed to ask for a part of the content.
    pub takes_range: bool,
    /// The reply is complete although the request's body is not.
    pub answered: bool,
    /// Bytes of the request line, with its line feed.
    line: u16,
    /// Whether the request may be executed again, as far as is known now.
    repeat: Repeatability,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeatability {
    Allowed,
    /// The operator's rule forbids a second execution.
    Forbidden,
    /// The request's input is no longer kept, for this reason.
    Impossible(LogFull),
}

impl Unanswered {
    /// Returns the request with this header section, and the body that follows, if any.
    pub fn new(start: Offset, head: &[u8], request: RequestHead, rule: Reexecute) -> (Self, Option<Body>) {
        let line = memchr::memchr(b'\n', head).map_or(head.len(), |feed| feed + 1);
        let is_allowed = rule.allows(request.method, request.has_key);
        let new = Self {
            start,
            label: label(&head[..line]),
            method: request.method,
            persists: request.persists,
            takes_range: request.takes_range,
            answered: false,
            line: u16::try_from(line).expect("a request line is shorter than HEAD_MAX, 64 KiB"),
            repeat: if is_allowed {
                Repeatability::Allowed
            } else {
                Repeatability::Forbidden
            },
        };
        (new, request.body)
    }

    /// Returns the reason if the request cannot be executed again.
    pub fn barrier(&self) -> Option<HttpReason> {
        match self.repeat {
            Repeatability::Allowed => None,
            Repeatability::Forbidden => Some(HttpReason::NotRepeatable(self.method)),
            Repeatability::Impossible(why) => Some(HttpReason::NotKept(self.method, why)),
        }
    }

    /// Whether the request is executed again after a takeover.
    pub fn is_repeatable(&self) -> bool {
        self.repeat == Repeatability::Allowed && !self.answered
    }

    /// Returns the offset in the input at which the header fields begin.
    pub fn fields(&self) -> Offset {
        self.start + u64::from(self.line)
    }

    /// The request's input is no longer kept.
    pub fn forget(&mut self, why: LogFull) {
        self.repeat = Repeatability::Impossible(why);
    }

    pub fn owed(&self) -> PendingRequest {
        PendingRequest {
            label: self.label.clone(),
            to_head: self.method == Method::Head,
            persists: self.persists,
        }
    }
}

/// Method and target of a request line, for logs and reports.
fn label(line: &[u8]) -> Box<str> {
    let end = memchr::memrchr(b' ', line).unwrap_or(line.len());
    let shown = &line[..end.min(LABEL_MAX)];
    let mut label = shown.escape_ascii().to_string();
    label.truncate(LABEL_MAX);
    label.into()
}
