//! Source addresses as counter keys (D8): coarse on purpose, a defence for the front door.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What a counter keyed by source hangs from: an IPv4 address, or the /64 of an IPv6 address. An IPv4-mapped IPv6
/// address is its IPv4 address, so that one client does not get two budgets from two spellings.
///
/// ```
/// use leasehold_admission::source::SourceKey;
/// let key = |text: &str| SourceKey::from(text.parse::<std::net::IpAddr>().unwrap());
/// assert_eq!(key("::ffff:192.0.2.7"), key("192.0.2.7"));
/// assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff::9"));
/// assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceKey {
    /// One IPv4 address.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address: what one customer usually has.
    V6Prefix(u64),
}

impl From<IpAddr> for SourceKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4),
            IpAddr::V6(v6) => Self::V6Prefix(prefix(v6)),
        }
    }
}

fn prefix(address: Ipv6Addr) -> u64 {
    u64::try_from(u128::from(address) >> 64).unwrap_or(u64::MAX)
}
