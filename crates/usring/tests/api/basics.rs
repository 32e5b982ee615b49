//! Making a ring, pushing and submitting requests, and the types of entries.

use crate::ring::{IoUring, Probe, cqueue, opcode, squeue};
use crate::support::*;

#[test]
fn each_nop_completes_once_with_its_user_data() {
    bounded(|| {
        const BATCH: u64 = 32;
        const ROUNDS: u64 = 4_000;
        let mut ring = IoUring::new(BATCH as u32).unwrap();
        for round in 0..ROUNDS {
            let entries: Vec<_> = (0..BATCH).map(|index| nop(round * BATCH + index)).collect();
            push(&mut ring, &entries);
            assert_eq!(ring.submit_and_wait(BATCH as usize).unwrap(), BATCH as usize);
            let mut seen: Vec<u64> = ring.completion().map(|entry| entry.user_data()).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(round * BATCH..(round + 1) * BATCH));
        }
    });
}

#[test]
fn sizes_are_rounded_and_reported() {
    bounded(|| {
        let ring = IoUring::new(5).unwrap();
        assert_eq!((ring.params().sq_entries(), ring.params().cq_entries()), (8, 16));
        let ring: IoUring = IoUring::builder().setup_cqsize(100).build(3).unwrap();
        assert_eq!((ring.params().sq_entries(), ring.params().cq_entries()), (4, 128));
        let ring: IoUring = IoUring::builder().setup_clamp().build(1 << 20).unwrap();
        assert_eq!((ring.params().sq_entries(), ring.params().cq_entries()), (32_768, 65_536));
    });
}

#[track_caller]
fn refuses(builder: &crate::ring::Builder, entries: u32) {
    match builder.build(entries) {
        Ok(_) => panic!("should be refused"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL)),
    }
}

#[test]
fn invalid_and_contradictory_setup_options_are_refused() {
    bounded(|| {
        refuses(&IoUring::builder(), 0);
        refuses(&IoUring::builder(), 32_769);
        refuses(IoUring::builder().setup_cqsize(0), 1);
        refuses(IoUring::builder().setup_cqsize(4), 8);
        refuses(IoUring::builder().setup_defer_taskrun(), 8);
        refuses(IoUring::builder().setup_taskrun_flag(), 8);
        refuses(IoUring::builder().setup_sqpoll_cpu(0), 8);
        refuses(IoUring::builder().setup_sqpoll(1).setup_coop_taskrun(), 8);
        refuses(IoUring::builder().setup_sqpoll(1).setup_single_issuer().setup_defer_taskrun(), 8);
    });
}

#[test]
fn a_full_sq_refuses_entries_until_it_is_submitted() {
    bounded(|| {
        let mut ring = IoUring::new(4).unwrap();
        push(&mut ring, &[nop(0), nop(1), nop(2)]);
        // SAFETY: NOPs name no memory.
        let refused = unsafe { ring.submission().push_multiple(&[nop(3), nop(4)]) };
        assert!(refused.is_err(), "there is no room for both, so none is pushed");
        assert_eq!(ring.submission().len(), 3);
        push(&mut ring, &[nop(3)]);
        assert!(ring.submission().is_full());
        // SAFETY: a NOP names no memory.
        assert!(unsafe { ring.submission().push(&nop(4)) }.is_err());
        assert_eq!(ring.submit().unwrap(), 4);
        assert!(ring.submission().is_empty());
        assert_eq!(collect(&mut ring, 4).len(), 4);
    });
}

#[test]
fn entries_that_are_not_synced_are_not_submitted() {
    bounded(|| {
        let mut ring = IoUring::new(4).unwrap();
        let (submitter, mut submission, mut completion) = ring.split();
        // SAFETY: a NOP names no memory.
        unsafe { submission.push(&nop(7)).unwrap() };
        assert_eq!(submitter.submit().unwrap(), 0);
        submission.sync();
        assert_eq!(submitter.submit().unwrap(), 1);
        completion.sync();
        assert_eq!(completion.next().map(|entry| entry.user_data()), Some(7));
        assert!(completion.next().is_none());
    });
}

/// Returns an entry with an opcode that neither usring nor any kernel has.
fn unknown(user_data: u64) -> squeue::Entry {
    let mut entry = nop(user_data);
    // SAFETY: an entry is a `struct io_uring_sqe`, which starts with the opcode.
    unsafe { (&raw mut entry).cast::<u8>().write(0xfe) };
    entry
}

#[test]
fn a_refused_request_ends_its_batch() {
    bounded(|| {
        let mut ring = IoUring::new(4).unwrap();
        push(&mut ring, &[nop(1), unknown(2), nop(3)]);
        assert_eq!(ring.submit().unwrap(), 2);
        let results: Vec<_> = collect(&mut ring, 2).iter().map(|done| (done.user_data, done.result)).collect();
        assert_eq!(results, [(1, 0), (2, negative(libc::EINVAL))]);
        assert_eq!(ring.submission().len(), 1, "the third still waits");
        assert_eq!(ring.submit().unwrap(), 1);
        assert_eq!(collect(&mut ring, 1)[0].user_data, 3);
    });
}

#[test]
fn with_submit_all_a_refused_request_does_not_end_its_batch() {
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_submit_all().build(4).unwrap();
        push(&mut ring, &[nop(1), unknown(2), nop(3)]);
        assert_eq!(ring.submit().unwrap(), 3);
        assert_eq!(collect(&mut ring, 3).iter().filter(|done| done.result == 0).count(), 2);
    });
}

#[test]
fn wide_entries_work() {
    bounded(|| {
        let mut ring = IoUring::<squeue::Entry128, cqueue::Entry32>::builder().build(4).unwrap();
        for user_data in 0..10 {
            let entry = squeue::Entry128::from(nop(user_data));
            // SAFETY: a NOP names no memory.
            unsafe { ring.submission().push(&entry).unwrap() };
            ring.submit_and_wait(1).unwrap();
            let done = ring.completion().next().unwrap();
            assert_eq!((done.user_data(), done.result(), done.big_cqe()), (user_data, 0, &[0, 0]));
        }
    });
}

#[test]
fn a_ring_without_an_index_array_works() {
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_no_sqarray().build(4).unwrap();
        for round in 0..5 {
            let done = run(&mut ring, &[nop(round), nop(round + 100), nop(round + 200)]);
            assert_eq!(done.iter().map(|done| done.user_data).collect::<Vec<_>>(), [round, round + 100, round + 200]);
        }
    });
}

#[test]
fn fill_returns_as_many_cqes_as_fit_into_the_slice() {
    bounded(|| {
        let mut ring = IoUring::new(8).unwrap();
        submit(&mut ring, &[nop(1), nop(2), nop(3)]);
        let mut slots = [const { std::mem::MaybeUninit::uninit() }; 2];
        let mut completion = ring.completion();
        assert_eq!(completion.len(), 3);
        assert_eq!(completion.fill(&mut slots).len(), 2);
        assert_eq!(completion.fill(&mut slots).len(), 1);
        assert!(completion.fill(&mut slots).is_empty());
    });
}

#[test]
fn probe_reports_the_supported_opcodes() {
    bounded(|| {
        let ring = IoUring::new(1).unwrap();
        let mut probe = Probe::new();
        assert!(!probe.is_supported(opcode::Nop::CODE), "the probe is not filled in yet");
        ring.submitter().register_probe(&mut probe).unwrap();
        let families = [
            opcode::Nop::CODE,
            opcode::Read::CODE,
            opcode::Writev::CODE,
            opcode::WriteFixed::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::OpenAt2::CODE,
            opcode::Close::CODE,
            opcode::Statx::CODE,
            opcode::PollAdd::CODE,
            opcode::Timeout::CODE,
            opcode::LinkTimeout::CODE,
            opcode::AsyncCancel::CODE,
            opcode::FilesUpdate::CODE,
            opcode::ProvideBuffers::CODE,
        ];
        assert!(families.iter().all(|&opcode| probe.is_supported(opcode)), "{probe:?}");
        assert!(!probe.is_supported(0xfe));
    });
}

#[test]
fn a_thousand_rings_live_side_by_side() {
    bounded(|| {
        take_all_descriptors();
        let mut rings: Vec<IoUring> = (0..1000).map(|_| IoUring::new(8).unwrap()).collect();
        for (index, ring) in rings.iter_mut().enumerate() {
            assert_eq!(run(ring, &[nop(index as u64)])[0].user_data, index as u64);
        }
    });
}

#[test]
fn a_disabled_ring_refuses_submission_until_it_is_enabled() {
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_r_disabled().build(4).unwrap();
        push(&mut ring, &[nop(1)]);
        assert_eq!(ring.submit().unwrap_err().raw_os_error(), Some(libc::EBADFD));
        ring.submitter().register_enable_rings().unwrap();
        assert_eq!(ring.submitter().register_enable_rings().unwrap_err().raw_os_error(), Some(libc::EBADFD));
        assert_eq!(ring.submit().unwrap(), 1);
        assert_eq!(collect(&mut ring, 1)[0].user_data, 1);
    });
}

#[test]
fn restrictions_hold_once_the_ring_is_enabled() {
    use crate::ring::register::Restriction;
    bounded(|| {
        let mut ring: IoUring = IoUring::builder().setup_r_disabled().build(4).unwrap();
        let enable = 12;
        let mut allowed = [
            Restriction::register_op(enable),
            Restriction::sqe_op(opcode::Nop::CODE),
            Restriction::sqe_flags_allowed(squeue::Flags::IO_LINK.bits()),
        ];
        ring.submitter().register_restrictions(&mut allowed).unwrap();
        ring.submitter().register_enable_rings().unwrap();
        let mut byte = [0];
        let forbidden = read(&std::io::stdin(), &mut byte).user_data(2);
        assert_eq!(result(&mut ring, nop(1)), 0);
        assert_eq!(result(&mut ring, forbidden), negative(libc::EACCES));
        assert_eq!(result(&mut ring, nop(3).flags(squeue::Flags::IO_DRAIN)), negative(libc::EACCES));
        assert_eq!(ring.submitter().register_personality().unwrap_err().raw_os_error(), Some(libc::EACCES));
    });
}
