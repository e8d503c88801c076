use steadfast_sim::scenario::{cluster::*, dumbbell::*};
use steadfast_sim::flow::*;
use std::time::Duration;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    match a[1].as_str() {
        "bell" => { let d = Dumbbell { flows: a[2].parse().unwrap(), segments: a[3].parse::<u64>().unwrap(), ..Dumbbell::default() };
            let t = std::time::Instant::now();
            let r = d.run().unwrap();
            println!("{} {:?} {:?}", r.iter().map(|f| f.segments).sum::<u64>(), r.iter().map(|f| f.end).max(), t.elapsed());
        }
        _ => { // variant segs tf minrto t1
            let v = match a[2].as_str() { "Reno" => Variant::Reno, "NewReno" => Variant::NewReno, "SACK" => Variant::Sack1, "Tahoe" => Variant::Tahoe, _ => Variant::Sack };
            let mut c = Cluster { tcp: thesis_tcp(v), segments: a[3].parse().unwrap(), failover: Duration::from_secs_f64(a[4].parse().unwrap()), ..Cluster::default() };
            c.tcp.rto.min = Duration::from_secs_f64(a[5].parse().unwrap());
            if let Some(t1) = a.get(6) { c.last_arrival = Some(Duration::from_secs_f64(t1.parse().unwrap())); }
            if let Some(ms) = a.get(7) { c.tcp.rto.phase = Duration::from_secs_f64(ms.parse::<f64>().unwrap()/1000.); }
            for f in c.run().unwrap() { println!("{},{},{},{:.4},{:.6},{},{},{}", a[2], a[3], a[4], f.start.as_nanos() as f64/1e9, f.completion_s().unwrap_or(-1.0), f.timeouts, f.retransmitted, f.segments); }
        }
    }
}
