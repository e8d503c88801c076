//! The state with which a survivor's kernel restores a connection's socket.

use super::{Connection, Endpoint, EndpointTimestamps, OutputEnd};

impl Connection {
    /// The server's end of the connection, as the client and the log know it.
    pub fn endpoint(&self) -> Endpoint {
        let frontier = self.output.frontier();
        let acknowledged = self.client.acknowledged.min(frontier);
        let output = match (self.output.is_complete(), self.client.acknowledged > frontier) {
            (false, _) => OutputEnd::Open,
            (true, false) => OutputEnd::FinSent,
            (true, true) => OutputEnd::FinAcknowledged,
        };
        let fin = u32::from(output == OutputEnd::FinAcknowledged);
        Endpoint {
            client: self.client_address,
            vip: self.vip,
            send_unacknowledged: acknowledged.to_seq(self.output.first()) + fin,
            unacknowledged: acknowledged..frontier,
            receive_next: self.input.next_seq(),
            input_frontier: self.input.frontier(),
            mss: self.client.mss.min(self.server.mss),
            window_scale: self
                .agreed
                .window_scale
                .then_some((self.client.window_shift, self.server.window_shift)),
            sack: self.agreed.sack,
            timestamps: self.agreed.timestamps.then_some(EndpointTimestamps {
                value: self.server.timestamp,
                at: self.server.timestamp_at,
                echo: self.client.timestamp,
            }),
            send_window: self.client.window,
            send_window_max: self.client.window_max,
            send_window_seq: self.client.window_seq,
            receive_window: self.server.window,
            receive_window_from: self.server.acknowledged.to_seq(self.input.first()),
            input_ended: self.input.is_complete(),
            output,
        }
    }
}
