//! Runs the programs of the other modules as in a container: as the user `nobody`, with
//! no_new_privs and under Docker's seccomp rules. These rules deny the kernel's io_uring, so the
//! tests do not pass `--deny-kernel`.

use crate::{fio, io_uring_crate, libaio, liburing, mariadb, node, qemu_img, stress_ng};
use workloads::harness::World;

#[test]
fn fio_verifies_its_buffered_writes() {
    fio::every_combination(World::Confined, false);
}

#[test]
fn fio_verifies_its_direct_writes() {
    fio::every_combination(World::Confined, true);
}

#[test]
fn fio_syncs_between_writes() {
    fio::sync_mixes(World::Confined);
}

#[test]
fn fio_runs_several_jobs_at_once() {
    fio::several_jobs(World::Confined);
}

#[test]
fn fio_writes_blocks_of_many_sizes() {
    fio::uneven_blocks(World::Confined);
}

#[test]
fn qemu_reads_writes_and_flushes_an_image() {
    qemu_img::reads(World::Confined);
    qemu_img::writes(World::Confined);
    qemu_img::flushes(World::Confined);
}

#[test]
fn stress_ng_finds_no_fault() {
    stress_ng::stress(World::Confined);
}

#[test]
fn c_programs_on_liburing_get_correct_results() {
    liburing::shared_library(World::Confined);
    liburing::static_library(World::Confined);
}

#[test]
fn no_submitter_makes_direct_transfers_itself() {
    liburing::direct_transfers(World::Confined);
}

#[test]
fn a_program_on_the_io_uring_crate_gets_correct_results() {
    io_uring_crate::program(World::Confined);
}

#[test]
fn node_writes_reads_and_stats_many_files_at_once() {
    node::files(World::Confined);
}

#[test]
fn mariadb_loses_no_committed_row_when_it_is_killed() {
    mariadb::survives_a_kill(World::Confined, mariadb::Interface::IoUring);
}

#[test]
fn programs_on_libaio_get_correct_results() {
    libaio::on_files(World::Confined);
    libaio::qemu(World::Confined);
    libaio::stress(World::Confined);
    mariadb::survives_a_kill(World::Confined, mariadb::Interface::Libaio);
}
