//! The operator's rules for replies that a dead server still owes: which requests may be executed a second time.

use serde::{Deserialize, Serialize};

use super::head::Method;

/// The list element that allows requests with this header field. All other elements name methods.
const KEY: &str = "Idempotency-Key";

/// The rule that says which requests are executed again although the dead server may have executed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reexecute {
    /// One bit for each method that may be executed again.
    methods: u16,
    /// Whether a request of any method with an Idempotency-Key may be executed again.
    keyed: bool,
}

impl Reexecute {
    /// Safe methods only (RFC 9110 §9.2.1).
    pub const SAFE: Self = Self {
        methods: bit(Method::Get) | bit(Method::Head) | bit(Method::Options) | bit(Method::Trace),
        keyed: false,
    };

    /// Safe and idempotent methods (RFC 9110 §9.2.2), and requests with an Idempotency-Key
    /// (draft-ietf-httpapi-idempotency-key-header §2).
    pub const IDEMPOTENT: Self = Self {
        methods: Self::SAFE.methods | bit(Method::Put) | bit(Method::Delete),
        keyed: true,
    };

    /// Every request. The application must recognise requests that it has executed before.
    pub const ALL: Self = Self {
        methods: u16::MAX,
        keyed: true,
    };

    /// The rule that allows the methods of a list. `Idempotency-Key` in the list stands for requests with that header field.
    ///
    /// # Errors
    /// The first name that is neither `Idempotency-Key` nor a method of RFC 9110 §9.3 or RFC 5789. CONNECT is an error, too.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, &'a str> {
        let mut rule = Self {
            methods: 0,
            keyed: false,
        };
        for name in names {
            match Method::parse(name) {
                _ if name == KEY => rule.keyed = true,
                Method::Connect | Method::Other => return Err(name),
                method => rule.methods |= bit(method),
            }
        }
        Ok(rule)
    }

    /// Whether a request may be executed again.
    pub const fn allows(self, method: Method, has_key: bool) -> bool {
        self.methods & bit(method) != 0 || self.keyed && has_key
    }
}

impl Default for Reexecute {
    fn default() -> Self {
        Self::IDEMPOTENT
    }
}

const fn bit(method: Method) -> u16 {
    1 << method as u16
}

/// How unanswered requests are handled after a takeover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// The rule that says which unanswered requests are executed again.
    pub reexecute: Reexecute,
    /// If a reply was cut and a strong ETag identifies its content, ask the application only for the rest
    /// ([`Rest`](super::Rest)).
    pub ranges: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            reexecute: Reexecute::default(),
            ranges: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_its_names_say() {
        let safe = Reexecute::of(["GET", "HEAD", "OPTIONS", "TRACE"]);
        assert_eq!(safe, Ok(Reexecute::SAFE));
        let idempotent = Reexecute::of([
            "DELETE",
            "GET",
            "HEAD",
            "OPTIONS",
            "PUT",
            "TRACE",
            "Idempotency-Key",
        ]);
        assert_eq!(idempotent, Ok(Reexecute::IDEMPOTENT));
        assert_eq!(
            Reexecute::of(["GET", "get"]),
            Err("get"),
            "methods are case-sensitive"
        );
        assert_eq!(Reexecute::of(["CONNECT"]), Err("CONNECT"));
    }

    #[test]
    fn a_key_allows_what_the_method_does_not() {
        let allows = |rule: Reexecute, has_key| rule.allows(Method::Post, has_key);
        assert!(!allows(Reexecute::IDEMPOTENT, false) && allows(Reexecute::IDEMPOTENT, true));
        assert!(!allows(Reexecute::SAFE, true));
        assert!(allows(Reexecute::ALL, false) && Reexecute::ALL.allows(Method::Other, false));
    }
}
