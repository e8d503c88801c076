//! The closed-form models of the papers. They share no code with the protocols and the simulator, so they are an independent
//! check: where a formula and a simulated run disagree, one of the two is wrong or needs an explanation.
//!
//! | file | models | source |
//! |---|---|---|
//! | [`parameters`] | the parameters, and their values in Table I | HALR thesis, chapter 5, Table I |
//! | [`failover`] | when a failover happens, which flows it hits, what helps them | HALR thesis, 4.1 |
//! | [`unused_flow_time`] | timeouts in a row, additional delay, the sawtooth of Figure 9 | HALR thesis, 5.1 |
//! | [`short_flow`] | recursion over segments and window, Eq. 1–4, Figure 18 | HALR thesis, 5.2; Mellia, Stoica, Zhang 2002 |
//! | [`long_flow`] | latency by phases, Eq. 5–8, Figure 19 | HALR thesis, 5.3; Cardwell, Savage, Anderson 2000 |
//! | [`throughput`] | a path's steady state: the square-root rule and the full formula | Padhye et al. 1998; SCTP failover paper, IV.2 |
//! | [`caro`] | failure detection time, packets by which PMR = 0 is ahead of PMR = 1, Eq. 1–10 | SCTP failover paper, II and III.7 |
//!
//! `docs/model-halr.md` derives the thesis' equations, `docs/model-sctp.md` those of the SCTP paper. Both say which choices were
//! made. Everything here is a pure function of `f64`. Times are in seconds, windows and transfers in segments (packets). A value
//! outside a model's domain is a caller's bug and panics.
#![forbid(unsafe_code)]

pub mod caro;
pub mod failover;
pub mod long_flow;
pub mod parameters;
pub mod short_flow;
pub mod throughput;
pub mod unused_flow_time;
