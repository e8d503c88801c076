# Bulk transfers over one bottleneck in ns-2, no tracing, no monitors.
# usage: ns dumbbell.tcl FLOWS SEGMENTS        prints how many data packets were sent
foreach {flows segments} $argv break
remove-all-packet-headers
add-packet-header IP TCP Flags
set ns [new Simulator]
set R1 [$ns node]
set R2 [$ns node]
$ns duplex-link $R1 $R2 100Mb 20ms DropTail
$ns queue-limit $R1 $R2 500
$ns queue-limit $R2 $R1 500
Agent/TCP set windowInit_ 2
Agent/TCP set window_ 64
Agent/TCP set packetSize_ 1460
Agent/TCP set minrto_ 1.0
for {set i 0} {$i < $flows} {incr i} {
  set S [$ns node]
  set D [$ns node]
  $ns duplex-link $S $R1 1000Mb 1ms DropTail
  $ns queue-limit $S $R1 10000
  $ns duplex-link $R2 $D 1000Mb 1ms DropTail
  set tcp($i) [new Agent/TCP/Newreno]
  set sink [new Agent/TCPSink/DelAck]
  $ns attach-agent $S $tcp($i)
  $ns attach-agent $D $sink
  $ns connect $tcp($i) $sink
  $ns at [expr 0.01 * $i] "$tcp($i) advance $segments"
}
set done 0
Agent/TCP instproc done {} {
  global done flows tcp
  if {[incr done] < $flows} return
  set packets 0
  for {set i 0} {$i < $flows} {incr i} { incr packets [$tcp($i) set ndatapack_] }
  puts $packets
  exit 0
}
$ns run
