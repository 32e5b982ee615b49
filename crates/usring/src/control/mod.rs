//! What stands beside the processes that use a device: the connection to a
//! back end, which one of them has for all.

pub mod vhost_user;
