//! A ring inside an event loop of poll(2), like libuv's: the loop watches the ring's descriptor and
//! never waits in the ring.
//!
//! ```text
//! cargo run --example event_loop
//! ```

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use usring::{IoUring, cqueue, opcode, types};

const TICK_USER_DATA: u64 = 1;
const STOP_USER_DATA: u64 = 2;

fn main() -> std::io::Result<()> {
    let started = Instant::now();
    let mut ring = IoUring::new(8)?;
    let (tick, end) =
        (types::Timespec::from(Duration::from_millis(20)), types::Timespec::from(Duration::from_millis(110)));
    let requests = [
        opcode::Timeout::new(&tick).flags(types::TimeoutFlags::MULTISHOT).build().user_data(TICK_USER_DATA),
        opcode::Timeout::new(&end).build().user_data(STOP_USER_DATA),
    ];
    // SAFETY: the timespecs live until the end of `main`.
    unsafe { ring.submission().push_multiple(&requests).expect("a ring of 8 has room for two") };
    ring.submit()?;

    let mut watched = libc::pollfd { fd: ring.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: the array is one `pollfd`, as its count says.
        if unsafe { libc::poll(&mut watched, 1, -1) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
        for completion in ring.completion() {
            let passed = started.elapsed().as_millis();
            match completion.user_data() {
                TICK_USER_DATA => println!("{passed:4} ms: tick, more to come: {}", cqueue::more(completion.flags())),
                _ => {
                    println!("{passed:4} ms: the end");
                    return Ok(());
                }
            }
        }
    }
}
