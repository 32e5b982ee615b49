//! Acceptance tests: real programs, most of them from Debian, run under usring as their users would
//! start them. The tests check what the programs wrote and printed, how they ended, and what
//! `--stats` counted.
//!
//! Each module runs one program in `World::Denied`. `docker_profile` repeats all of them in a
//! sandbox. `transparency` and `cpython` run programs that do not use io_uring. `memory` measures
//! the cost of rings.

mod cpython;
mod device_files;
mod device_rings;
mod devices;
mod docker_profile;
mod echo;
mod fio;
mod io_uring_crate;
mod libaio;
mod liburing;
mod live;
mod mariadb;
mod memory;
mod node;
mod postgres;
mod preloaded;
mod qemu_img;
mod sanitizers;
mod storage;
mod stress_ng;
mod swap;
mod swap_limits;
mod swap_rings;
mod swap_run;
mod transparency;
mod vhost_user;
mod watch;
