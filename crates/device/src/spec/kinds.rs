//! The kinds of devices and wrappers that a text may name. A new one is a line
//! here and a `KIND` in its own file.

use super::Kind;
use crate::driver::{null, ram, vhost_user};

/// Devices and wrappers. No option of a device has the name of one of a wrapper,
/// and none is called `poll`.
pub static KINDS: &[&Kind] = &[&null::KIND, &ram::KIND, &vhost_user::KIND];

/// The kind of this name.
pub fn find(name: &str) -> Option<&'static Kind> {
    KINDS.iter().copied().find(|kind| kind.name == name)
}
