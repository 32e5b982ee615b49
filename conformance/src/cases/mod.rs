//! The modules of the conformance cases. Each module except `reg` is a group of cases, and has the
//! name of an operation, a system call or a behaviour.

mod accept;
mod accept_address;
mod accept_direct;
mod accept_multishot;
mod accept_shared;
mod advice;
mod aio_context;
mod aio_events;
mod aio_moved;
mod aio_submit;
mod attributes;
mod broken_pipe;
mod buffer_group;
mod buffer_ring;
mod bundle;
mod bundle_attempts;
mod bundle_turns;
mod cancel;
mod clock;
mod connect;
mod descriptor;
mod direct;
mod direct_io;
mod disk;
mod drain;
mod edges;
mod enter;
mod enter_wait;
mod epoll_wait;
mod eventfd;
mod exec;
mod exit;
mod file_life;
mod files_update;
mod fixed_io;
mod forced;
mod fork;
mod hostile;
mod inherited;
mod inherited_cancel;
mod inherited_chain;
mod inherited_close;
mod inherited_death;
mod inherited_drain;
mod inherited_exec;
mod inherited_flags;
mod inherited_memory;
mod inherited_multishot;
mod inherited_overflow;
mod inherited_register;
mod inherited_sq_thread;
mod inherited_wait;
mod iopoll;
mod kinds;
mod limits;
mod link;
mod link_timeout;
mod link_wakes;
mod message;
mod message_file;
mod message_ring;
mod message_wake;
mod mmap;
mod napi;
mod nop;
mod one_file;
mod open_close;
mod overflow;
mod personality;
mod pinned_memory;
mod pipe;
mod poll;
mod poll_multishot;
mod probe;
mod read_multishot;
mod read_write;
mod readiness;
mod receive_multishot;
mod receive_multishot_ends;
mod receive_short;
pub mod reg;
mod registered_buffers;
mod registered_files;
mod restrictions;
mod rights;
mod rights_later;
mod ring_fds;
mod rw_flags;
mod selected_buffer;
mod send_receive;
mod setup;
mod setup_flags;
mod shapes;
mod signals;
mod single_issuer;
mod skip_success;
mod socket;
mod socket_command;
mod space;
mod splice;
mod sq_thread;
mod stat;
mod streams;
mod stress;
mod sync;
mod sync_cancel;
mod task_work;
mod threads;
mod timeout;
mod timeout_remove;
mod uring_cmd;
mod vectored;
mod wait_all;
mod wait_id;
mod workers;
mod zero_copy;

/// Results of a request whose blocking call was interrupted in a worker: EINTR or ECANCELED. For
/// some calls, the result on Linux 6.18 is 512 (ERESTARTSYS, an errno for use inside the kernel).
const INTERRUPTED_RESULTS: [i32; 3] = [-libc::EINTR, -libc::ECANCELED, -512];

/// Executes the task `name` of a case, in an executed program (`conformance child NAME`). Returns
/// the program's exit status. Returns `None` if the name is unknown, an argument is missing, or no
/// ring can be made.
pub fn child(name: &str, arguments: &[&str]) -> Option<u8> {
    exec::child(name, arguments)
}
