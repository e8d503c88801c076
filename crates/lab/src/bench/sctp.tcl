# One bulk transfer of 80 MiB over SCTP in ns-2, without losses: two paths, of which the primary is used. No tracing, no monitors.
# usage: ns sctp.tcl        prints how many packets with data were sent
remove-all-packet-headers
add-packet-header IP SCTP Flags
set ns [new Simulator]
Agent/SCTP set pathMaxRetrans_ 5
Agent/SCTP set heartbeatInterval_ 30
Agent/SCTP set initialRwnd_ 65536
Agent/SCTP set initialSsthresh_ 65536
Agent/SCTP set dataChunkSize_ 1468
Agent/SCTP set useDelayedSacks_ 1
foreach h {A B} {
  set core($h) [$ns node]
  foreach p {0 1} { set if($h$p) [$ns node]; $ns multihome-add-interface $core($h) $if($h$p) }
}
foreach p {0 1} {
  set a [$ns node]; set b [$ns node]
  $ns duplex-link $if(A$p) $a 100Mb 10ms DropTail
  $ns duplex-link $a $b 10Mb 25ms DropTail
  $ns duplex-link $b $if(B$p) 100Mb 10ms DropTail
}
foreach h {A B} {
  set agent($h) [new Agent/SCTP/MultipleFastRtx]
  $ns multihome-attach-agent $core($h) $agent($h)
}
$ns connect $agent(A) $agent(B)
set ftp [new Application/FTP]
$ftp attach-agent $agent(A)
$agent(A) set-primary-destination $if(B0)
# The agent cuts the data into chunks of 1452 bytes. The receiver's window changes twice per chunk.
set chunks 57773
$ns at 0.9 {set window [$agent(B) set rwnd_]}
$ns at 1.0 "$ftp send 83886080"
proc poll {} {
  global ns agent window chunks
  set left [expr $chunks - ([$agent(B) set rwnd_]-$window)/2]
  if {$left <= 0} { puts $chunks; exit 0 }
  set wait [expr $left*0.0006]
  $ns at [expr [$ns now]+($wait < 0.005 ? 0.005 : $wait)] poll
}
$ns at 1.001 poll
$ns run
