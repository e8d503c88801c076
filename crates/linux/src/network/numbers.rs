//! The numbers of routing tables, rules and marks that this program uses. They are chosen so that they differ from the numbers of other
//! programs.

/// Routing tables 5300 to 5399, of which we take the first unused ones. One table has the route from a VIP through the backup. Another
/// table delivers the packets of relayed connections locally.
pub const TABLES: std::ops::RangeInclusive<u32> = 5300..=5399;

/// Priority of the rule that delivers the application's replies to relayed connections locally. The kernel applies this rule before the
/// rule of the main table (32766) and before the rule of [`PRIORITY_FROM_VIP`].
pub const PRIORITY_RELAY: u32 = 5300;

/// Priority of the rule that routes ICMP packets from a VIP by the main table. The kernel applies this rule before the rule of
/// [`PRIORITY_FROM_VIP`].
pub const PRIORITY_REFUSAL: u32 = 5309;

/// Priority of the rule that routes what the primary sends straight to its clients ([`MARK_DIRECT`](crate::wire::MARK_DIRECT)) by the main
/// table. The kernel applies this rule before the rule of [`PRIORITY_FROM_VIP`].
pub const PRIORITY_DIRECT: u32 = 5308;

/// Priority of the rule `from VIP` on the primary.
pub const PRIORITY_FROM_VIP: u32 = 5310;

/// The routing protocol number of our rules and routes. By this number, `ip rule` and `ip route` show that the rules and routes are ours.
pub const PROTOCOL: u8 = 95;

/// The mark (SO_MARK) of relayed connections' sockets. If the application is not at a loopback address, the mark distinguishes its replies
/// to relayed connections from its replies to other clients.
pub const RELAY_MARK: u32 = 0x5fad_0001;
