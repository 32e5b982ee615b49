//! The way down: from an entry of the submission queue to an attempt to carry
//! it out, in the order of the walk: `submit`, `opcode_table` (prepare),
//! `link` and `drain` (hold it back), `issue`.

pub(crate) mod drain;
pub(crate) mod issue;
pub(crate) mod link;
pub(crate) mod opcode_table;
pub(crate) mod submit;
