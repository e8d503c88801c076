//! The last roles that a node had in one service.

use std::collections::VecDeque;

use super::Role;
use crate::Instant;

/// Maximum number of roles that are remembered.
const ROLES_MAX: usize = 16;

/// A role that a node took, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleSince {
    /// When.
    pub at: Instant,
    /// The role.
    pub role: Role,
    /// Its epoch.
    pub epoch: u64,
}

/// The last [`ROLES_MAX`] roles, the present one last.
#[derive(Debug, Default)]
pub(crate) struct RoleHistory(VecDeque<RoleSince>);

impl RoleHistory {
    /// This node has taken a role.
    pub(crate) fn push(&mut self, role: RoleSince) {
        if self.0.len() == ROLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(role);
    }

    /// The role before the present one.
    pub(crate) fn before(&self) -> Option<&RoleSince> {
        self.0.iter().rev().nth(1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RoleSince> {
        self.0.iter()
    }
}
