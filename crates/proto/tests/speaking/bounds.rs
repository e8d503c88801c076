//! Bounds of the explorations.

/// The environment variable that selects the bounds of the exploration.
const BOUNDS: &str = "STEADFAST_BOUNDS";

/// Bounds of the exploration.
#[derive(Clone, Copy, Debug)]
pub struct SpeakingBounds {
    pub ticks: u64,
    /// Maximum number of messages under way to each node.
    pub words: usize,
    pub crashes: u8,
    /// How often an agent may die. `restarting`: the nodes whose agents may die.
    pub restarts: u8,
    pub restarting: [bool; 2],
    /// Orders of the operator.
    pub orders: u8,
    /// Changes of paths.
    pub paths: u8,
    /// Maximum number of these changes in all: a step that a role needs fails, or is made good (`Standing::set_failed`).
    pub failures: u8,
    pub epochs: u64,
    /// Primaries send output past the wire (commit mode `pr`).
    pub sends_directly: bool,
}

/// Returns two values. The first: whether [`BOUNDS`] is `more` or `large`. Either setting explores more combinations, and enlarges the
/// bounds of some explorations. The second: whether [`BOUNDS`] is `large`. This setting enlarges the bounds of all explorations.
pub fn wanted() -> (bool, bool) {
    match std::env::var(BOUNDS).as_deref() {
        Err(_) => (false, false),
        Ok("more") => (true, false),
        Ok("large") => (true, true),
        Ok(other) => panic!("{BOUNDS} is {other:?}, but must be unset, more or large"),
    }
}

pub fn is_large() -> bool {
    wanted().1
}

pub fn bounds() -> SpeakingBounds {
    SpeakingBounds {
        ticks: if is_large() { 4 } else { 3 },
        words: 1,
        crashes: 0,
        restarts: 0,
        restarting: [true; 2],
        orders: 0,
        paths: 0,
        failures: 0,
        epochs: if is_large() { 5 } else { 4 },
        sends_directly: false,
    }
}

/// Bounds with output past the wire. The exploration begins with a whole pair, so that the lease begins and ends within few ticks.
pub fn directly() -> SpeakingBounds {
    SpeakingBounds {
        ticks: 4,
        epochs: if wanted().0 { bounds().epochs } else { 3 },
        sends_directly: true,
        ..bounds()
    }
}

/// Bounds with fewer ticks, but with orders of the operator.
pub fn operated() -> SpeakingBounds {
    SpeakingBounds {
        ticks: if is_large() { 3 } else { 2 },
        orders: if is_large() { 2 } else { 1 },
        ..bounds()
    }
}

/// Bounds with fewer ticks, but with paths that break or are believed to be broken.
pub fn cut() -> SpeakingBounds {
    SpeakingBounds {
        ticks: if is_large() { 3 } else { 2 },
        epochs: if wanted().0 { 4 } else { 3 },
        paths: if is_large() { 2 } else { 1 },
        ..bounds()
    }
}

/// Bounds with fewer ticks, but with failures of steps that a role needs.
pub fn failed() -> SpeakingBounds {
    SpeakingBounds {
        ticks: if wanted().0 { 2 } else { 1 },
        failures: if wanted().0 { 2 } else { 1 },
        epochs: if wanted().0 { 4 } else { 3 },
        ..bounds()
    }
}

/// Bounds with fewer ticks, but with a node that crashes and forgets everything.
pub fn crashed() -> SpeakingBounds {
    SpeakingBounds {
        ticks: if is_large() { 3 } else { 2 },
        crashes: 1,
        epochs: if wanted().0 { bounds().epochs } else { 3 },
        ..bounds()
    }
}

/// Bounds with fewer ticks, but with an agent that dies.
pub fn restarted() -> SpeakingBounds {
    SpeakingBounds {
        ticks: if is_large() { 3 } else { 2 },
        restarts: 1,
        epochs: if is_large() { 4 } else { 3 },
        ..bounds()
    }
}
