//! Turns rows into panels. Each kind of scenario has a module.

pub mod flows;
pub mod measured;
pub mod models;
pub mod paths;
pub mod sessions;
pub mod strings;
pub mod timeouts;

use super::palette::Colour;
use super::scenario::RecoveryPolicy;

/// Colour of our results with HALR or with rate control.
pub const WITH: Colour = Colour::Blue;
/// Colour of our results without HALR or without rate control.
pub const WITHOUT: Colour = Colour::Red;
/// Colour of ns-2's results.
pub const NS2: Colour = Colour::Ink;

/// A recovery policy's name in the legend, and its colour.
pub const fn recovery(recovery: RecoveryPolicy) -> (&'static str, Colour) {
    match recovery {
        RecoveryPolicy::None => ("without HALR", WITHOUT),
        RecoveryPolicy::Lowest => ("with HALR", WITH),
        RecoveryPolicy::Syn => ("with HALR, SYNs only", Colour::Green),
        RecoveryPolicy::All => ("with HALR, all packets", Colour::Purple),
    }
}

/// A round number at or above a value, for the end of an axis.
pub fn above(value: f64) -> f64 {
    let step = 10_f64.powf(value.max(1e-9).log10().floor()) / 2.0;
    (value / step).ceil() * step
}
