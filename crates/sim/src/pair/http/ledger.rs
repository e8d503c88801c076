//! Records the executions of requests on all nodes, and finds executions that break the rules of re-execution.

use std::collections::BTreeMap;

use super::HttpRequest;

/// Every execution that was begun.
#[derive(Debug, Default)]
pub struct Ledger(BTreeMap<u64, Vec<Execution>>);

#[derive(Debug)]
struct Execution {
    request: HttpRequest,
    node: u64,
    is_marked: bool,
    /// Offset in the body at which the reply begins.
    from: u64,
}

impl Ledger {
    /// `node` has begun to execute a request. `is_marked`: the request is marked as one that may have been executed before.
    pub(super) fn enter(&mut self, request: HttpRequest, from: u64, node: u64, is_marked: bool) {
        self.0.entry(request.id).or_default().push(Execution {
            request,
            node,
            is_marked,
            from,
        });
    }

    /// Number of requests that were executed again.
    pub fn repeated(&self) -> usize {
        self.0.values().filter(|executions| executions.len() > 1).count()
    }

    /// Number of executions for a part of the reply only.
    pub fn partial(&self) -> usize {
        self.0
            .values()
            .flatten()
            .filter(|execution| execution.from > 0)
            .count()
    }

    /// Violations in a run with any number of takeovers: a request that must not be repeated was executed again, or a repeated execution
    /// was not marked as such. Requests whose id satisfies `is_excused` are left out.
    pub fn violations_of_many(&self, is_excused: impl Fn(u64) -> bool) -> Vec<String> {
        let is_wrong = |executions: &&Vec<Execution>| {
            let unmarked = executions.iter().filter(|execution| !execution.is_marked).count();
            let is_again = executions.len() > 1;
            unmarked > 1
                || executions
                    .iter()
                    .any(|execution| is_again && !execution.request.is_repeatable())
        };
        let wrong = self
            .0
            .iter()
            .filter(|(id, executions)| is_wrong(executions) && !is_excused(**id));
        wrong
            .map(|(_, executions)| format!("executed again: {executions:?}"))
            .collect()
    }

    /// Violations in a run with one takeover.
    pub fn violations(&self) -> Vec<String> {
        let is_wrong = |executions: &&Vec<Execution>| match executions.as_slice() {
            [] | [_] => false,
            // Either execution may be the marked one: a primary that is merely slow may begin later than the survivor.
            [first, second] => {
                !first.request.is_repeatable()
                    || first.node == second.node
                    || first.is_marked == second.is_marked
            }
            _ => true,
        };
        let wrong = self.0.values().filter(is_wrong);
        wrong
            .map(|executions| format!("executed again: {executions:?}"))
            .collect()
    }
}
