//! More completions than the completion queue holds.

use crate::ring::IoUring;
use crate::support::*;

#[test]
fn completions_beyond_the_cq_wait_and_keep_their_order() {
    bounded(|| {
        let mut ring = IoUring::new(4).unwrap();
        assert_eq!(ring.completion().capacity(), 8);
        for round in 0..10 {
            submit(&mut ring, &[nop(round * 4), nop(round * 4 + 1), nop(round * 4 + 2), nop(round * 4 + 3)]);
        }
        assert!(ring.submission().cq_overflow());
        assert!(ring.completion().is_full());
        let order: Vec<u64> = collect(&mut ring, 40).iter().map(|done| done.user_data).collect();
        assert!(order.into_iter().eq(0..40));
        assert!(!ring.submission().cq_overflow());
        assert_eq!(ring.completion().overflow(), 0, "nothing was lost");
        assert_eq!(result(&mut ring, nop(99)), 0);
    });
}

#[test]
fn a_submit_moves_the_backlog_into_the_cq_once_there_is_space() {
    bounded(|| {
        let mut ring = IoUring::new(2).unwrap();
        for round in 0..3 {
            submit(&mut ring, &[nop(2 * round), nop(2 * round + 1)]);
        }
        assert_eq!(ring.completion().take(3).count(), 3);
        assert_eq!(ring.submit().unwrap(), 0);
        assert_eq!(ring.completion().map(|entry| entry.user_data()).collect::<Vec<_>>(), [3, 4, 5]);
    });
}

#[test]
fn thousands_of_completions_in_the_backlog_are_not_lost() {
    bounded(|| {
        let mut ring = IoUring::new(64).unwrap();
        let mut seen = vec![false; 10_000];
        for start in (0..10_000).step_by(50) {
            let entries: Vec<_> = (start..start + 50).map(nop).collect();
            submit(&mut ring, &entries);
        }
        for done in collect(&mut ring, 10_000) {
            assert!(!std::mem::replace(&mut seen[done.user_data as usize], true), "{} came twice", done.user_data);
        }
    });
}
