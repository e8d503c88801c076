# The phases of the clocks in fail.tcl.
# Thesis section 7.2 (plain TCP, no HALR): completion time vs arrival time around a failover.
# usage: ns fail.tcl variant=Reno segs=10 tf=0.5 [minrto=1.0 tick=0.01 gap=0.02 t1=8 ...]
# Topology (Figure 11):  S_i --acc-- R1 -- N -- R2 --acc-- D_i ; R1-N-R2 is the HA cluster,
# close to the destinations.  Cluster links go down at t=2 for tf seconds.
array set o { variant Reno segs 10 tf 0.5 minrto 1.0 tick 0.01 gap 0.02 t0 0 t1 0 window 64 delack 1
  sd 46ms cd 1ms dd 1ms bw 10000Mb abw 100Mb nsd 60 q 100000 end 0 tfail 2.0 packetsize 1460 dackint 100ms loss 0 run 1 out "" }
foreach a $argv { set i [string first = $a]; set o([string range $a 0 [expr $i-1]]) [string range $a [expr $i+1] end] }
remove-all-packet-headers
add-packet-header IP TCP Flags
set ns [new Simulator]
if {$o(t1) == 0} { set o(t1) [expr $o(tfail)+$o(tf)+2.0] }
set R1 [$ns node]; set N [$ns node]; set R2 [$ns node]
$ns duplex-link $R1 $N $o(bw) $o(cd) DropTail
$ns duplex-link $N $R2 $o(bw) $o(cd) DropTail
foreach {a b} [list $R1 $N $N $R2 $N $R1 $R2 $N] { $ns queue-limit $a $b $o(q) }
for {set i 0} {$i < $o(nsd)} {incr i} {
  set S($i) [$ns node]; set D($i) [$ns node]
  $ns duplex-link $S($i) $R1 $o(abw) $o(sd) DropTail
  $ns duplex-link $R2 $D($i) $o(abw) $o(dd) DropTail
  $ns queue-limit $S($i) $R1 $o(q); $ns queue-limit $R2 $D($i) $o(q)
}
Agent/TCP set syn_ true
Agent/TCP set delay_growth_ true
Agent/TCP set windowInit_ 1
Agent/TCP set window_ $o(window)
Agent/TCP set packetSize_ $o(packetsize)
Agent/TCP set minrto_ $o(minrto)
Agent/TCP set tcpTick_ $o(tick)
Agent/TCP set rtxcur_init_ 3.0
Agent/TCP set maxrto_ 64
Agent/TCPSink/DelAck set interval_ $o(dackint)
Agent/TCPSink/Sack1/DelAck set interval_ $o(dackint)
switch $o(variant) {
  Reno    { set src Agent/TCP/Reno;    set snk Agent/TCPSink/DelAck }
  NewReno { set src Agent/TCP/Newreno; set snk Agent/TCPSink/DelAck }
  SACK    { set src Agent/TCP/Sack1;   set snk Agent/TCPSink/Sack1/DelAck }
  Tahoe   { set src Agent/TCP;         set snk Agent/TCPSink/DelAck }
}
if {!$o(delack)} { if {$o(variant)=="SACK"} {set snk Agent/TCPSink/Sack1} else {set snk Agent/TCPSink} }
set nf 0; set ndone 0
proc launch {id} {
  global ns tcp st
  set st($id) [$ns now]
  $tcp($id) advance $::o(segs)
}
# one-way agents: packet 0 is the 40-byte SYN, so segs=N sends the SYN plus N data packets of 1460+40 bytes
Agent/TCP instproc done {} {
  global ns st idof fct ndone nf rtxn rtxp
  set id $idof($self)
  set fct($id) [expr [$ns now]-$st($id)]
  incr ndone
  if {$ndone == $nf} { report }
}
proc report {} {
  global o nf st fct tcp
  for {set i 0} {$i < $nf} {incr i} {
    if {![info exists fct($i)]} {set fct($i) -1}
    puts [format "%s,%d,%g,%.4f,%.6f,%d,%d,%d" $o(variant) $o(segs) $o(tf) $st($i) $fct($i) [$tcp($i) set nrexmit_] [$tcp($i) set nrexmitpack_] [$tcp($i) set ndatapack_]]
  }
  exit 0
}
if {$o(loss) > 0} {
  set em [new ErrorModel]; $em set rate_ $o(loss); $em unit pkt; $em ranvar [new RandomVariable/Uniform]; $em drop-target [new Agent/Null]
  for {set j 1} {$j < $o(run)} {incr j} { $defaultRNG next-substream }
  $ns lossmodel $em $R1 $N
}
for {set t $o(t0)} {$t < $o(t1)-1e-9} {set t [expr $t+$o(gap)]} {
  set k [expr $nf % $o(nsd)]
  set a [new $src]; set s [new $snk]
  $ns attach-agent $S($k) $a; $ns attach-agent $D($k) $s; $ns connect $a $s
  set tcp($nf) $a; set idof($a) $nf
  $ns at $t "launch $nf"
  incr nf
}
if {$o(tf) > 0} {
  $ns rtmodel-at $o(tfail) down $R1 $N
  $ns rtmodel-at $o(tfail) down $N $R2
  $ns rtmodel-at [expr $o(tfail)+$o(tf)] up $R1 $N
  $ns rtmodel-at [expr $o(tfail)+$o(tf)] up $N $R2
}
$ns at 400 report
# What `$ns run` does first: each node resets its agents, and each TCP draws the phase of its clock.
foreach k [$ns array names Node_] { foreach a [[$ns set Node_($k)] set agents_] { if {[info exists idof($a)]} { puts "$idof($a) [$defaultRNG uniform 0 1]" } } }
exit 0
