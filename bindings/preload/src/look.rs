//! A server looks for a receipt before it sleeps.

/// How long the server looks for a receipt, in nanoseconds: about as long as the record's way to the backup and back on an idle machine.
const LOOK_MAX: u64 = 100_000;
/// After looks that failed, at most 2 to this power waits sleep at once.
const PAUSE_MAX: u32 = 6;

/// While output is held, the server looks for the receipt for some microseconds before it sleeps, because waking a process of an idle CPU
/// costs each request more than that. On a busy machine receipts come later, and looking takes the CPU from the agents that work on them. So after
/// a look that failed, the server sleeps at once for some waits: 2, 4, 8 and so on.
#[derive(Default)]
pub struct ReceiptLook {
    /// Looks in succession that failed.
    failures: u32,
    /// Waits that sleep at once.
    pause: u32,
    is_under_way: bool,
}

impl ReceiptLook {
    /// The server waits for a receipt.
    pub fn begin(&mut self) {
        self.is_under_way = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
    }

    /// Whether the server, which has waited for `waited` nanoseconds, looks for the receipt once more before it sleeps.
    pub fn goes_on(&mut self, waited: u64) -> bool {
        if self.is_under_way && waited >= LOOK_MAX {
            self.is_under_way = false;
            self.failures = (self.failures + 1).min(PAUSE_MAX);
            self.pause = 1 << self.failures;
        }
        self.is_under_way
    }

    /// The receipt has come.
    pub fn succeed(&mut self) {
        if std::mem::take(&mut self.is_under_way) {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One wait, whose receipt comes after this time. Returns whether the server looked for it.
    fn wait(look: &mut ReceiptLook, receipt: u64) -> bool {
        look.begin();
        let looks = look.goes_on(0);
        if look.goes_on(receipt) {
            look.succeed();
        }
        looks
    }

    #[test]
    fn a_server_whose_receipts_come_late_sleeps_at_once_more_and_more_often() {
        let mut look = ReceiptLook::default();
        let mut looks = |receipt: u64, waits: usize| (0..waits).filter(|_| wait(&mut look, receipt)).count();
        assert_eq!(looks(LOOK_MAX / 2, 1000), 1000, "all succeed");
        assert_eq!(looks(LOOK_MAX, 1 + 2 + 1 + 4 + 1 + 8), 3);
        let seldom = looks(LOOK_MAX, 65 * 10);
        assert!((9..=13).contains(&seldom), "{seldom}");
        assert!(looks(LOOK_MAX / 2, 1000) > 900, "receipts come early again");
    }
}
