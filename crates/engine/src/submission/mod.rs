//! The submission side: from an entry of the submission queue to an attempt to carry it out. In the
//! order of a request's path: `submit`, `opcode_table` (prepare), `link` and `drain` (hold it
//! back), `issue`.

pub(crate) mod drain;
pub(crate) mod issue;
pub(crate) mod link;
pub(crate) mod opcode_table;
pub(crate) mod submit;
