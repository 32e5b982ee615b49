//! The modules of cases, one file each, named after the engine's.

use crate::case::Case;

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
mod direct_io_workers;
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
mod fork;
mod hostile;
mod iopoll;
mod kinds;
mod limits;
mod link;
mod link_timeout;
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

/// All modules, in the order in which a reader would study them.
pub const ROOMS: &[&[Case]] = &[
    setup::CASES,
    setup_flags::CASES,
    mmap::CASES,
    enter::CASES,
    enter_wait::CASES,
    nop::CASES,
    overflow::CASES,
    read_write::CASES,
    vectored::CASES,
    rw_flags::CASES,
    advice::CASES,
    space::CASES,
    sync::CASES,
    fixed_io::CASES,
    streams::CASES,
    broken_pipe::CASES,
    read_multishot::CASES,
    send_receive::CASES,
    message::CASES,
    wait_all::CASES,
    edges::CASES,
    selected_buffer::CASES,
    receive_multishot::CASES,
    receive_multishot_ends::CASES,
    receive_short::CASES,
    bundle::CASES,
    bundle_attempts::CASES,
    bundle_turns::CASES,
    zero_copy::CASES,
    open_close::CASES,
    pipe::CASES,
    splice::CASES,
    attributes::CASES,
    wait_id::CASES,
    direct::CASES,
    stat::CASES,
    poll::CASES,
    poll_multishot::CASES,
    timeout::CASES,
    timeout_remove::CASES,
    link_timeout::CASES,
    link::CASES,
    drain::CASES,
    skip_success::CASES,
    sync_cancel::CASES,
    cancel::CASES,
    file_life::CASES,
    one_file::CASES,
    registered_files::CASES,
    files_update::CASES,
    registered_buffers::CASES,
    pinned_memory::CASES,
    aio_moved::CASES,
    buffer_group::CASES,
    buffer_ring::CASES,
    eventfd::CASES,
    probe::CASES,
    restrictions::CASES,
    ring_fds::CASES,
    workers::CASES,
    clock::CASES,
    personality::CASES,
    rights::CASES,
    rights_later::CASES,
    sq_thread::CASES,
    iopoll::CASES,
    uring_cmd::CASES,
    task_work::CASES,
    single_issuer::CASES,
    shapes::CASES,
    readiness::CASES,
    descriptor::CASES,
    fork::CASES,
    exec::CASES,
    exit::CASES,
    signals::CASES,
    stress::CASES,
    hostile::CASES,
    kinds::CASES,
    limits::CASES,
    direct_io::CASES,
    direct_io_workers::CASES,
    disk::CASES,
    threads::CASES,
    message_ring::CASES,
    message_file::CASES,
    message_wake::CASES,
    aio_context::CASES,
    aio_submit::CASES,
    aio_events::CASES,
    epoll_wait::CASES,
    socket_command::CASES,
    napi::CASES,
    socket::CASES,
    accept::CASES,
    accept_address::CASES,
    accept_direct::CASES,
    accept_multishot::CASES,
    accept_shared::CASES,
    connect::CASES,
];

/// Results of a request whose worker was interrupted in a blocking call: interrupted, cancelled, or
/// (6.18, some calls) the kernel's internal 512.
const BROKEN_OFF: [i32; 3] = [-libc::EINTR, -libc::ECANCELED, -512];

/// Runs `conformance child NAME`. `None` for an unknown name.
pub fn child(name: &str, arguments: &[&str]) -> Option<u8> {
    exec::child(name, arguments)
}
