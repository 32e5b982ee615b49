//! Parts of the launcher that serve several processes: the one connection to a back end that all
//! processes using a device share.

pub mod vhost_user;
