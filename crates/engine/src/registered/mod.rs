//! Files, buffers and settings that a program registers with a ring ahead of its requests.

pub(crate) mod buffer_group;
pub(crate) mod napi;
pub(crate) mod program_files;
pub(crate) mod registered_buffers;
pub(crate) mod registered_files;
pub(crate) mod restrictions;
