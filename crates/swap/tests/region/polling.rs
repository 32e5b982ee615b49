//! How threads wait for their pages under the device's polling policies.

use crate::common::{PAGE, region, word};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use usring_sys::processor;

const THREADS: usize = 4;
const PAGES: usize = 128;
const LATENCY: Duration = Duration::from_micros(400);

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec` to `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Polling threads must yield to each other, so that they wait for their pages concurrently. If
/// they waited one after the other, they would spin for the sum of all latencies.
#[test]
fn polling_threads_on_one_processor_wait_for_their_pages_concurrently() {
    let backing = format!("delay(ram:size=4M,read={}us),poll=classic", LATENCY.as_micros());
    let region = region(THREADS * PAGES * PAGE, PAGES / 2 * PAGE, &backing).readahead(0).build().unwrap();
    (0..THREADS * PAGES).for_each(|page| word(&region, page * PAGE).store(1, Ordering::Relaxed));
    let (region, used) = (&region, AtomicU64::new(0));
    let (used, begin) = (&used, Barrier::new(THREADS));
    let begin = &begin;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                processor::stay_on(0);
                begin.wait();
                let before = processor_time();
                for round in 2..=3 {
                    for page in 0..PAGES {
                        let word = word(region, (thread * PAGES + page) * PAGE);
                        assert_eq!(word.fetch_add(1, Ordering::Relaxed) + 1, round);
                    }
                }
                used.fetch_add((processor_time() - before).as_nanos() as u64, Ordering::Relaxed);
            });
        }
    });
    let faults = region.statistics().swap_ins;
    assert!(faults > (THREADS * PAGES) as u64, "{:?}", region.statistics());
    let alone = LATENCY * faults as u32;
    let used = Duration::from_nanos(used.load(Ordering::Relaxed));
    assert!(used < alone / 2, "{used:?} of a processor for {faults} pages, which take {alone:?}");
}

/// If the polling thread yielded for each page, it would wait each time for a time slice of the
/// computing thread, and all pages would be late. Other processes may also make pages late. So only
/// the best of several attempts counts. Less than a quarter of its pages may be late.
#[test]
fn a_polling_thread_yields_only_rarely_to_a_computing_thread() {
    const SHORT: Duration = Duration::from_micros(50);
    const LATE: Duration = Duration::from_millis(1);
    const ATTEMPTS: usize = 5;
    let backing = format!("delay(ram:size=4M,read={}us),poll=classic", SHORT.as_micros());
    let region = region(4 * PAGES * PAGE, 64 * PAGE, &backing).readahead(0).build().unwrap();
    let (region, over) = (&region, AtomicBool::new(false));
    let touch = |page: usize| {
        let start = Instant::now();
        word(region, page * PAGE).fetch_add(1, Ordering::Relaxed);
        start.elapsed() > LATE
    };
    for page in 0..4 * PAGES {
        touch(page);
    }
    let late = std::thread::scope(|scope| {
        let computes = || {
            processor::stay_on(0);
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        scope.spawn(computes);
        let touches = || {
            processor::stay_on(0);
            let late = (0..ATTEMPTS).map(|_| (0..4 * PAGES).filter(|page| touch(*page)).count());
            let least = late.min();
            over.store(true, Ordering::Relaxed);
            least
        };
        scope.spawn(touches).join().unwrap()
    });
    assert!(late.unwrap() < PAGES, "of {} pages at least {late:?} came late", 4 * PAGES);
}
