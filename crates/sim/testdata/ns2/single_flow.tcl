# One flow over one bottleneck: losses by overflow only, no ties.
# usage: ns single_flow.tcl VARIANT BUFFER WINDOW SEGMENTS BANDWIDTH, e.g. NewReno 20 64 5000 10Mb
foreach {v buf w pk bw} $argv break
remove-all-packet-headers
add-packet-header IP TCP Flags
set ns [new Simulator]
set R1 [$ns node]; set R2 [$ns node]
$ns duplex-link $R1 $R2 $bw 20ms DropTail
$ns queue-limit $R1 $R2 $buf; $ns queue-limit $R2 $R1 500
Agent/TCP set windowInit_ 2; Agent/TCP set window_ $w; Agent/TCP set packetSize_ 1460; Agent/TCP set minrto_ 1.0
set S [$ns node]; set D [$ns node]
$ns duplex-link $S $R1 1000Mb 1ms DropTail; $ns queue-limit $S $R1 10000
$ns duplex-link $R2 $D 1000Mb 1ms DropTail
switch $v { Reno {set t [new Agent/TCP/Reno]; set k [new Agent/TCPSink/DelAck]} NewReno {set t [new Agent/TCP/Newreno]; set k [new Agent/TCPSink/DelAck]} Tahoe {set t [new Agent/TCP]; set k [new Agent/TCPSink/DelAck]} SACK {set t [new Agent/TCP/Sack1]; set k [new Agent/TCPSink/Sack1/DelAck]} }
$ns attach-agent $S $t; $ns attach-agent $D $k; $ns connect $t $k
$ns at 0.0 "$t advance $pk"
Agent/TCP instproc done {} { global t v; puts "$v,[format %.6f [[Simulator instance] now]],[$t set ndatapack_],[$t set nrexmit_],[$t set nrexmitpack_]"; exit 0 }
$ns run
