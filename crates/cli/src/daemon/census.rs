//! The list of this node's connections. The peer's wire asks for it page by page.

use std::net::SocketAddr;

use linux::network::{NetworkError, sockets};
use proto::census::Terms;
use proto::census::{CensusPage, PAGE_MAX, PageQuery};

/// Maximum number of connections kept between two pages. If a service has more, the kernel is asked again.
const KEPT_MAX: usize = 65_536;

/// A service's connections, as the kernel listed them last. They are kept until the last page was returned.
#[derive(Default)]
pub struct Listing {
    /// The query for which the kernel was asked last. The list begins after the client that this query names. `None`: nothing is kept.
    from: Option<PageQuery>,
    connections: Vec<(SocketAddr, Terms)>,
    /// Whether the kept connections reach to the end of the service's list.
    is_rest: bool,
}

impl Listing {
    /// Returns the page that `query` requests, of the service at `vip`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn page(&mut self, vip: SocketAddr, query: PageQuery) -> Result<CensusPage, NetworkError> {
        self.page_of(query, |after| sockets::open_behind(vip, after))
    }

    fn page_of<E>(
        &mut self,
        query: PageQuery,
        open_behind: impl FnOnce(Option<SocketAddr>) -> Result<Vec<(SocketAddr, Terms)>, E>,
    ) -> Result<CensusPage, E> {
        if !self.has(query) {
            let mut connections = open_behind(query.after)?;
            self.is_rest = connections.len() <= KEPT_MAX;
            connections.truncate(KEPT_MAX);
            (self.from, self.connections) = (Some(query), connections);
        }
        let begin = self
            .connections
            .partition_point(|(client, _)| Some(*client) <= query.after);
        let rest = &self.connections[begin..];
        let connections = rest[..rest.len().min(PAGE_MAX)].to_vec();
        let is_last = self.is_rest && connections.len() == rest.len();
        if is_last {
            *self = Self::default();
        }
        Ok(CensusPage {
            query,
            connections,
            is_last,
        })
    }

    fn has(&self, query: PageQuery) -> bool {
        let last = self.connections.last().map(|(client, _)| *client);
        let covers = |from: PageQuery| {
            from.census == query.census && from.after <= query.after && (self.is_rest || query.after < last)
        };
        self.from.is_some_and(covers)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn client(number: u32) -> SocketAddr {
        (std::net::Ipv4Addr::from(0x0a00_0000 + number), 40_000).into()
    }

    const TERMS: Terms = Terms {
        mss: 1448,
        window_scale: None,
        sack: true,
        timestamps: true,
        microseconds: false,
    };

    /// A kernel with `count` connections, which counts how often it is asked.
    struct CountingKernel {
        count: u32,
        asked: usize,
    }

    impl CountingKernel {
        fn page(&mut self, listing: &mut Listing, query: PageQuery) -> CensusPage {
            let page = listing.page_of(query, |after| {
                self.asked += 1;
                let all = (0..self.count).map(|number| (client(number), TERMS));
                Ok::<_, Infallible>(all.filter(|(client, _)| Some(*client) > after).collect())
            });
            page.unwrap_or_else(|error| match error {})
        }

        /// All clients that a census returns. Each page is requested twice.
        fn census(&mut self, listing: &mut Listing, census: u64) -> Vec<SocketAddr> {
            let mut clients = Vec::new();
            let mut after = None;
            loop {
                let query = PageQuery { census, after };
                let page = self.page(listing, query);
                if !page.is_last {
                    assert_eq!(self.page(listing, query), page, "asked for again");
                }
                clients.extend(page.connections.iter().map(|(client, _)| *client));
                after = clients.last().copied();
                if page.is_last {
                    return clients;
                }
                assert_eq!(page.connections.len(), PAGE_MAX);
            }
        }
    }

    #[test]
    fn all_are_told_and_the_kernel_is_asked_once() {
        for count in [0, 1, 31, 32, 33, 10_000] {
            let (mut kernel, mut listing) = (CountingKernel { count, asked: 0 }, Listing::default());
            let told = kernel.census(&mut listing, 1);
            assert!(told.iter().copied().eq((0..count).map(client)), "{count}");
            assert_eq!(kernel.asked, 1);
            assert!(listing.connections.is_empty(), "nothing is kept");
        }
    }

    #[test]
    fn of_very_many_the_kernel_is_asked_again() {
        let count = 2 * KEPT_MAX as u32 + 5;
        let (mut kernel, mut listing) = (CountingKernel { count, asked: 0 }, Listing::default());
        assert_eq!(kernel.census(&mut listing, 1).len(), count as usize);
        assert_eq!(kernel.asked, 3);
    }

    #[test]
    fn another_census_gets_a_list_of_its_own() {
        let (mut kernel, mut listing) = (CountingKernel { count: 40, asked: 0 }, Listing::default());
        let first = PageQuery {
            census: 1,
            after: None,
        };
        kernel.page(&mut listing, first);
        kernel.count = 50;
        assert_eq!(kernel.census(&mut listing, 2).len(), 50);
        assert_eq!(kernel.asked, 2);
        let rest = PageQuery {
            census: 2,
            after: Some(client(47)),
        };
        assert_eq!(
            kernel.page(&mut listing, rest).connections.len(),
            2,
            "the last page, once more"
        );
    }
}
