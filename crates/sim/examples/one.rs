use steadfast_sim::swarm::*;
fn main() {
    let seed: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let (s, o) = shrink(&Scenario::draw(seed)).expect("fails");
    eprintln!("{:#?}", s.faults);
    eprintln!("{:?} {:?} {:?} {:?}\n{:?}", s.policy, s.network, s.nodes, s.connections, o);
    println!("{}", play_traced(&s).1);
}
