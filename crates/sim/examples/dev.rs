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
        "one" => { // variant buf window pkts mbps
            let v = match a[2].as_str() { "Reno" => Variant::Reno, "NewReno" => Variant::NewReno, "SACK" => Variant::Sack1, "Tahoe" => Variant::Tahoe, _ => Variant::Sack };
            let mut d = Dumbbell { segments: a[5].parse().unwrap(), buffer_packets: a[3].parse::<usize>().unwrap()-1, rate_bits_per_s: a[6].parse::<u64>().unwrap()*1_000_000, ..Dumbbell::default() };
            d.tcp.variant = v; d.tcp.max_window = a[4].parse().unwrap();
            let f = d.run().unwrap()[0];
            println!("{} {:.6} data {} to {} rex {}", a[2], f.completion_s().unwrap(), f.segments, f.timeouts, f.retransmitted);
        }
        "rate" => { // variant buf window minrto out
            let v = match a[2].as_str() { "Reno" => Variant::Reno, "NewReno" => Variant::NewReno, "SACK" => Variant::Sack1, "Tahoe" => Variant::Tahoe, _ => Variant::Sack };
            let mut c = steadfast_sim::scenario::rate::Rate { tcp: thesis_tcp(v), buffer_packets: a[3].parse::<usize>().unwrap()-1, ..Default::default() };
            c.tcp.max_window = a[4].parse().unwrap();
            c.tcp.rto.min = Duration::from_secs_f64(a[5].parse().unwrap());
            if let Some(n) = a.get(8) { c.flows = n.parse().unwrap(); }
            if let Some(j) = a.get(7).filter(|j| *j != "-") { c.gap += Duration::from_micros(j.parse::<u64>().unwrap()); c.jitter = Duration::from_millis(100); }
            if let Some(n) = a.get(9) { c.seed = n.parse().unwrap(); }
            let r = c.run().unwrap();
            let mut s = String::from("h\n");
            for b in &r.bins { s += &format!("{:.2},{:.3},{:.3},{:.3},{:.3},{:.3},{},0\n", b.end.as_nanos() as f64/1e9, b.sent[0] as f64*8e-5, b.sent[1] as f64*8e-5, b.delivered[0] as f64*8e-5*1500./1460., b.delivered[1] as f64*8e-5*1500./1460., (b.delivered[0]+b.delivered[1]) as f64*8e-5*1500./1460., b.overflows); }
            std::fs::write(format!("{}_bins.csv", a[6]), s).unwrap();
            let mut s = String::from("h\n"); for q in &r.queue { s += &format!("{:.2},{}\n", q.0.as_nanos() as f64/1e9, q.1); }
            std::fs::write(format!("{}_queue.csv", a[6]), s).unwrap();
            let mut s = String::from("h\n"); for (i, f) in r.flows.iter().enumerate() { let x=&f.result; s += &format!("g{}_{},x,{:.3},{:.6},{:.6},0,{},{}\n", i%2, i/2, x.start.as_nanos() as f64/1e9, x.end.map_or(-1.0, |e| e.as_nanos() as f64/1e9), x.completion_s().unwrap_or(-1.), x.timeouts, x.retransmitted); }
            std::fs::write(format!("{}_flows.csv", a[6]), s).unwrap();
        }
        _ => { // variant segs tf minrto t1
            let v = match a[2].as_str() { "Reno" => Variant::Reno, "NewReno" => Variant::NewReno, "SACK" => Variant::Sack1, "Tahoe" => Variant::Tahoe, _ => Variant::Sack };
            let mut c = Cluster { tcp: thesis_tcp(v), segments: a[3].parse().unwrap(), failover: Duration::from_secs_f64(a[4].parse().unwrap()), ..Cluster::default() };
            c.tcp.rto.min = Duration::from_secs_f64(a[5].parse().unwrap());
            if let Some(t1) = a.get(6) { c.last_arrival = Some(Duration::from_secs_f64(t1.parse().unwrap())); }
            
            for f in c.run().unwrap() { println!("{},{},{},{:.4},{:.6},{},{},{}", a[2], a[3], a[4], f.start.as_nanos() as f64/1e9, f.completion_s().unwrap_or(-1.0), f.timeouts, f.retransmitted, f.segments); }
        }
    }
}
