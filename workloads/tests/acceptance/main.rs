//! Real programs, most of them from Debian, driven through usring as their
//! users would start them, and looked at from outside: what they wrote, what
//! they said, how they ended, what `--stats` counted.
//!
//! Each room drives one program through `World::Denied`; `docker_profile` does
//! all of it again in a sandbox. `transparency` and `cpython` are about programs
//! that know nothing of io_uring, `memory` about what rings cost.

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
mod mariadb;
mod memory;
mod node;
mod qemu_img;
mod sanitizers;
mod stress_ng;
mod swap;
mod swap_limits;
mod swap_rings;
mod swap_run;
mod transparency;
mod vhost_user;
