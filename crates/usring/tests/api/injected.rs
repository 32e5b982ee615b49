//! Rules that a program gives itself ([`usring::inject`]).

use crate::ring::{IoUring, inject, opcode, squeue, types};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

/// Submits a request and returns its result.
fn result_of(ring: &mut IoUring, entry: &squeue::Entry) -> i32 {
    // SAFETY: the callers' requests name no memory, or memory that lives until the completion.
    unsafe { ring.submission().push(entry).unwrap() };
    ring.submit_and_wait(1).unwrap();
    ring.completion().next().unwrap().result()
}

#[test]
fn a_rule_makes_one_fault_in_the_request_that_it_names() {
    let mut ring = IoUring::new(4).unwrap();
    let nop = |user_data| opcode::Nop::new().build().user_data(user_data);
    let before = inject::injected();
    let fault = inject::once("nop:error=EIO:user_data=0xfa017").unwrap();
    assert_eq!(result_of(&mut ring, &nop(1)), 0);
    assert!(!fault.has_fired());
    assert_eq!(result_of(&mut ring, &nop(0xfa017)), -5);
    assert!(fault.has_fired());
    assert!(inject::injected() > before);
    assert_eq!(result_of(&mut ring, &nop(0xfa017)), 0, "only one fault");
}

#[test]
fn a_rule_that_is_dropped_makes_no_fault() {
    let mut ring = IoUring::new(4).unwrap();
    drop(inject::once("nop:error=EIO:user_data=0xd409").unwrap());
    assert_eq!(result_of(&mut ring, &opcode::Nop::new().build().user_data(0xd409)), 0);
}

#[test]
fn a_short_read_is_shown_to_the_program() {
    let mut ring = IoUring::new(4).unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    let mut buffer = [0u8; 4096];
    let fault = inject::once("read:short=10:user_data=0x5407").unwrap();
    let length = buffer.len() as u32;
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), buffer.as_mut_ptr(), length).build().user_data(0x5407);
    assert_eq!(result_of(&mut ring, &read), 10);
    assert!(fault.has_fired());
    assert_eq!(&buffer[..4], b"\x7fELF");
    assert_eq!(&buffer[10..], [0; 4086], "no byte behind the short read");
}

#[test]
fn a_wrong_rule_is_an_error_that_explains_it() {
    let error = inject::once("read:eror=EIO").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("did you mean 'error'?"), "{error}");
    let error = inject::once("call:fsync:error=EIO").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
