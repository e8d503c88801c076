use std::collections::BTreeMap;
use steadfast_sim::swarm::*;
fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let (from, to) = (args[0], args[1]);
    let begin = std::time::Instant::now();
    let mut rules: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut coverage: BTreeMap<(Kind, Phase), u64> = BTreeMap::new();
    let (mut splits, mut orphans, mut conns, mut sims) = (0, 0, 0, 0.0);
    for seed in from..to {
        let outcome = play(&Scenario::draw(seed));
        splits += u64::from(outcome.was_split); orphans += outcome.orphaned; conns += outcome.connections; sims += outcome.time.as_secs_f64();
        for v in &outcome.violations { let e = rules.entry(v.rule.clone()).or_default(); if e.last() != Some(&seed) { e.push(seed); } }
        for s in outcome.strikes { *coverage.entry(s).or_default() += 1; }
        if to == from + 1 { for v in &outcome.violations { println!("{v:?}"); } }
    }
    let time = begin.elapsed().as_secs_f64();
    println!("{} runs, {:.1}/s, splits {splits}, orphans {orphans} of {conns}, mean time {:.1}", to - from, (to - from) as f64 / time, sims / (to-from) as f64);
    for (r, s) in &rules { println!("{r}: {} {:?}", s.len(), &s[..s.len().min(12)]); }
    for phase in Phase::ALL { print!("{:12}", phase.name()); for kind in Kind::ALL { print!(" {:4}", coverage.get(&(kind, phase)).unwrap_or(&0)); } println!(); }
}
