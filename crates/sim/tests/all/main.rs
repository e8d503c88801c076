//! All tests of the simulator in one program, which is linked once. `cargo test -p steadfast-sim --test all takeover::` runs one file.

mod census;
mod close;
mod halr;
mod halr_flows;
mod halr_rate;
mod migration_steps;
mod multipath;
mod multipath_scenarios;
mod net;
mod ns2;
mod ns2_flows;
mod ns2_multipath;
mod ns2_rate;
mod ns2_single;
mod paused;
mod rate_shares;
mod restore;
mod scenario;
mod seeds;
mod swarm;
mod swarm_found;
mod takeover;
mod takeover_defects;
mod takeover_found;
mod transfer;
mod world;
